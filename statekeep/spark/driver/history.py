"""Which version every task has after every batch that recovery may start from."""

from collections.abc import Iterable, Mapping

from statekeep.checkpoint.records import TaskBatch

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
