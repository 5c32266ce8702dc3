"""The one way to write to a job log: stamp a record, append it at the end, know when one is fenced (R1)."""

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import msgspec

from statekeep.checkpoint.checkpoints import CheckpointId
from statekeep.checkpoint.job_log import JobLog, PositionTakenError
from statekeep.checkpoint.log_reader import LogReader
from statekeep.checkpoint.log_view import LogView, bad_markers_of
from statekeep.checkpoint.records import (
    AbortRecord,
    AttemptRecord,
    BaseRecord,
    CommitRecord,
    EpochRecord,
    JobIdentity,
    KeptRecord,
    PinRecord,
    Record,
    ReleaseRecord,
    UnpinRecord,
    encode_record,
)
from statekeep.errors import CommitFailedError, ConfigError, RetriableError, TaskFencedError
from statekeep.events import CommitAborted, Report, report_nothing

logger = logging.getLogger(__name__)

_REPEATABLE: Final = (PinRecord, UnpinRecord, ReleaseRecord, KeptRecord)
"""Records that may rightly be written again with equal content: once the view shows one, an equal one
that is asked for is another."""
_OWNER_GONE: Final = "its owner is gone"
"""Why an attempt is aborted that a new owner found open."""


def random_nonce() -> str:
    """Return 128 random bits as hex: the default source of nonces and uids."""
    return uuid.uuid4().hex


@dataclass
class _Append:
    """One record on its way into the log; kept while it is unknown whether it landed."""

    asked: Record
    """As the caller gave it."""
    stamped: Record
    """With epoch and nonce. The nonce is the same in every try, so that the record lands at most once;
    what stands before it is stated by each try for its own position."""
    tried: int = -1
    """The last position tried; all lower ones hold other records."""
    position: int | None = None
    """Where it landed; None as long as that is not known."""


