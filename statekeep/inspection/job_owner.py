"""The log of a stopped job in the hands of whoever looks after it: one epoch, like any driver's."""

from collections.abc import Mapping, Sequence
from typing import Self

from statekeep.checkpoint.checkpoint_id import CheckpointId
from statekeep.checkpoint.job_log import JobLog
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.log_writer import LogWriter
from statekeep.checkpoint.records import (
    AttemptRecord,
    CommitRecord,
    JobIdentity,
    MovedRecord,
    PinRecord,
    ReleaseRecord,
    VoidRecord,
)
from statekeep.errors import StateBackupError


class JobOwner:
    """Writes commits, releases and pins to a log that it has taken over (R1).

    Whoever ran the job is fenced: it fails at its next append, before it commits or deletes
    anything. The job's next start takes over in turn. No base record is written: it says where a
    driver goes on in its query, which nobody knows here; batches on record stay as they are.

    Used by one event loop; the log is closed by its owner.
    """

    def __init__(self, writer: LogWriter) -> None:
        """Use `take_over`."""
        self._writer = writer
        self._attempts = 0

    @classmethod
    async def take_over(cls, log: JobLog, owner: str) -> Self:
        """Begin a new epoch and make void what older owners left open.

        Args:
            log: Of a job, or of one task in plain Python.
            owner: Host and process, for people.

        Raises:
            ConfigError: The place cannot hold a log.
            CheckpointCorruptError: A record cannot be read.
            TaskFencedError: Yet another owner came in between.
        """
        writer = LogWriter(log)
        await writer.open()
        await writer.take_over(owner)
        taken = cls(writer)
        for epoch, attempt in sorted(writer.view.open_attempts):
            await taken._void(epoch, attempt, f"taken over by {owner}")
        return taken

    @property
    def view(self) -> LogView:
        """What stands in the log."""
        return self._writer.view

    @property
    def epoch(self) -> int:
        """The epoch of this owner."""
        return self._writer.epoch

    async def begin_attempt(
        self,
        batch: int,
        checkpoint_id: CheckpointId,
        versions: Mapping[str, str],
        uploads: Sequence[str],
        identity: JobIdentity | None = None,
    ) -> int:
        """Record that a commit begins and return its number within the epoch.

        Args:
            batch: Of the commit.
            checkpoint_id: Of the commit.
            versions: As they will be.
            uploads: The tasks whose state is uploaded.
            identity: Of a job that is being made; None: the log's commits have it.
        """
        self._attempts += 1
        await self._writer.append(
            AttemptRecord(
                epoch=0,
                nonce="",
                attempt=self._attempts,
                batch=batch,
                checkpoint_id=checkpoint_id.serialize(),
                versions=versions,
                uploads=list(uploads),
                identity=identity,
            )
        )
        return self._attempts

    async def commit(self, record: CommitRecord) -> int:
        """Append the commit record of an attempt of this epoch and return its position."""
        return await self._writer.append(record)

    async def give_up(self, attempt: int, reason: str) -> bool:
        """Make an attempt of this epoch void, if the log still lets us.

        Returns:
            Whether it is void; False leaves it to the next owner, who makes it so.
        """
        try:
            await self._void(self.epoch, attempt, reason)
        except StateBackupError:
            return False
        return True

    async def pin(self, name: str, position: int) -> None:
        """Keep a commit from being released, under a name."""
        await self._writer.append(PinRecord(epoch=0, nonce="", name=name, position=position))

    async def release(self, positions: Sequence[int]) -> None:
        """Let go of commits: they are never restored again (R8).

        Raises:
            ValueError: The current commit is among them.
            RetriableError: One of them is pinned.
        """
        await self._writer.append(ReleaseRecord(epoch=0, nonce="", positions=list(positions)))

    async def leave(self, backend: str) -> None:
        """Record that the log goes on in another backend: nobody writes here any more."""
        await self._writer.append(MovedRecord(epoch=0, nonce="", backend=backend))

    async def _void(self, epoch: int, attempt: int, reason: str) -> None:
        await self._writer.append(
            VoidRecord(epoch=0, nonce="", attempt_epoch=epoch, attempt=attempt, reason=reason)
        )
