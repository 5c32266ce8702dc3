"""Waits for the entries that containers write for the tasks of one attempt."""

from typing import Final

from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.checkpoint.serde import FailedTask, decode_attempt_entry, encode_checkpoint_v2
from statekeep.clock import Clock
from statekeep.errors import CommitFailedError
from statekeep.spark.worker.job_spec import HandOverPlan, partition_of

_FIRST_POLL_S: Final = 0.05
_LONGEST_POLL_S: Final = 0.5


async def gather(
    plan: HandOverPlan, checkpoints: CheckpointStore, clock: Clock
) -> dict[int, bytes]:
    """Return ``{partition: CheckpointV2 in JSON}`` once every task of the plan has an entry.

    Polls with growing pauses, and reads what it has found only once.

    Raises:
        CommitFailedError: A task reports a failure.
        CheckpointCorruptError: An entry cannot be read.
    """
    found: dict[int, bytes] = {}
    known: set[TaskName] = set()
    pause_s = _FIRST_POLL_S
    while True:
        name = f"{plan.epoch}-{plan.attempt}"
        for task, data in (await checkpoints.read(name, known=known)).items():
            checkpoint = _checkpoint_in(data, task, plan)
            if checkpoint is not None:
                found[partition_of(task)] = checkpoint
                known.add(task)
        if len(found) >= len(plan.versions):
            return found
        await clock.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_POLL_S)


def _checkpoint_in(data: bytes, task: TaskName, plan: HandOverPlan) -> bytes | None:
    """Return a task's checkpoint; None if its entry is of another version than the plan's."""
    entry = decode_attempt_entry(data, where=f"attempt={plan.epoch}-{plan.attempt} task={task}")
    if isinstance(entry, FailedTask):
        raise CommitFailedError(
            f"a task could not back up its state: task={task} error={entry.error}",
            checkpoint_id=plan.checkpoint_id,
            step=entry.step,
        )
    if str(entry.version_id) != plan.versions.get(partition_of(task)):
        return None
    return encode_checkpoint_v2(entry.checkpoint)
