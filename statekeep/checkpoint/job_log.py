"""The contract of the job log and of the checkpoint store: what a backend offers to hold them."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from statekeep.checkpoint.checkpoints import TaskName

DAMAGED_LOG_HINT: Final = (
    "hint: put the record back from a copy of the log; or begin with empty state: reset the job, or, "
    "where the log cannot even be listed, choose another job.name"
)
"""A note for the error about a record that cannot be read."""


class PositionTakenError(Exception):
    """Raised by `JobLog.append` when another record stands at the position already.

    Not a `StateBackupError`: it never leaves `LogSession`, which reads the record and decides.
    """


class JobLog(ABC):
    """An ordered log of whole records; the order is the position, never a clock.

    One log decides for one job on Spark, and for one task in plain Python. A backend that holds
    it MUST create a position atomically: of any number of racing appends exactly one succeeds,
    and a record is there whole or not at all, also after a crash or a lost answer.

    Every method is a coroutine on the event loop of the driver (or container).
    """

    @abstractmethod
    async def probe(self) -> None:
        """Prove at start that the storage is reachable, writable, and creates atomically.

        Raises:
            ConfigError: It does not; the message says what it lacks.
        """

    @abstractmethod
    async def append(self, position: int, data: bytes) -> None:
        """Create the record at ``position`` if there is none.

        Repeating a call whose answer was lost raises `PositionTakenError` on the caller's own
        record: `LogSession` knows it by its nonce.

        Raises:
            PositionTakenError: There is a record; nothing was changed.
            RetriableError: Unknown whether the record landed; the call may be repeated.
        """

    @abstractmethod
    async def read(self, start: int, *, limit: int | None = None) -> Sequence[tuple[int, bytes]]:
        """Return the records from position ``start`` on, in order, without gaps.

        All to the end of the log, or the first ``limit`` of them: fewer than that are the end.

        What is below the floor is left out, even where it is still there: the first position
        returned is then the floor instead of ``start``. The floor that counts is one read *after*
        the records: below a floor that was raised meanwhile, a position may be free again.

        Raises:
            CheckpointCorruptError: A position in the middle is missing.
            RetriableError: The service may answer later.
        """

    async def read_at(self, positions: Collection[int]) -> Sequence[tuple[int, bytes]]:
        """Return the records at some positions, in order; those that are gone are left out.

        Raises:
            RetriableError: The service may answer later.
        """
        if not positions:
            return ()
        wanted = set(positions)
        return [(p, data) for p, data in await self.read(min(wanted)) if p in wanted]

    async def read_left(self) -> Sequence[tuple[int, bytes]]:
        """Return all records that are not trimmed, in order; those that are lost leave gaps.

        For a caller that drops them all. This default assumes no gaps.

        Raises:
            RetriableError: The service may answer later.
        """
        return await self.read(0)

    async def is_there(self) -> bool:
        """Return whether there is any record, without a `probe` before; change nothing.

        Raises:
            CheckpointCorruptError: A position in the middle is missing.
            RetriableError: The service may answer later.
        """
        return bool(await self.read(0))

    @abstractmethod
    async def read_floor(self) -> int:
        """Return the lowest position that is still kept; 0 for a log never trimmed."""

    @abstractmethod
    async def trim(self, floor: int) -> None:
        """Raise the floor to ``floor``, durably, and only then delete the records below it.

        Idempotent; a floor lower than the present one changes nothing.
        """

    @property
    def is_trim_wanted(self) -> bool:
        """Whether what the log begins with should not stay any longer than it is needed."""
        return False

    @abstractmethod
    async def close(self) -> None:
        """Release clients. Idempotent."""


class CheckpointStore(ABC):
    """Where sidecars put each task's checkpoint for the driver to gather.

    What stands here counts for nothing until a commit record holds it.

    Every method is a coroutine on an event loop.
    """

    @abstractmethod
    async def write(self, attempt: str, task_name: TaskName, data: bytes) -> None:
        """Put one task's entry, whole or not at all; the same task's entry is replaced.

        Args:
            attempt: ``<epoch>-<attempt>``.
            task_name: The task.
            data: See `statekeep.checkpoint.serde.encode_attempt_entry`.

        Raises:
            RetriableError: The service may answer later.
        """

    async def write_all(self, attempt: str, entries: Mapping[TaskName, bytes]) -> None:
        """Put entries of several tasks, each as `write` does, or all of them at once.

        Of two entries of one task that two stores wrote, either may be the one that is read.
        """
        for task_name, data in entries.items():
            await self.write(attempt, task_name, data)

    @abstractmethod
    async def read(
        self, attempt: str, *, known: Collection[TaskName] = ()
    ) -> Mapping[TaskName, bytes]:
        """Return the entries of one attempt that are there by now, except of ``known`` tasks."""

    async def attempts(self) -> Collection[tuple[int, int]]:
        """Return (epoch, attempt) of all entries that are there, for clean-up to find late ones.

        None where the store forgets old entries by itself.
        """
        return ()

    @abstractmethod
    async def delete(self, attempt: str) -> None:
        """Delete the entries of one attempt. Idempotent."""

    async def delete_all(self, attempts: Collection[tuple[int, int]]) -> None:
        """Delete the entries of several (epoch, attempt). Idempotent."""
        for epoch, attempt in sorted(attempts):
            await self.delete(f"{epoch}-{attempt}")

    @abstractmethod
    async def close(self) -> None:
        """Release clients. Idempotent."""
