"""Which version every task has after every batch, in memory and on record."""

from collections.abc import Iterable, Mapping

import msgspec

from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import BatchRecord, TaskBatch
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.tasks import partition_of, task_name

EMPTY = TaskBatch(version="")
"""Before the first batch a task's state is empty, never missing."""


class VersionHistory:
    """The chosen version of each partition after each batch, from the oldest retained commit on.

    Owned by the thread that runs batches.
    """

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self._batches: dict[int, dict[int, TaskBatch]] = {
            -1: dict.fromkeys(range(partitions), EMPTY)
        }

    def load(self, view: LogView, head: int) -> None:
        """Learn from the log which version each task had after each batch that counts."""
        for commit in view.comparable_commits:
            if commit.versions:
                versions = commit.versions.items()
                self.put(commit.batch, {partition_of(t): TaskBatch(version=v) for t, v in versions})
        for batch, record in sorted(view.trusted_batches.items()):
            if batch <= head:
                self.put(batch, {partition_of(task): done for task, done in record.tasks.items()})

    def __contains__(self, batch: int) -> bool:
        return batch in self._batches

    def put(self, batch: int, tasks: Mapping[int, TaskBatch]) -> None:
        """Set what the given tasks have after ``batch``; others keep what they had."""
        self._batches.setdefault(batch, {}).update(tasks)

    def of(self, batch: int) -> dict[int, TaskBatch]:
        """Return what each task has after ``batch``; KeyError if that is not known."""
        return self._batches[batch]

    def versions(self, batch: int) -> dict[int, str]:
        """Return ``{partition: VersionId}`` after ``batch``."""
        return {partition: done.version for partition, done in self._batches[batch].items()}

    def begins_at(self, batch: int) -> bool:
        """Return whether ``batch`` is the first of a job whose state was empty before."""
        return batch == 0 and not any(self.versions(-1).values())

    def candidates(self, partition: int, head: int) -> list[tuple[int, str]]:
        """Return (batch, version) that a task could start from, newest first, each version once.

        The batch is the newest one after which the task has that version, whatever the version's
        own number: a task that did nothing keeps its version.
        """
        found: dict[str, int] = {}
        for batch in sorted((b for b in self._batches if b <= head), reverse=True):
            done = self._batches[batch].get(partition)
            if done is not None:
                found.setdefault(done.version, batch)
        return [(batch, version) for version, batch in found.items()]

    def forget_below(self, batch: int) -> None:
        """Drop the batches before ``batch``: no retained commit needs them."""
        for old in [old for old in self._batches if old < batch]:
            del self._batches[old]

    def kept(self, batches: Iterable[int]) -> dict[int, tuple[str, ...]]:
        """Return for each partition its versions after the given batches, without empty state."""
        known = [self._batches[batch] for batch in batches if batch in self._batches]
        return {
            partition: tuple(
                {tasks[partition].version for tasks in known if partition in tasks} - {""}
            )
            for partition in range(self.partitions)
        }


def batch_record(
    location: CheckpointLocation, batch: int, offsets: str, tasks: Mapping[int, TaskBatch]
) -> BatchRecord:
    """Return the record of a batch that is processed.

    Args:
        location: Of the query.
        batch: The batch.
        offsets: Text of its ``offsets/<batch>``.
        tasks: What each has done.
    """
    previous = location.read(f"commits/{batch - 1}") if batch > 0 else None
    return BatchRecord(
        query_id=location.query_id() or "",
        batch=batch,
        offsets=offsets,
        previous_commit=previous,
        tasks={task_name(partition): done for partition, done in tasks.items()},
    )


def replayed_record(
    location: CheckpointLocation, view: LogView, batch: int, tasks: Mapping[int, TaskBatch]
) -> BatchRecord:
    """Return the record of a replayed batch: its new versions take the place of the old."""
    known = view.batches.get(batch)
    if known is None:
        return batch_record(location, batch, location.require(f"offsets/{batch}"), tasks)
    named = {str(task_name(partition)): done for partition, done in tasks.items()}
    return msgspec.structs.replace(known, tasks=named)
