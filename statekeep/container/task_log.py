"""The job log of one task: the reign over it, and the attempts and commits that it records."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec

from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoint_id import CheckpointId
from statekeep.checkpoint.checkpoints import CheckpointV2, StoreName
from statekeep.checkpoint.job_log import JobLog
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.log_writer import LogWriter, random_nonce
from statekeep.checkpoint.note import OWNER_GONE, Note, no_note, note_void
from statekeep.checkpoint.records import (
    AttemptRecord,
    BadMarkerRecord,
    BaseRecord,
    CommitRecord,
    JobIdentity,
    ReleaseRecord,
    UnpinRecord,
    VoidRecord,
)
from statekeep.checkpoint.serde import decode_checkpoint_v2, encode_checkpoint_v2
from statekeep.checkpoint.version_id import VersionId
from statekeep.commit.retention import checkpoints_in_reach
from statekeep.errors import ConfigError
from statekeep.fault_points import fault_point


async def no_check() -> None:
    """Let every log begin."""


class TaskLog:
    """Writes the log of one task under one epoch; each append is whole and in order.

    In plain Python each task has a log of its own, with one "partition". So a task may move from
    one container to another: the new owner begins an epoch, and the old one is fenced at its next
    append, before it commits or deletes anything.

    Used by one event loop. After `TaskFencedError` every method that writes raises it again.
    """

    def __init__(
        self, log: JobLog, task: TaskIdentity, stores: Iterable[StoreName], note: Note = no_note
    ) -> None:
        """Take what is needed; nothing is read yet.

        Args:
            log: Closed by `close`.
            task: Whose log it is.
            stores: The task's stores.
            note: Told of every attempt that becomes void, by whichever record.
        """
        self._writer = LogWriter(log)
        self._note = note
        self._task = task
        self._stores = sorted(stores)
        self._identity: JobIdentity | None = None
        self._attempts = 0
        self._unresolved: int | None = None

    @property
    def job_uid(self) -> str:
        """What was drawn when the log was created; "" before `take_over`."""
        return "" if self._identity is None else self._identity.job_uid

    @property
    def view(self) -> LogView:
        """What stands in the log, as far as this owner has seen it."""
        return self._writer.view

    @property
    def epoch(self) -> int:
        """The epoch of this owner's reign."""
        return self._writer.epoch

    async def take_over(
        self,
        owner: str,
        checkpoint_id: CheckpointId,
        check_new: Callable[[], Awaitable[None]] = no_check,
    ) -> None:
        """Read the log, begin a new epoch, and close what older owners left open.

        Args:
            owner: Host and process, for people.
            checkpoint_id: Id of the empty commit, if the log has no commit yet.
            check_new: Awaited before the first record of a log is written; raises if none may be.

        Raises:
            ConfigError: The place cannot hold a log, or holds another job's, or one whose making
                has not ended.
            CheckpointCorruptError: A record cannot be read.
            TaskFencedError: Yet another owner came in between.
        """
        await self._writer.open()
        await self._check_new(check_new)
        current = self.view.last_commit
        if current is not None:
            self._check_identity(current.identity)
        self._require_made()
        fault_point("take_over.before_epoch")
        await self._writer.take_over(owner)
        fault_point("take_over.before_base")
        self._require_made()
        current = self.view.last_commit
        if current is None:
            await self._writer.append(self._empty_commit(checkpoint_id))
            return
        self._identity = msgspec.structs.replace(current.identity, stores=self._store_names())
        left_open = list(self.view.open_attempts.values())
        await self._writer.append(
            BaseRecord(
                epoch=0,
                nonce="",
                query_id="",
                commit_position=self.view.last_commit_position,
                head=current.batch,
            )
        )
        for attempt in left_open:
            note_void(self._note, attempt, OWNER_GONE)

    async def begin_attempt(self, version: VersionId, checkpoint_id: CheckpointId) -> int:
        """Record that a commit begins and return the number of the attempt.

        An earlier attempt whose end is unknown is closed first: two are never open.
        """
        await self.close_attempt("its end is unknown")
        self._attempts += 1
        self._unresolved = self._attempts
        await self._writer.append(
            AttemptRecord(
                epoch=0,
                nonce="",
                attempt=self._attempts,
                batch=version.batch,
                checkpoint_id=checkpoint_id.serialize(),
                versions={self._task.task_name: str(version)},
            )
        )
        return self._attempts

    async def commit(self, attempt: int, version: VersionId, checkpoint: CheckpointV2) -> None:
        """Append the commit record: from here on the checkpoint counts."""
        if self._identity is None:
            msg = f"the log was not taken over: task={self._task.task_name}"
            raise RuntimeError(msg)
        await self._writer.append(
            CommitRecord(
                epoch=0,
                nonce="",
                attempt_epoch=self.epoch,
                attempt=attempt,
                batch=version.batch,
                checkpoint_id=checkpoint.checkpoint_id.serialize(),
                identity=self._identity,
                checkpoints={self._task.task_name: msgspec.Raw(encode_checkpoint_v2(checkpoint))},
                versions={self._task.task_name: str(version)},
            )
        )
        self._unresolved = None

    async def check_fence(self) -> None:
        """Make sure, by the end of the log, that nobody has taken over.

        Raises:
            TaskFencedError: Somebody has.
            RetriableError: The log does not answer.
        """
        await self._writer.check_fence()

    async def close_attempt(self, reason: str) -> bool:
        """Make the attempt that was begun last void for good, unless its commit record landed.

        The void record is the proof: what stands before it in the log is all that ever will.

        Returns:
            Whether the commit record had landed after all. False too if no attempt is open.

        Raises:
            TaskFencedError: A newer owner has closed the attempt by taking over.
            RetriableError: Unknown as yet; `begin_attempt` tries again before anything else.
        """
        attempt = self._unresolved
        if attempt is None:
            return False
        begun = self.view.open_attempts.get((self.epoch, attempt))
        if not self.view.is_committed(self.epoch, attempt):
            await self._writer.append(
                VoidRecord(
                    epoch=0,
                    nonce="",
                    attempt_epoch=self.epoch,
                    attempt=attempt,
                    reason=reason,
                )
            )
        self._unresolved = None
        has_commit = self.view.is_committed(self.epoch, attempt)
        if begun is not None and not has_commit:
            note_void(self._note, begun, reason)
        return has_commit

    async def release(self, positions: Sequence[int]) -> None:
        """Let go of commits; what only they reach may be deleted afterwards."""
        await self._writer.append(ReleaseRecord(epoch=0, nonce="", positions=list(positions)))

    async def unpin(self, name: str) -> None:
        """Drop a pin; its commit may be released afterwards."""
        await self._writer.append(UnpinRecord(epoch=0, nonce="", name=name))

    async def mark_bad(self, backend: str, store: StoreName, marker: str, reason: str) -> None:
        """Record that a marker failed its checks."""
        await self._writer.append(
            BadMarkerRecord(
                epoch=0,
                nonce="",
                backend=backend,
                task=self._task.task_name,
                store=store,
                marker=marker,
                reason=reason,
            )
        )

    @property
    def is_trim_wanted(self) -> bool:
        """As `JobLog.is_trim_wanted`."""
        return self._writer.is_trim_wanted

    async def trim(self) -> None:
        """Drop the records that no retained commit needs."""
        await self._writer.trim(self.view.lowest_needed)

    async def close(self) -> None:
        """Close the log. Idempotent."""
        await self._writer.close()

    def checkpoint_of(self, commit: CommitRecord) -> CheckpointV2 | None:
        """Return the task's checkpoint in a commit; None in the empty one."""
        raw = commit.checkpoints.get(self._task.task_name)
        return (
            None
            if raw is None
            else decode_checkpoint_v2(bytes(raw), f"task={self._task.task_name}")
        )

    def version_of(self, commit: CommitRecord) -> VersionId | None:
        """Return the task's version in a commit; None for empty state."""
        text = commit.versions.get(self._task.task_name)
        return VersionId.parse(text) if text else None

    def base(self) -> tuple[CheckpointV2 | None, VersionId | None]:
        """Return what the next commit may build on: the current commit, without bad markers."""
        current = self.view.last_commit
        if current is None:
            return None, None
        return self._usable_checkpoint(current), self.version_of(current)

    def in_reach(self, closed: Sequence[tuple[int, int]]) -> Sequence[CheckpointV2]:
        """Return the task's retained checkpoints that reach what closed attempts made.

        Without bad markers: what only they reach is of no use to anyone.
        """
        return checkpoints_in_reach(self.view, self._task.task_name, closed)

    def _usable_checkpoint(self, commit: CommitRecord) -> CheckpointV2 | None:
        return self.view.usable_checkpoint(commit, self._task.task_name)

    def _empty_commit(self, checkpoint_id: CheckpointId) -> CommitRecord:
        self._identity = JobIdentity(
            job_uid=random_nonce(),
            job_name=self._task.job_name,
            partitions=1,
            stores=self._store_names(),
        )
        return CommitRecord(
            epoch=0,
            nonce="",
            attempt_epoch=self.epoch,
            attempt=0,
            batch=-1,
            checkpoint_id=checkpoint_id.serialize(),
            identity=self._identity,
        )

    def _store_names(self) -> Mapping[str, list[str]]:
        return {self._task.operator: [str(name) for name in self._stores]}

    def _require_made(self) -> None:
        """Make sure that the log is not that of a job which is being made from another one's state.

        Raises:
            ConfigError: It is: the state would be lost without a word.
        """
        if self.view.is_half_made:
            raise ConfigError(
                f"the job was not made to its end: job={self._task.job_name} "
                f"task={self._task.task_name}",
                key="job.name",
                hint="give the command again that was making it: `statekeep savepoint restore`, "
                "`rescale` or `spark-state import`; or `statekeep reset` this job, to start it with "
                "empty state",
            )

    async def _check_new(self, check_new: Callable[[], Awaitable[None]]) -> None:
        """Have a log checked that is empty; what speaks against it may be of an owner who began it now."""
        if self.view.next_position == 0:
            try:
                await check_new()
            except ConfigError:
                if (await self._writer.look()).next_position == 0:
                    raise

    def _check_identity(self, found: JobIdentity) -> None:
        if (found.job_name, found.partitions) != (self._task.job_name, 1):
            msg = (
                f"the log belongs to another job: job={self._task.job_name} "
                f"found_job={found.job_name} found_partitions={found.partitions}"
            )
            raise ConfigError(msg, key="job.name", hint="name another job or another place")
