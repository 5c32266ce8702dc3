"""Draws a schedule from its seed: what job runs, what strikes it, and what follows."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from statekeep.testing.faults.process_plan import Action, ArmedFault, ProcessKind


class Consequence(StrEnum):
    """What the harness does when a process has stopped itself at a fault point."""

    NONE = "none"
    """Nothing: the fault does all by itself."""
    EXECUTOR = "executor.killed"
    """SIGKILL to the executor's JVM and its Python workers, not to its container."""
    HOST = "host.killed"
    """The same with its container, and some tasks' local directories deleted."""
    DRIVER = "driver.killed"
    """SIGKILL to the driver's Python and JVM; executors and containers find out by themselves."""
    GROUP = "group.killed"
    """SIGKILL to every process of the application, containers included."""
    ZOMBIE_DRIVER = "driver.woken"
    """The driver stays stopped while a successor ends the job, and is woken then."""
    ZOMBIE_CONTAINER = "container.woken"
    """Its executor is killed; the container is woken once the job has ended."""
    SLEEPY_CONTAINER = "container.slept"
    """The container is woken after some seconds."""


class Loss(StrEnum):
    """What happens to files between two runs."""

    DISKS = "disk.wiped"
    """All local state."""
    ONE_DISK = "disk.wiped-in-part"
    """The local state of some tasks."""
    LOCATION = "location.lost"
    """The whole checkpoint location."""
    LOCATION_TAIL = "location.truncated"
    """The newest files of ``offsets`` and ``commits``."""
    LOCATION_OLDER = "location.older"
    """The checkpoint location as it was at an earlier moment."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault and what follows."""

    fault: ArmedFault
    consequence: Consequence = Consequence.NONE

    @property
    def ends_driver(self) -> bool:
        """Whether another driver must go on once the fault has struck."""
        is_crash = self.fault.action is Action.CRASH and self.fault.kind is ProcessKind.DRIVER
        return is_crash or self.consequence in {
            Consequence.DRIVER,
            Consequence.GROUP,
            Consequence.ZOMBIE_DRIVER,
        }


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that a seed decides."""

    seed: int
    source: str
    partitions: int
    batches: int
    rows: int
    settings: dict[str, str]
    is_every_batch: bool
    clock_offset_s: int
    faults: Sequence[PlannedFault]
    losses: Sequence[Loss | None] = field(default_factory=list[Loss | None])
    """Before the second run, the third, ..."""


_WORKER = (
    "process.before",
    "process.after",
    "output.after",
    "seal.before",
    "seal.before_rename",
    "seal.after_rename",
    "seal.after",
    "receipt.before",
    "output.before_read",
    "hand_over.before",
    "hand_over.after",
    "restore.before_request",
    "retain.before_remove",
)
_CONTAINER = (
    "outbox.before_write",
    "outbox.after_write",
    "outbox.before_remove",
    "entry.before_write",
    "snapshot.before",
    "snapshot.after",
    "upload.before",
    "upload.before_blob",
    "upload.before_index",
    "upload.after_index",
    "checkpoint.before_write",
    "checkpoint.after_write",
    "restore.before_fetch",
    "restore.before_adopt",
    "adopt.before_rename",
    "restore.after_adopt",
)
_DRIVER = (
    "empty_commit.before",
    "empty_commit.after",
    "attempt_record.before",
    "attempt_record.after",
    "sink.before",
    "sink.after",
    "batch_record.before",
    "batch_record.after",
    "commit_record.before",
    "commit_record.after",
    "release_record.before",
    "release_record.after",
    "clean_up.before_delete",
    "clean_up.before_files",
    "log_trim.before",
    "trim.after_floor",
    "void_record.before",
)
RECOVERY_POINTS = (
    "epoch_record.before",
    "epoch_record.after",
    "base_record.before",
    "base_record.after",
    "roll_forward.before",
    "roll_forward.after",
    "recovery.before",
    "replay.before_step",
    "replay.after_step",
    "replay.before_record",
)
POINTS: Mapping[ProcessKind, Sequence[str]] = {
    ProcessKind.WORKER: _WORKER,
    ProcessKind.CONTAINER: _CONTAINER,
    ProcessKind.DRIVER: _DRIVER,
}
"""Where the processes of a job are struck."""
_RARE = ("empty_commit", "restore", "adopt", "log_trim", "trim", "release", "void", "clean_up")
"""Points that a process reaches once or twice."""
_EVERY_BATCH = 0.1
_SECOND_CRASH = 0.4
_RATE = 0.2
"""Part of the schedules whose source is Spark's rate source."""


def draw_schedule(seed: int) -> Schedule:
    """Return the schedule of a seed: always the same one."""
    draw = random.Random(f"spark-{seed}")  # noqa: S311 - replayable, not secret
    is_every_batch = draw.random() < _EVERY_BATCH
    faults = [_draw_fault(draw, f"{number}") for number in range(draw.choice([1, 1, 2, 2, 3]))]
    faults += _ways_to(faults)
    if draw.random() < _SECOND_CRASH:
        faults.append(_second_crash(draw))
    is_failing = [f for f in faults if f.fault.action is Action.FAIL]
    settings = {
        "task.commit.ms": draw.choice(["1", "300", "300", "1500", "600000"]),
        "task.commit.every.batch": str(is_every_batch).lower(),
        "task.commit.max.delay.ms": draw.choice(["500", "2000"]),
        "task.commit.timeout.ms": "8000",
        "task.commit.skip.commit.during.failures.enabled": str(bool(is_failing)).lower(),
        "task.shutdown.ms": "20000",
        "task.replay.on.divergence": "error",
        "job.container.grace.ms": "3000",
        "job.container.idle.ms": "5000",
        "blob.store.retry.policy.max.retry.duration.millis": "2000",
    }
    losses = [_draw_loss(draw) for _ in range(3)]
    if any(_is_in_restore(planned) for planned in faults):
        losses[0] = Loss.DISKS
    return Schedule(
        seed=seed,
        source="rate" if draw.random() < _RATE else "file",
        partitions=draw.choice([3, 4]),
        batches=draw.choice([5, 6, 7, 8]),
        rows=draw.choice([4, 20, 40]),
        settings=settings,
        is_every_batch=is_every_batch,
        clock_offset_s=draw.choice([0, 0, 0, 86_400, -86_400]),
        faults=faults,
        losses=losses,
    )