class LogSession:
    """Appends records to one `JobLog` and keeps the `LogView` of all that stands in it.

    One per driver (or per task in plain Python) or tool, on one event loop; calls that overlap are
    done one after the other. The session fills in the epoch and the nonce of each record.

    An *owner* has taken the log over and writes under an epoch of its own. It is *fenced* once it
    sees an epoch newer than that, or a floor at or above a position that it wrote: from then on
    every call raises `TaskFencedError`. A *pin writer* has not taken over. It may pin and unpin commits,
    under the current owner's epoch, without fencing it. That is safe for these records alone: they
    say nothing of batches or attempts, and where a pin meets the release of the same commit, the
    position decides for everyone.

    An append may fail, or be cancelled, with its outcome unknown: the record may have landed, or
    may still. The next append resolves it, as no two records share a position: afterwards `view`
    holds the first record, or it never will. Appending an equal record again continues the first
    append instead of making a second; but not one of pins and releases that has landed, whose effect
    is in the view.
    """

    def __init__(
        self,
        log: JobLog,
        *,
        report: Report = report_nothing,
        new_nonce: Callable[[], str] = random_nonce,
    ) -> None:
        """Take what is needed; nothing is read yet.

        Args:
            log: Closed by `close`, or by its owner.
            report: Gets every attempt that is aborted here, by whichever record.
            new_nonce: Draws what a record is known again by.
        """
        self._log = log
        self._reader = LogReader(log)
        self._report = report
        self._new_nonce = new_nonce
        self._own_epoch = 0
        self._fenced_by = 0
        self._attempts = 0
        self._unresolved: AttemptRecord | None = None
        """The attempt whose end is not on record."""
        self._in_doubt: list[_Append] = []
        self._turn = asyncio.Lock()

    @classmethod
    async def of_tool(cls, log: JobLog, owner: str, report: Report = report_nothing) -> Self:
        """Take a log over and abort what older owners left open, without a base record.

        A base record says where a driver goes on in its query, which a tool does not know; batches
        on record stay as they are. The job's next start takes over in turn.

        Args:
            log: Of a job, or of one task in plain Python; closed by the caller.
            owner: Host and process, for people.
            report: Gets what is aborted.

        Raises:
            ConfigError: The backend cannot hold a log.
            CheckpointCorruptError: A record cannot be read.
            TaskFencedError: Yet another owner came in between.
        """
        session = cls(log, report=report)
        await session.open()
        await session.take_over(owner)
        for epoch, attempt in sorted(session.view.open_attempts):
            await session.append(
                AbortRecord(attempt_epoch=epoch, attempt=attempt, reason=f"taken over by {owner}")
            )
        return session

    @property
    def view(self) -> LogView:
        """What the log amounts to, as far as the session has read it."""
        return self._reader.view

    @property
    def epoch(self) -> int:
        """The epoch that the session writes under; 0 for a pin writer, and before `take_over`."""
        return self._own_epoch

    async def open(self) -> LogView:
        """Probe the storage and read the whole log.

        Raises:
            ConfigError: The backend cannot hold a log, or the log has moved elsewhere.
            CheckpointCorruptError: A record other than a batch record cannot be read.
        """
        async with self._turn:
            await self._log.probe()
            await self._catch_up()
            self._reader.require_here()
            return self.view

    async def take_over(self, owner: str) -> int:
        """Begin a new epoch, fencing every older writer, and return its number.

        Of racing callers each gets an epoch of its own; the last one in the log wins and the
        others find themselves fenced at their next append. Safe to repeat after any error but
        `TaskFencedError`.

        Args:
            owner: Host and process, for people.

        Raises:
            ConfigError: The log has moved elsewhere, perhaps since `open`.
        """
        async with self._turn:
            if self._own_epoch:
                self._raise_if_fenced()
            await self._catch_up()
            while True:
                self._reader.require_here()
                epoch = self.view.epoch + 1
                record = EpochRecord(epoch=epoch, nonce=self._new_nonce(), owner=owner)
                append = _Append(asked=record, stamped=record)
                position = await self._try_to_append(append)
                if position is not None:
                    break
            self._own_epoch = epoch
            await self._check_floor(position)
            return epoch

    async def go_on_from(
        self, query_id: str, head: int, stores: Mapping[str, list[str]] | None = None
    ) -> None:
        """Append the base record: where the owner's session begins. Attempts of older owners are aborted by it.

        Args:
            query_id: The Spark query; "" for one that has not begun, and in plain Python.
            head: The newest batch that counts.
            stores: ``{operator: stores}`` that the session backs up; None: those of the last commit.
        """
        left_open = list(self.view.open_attempts.values())
        await self.append(
            BaseRecord(
                query_id=query_id,
                commit_position=self.view.last_commit_position,
                head=head,
                stores=stores or {},
            )
        )
        for attempt in left_open:
            self._report_abort(attempt, _OWNER_GONE)

    async def begin_attempt(
        self,
        batch: int,
        checkpoint_id: CheckpointId,
        versions: Mapping[str, str],
        uploads: Sequence[str] = (),
        identity: JobIdentity | None = None,
    ) -> int:
        """Record that a commit begins and return its number within the epoch.

        An earlier attempt whose end is unknown is closed first: two are never open.

        Args:
            batch: Of the commit.
            checkpoint_id: Of the commit.
            versions: As they will be.
            uploads: The tasks whose state is uploaded.
            identity: Of a job that is being made; None: the log's commits have it.
        """
        await self.close_attempt("its end is unknown")
        self._attempts += 1
        self._unresolved = AttemptRecord(
            epoch=self.epoch,
            attempt=self._attempts,
            batch=batch,
            checkpoint_id=checkpoint_id.serialize(),
            versions=versions,
            uploads=list(uploads),
            identity=identity,
        )
        await self.append(self._unresolved)
        return self._attempts

    async def close_attempt(self, reason: str) -> bool:
        """Abort the attempt that was begun last, unless its commit record landed.

        The abort record is the proof: whatever landed stands before it in the log.

        Returns:
            Whether the commit record had landed after all. False too if no attempt is open.

        Raises:
            TaskFencedError: A newer owner has closed the attempt by taking over.
            RetriableError: Unknown as yet; `begin_attempt` tries again before anything else.
        """
        attempt = self._unresolved
        if attempt is None:
            return False
        number = attempt.attempt
        if not self.view.is_committed(self.epoch, number):
            await self.append(AbortRecord(attempt_epoch=self.epoch, attempt=number, reason=reason))
        self._unresolved = None
        has_commit = self.view.is_committed(self.epoch, number)
        if not has_commit:
            self._report_abort(attempt, reason)
        return has_commit

    async def append(self, record: Record) -> int:
        """Append one record, under the own epoch and with a fresh nonce; return its position.

        Raises:
            TaskFencedError: A newer epoch is in the log, or the log was trimmed past the record.
            ConfigError: The log has moved elsewhere; or a pin, but its name is another commit's, or
                the commit is not there any more.
            CommitFailedError: A commit record, but its attempt is aborted.
            ValueError: A release of the current commit.
            RetriableError: Unknown whether the record landed, see the class; or a release of a
                commit that was pinned meanwhile: release the others.
            RuntimeError: A pin writer writes something other than pins.
        """
        async with self._turn:
            append = self._begin(record)
            position = await self._append_record(append)
            if not isinstance(
                record, AttemptRecord
            ):  # nothing counts before its commit, which looks
                await self._check_floor(position)
            self._in_doubt = [other for other in self._in_doubt if other is not append]
        if isinstance(record, CommitRecord) and record.attempt_epoch == self.epoch:
            self._unresolved = None  # of one attempt at a time
        return position

    async def pin(self, name: str, position: int, *, expires_ms: int = 0, clone: str = "") -> None:
        """Keep the commit at ``position`` from being released, under a name.

        Pinning it again under the same name changes nothing but how long the pin holds.

        Args:
            name: Unique in the job.
            position: Of the commit record.
            expires_ms: Wall-clock milliseconds after which the job's clean-up drops the pin by
                itself; 0: never.
            clone: The job whose pin it is, if it is a clone's.

        Raises:
            ConfigError: There is no such commit any more, the name is another commit's, or the log
                has moved elsewhere.
            RetriableError: Unknown whether the pin landed; the call may be repeated.
        """
        view = await self._find_pins()
        is_pinned = view.pins.get(name) == position
        if not is_pinned or view.pin_expiries.get(name, 0) != expires_ms:
            await self.append(
                PinRecord(name=name, position=position, expires_ms=expires_ms, clone=clone)
            )

    async def unpin(self, name: str, *, clone: str = "") -> None:
        """Give a pinned commit back to retention.

        Args:
            name: Of the pin.
            clone: The job whose pin it is, if it is a clone's.

        Raises:
            ConfigError: No commit has this name, the pin is a clone's, or the log has moved elsewhere.
            RetriableError: Unknown whether it took effect; the call may be repeated.
        """
        pins = (await self._find_pins()).pins
        landed = [append.asked for append in self._in_doubt if append.position is not None]
        record = UnpinRecord(name=name, clone=clone)
        if name not in pins and record in landed:
            return  # the call that had no answer
        if name not in pins:
            raise ConfigError(
                f"no commit is pinned under this name: name={name} names={','.join(sorted(pins))}",
                hint="`statekeep checkpoints list` shows what is pinned",
            )
        await self.append(record)

    async def check_fence(self) -> None:
        """Read the end of the log, as an append would: for a writer that appends nothing now.

        Raises:
            TaskFencedError: A newer epoch is in the log.
            RetriableError: The service may answer later; the call may be repeated.
        """
        async with self._turn:
            await self._catch_up()
            self._raise_if_fenced()

    async def poll(self) -> LogView:
        """Read new records, whichever process wrote them, and return the view of the whole log.

        Raises:
            CheckpointCorruptError: A record other than a batch record cannot be read.
            RetriableError: The service may answer later; the call may be repeated.
        """
        async with self._turn:
            await self._catch_up()
            return self.view

    async def read_commits(self, positions: Iterable[int]) -> Mapping[int, CommitRecord]:
        """As `LogReader.read_commits`."""
        async with self._turn:
            return await self._reader.read_commits(positions)

    @property
    def is_trim_wanted(self) -> bool:
        """As `JobLog.is_trim_wanted`."""
        return self._log.is_trim_wanted

    async def trim(self, floor: int) -> None:
        """Drop the records below ``floor``, once clean-up is done with them.

        Raises:
            TaskFencedError: A newer epoch is in the log.
            ValueError: A retained commit needs a lower position: see `LogView.lowest_needed`.
            RetriableError: The service may answer later; the call may be repeated.
        """
        async with self._turn:
            await self._catch_up()
            self._raise_if_fenced()
            if floor > self.view.lowest_needed:
                msg = f"the log is still needed: floor={floor} lowest_needed={self.view.lowest_needed}"
                raise ValueError(msg)
            await self._log.trim(floor)
            self.view.forget_below(floor)

    async def close(self) -> None:
        """Close the log. Idempotent."""
        await self._log.close()

    async def _find_pins(self) -> LogView:
        view = await self.poll()
        self._reader.require_here()
        if not view.commits:
            raise ConfigError("the job has no commit yet")
        return view

    def _report_abort(self, attempt: AttemptRecord, reason: str) -> None:
        self._report(CommitAborted(attempt.epoch, attempt.attempt, attempt.batch, reason))

    def _begin(self, record: Record) -> _Append:
        """Return the append of ``record``: the one in doubt of an equal record, or a new one."""
        if not self._own_epoch and not isinstance(record, PinRecord | UnpinRecord):
            msg = "append before take_over"
            raise RuntimeError(msg)
        self._in_doubt = [a for a in self._in_doubt if not self._is_resolved(a)]
        for append in self._in_doubt:
            if append.asked == record:
                return append
        stamped = msgspec.structs.replace(record, epoch=self._own_epoch, nonce=self._new_nonce())
        append = _Append(asked=record, stamped=stamped)
        self._in_doubt.append(append)
        return append

    def _is_resolved(self, append: _Append) -> bool:
        """Whether a record can never land, or has landed and will not be appended again.

        It never lands once another one stands at the last position tried. It is not appended again
        where the view shows a caller without an answer what it did.
        """
        if append.position is None:
            return append.tried < self.view.next_position
        return isinstance(append.asked, _REPEATABLE)

    async def _append_record(self, append: _Append) -> int:
        while append.position is None:
            self._raise_if_fenced()
            self._reader.require_here()
            _raise_if_contradicted(append.stamped, self.view)
            if not self._own_epoch:
                append.stamped = msgspec.structs.replace(append.stamped, epoch=self.view.epoch)
            await self._try_to_append(append)
        return append.position

    async def _try_to_append(self, append: _Append) -> int | None:
        """Try the next position; None when another record stood there, which is folded then."""
        position = append.tried = self.view.next_position
        linked = msgspec.structs.replace(append.stamped, previous=self._reader.link)
        data = encode_record(linked)
        try:
            await self._log.append(position, data)
        except PositionTakenError as exc:
            await self._catch_up(append)
            if self.view.next_position == position:
                msg = f"the job log refuses a position that it does not show: position={position}"
                error = RetriableError(msg)
                error.add_note("hint: if it goes on, remove what has the record's name and is none")
                raise error from exc
        else:
            self._reader.fold(position, linked, data)
            append.position = position
        return append.position

    async def _catch_up(self, *appends: _Append) -> None:
        """Fold what was written since, and find out where own records landed, by their nonces."""

        def find_own(position: int, record: Record) -> None:
            for append in (*appends, *self._in_doubt):
                if append.stamped.nonce == record.nonce:
                    append.position = position

        await self._reader.catch_up(find_own)

    def _raise_if_fenced(self) -> None:
        newer_epoch = max(self._fenced_by, self.view.epoch)
        if newer_epoch > self._own_epoch > 0:
            msg = "another driver has taken over this job"
            raise TaskFencedError(msg, own_epoch=self._own_epoch, newer_epoch=newer_epoch)

    async def _check_floor(self, position: int) -> None:
        """Make sure that the record at ``position`` is not one that the log has gone past.

        Where a position was trimmed, a fenced writer can create it anew; it is never read.
        """
        floor = await self._log.read_floor()
        if not self._own_epoch:
            if floor > position:
                raise RetriableError(
                    f"the job log was trimmed past the record: position={position}"
                )
        elif floor >= position and floor > 0:
            self._fenced_by = max(self._own_epoch, self.view.epoch) + 1
            msg = f"the job log was trimmed past the record: position={position} floor={floor}"
            raise TaskFencedError(msg, own_epoch=self._own_epoch, newer_epoch=self._fenced_by)


