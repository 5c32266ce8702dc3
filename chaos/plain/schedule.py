"""What happens in a schedule, all of it drawn from the seed before anything runs."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.backends import Place
from chaos.plain.weather import Weather
from statekeep.fault_points import FAULT_POINTS
from statekeep.testing.faults import Action, ArmedFault

RECOVERY_POINTS: Final = tuple(
    p for p in FAULT_POINTS if p.startswith(("take_over", "restore", "adopt"))
)
_DAYS: Final = (-1, 1, 400)


@dataclass(frozen=True, slots=True)
class Life:
    """One process of the job, from its start to its end."""

    name: str
    until: int
    """It ends after the record of this number, unless something ends it before."""
    faults: Sequence[ArmedFault] = ()
    weather: Mapping[str, Weather] = field(default_factory=dict[str, Weather])
    """By backend."""
    clock_days: int = 0
    """How far its wall clock is off."""
    kill_after_ms: int | None = None
    """SIGKILL from outside, so long after its start."""
    file_limit_bytes: int | None = None
    """No file may grow beyond it: the disk is full, as the operating system says it."""
    local: str = "local"
    """Name of its local disk."""
    restore_from: str = ""
    """The one backend that it restores from; empty: as the job is configured."""
    is_calm: bool = False
    """Commits in the end and waits for the clean-up: nothing is put in its way."""


@dataclass(frozen=True, slots=True)
class Step:
    """What happens between two moments at which nothing runs."""

    lives: Sequence[Life]
    """Processes of the one job that run at the same time."""
    is_disk_wiped: bool = False
    """Before they start."""
    is_disk_damaged: bool = False
    """Before they start: a file of a sealed version has rotted."""
    wakes: str = ""
    """When processes that sleep are woken: ``with`` the lives, ``after`` them; empty: not yet."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One run of the job through its disasters."""

    seed: int
    tasks: Sequence[str]
    stores: Mapping[str, str]
    """Engine of each store."""
    records: int
    """Of each task."""
    settings: Mapping[str, str]
    """Of the job, besides its places."""
    optional: str
    """The backend that is optional, if any."""
    victim: str
    """The one backend whose blobs may be damaged."""
    steps: Sequence[Step]


def draw_schedule(seed: int, places: Sequence[Place], directory: Path) -> Schedule:
    """Draw a schedule; equal arguments give equal schedules."""
    draw = random.Random(seed)  # noqa: S311 - the same schedule each time
    victim = draw.choice(places).name
    records = draw.randrange(12, 40)
    count = draw.randrange(1, 5)
    ends = sorted(draw.randrange(1, records + 1) for _ in range(count))
    steps = [
        _draw_step(draw, number, end, places, directory / victim)
        for number, end in enumerate(ends, 1)
    ]
    return Schedule(
        seed=seed,
        tasks=[f"Partition {number}" for number in range(draw.randrange(1, 4))],
        stores={
            name: draw.choice(("rocksdb", "rocksdb", "memory"))
            for name in ("sums", "counts", "page_views")[: draw.randrange(1, 4)]
        },
        records=records,
        settings=_draw_settings(draw),
        optional=draw.choice(places[1:]).name if places[1:] and _happens(draw, 0.15) else "",
        victim=victim,
        steps=steps,
    )


def _draw_settings(draw: random.Random) -> Mapping[str, str]:
    return {
        "task.commit.ms": draw.choice(("0", "3", "20")),
        "task.commit.max.delay.ms": draw.choice(("0", "10", "1000")),
        "task.commit.timeout.ms": draw.choice(("20", "2000", "2000")),
        "task.commit.skip.commit.during.failures.enabled": draw.choice(("true", "false")),
        "task.shutdown.ms": draw.choice(("0", "2000", "2000")),
        "checkpoint.retain.commits": draw.choice(("2", "2", "3")),
        "checkpoint.local.retain.versions": draw.choice(("1", "2")),
        "blob.store.retry.policy.max.retries": "4",
        "blob.store.retry.policy.backoff.delay.millis": "1",
        "blob.store.retry.policy.backoff.max.delay.millis": "8",
    }


def _draw_step(
    draw: random.Random, number: int, until: int, places: Sequence[Place], victim: Path
) -> Step:
    lives = [_draw_life(draw, f"life-{number}", until, places, victim)]
    if _happens(draw, 0.2):
        rival = _draw_life(draw, f"rival-{number}", until, places, victim, is_rival=True)
        lives.append(rival)
    is_restoring = any(
        f.point.startswith(("restore", "adopt")) for life in lives for f in life.faults
    )
    return Step(
        lives=lives,
        is_disk_wiped=_happens(draw, 0.8 if is_restoring else 0.25),
        is_disk_damaged=_happens(draw, 0.15),
        wakes=draw.choice(("", "with", "with", "after")),
    )


def _draw_life(
    draw: random.Random,
    name: str,
    until: int,
    places: Sequence[Place],
    victim: Path,
    *,
    is_rival: bool = False,
) -> Life:
    faults = [
        _draw_fault(draw, f"{name}-fault-{number}", victim)
        for number in range(draw.choice((0, 1, 1, 2, 2, 3)))
    ]
    weather = {place.name: draw.choice([*Weather][1:]) for place in places if _happens(draw, 0.2)}
    return Life(
        name=name,
        until=until,
        faults=faults,
        weather=weather,
        clock_days=draw.choice(_DAYS) if _happens(draw, 0.25) else 0,
        kill_after_ms=draw.randrange(5, 250) if _happens(draw, 0.15) else None,
        file_limit_bytes=draw.randrange(200, 9000) if _happens(draw, 0.08) else None,
        local=draw.choice(("local", "local-2")) if is_rival else "local",
    )


def _draw_fault(draw: random.Random, name: str, victim: Path) -> ArmedFault:
    point = draw.choice(RECOVERY_POINTS if _happens(draw, 0.2) else FAULT_POINTS)
    action = draw.choice(
        (Action.CRASH, Action.CRASH, Action.STOP, Action.FAIL, Action.DELAY, Action.CORRUPT)
    )
    return ArmedFault(
        name=name,
        point=point,
        action=action,
        nth=1 if point in RECOVERY_POINTS else draw.choice((1, 1, 2, 3, 5)),
        repeats=draw.choice((1, 1, 3)) if action is not Action.STOP else 1,
        error=draw.choice(("retriable", "ENOSPC", "EIO")),
        seconds=draw.random() / 20,
        path=str(victim / "chaos" / "state-*" / "**" / "*"),
        is_truncated=_happens(draw, 0.5),
    )


def _happens(draw: random.Random, chance: float) -> bool:
    return draw.random() < chance
