"""What happens in a schedule, all of it drawn from the seed before anything runs."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from chaos.backends import Place, draw_late_snapshots, fault_points_of
from chaos.fault_profile import FaultProfile
from chaos.plain.fault_profile import PROFILES
from chaos.plain.records import LargeValue
from chaos.servers import NO_SERVER
from statekeep.fault_points import FAULT_POINTS
from statekeep.testing.faults import Action, ArmedFault

RECOVERY_POINTS: Final = tuple(
    p for p in FAULT_POINTS if p.startswith(("take_over", "restore", "adopt"))
)
_RARE: Final = ("trim.before", "trim.after_floor")
_AFTER_MANY: Final = ("trim", "release", "clean_up")
"""Points that a task reaches after a number of commits."""
_DAYS: Final = (-1, 1, 400)
_LATEST_MS: Final = 250
"""When something from outside strikes a life whose places are local: it is over in a second."""
_LATEST_ON_SERVERS_MS: Final = 5_000
"""The same where a commit takes most of a second: else only its start would be struck."""
_LARGE_BYTES: Final = (8 << 20, 12 << 20)
"""Two parts or three, as S3 has at least 5 MiB in each."""


@dataclass(frozen=True, slots=True)
class Life:
    """One process of the job, from its start to its end."""

    name: str
    until: int
    """It ends after the record of this number, unless something ends it before."""
    faults: Sequence[ArmedFault] = ()
    profile: Mapping[str, FaultProfile] = field(default_factory=dict[str, FaultProfile])
    """By backend."""
    clock_days: int = 0
    """How far its wall clock is off."""
    kill_after_ms: int | None = None
    """SIGKILL from outside, so long after its start."""
    server_fails_after_ms: int | None = None
    """The server of a place, if one has any, dies so long after the start, and is started again."""
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
    is_eager: bool
    """Commits after each record, so often that the log is trimmed."""
    settings: Mapping[str, str]
    """Of the job, besides its places."""
    optional: str
    """The backend that is optional, if any."""
    victim: str
    """The one backend whose blobs may be damaged."""
    steps: Sequence[Step]
    large: LargeValue | None = None
    """Written beside all else, where a place moves it in parts."""


def draw_schedule(seed: int, places: Sequence[Place], directory: Path) -> Schedule:
    """Draw a schedule; equal arguments give equal schedules."""
    draw = random.Random(seed)  # noqa: S311 - the same schedule each time
    is_eager = happens(draw, 0.15)
    damageable = [place for place in places if place.is_damageable]
    victim = draw.choice(damageable).name if damageable else ""
    records = draw.randrange(40, 80) if is_eager else draw.randrange(12, 40)
    count = draw.randrange(1, 5)
    ends = sorted(draw.randrange(1, records + 1) for _ in range(count))
    lives = _Lives(draw, places, directory / victim if victim else None, is_eager=is_eager)
    schedule = Schedule(
        seed=seed,
        steps=[_draw_step(draw, lives, number, end) for number, end in enumerate(ends, 1)],
        tasks=[f"Partition {number}" for number in range(draw.randrange(1, 4))],
        stores={
            name: draw.choice(("rocksdb", "rocksdb", "memory"))
            for name in ("sums", "counts", "page_views")[: draw.randrange(1, 4)]
        },
        records=records,
        is_eager=is_eager,
        settings={**draw_settings(draw), **draw_late_snapshots(seed)},
        optional=draw.choice(places[1:]).name if places[1:] and happens(draw, 0.15) else "",
        victim=victim,
    )
    return _with_large_value(schedule, places)


def _with_large_value(schedule: Schedule, places: Sequence[Place]) -> Schedule:
    """Return some of the schedules with a value that S3 moves in parts, up and down.

    By a generator of its own: the rest of a seed's schedule stays as it was before.
    """
    seed = f"large-value-{schedule.seed}"
    draw = random.Random(seed)  # noqa: S311 - replayable, not secret
    if not happens(draw, 0.25) or all(place.kind != "blob-s3" for place in places):
        return schedule
    large = LargeValue(
        task=draw.choice(schedule.tasks),
        number=draw.randrange(schedule.records),
        store=draw.choice(list(schedule.stores)),
        size=draw.randrange(*_LARGE_BYTES),
        seed=seed,
    )
    settings = {**schedule.settings, "blob.store.part.bytes": "1MiB"}
    return replace(schedule, large=large, settings=settings)


def draw_settings(draw: random.Random) -> Mapping[str, str]:
    """Draw the settings of a job, besides its places."""
    return {
        "task.commit.ms": draw.choice(("0", "3", "20")),
        "task.commit.max.delay.ms": draw.choice(("0", "10", "1000")),
        "task.commit.timeout.ms": draw.choice(("20", "2000", "2000")),
        "task.commit.skip.commit.during.failures.enabled": draw.choice(("true", "false")),
        "task.shutdown.ms": draw.choice(("0", "2000", "2000")),
        "checkpoint.retain.commits": draw.choice(("2", "2", "3")),
        "checkpoint.clean.up.ms": "0",
        "checkpoint.local.retain.versions": draw.choice(("1", "2")),
        "blob.store.retry.policy.max.retries": "4",
        "blob.store.retry.policy.backoff.delay.millis": "1",
        "blob.store.retry.policy.backoff.max.delay.millis": "8",
    }


def _draw_step(draw: random.Random, lives: "_Lives", number: int, until: int) -> Step:
    drawn = [lives.draw(f"life-{number}", until)]
    if happens(draw, 0.2):
        drawn.append(lives.draw(f"rival-{number}", until, is_rival=True))
    is_restoring = any(
        f.point.startswith(("restore", "adopt")) for life in drawn for f in life.faults
    )
    return Step(
        lives=drawn,
        is_disk_wiped=happens(draw, 0.8 if is_restoring else 0.25),
        is_disk_damaged=happens(draw, 0.15),
        wakes=draw.choice(("", "with", "with", "after")),
    )


class _Lives:
    """Draws the lives of one schedule."""

    def __init__(
        self,
        draw: random.Random,
        places: Sequence[Place],
        victim: Path | None,
        *,
        is_eager: bool,
    ) -> None:
        """Take what lives depend on; ``victim`` is where blobs may be damaged, if anywhere."""
        self._draw = draw
        self._places = places
        self._victim = victim
        # What only an eager job reaches is struck at more often there.
        after_many = tuple(p for p in FAULT_POINTS if p.startswith(_AFTER_MANY))
        self._points = (
            *FAULT_POINTS,
            *(after_many * 3 if is_eager else ()),
            *fault_points_of([place.kind for place in places]),
        )

    def draw(self, name: str, until: int, *, is_rival: bool = False) -> Life:
        """Draw one life."""
        draw = self._draw
        faults = [
            self._draw_fault(f"{name}-fault-{number}")
            for number in range(draw.choice((0, 1, 1, 2, 2, 3)))
        ]
        profile = {
            place.name: draw.choice(PROFILES[place.kind])
            for place in self._places
            if place.kind in PROFILES and happens(draw, 0.2)
        }
        latest_ms = _LATEST_MS
        if any(place.server is not NO_SERVER for place in self._places):
            latest_ms = draw.choice((_LATEST_MS, _LATEST_ON_SERVERS_MS))
        return Life(
            name=name,
            until=until,
            faults=faults,
            profile=profile,
            clock_days=draw.choice(_DAYS) if happens(draw, 0.25) else 0,
            kill_after_ms=draw.randrange(5, latest_ms) if happens(draw, 0.15) else None,
            server_fails_after_ms=draw.randrange(5, latest_ms) if happens(draw, 0.15) else None,
            file_limit_bytes=draw.randrange(200, 9000) if happens(draw, 0.08) else None,
            local=draw.choice(("local", "local-2")) if is_rival else "local",
        )

    def _draw_fault(self, name: str) -> ArmedFault:
        draw = self._draw
        point = draw.choice(RECOVERY_POINTS if happens(draw, 0.2) else self._points)
        action = draw.choice(
            (Action.CRASH, Action.CRASH, Action.STOP, Action.FAIL, Action.DELAY, Action.CORRUPT)
        )
        if action is Action.CORRUPT and self._victim is None:
            action = Action.FAIL
        return ArmedFault(
            name=name,
            point=point,
            action=action,
            nth=1 if point in RECOVERY_POINTS or point in _RARE else draw.choice((1, 1, 2, 3, 5)),
            repeats=draw.choice((1, 1, 3)) if action is not Action.STOP else 1,
            error=draw.choice(("retriable", "ENOSPC", "EIO")),
            seconds=draw.random() / 20,
            path=str((self._victim or Path("/nowhere")) / "chaos" / "state-*" / "**" / "*"),
            is_truncated=happens(draw, 0.5),
        )


def happens(draw: random.Random, chance: float) -> bool:
    """Draw whether something of some chance happens."""
    return draw.random() < chance
