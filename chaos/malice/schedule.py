"""What happens in a schedule of the malice level, drawn from the seed before anything runs."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from chaos.backends import Place, draw_late_snapshots, fault_points_of
from chaos.plain.schedule import Life, Schedule, draw_settings, happens
from chaos.servers import NO_SERVER
from statekeep.fault_points import FAULT_POINTS
from statekeep.testing.faults import Action, ArmedFault

_RECORDS: Final = (12, 40)
_RECORDS_ON_SERVERS: Final = (5, 16)
"""There a commit takes most of a second."""
_OTHERS_RECORDS: Final = 4
KEYS: Final = "2026-11 AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n"


@dataclass(frozen=True, slots=True)
class Round:
    """One life of the job, and what is done to it."""

    life: Life
    """Sleeps where the attacker strikes while it runs, at its fault of `Action.STOP`."""
    strikes_while_down: int
    """Before it starts."""
    is_disk_wiped: bool
    """Before it starts."""


@dataclass(frozen=True, slots=True)
class MaliceSchedule:
    """A job and what is done to it.

    Attributes:
        job: What it counts, and its settings.
        other: Another job in the same places, with the same names of tasks and stores.
        is_encrypted: Whether its blobs are, and its log authenticated.
    """

    job: Schedule
    other: Schedule
    rounds: Sequence[Round]
    is_encrypted: bool


def draw_malice(seed: int, places: Sequence[Place], directory: Path) -> MaliceSchedule:
    """Draw a schedule; equal arguments give equal schedules."""
    draw = random.Random(f"malice-{seed}")  # noqa: S311 - the same schedule each time
    is_remote = any(place.server is not NO_SERVER for place in places)
    records = draw.randrange(*(_RECORDS_ON_SERVERS if is_remote else _RECORDS))
    ends = sorted(draw.randrange(1, records + 1) for _ in range(draw.randrange(2, 5)))
    points = (*FAULT_POINTS, *fault_points_of([place.kind for place in places]))
    is_encrypted = any(place.has_blobs for place in places) and happens(draw, 0.5)
    job = Schedule(
        seed=seed,
        tasks=[f"Partition {number}" for number in range(draw.randrange(1, 4))],
        stores={
            name: draw.choice(("rocksdb", "rocksdb", "memory"))
            for name in ("sums", "counts", "page_views")[: draw.randrange(1, 4)]
        },
        records=records,
        is_eager=happens(draw, 0.3),
        settings={
            **draw_settings(draw),
            **draw_late_snapshots(seed),
            **(_encryption(directory) if is_encrypted else {}),
            # A commit that hangs is told from a slow one by `_draw_round`'s lives alone.
            "task.commit.timeout.ms": "10000",
            "task.shutdown.ms": "5000",
        },
        optional="",
        victim="",
        steps=(),
    )
    return MaliceSchedule(
        job=job,
        other=replace(job, seed=-seed, records=_OTHERS_RECORDS, is_eager=True),
        rounds=[_draw_round(draw, number, end, points) for number, end in enumerate(ends, 1)],
        is_encrypted=is_encrypted,
    )


def plain(schedule: Schedule) -> Schedule:
    """Return the same job without encryption."""
    settings = {k: v for k, v in schedule.settings.items() if "encryption" not in k}
    return replace(schedule, settings=settings, records=_OTHERS_RECORDS, is_eager=True)


def _draw_round(draw: random.Random, number: int, until: int, points: Sequence[str]) -> Round:
    faults = [
        ArmedFault(
            name=f"life-{number}-strike-{each}",
            point=draw.choice(points),
            action=Action.STOP,
            nth=draw.choice((1, 1, 2, 3)),
        )
        for each in range(draw.choice((0, 1, 1, 2)))
    ]
    if happens(draw, 0.3):
        crash = ArmedFault(
            name=f"life-{number}-crash",
            point=draw.choice(points),
            action=Action.CRASH,
            nth=draw.choice((1, 2, 3)),
        )
        faults.append(crash)
    return Round(
        life=Life(name=f"life-{number}", until=until, faults=faults, is_calm=happens(draw, 0.3)),
        # The first life finds nothing yet.
        strikes_while_down=draw.choice((0, 1, 1, 2, 3)) if number > 1 else 0,
        is_disk_wiped=happens(draw, 0.5),
    )


def _encryption(directory: Path) -> Mapping[str, str]:
    return {
        "blob.store.encryption": "aes-256-gcm",
        "blob.store.encryption.keys": f"file:{directory / 'keys'}",
    }