def _draw_fault(draw: random.Random, name: str) -> PlannedFault:
    kind = draw.choices([ProcessKind.WORKER, ProcessKind.CONTAINER, ProcessKind.DRIVER], [3, 3, 3])[
        0
    ]
    point = draw.choice(POINTS[kind])
    nth = 1 if point.startswith(_RARE) else draw.choice([1, 1, 2, 3, 4])
    action, consequence = draw.choice(_CHOICES[kind])
    repeats = draw.choice([1, 1, 3, 6]) if action is Action.FAIL else 1
    fault = ArmedFault(
        name=name,
        point=point,
        action=action,
        nth=nth,
        repeats=repeats,
        kind=kind,
        error=draw.choice(["retriable", "ENOSPC"]),
        seconds=draw.choice([0.2, 1.0, 2.0]),
    )
    return PlannedFault(fault, consequence)


def _ways_to(faults: Sequence[PlannedFault]) -> list[PlannedFault]:
    """Return what must strike first for points to be reached that lie off an ordinary run."""
    ways: list[PlannedFault] = []
    if any(_is_in_restore(planned) for planned in faults):
        crash = ArmedFault(
            "way-to-restore", "batch_record.after", Action.STOP, nth=3, kind=ProcessKind.DRIVER
        )
        ways.append(PlannedFault(crash, Consequence.GROUP))
    if any(planned.fault.point.startswith("void") for planned in faults):
        failure = ArmedFault(
            "way-to-void", "snapshot.before", Action.FAIL, nth=2, kind=ProcessKind.CONTAINER
        )
        ways.append(PlannedFault(failure))
    return ways


def _is_in_restore(planned: PlannedFault) -> bool:
    return planned.fault.point.startswith(("restore", "adopt"))


def _second_crash(draw: random.Random) -> PlannedFault:
    """A crash in the recovery that another fault brings about; it may never be reached."""
    point = draw.choice(RECOVERY_POINTS)
    action, consequence = draw.choice(_RECOVERY_CHOICES)
    fault = ArmedFault(
        name="recovery",
        point=point,
        action=action,
        nth=draw.choice([1, 1, 2]),
        kind=ProcessKind.DRIVER,
    )
    return PlannedFault(fault, consequence)


def _draw_loss(draw: random.Random) -> Loss | None:
    return draw.choices(
        [None, Loss.DISKS, Loss.ONE_DISK, Loss.LOCATION, Loss.LOCATION_TAIL, Loss.LOCATION_OLDER],
        [8, 4, 4, 1, 1, 1],
    )[0]


_Choice = tuple[Action, Consequence]
_WORKER_CHOICES: Sequence[_Choice] = (
    (Action.CRASH, Consequence.NONE),
    (Action.CRASH, Consequence.NONE),
    (Action.STOP, Consequence.EXECUTOR),
    (Action.STOP, Consequence.EXECUTOR),
    (Action.STOP, Consequence.HOST),
    (Action.STOP, Consequence.HOST),
    (Action.STOP, Consequence.GROUP),
    (Action.FAIL, Consequence.NONE),
    (Action.DELAY, Consequence.NONE),
)
_CONTAINER_CHOICES: Sequence[_Choice] = (
    (Action.CRASH, Consequence.NONE),
    (Action.CRASH, Consequence.NONE),
    (Action.CRASH, Consequence.NONE),
    (Action.STOP, Consequence.HOST),
    (Action.STOP, Consequence.GROUP),
    (Action.STOP, Consequence.ZOMBIE_CONTAINER),
    (Action.STOP, Consequence.SLEEPY_CONTAINER),
    (Action.FAIL, Consequence.NONE),
    (Action.FAIL, Consequence.NONE),
    (Action.DELAY, Consequence.NONE),
)
_DRIVER_CHOICES: Sequence[_Choice] = (
    (Action.CRASH, Consequence.NONE),
    (Action.STOP, Consequence.DRIVER),
    (Action.STOP, Consequence.GROUP),
    (Action.STOP, Consequence.GROUP),
    (Action.STOP, Consequence.ZOMBIE_DRIVER),
    (Action.FAIL, Consequence.NONE),
    (Action.FAIL, Consequence.NONE),
    (Action.DELAY, Consequence.NONE),
)
_CHOICES: Mapping[ProcessKind, Sequence[_Choice]] = {
    ProcessKind.WORKER: _WORKER_CHOICES,
    ProcessKind.CONTAINER: _CONTAINER_CHOICES,
    ProcessKind.DRIVER: _DRIVER_CHOICES,
}
_RECOVERY_CHOICES: Sequence[_Choice] = (
    (Action.CRASH, Consequence.NONE),
    (Action.STOP, Consequence.GROUP),
    (Action.FAIL, Consequence.NONE),
    (Action.FAIL, Consequence.NONE),
)