def require_no_clones(
    clones: Mapping[str, str], names: Collection[str] | None = None, *, but: str = ""
) -> None:
    """Make sure that no clone holds a commit that is to be given up.

    Args:
        clones: ``{name: job}`` of the pins that clones hold.
        names: Those of the pins that are to go; None: all.
        but: The clone that gives it up itself.

    Raises:
        ConfigError: One does; names it.
    """
    held = {
        name: clone
        for name, clone in clones.items()
        if (names is None or name in names) and clone != but
    }
    if held:
        name, clone = min(held.items())
        raise ConfigError(
            "a clone uses the backups of the commit: "
            f"clones={','.join(sorted(set(held.values())))} pin={name}",
            hint=f"`statekeep clone promote {clone}` gives it backups of its own, "
            f"`statekeep clone drop {clone}` deletes it",
        )


def _raise_if_contradicted(record: Record, view: LogView) -> None:
    """Refuse a record that would have no effect on ``view``, which its writer should know of."""
    match record:
        case CommitRecord():
            if (record.attempt_epoch, record.attempt) in view.aborted_attempts:
                msg = "the attempt was aborted"
                raise CommitFailedError(msg, checkpoint_id=record.checkpoint_id, step="record")
        case ReleaseRecord():
            if view.last_commit_position in record.positions:
                msg = f"the current commit is kept: position={view.last_commit_position}"
                raise ValueError(msg)
            pinned = set(view.pins.values()).intersection(record.positions)
            if pinned:
                msg = f"a commit was pinned meanwhile, look again: positions={sorted(pinned)}"
                raise RetriableError(msg)
        case KeptRecord():
            bad_markers = bad_markers_of(record.commit, view.bad_markers)
            stated = (record.pins, record.clones, record.bad_markers)
            position = record.position
            if stated != (view.pins_of(position), view.clones_of(position), bad_markers):
                msg = (
                    "a commit was pinned or unpinned meanwhile, or a marker of it was found bad: "
                    f"position={position}"
                )
                raise RetriableError(msg)
        case UnpinRecord():
            require_no_clones(view.clones, {record.name}, but=record.clone)
        case PinRecord():
            named = view.pins.get(record.name, record.position)
            if named != record.position:
                raise ConfigError(
                    f"the name is in use: name={record.name} commit={named}",
                    hint=f"choose another one, or `statekeep checkpoints unpin {record.name}` first",
                )
            if record.position not in view.commits:
                msg = f"the commit is released or was never there: commit={record.position}"
                raise ConfigError(msg)
        case _:
            pass
