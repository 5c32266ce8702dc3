"""Draws a schedule from its seed."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from chaos.backends import draw_late_snapshots
from chaos.fault_profile import FaultProfile
from chaos.spark.plan import BadDay, Consequence, Damage, Drift, Loss, PlannedFault, Schedule
from statekeep.testing.faults.process_plan import Action, ArmedFault, ProcessKind

_WORKER = (
    "process.before",
    "process.after",
    "changes.before_rename",
    "changes.after_rename",
    "open.before",
    "open.after",
    "catch_up.after_step",
    "seal.before",
    "image.after_write",
    "seal.before_rename",
    "seal.after_rename",
    "seal.after",
    "receipt.before",
    "output.before_read",
    "submit_versions.before",
    "submit_versions.after",
    "restore.before_request",
    "retain.before_remove",
)
_SIDECAR = (
    "outbox.before_write",
    "outbox.after_entry",
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
    "release.before",
    "release.after",
    "clean_up.before_delete",
    "clean_up.before_files",
    "trim.before",
    "trim.after_floor",
    "abort_record.before",
    "move.before",
    "move.after_table",
    "move.after",
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
RESHAPE_POINTS: Sequence[tuple[ProcessKind, str]] = (
    (ProcessKind.DRIVER, "reshape.before_pin"),
    (ProcessKind.DRIVER, "reshape.after_pin"),
    (ProcessKind.WORKER, "reshape.before_split"),
    (ProcessKind.WORKER, "reshape.before_make"),
    (ProcessKind.DRIVER, "attempt_record.before"),
    (ProcessKind.DRIVER, "attempt_record.after"),
    (ProcessKind.WORKER, "upload.*"),
    (ProcessKind.DRIVER, "commit_record.before"),
    (ProcessKind.DRIVER, "commit_record.after"),
)
"""Where a start with another number of tasks is struck, which workers upload for."""
POINTS: Mapping[ProcessKind, Sequence[str]] = {
    ProcessKind.WORKER: _WORKER,
    ProcessKind.SIDECAR: _SIDECAR,
    ProcessKind.DRIVER: _DRIVER,
}
"""Where the processes of a job are struck."""
_RARE = (
    "empty_commit",
    "restore",
    "adopt",
    "trim",
    "release",
    "void",
    "move",
    "clean_up",
    "upload.after_tail",
    "late_snapshot",
)
"""Points that a process reaches once or twice."""
_AFTER_COMMITS = ("release", "clean_up", "trim", "retain")
"""Points that are reached once there are more commits than are kept."""
_EVERY_BATCH = 0.1
_SECOND_CRASH = 0.3
_LOST_ANSWERS = 0.25
_DRIFT = 0.3
_BAD_DAY = 0.35
_DAMAGE = 0.3
_RATE = 0.2
"""Part of the schedules whose source is Spark's rate source."""
_WEEK_S = 7 * 86_400
_MODES: Sequence[Sequence[str]] = (
    ("None",),
    ("None",),
    ("EventTime",),
    ("ProcessingTime",),
    ("None", "None"),
    ("EventTime", "EventTime"),
    ("EventTime", "None"),
    ("None", "ProcessingTime"),
    ("ProcessingTime", "ProcessingTime"),
)
"""Time modes of the operators of a query, each list as likely as the next."""
_BATCHES_BEFORE_MOVE = 3
"""For an executor to be lost, for another one to join, and for a commit after that."""


def every_point(more: Sequence[str] = ()) -> Sequence[tuple[ProcessKind, str]]:
    """Return where schedules strike, ``more`` being what `draw_schedule` is given."""
    return (
        *((kind, point) for kind, points in POINTS.items() for point in points),
        *((ProcessKind.DRIVER, point) for point in RECOVERY_POINTS),
        *((_process_at(point), point) for point in more),
    )


def draw_schedule(seed: int, more: Sequence[str] = ()) -> Schedule:
    """Return the schedule of a seed: always the same one.

    The first fault of consecutive seeds is at one point after the other, so that as many seeds as
    there are points strike each of them at least once.

    Args:
        seed: Decides everything.
        more: Fault points that uploads to the schedule's places have besides those of all.
    """
    draw = random.Random(f"spark-{seed}")  # noqa: S311 - replayable, not secret
    is_every_batch = draw.random() < _EVERY_BATCH
    points = every_point(more)
    faults = _draw_first(draw, *points[seed % len(points)])
    count = draw.choice([0, 0, 1, 1, 2])
    faults += [_draw_fault(draw, f"{number}", more) for number in range(count)]
    faults += _ways_to(faults)
    if draw.random() < _SECOND_CRASH:
        faults.append(_draw_recovery_fault(draw, "recovery", draw.choice(RECOVERY_POINTS)))
    losses = [_draw_loss(draw) for _ in range(3)]
    if any(_is_in(planned, "restore", "adopt", "replay") for planned in faults):
        losses[0] = Loss.DISKS
    is_moving = any(_is_in(planned, "move") for planned in faults)
    return Schedule(
        seed=seed,
        source="rate" if draw.random() < _RATE else "file",
        partitions=draw.choice([3, 4]),
        batches=draw.choice([5, 6, 7, 8]) + (_BATCHES_BEFORE_MOVE if is_moving else 0),
        rows=draw.choice([4, 20, 40]),
        settings=_draw_settings(draw, faults, seed, is_every_batch=is_every_batch),
        is_every_batch=is_every_batch,
        clock_offset_s=draw.choice([0, 0, 0, 86_400, -86_400]),
        faults=faults,
        losses=losses,
        downtime_s=draw.choice([0, 0, 3, 60]) * _WEEK_S,
        lost_answers=0.1 if draw.random() < _LOST_ANSWERS else 0.0,
        drift=draw.choice([*Drift]) if draw.random() < _DRIFT else None,
        servers_fail_after=draw.choice([None, None, 0, 1, 3]),
        bad_day=_draw_bad_day(seed),
        damage=_draw_damage(seed),
        modes=_draw_modes(seed),
    )


