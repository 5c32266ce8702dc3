"""Waits for the entries that containers write for the tasks of one attempt."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.checkpoint.serde import (
    FailedTask,
    FinishedTask,
    decode_attempt_entry,
    decode_checkpoint_v2,
    encode_checkpoint_v2,
)
from statekeep.clock import Clock
from statekeep.errors import CommitFailedError
from statekeep.spark.tasks import partition_of, task_name
from statekeep.spark.worker.job_spec import HandOverPlan

_FIRST_POLL_S: Final = 0.05
_LONGEST_POLL_S: Final = 0.5


@dataclass(slots=True)
class GatheredTasks:
    """What the containers have written for the tasks of one attempt."""

    checkpoints: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """``{partition: CheckpointV2 in JSON}``"""
    bytes_uploaded: int = 0
    """By all of them, to all backends."""


class EntriesLackError(CommitFailedError):
    """Raised when the deadline is over and a task has no entry: it may still come."""


async def gather(
    plan: HandOverPlan,
    checkpoints: CheckpointStore,
    clock: Clock,
    *,
    deadline_ns: int | None = None,
    on_finished: Callable[[HandOverPlan, TaskName, FinishedTask], None] | None = None,
) -> GatheredTasks:
    """Return the tasks' checkpoints once every task of the plan has an entry.

    Polls with growing pauses, and reads what it has found only once.

    Args:
        plan: The attempt.
        checkpoints: Where the containers write.
        clock: For the pauses.
        deadline_ns: Monotonic time at which an entry that lacks is waited for no longer; None
            waits for ever.
        on_finished: Told of each entry as it is found.

    Raises:
        CommitFailedError: A task reports a failure, or its entry does not follow the newest commit.
        EntriesLackError: The deadline is over.
        CheckpointCorruptError: An entry cannot be read.
    """
    found = GatheredTasks()
    known: set[TaskName] = set()
    pause_s = _FIRST_POLL_S
    while True:
        name = f"{plan.epoch}-{plan.attempt}"
        for task, data in (await checkpoints.read(name, known=known)).items():
            entry = _finished(data, task, plan)
            if entry is not None:
                found.checkpoints[partition_of(task)] = encode_checkpoint_v2(entry.checkpoint)
                found.bytes_uploaded += entry.bytes_uploaded
                known.add(task)
                if on_finished is not None:
                    on_finished(plan, task, entry)
        if len(found.checkpoints) >= len(plan.versions):
            return found
        if deadline_ns is not None and clock.monotonic_ns() >= deadline_ns:
            absent = min(plan.versions.keys() - found.checkpoints.keys())
            msg = f"a task's backup is not finished: task={task_name(absent)}"
            raise EntriesLackError(msg, checkpoint_id=plan.checkpoint_id, step="timeout")
        await clock.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_POLL_S)


def _finished(data: bytes, task: TaskName, plan: HandOverPlan) -> FinishedTask | None:
    """Return a task's entry; None if it is of another version than the plan's."""
    entry = decode_attempt_entry(data, where=f"attempt={plan.epoch}-{plan.attempt} task={task}")
    if isinstance(entry, FailedTask):
        raise CommitFailedError(
            f"a task could not back up its state: task={task} error={entry.error}",
            checkpoint_id=plan.checkpoint_id,
            step=entry.step,
        )
    if str(entry.version_id) != plan.versions.get(partition_of(task)):
        return None
    _check_chain(entry, task, plan)
    return entry


def _check_chain(entry: FinishedTask, task: TaskName, plan: HandOverPlan) -> None:
    """Refuse an entry of another commit, or one that builds on another base than the plan's.

    An increment on any other base restores what was never committed.
    """
    found = entry.checkpoint.checkpoint_id.serialize()
    if found != plan.checkpoint_id:
        raise CommitFailedError(
            f"a task's checkpoint is another commit's: task={task} found={found}",
            checkpoint_id=plan.checkpoint_id,
            step="chain",
        )
    if entry.base_id is None:
        return
    _, document = plan.bases.get(partition_of(task), ("", b""))
    base = decode_checkpoint_v2(document, f"base of {task}").checkpoint_id if document else None
    if entry.base_id != base:
        raise CommitFailedError(
            "a task's backup builds on another commit than the newest: "
            f"task={task} base={entry.base_id} newest={base}",
            checkpoint_id=plan.checkpoint_id,
            step="chain",
        )