# What follows has generators of its own: the rest of a seed's schedule stays as it was before.


def with_task_counts(schedule: Schedule) -> Schedule:
    """Let the job of a schedule have another number of tasks at each start, and strike there too.

    The driver dies in its first run, so that there is a second start.
    """
    draw = random.Random(f"spark-tasks-{schedule.seed}")  # noqa: S311 - replayable, not secret
    counts = draw.sample([1, 2, 3, 4, 6], 3)
    faults = [_stop_driver("way-to-reshape", "batch_record.after", draw.choice([2, 3, 4]))]
    for run in range(2, 2 + draw.choice([1, 1, 2])):
        kind, point = draw.choice(RESHAPE_POINTS)
        action, consequence = draw.choice(
            _RECOVERY_CHOICES if kind is ProcessKind.DRIVER else _WORKER_CHOICES
        )
        fault = ArmedFault(
            name=f"reshape-{run}",
            point=point,
            action=action,
            nth=draw.choice([1, 1, 2]),
            kind=kind,
            seconds=0.5,
        )
        faults.append(PlannedFault(fault, consequence, run))
    return replace(schedule, task_counts=counts, faults=[*schedule.faults, *faults])


def _draw_bad_day(seed: int) -> BadDay | None:
    draw = random.Random(f"spark-weather-{seed}")  # noqa: S311 - replayable, not secret
    if draw.random() >= _BAD_DAY:
        return None
    return BadDay(
        profile=draw.choice(
            [FaultProfile.SLOW, FaultProfile.FLAPPING, FaultProfile.FLAPPING, FaultProfile.OUTAGE]
        ),
        place=draw.choice([0, 0, 1]),
        after_batch=draw.choice([0, 1, 2, 3]),
        seconds=draw.choice([1.0, 3.0, 6.0]),
    )


def _draw_damage(seed: int) -> Damage | None:
    draw = random.Random(f"spark-damage-{seed}")  # noqa: S311 - replayable, not secret
    if draw.random() >= _DAMAGE:
        return None
    # A restore begins with the first place: only from there it has to fall back.
    return Damage(
        place=draw.choice([0, 0, 0, 1]),
        blobs=draw.choice([1, 1, 3]),
        is_truncated=draw.choice([True, False]),
    )


def _draw_modes(seed: int) -> Sequence[str]:
    draw = random.Random(f"spark-modes-{seed}")  # noqa: S311 - replayable, not secret
    return draw.choice(_MODES)


def _process_at(point: str) -> ProcessKind:
    """Return which process reaches a point that only some backends have."""
    return ProcessKind.DRIVER if point.startswith("clean_up") else ProcessKind.SIDECAR


def _draw_settings(
    draw: random.Random, faults: Sequence[PlannedFault], seed: int, *, is_every_batch: bool
) -> dict[str, str]:
    is_failing = any(planned.fault.action is Action.FAIL for planned in faults)
    commit_ms = draw.choice(["1", "300", "300", "1500", "600000"])
    if any(_is_in(planned, *_AFTER_COMMITS, "void", "move") for planned in faults):
        commit_ms = "1"
    late_snapshots = draw_late_snapshots(seed)
    if any(_is_in(planned, "late_snapshot") for planned in faults):
        late_snapshots = dict.fromkeys(late_snapshots, "1")
    return {
        **late_snapshots,
        "task.commit.ms": commit_ms,
        "task.commit.every.batch": str(is_every_batch).lower(),
        "task.commit.max.delay.ms": draw.choice(["500", "2000"]),
        "task.commit.timeout.ms": "8000",
        "task.commit.skip.commit.during.failures.enabled": str(is_failing).lower(),
        "task.shutdown.ms": "20000",
        "checkpoint.clean.up.ms": "0",
        "task.replay.on.divergence": "error",
        "job.container.grace.ms": "3000",
        "job.container.idle.ms": "5000",
        # Six tries in two seconds: at three, one call in a thousand would lose each of its answers.
        "blob.store.retry.policy.max.retry.duration.millis": "2000",
        "blob.store.retry.policy.backoff.delay.millis": "50",
        "blob.store.retry.policy.backoff.delay.factor": "2",
    }


def _draw_first(draw: random.Random, kind: ProcessKind, point: str) -> list[PlannedFault]:
    """Return the fault that the seed's number asks for.

    One in the recovery strikes the recovery and, half of the time, the one after that too.
    """
    if point in RECOVERY_POINTS:
        count = draw.choice([1, 2])
        return [
            _draw_recovery_fault(draw, f"recovery-{run}", point, from_run=run, nth=1)
            for run in range(2, 2 + count)
        ]
    return [_draw_fault_at(draw, "first", kind, point)]


def _draw_fault(draw: random.Random, name: str, more: Sequence[str]) -> PlannedFault:
    kind = draw.choice([*POINTS])
    points = (*POINTS[kind], *(point for point in more if _process_at(point) is kind))
    return _draw_fault_at(draw, name, kind, draw.choice(points))


def _draw_fault_at(draw: random.Random, name: str, kind: ProcessKind, point: str) -> PlannedFault:
    nth = 1 if point.startswith((*_RARE, "retain")) else draw.choice([1, 1, 2, 3, 4])
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
    if any(_is_in(planned, "roll_forward") for planned in faults):
        # The sidecars outlive the driver, and end what it was about to record.
        ways.append(_stop_driver("way-to-roll-forward", "commit_record.before", 1))
    elif any(_is_in(p, "restore", "adopt") or p.from_run > 1 for p in faults):
        ways.append(_stop_driver("way-to-recovery", "batch_record.after", 3))
    if any(_is_in(planned, "void") for planned in faults):
        failure = ArmedFault(
            "way-to-void", "snapshot.before", Action.FAIL, nth=2, kind=ProcessKind.SIDECAR
        )
        ways.append(PlannedFault(failure))
    if any(_is_in(planned, "move") for planned in faults):
        # Another executor joins while sinks wait, and tasks move there.
        loss = ArmedFault(
            "way-to-join", "receipt.before", Action.STOP, nth=2, kind=ProcessKind.WORKER
        )
        ways.append(PlannedFault(loss, Consequence.EXECUTOR))
        pause = ArmedFault(
            "way-to-move",
            "sink.before",
            Action.DELAY,
            nth=3,
            repeats=4,
            kind=ProcessKind.DRIVER,
            seconds=3.0,
        )
        ways.append(PlannedFault(pause))
    if any(_is_in(planned, "upload.after_tail") for planned in faults):
        # What was written stays behind the marker, for the next try to find.
        failure = ArmedFault(
            "way-to-tail", "transaction.after_commit", Action.FAIL, kind=ProcessKind.SIDECAR
        )
        ways.append(PlannedFault(failure))
    return ways


def _stop_driver(name: str, point: str, nth: int) -> PlannedFault:
    fault = ArmedFault(name, point, Action.STOP, nth=nth, kind=ProcessKind.DRIVER)
    is_alone = point.startswith("commit_record")
    return PlannedFault(fault, Consequence.DRIVER if is_alone else Consequence.GROUP)


def _is_in(planned: PlannedFault, *prefixes: str) -> bool:
    return planned.fault.point.startswith(prefixes)


def _draw_recovery_fault(
    draw: random.Random, name: str, point: str, *, from_run: int = 1, nth: int | None = None
) -> PlannedFault:
    """A fault in a recovery; one that nothing else brings about may never be reached."""
    action, consequence = draw.choice(_RECOVERY_CHOICES)
    fault = ArmedFault(
        name=name,
        point=point,
        action=action,
        nth=nth or draw.choice([1, 1, 2]),
        kind=ProcessKind.DRIVER,
    )
    return PlannedFault(fault, consequence, from_run)


def _draw_loss(draw: random.Random) -> Loss | None:
    losses: Sequence[Loss | None] = [None, *Loss]
    return draw.choices(losses, [8, 4, 4, 1, 1, 1, 1, 1, 1])[0]


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
_SIDECAR_CHOICES: Sequence[_Choice] = (
    (Action.CRASH, Consequence.NONE),
    (Action.CRASH, Consequence.NONE),
    (Action.CRASH, Consequence.NONE),
    (Action.STOP, Consequence.HOST),
    (Action.STOP, Consequence.GROUP),
    (Action.STOP, Consequence.ZOMBIE_SIDECAR),
    (Action.STOP, Consequence.SLEEPY_SIDECAR),
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
    (Action.STOP, Consequence.RIVAL_DRIVER),
    (Action.FAIL, Consequence.NONE),
    (Action.FAIL, Consequence.NONE),
    (Action.DELAY, Consequence.NONE),
)
_CHOICES: Mapping[ProcessKind, Sequence[_Choice]] = {
    ProcessKind.WORKER: _WORKER_CHOICES,
    ProcessKind.SIDECAR: _SIDECAR_CHOICES,
    ProcessKind.DRIVER: _DRIVER_CHOICES,
}
_RECOVERY_CHOICES: Sequence[_Choice] = (
    (Action.CRASH, Consequence.NONE),
    (Action.STOP, Consequence.GROUP),
    (Action.FAIL, Consequence.NONE),
    (Action.FAIL, Consequence.NONE),
)
