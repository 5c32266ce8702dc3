"""The end of all that a job log says, so that the job starts anew (R2)."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from statekeep.checkpoint.job_log import JobLog, PositionTakenError
from statekeep.checkpoint.log_session import random_nonce
from statekeep.checkpoint.records import (
    AttemptRecord,
    CommitRecord,
    EpochRecord,
    JobIdentity,
    KeptRecord,
    MovedRecord,
    PinRecord,
    Record,
    Share,
    UnpinRecord,
    decode_record,
    encode_record,
    is_damaged_clone_pin,
    link_of,
)
from statekeep.checkpoint.serde import decode_checkpoint_v2
from statekeep.errors import CheckpointCorruptError, ConfigError, RetriableError


@dataclass
class LogRemains:
    """What a log says as far as it can be read, damaged and missing records left out."""

    next_position: int = 0
    """Where the next record goes."""
    newest_epoch: int = 0
    """No epoch in it is newer, whatever the damaged records are."""
    damaged: int = 0
    """Records that cannot be read or are missing."""
    commits: int = 0
    identities: dict[str, JobIdentity] = field(default_factory=dict[str, JobIdentity])
    """``{job uid: identity}`` of the jobs whose commits these are, that a tool began to make here, or
    whose reset was cut off: the log is trimmed only once their backups are deleted."""
    tasks: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """``{job uid: tasks}``"""
    backends: set[str] = field(default_factory=set[str])
    """Names of those that hold what the commits need."""
    pins: set[str] = field(default_factory=set[str])
    """Names under which commits are kept."""
    clones: dict[str, str] = field(default_factory=dict[str, str])
    """``{name: job}`` of those of `pins` that clones hold."""
    has_damaged_clone_pins: bool = False
    """Whether a record that cannot be read may keep a commit for a clone."""
    shares: set[Share] = field(default_factory=set[Share])
    """What those of `identities` that are clones use of other jobs."""
    link: str = ""
    """What a record behind all these has as ``previous``."""
    moved_to: str | None = None
    """The backend in which the log goes on, and with it the job whose backups these are."""
    _job_uid: str | None = field(default=None, init=False)
    """Of the job whose commits stand before the next record: its attempts do not say it again."""

    @property
    def is_clone(self) -> bool:
        """Whether the job uses backups of another one, or would: it may be half made, or half reset."""
        current = self.identities.get(self._job_uid or "")
        return bool(self.shares if current is None else current.shares)

    def fold(self, record: Record) -> None:
        """Take in the next record."""
        self.newest_epoch = max(self.newest_epoch, record.epoch + self.damaged)
        match record:
            case EpochRecord() if record.is_reset:
                self.commits = 0
                self.pins.clear()
                self.clones.clear()
                self._job_uid = None
            case AttemptRecord():
                if record.identity is not None:
                    self._record_job(record.identity)
                if self._job_uid is not None:
                    self.tasks[self._job_uid].update(record.versions, record.uploads)
            case CommitRecord():
                self.commits += 1
                self._record_job(record.identity)
                self.tasks[record.identity.job_uid].update(record.versions)
                self._record_backends(record)
            case KeptRecord():
                self.commits += 1
                self._record_job(record.commit.identity)
                self.tasks[record.commit.identity.job_uid].update(record.commit.versions)
                self._record_backends(record.commit)
                self.pins.update(record.pins)
                self.clones.update(record.clones)
            case PinRecord():
                self.pins.add(record.name)
                if record.clone:
                    self.clones[record.name] = record.clone
            case UnpinRecord() if record.clone == self.clones.get(record.name, ""):
                self.pins.discard(record.name)
                self.clones.pop(record.name, None)
            case MovedRecord():
                self.moved_to = record.backend
            case _:
                pass

    def fold_damaged(self, count: int = 1) -> None:
        """Take in records that cannot be read: each may be that of a newer epoch."""
        self.damaged += count
        self.newest_epoch += count

    def _record_job(self, identity: JobIdentity) -> None:
        """Take in what a job is now, with the stores that it no longer has."""
        uid = self._job_uid = identity.job_uid
        before = self.identities.get(uid, identity).stores
        stores = {
            operator: sorted({*before.get(operator, ()), *identity.stores.get(operator, ())})
            for operator in {**before, **identity.stores}
        }
        self.identities[uid] = msgspec.structs.replace(identity, stores=stores)
        self.shares.update(identity.shares)
        self.tasks.setdefault(uid, set())

    def _record_backends(self, commit: CommitRecord) -> None:
        for task, raw in commit.checkpoints.items():
            try:
                checkpoint = decode_checkpoint_v2(bytes(raw), where=f"task={task}")
            except CheckpointCorruptError:
                continue
            self.backends.update(checkpoint.state_markers)


async def read_remains(log: JobLog) -> LogRemains:
    """Read a log, whether its records are damaged, or missing, or not.

    Raises:
        ConfigError: There is no log.
        UnknownFormatError: A newer version of Statekeep has written to it: it is left alone.
        RetriableError: The service may answer later.
    """
    if not await log.is_there():
        return _fold((), 0)
    records = await log.read_left()
    return _fold(records, await log.read_floor())


async def _delete_nothing(_epoch: int, _remains: LogRemains) -> None:
    """Delete nothing: there are no backups."""


async def reset_log(
    log: JobLog,
    owner: str,
    *,
    check: Callable[[LogRemains], None] = lambda _: None,
    delete: Callable[[int, LogRemains], Awaitable[None]] = _delete_nothing,
    new_nonce: Callable[[], str] = random_nonce,
) -> tuple[int, LogRemains]:
    """Fence all writers of a log, then drop all its records, also those that cannot be read.

    What is left is one epoch record, which says so: a fenced writer finds a newer epoch at its
    next append, or that the log was trimmed past it, and a driver that has read the log and is
    about to take it over forgets what it has read. The next start finds no commit, and begins a new job with a
    uid of its own. Safe to repeat after any error, and after a crash: what stands before the record
    counts for nothing, and goes last.

    Args:
        log: Of a job, or of one task in plain Python.
        owner: Host and process, for people.
        check: Raises if what the log says must not be dropped. Asked again whenever the log went on
            meanwhile: nothing is dropped that it has not seen.
        delete: Deletes the backups, which cannot be found any more once the log has no record of
            them. Awaited with what is returned, once all writers are fenced; its errors are raised here.
        new_nonce: Draws the nonce of the record.

    Returns:
        The epoch of that record, newer than any before it, and what the log said.

    Raises:
        ConfigError: There is no log.
        UnknownFormatError: A newer version of Statekeep has written to it: nothing was changed.
        RetriableError: The service may answer later.
    """
    while True:
        remains = await read_remains(log)
        check(remains)
        position, epoch = remains.next_position, remains.newest_epoch + 1
        record = EpochRecord(
            epoch=epoch, nonce=new_nonce(), previous=remains.link, owner=owner, is_reset=True
        )
        try:
            await log.append(position, encode_record(record))
        except PositionTakenError:
            continue  # the job went on, or our own try had landed: either way, once more behind it
        if await log.read_floor() > position:
            raise RetriableError(f"the job log was trimmed past the record: position={position}")
        await delete(epoch, remains)
        await log.trim(position)
        return epoch, remains


def _fold(records: Sequence[tuple[int, bytes]], floor: int) -> LogRemains:
    if not records:
        raise ConfigError(
            "there is no log to reset",
            key="job.name",
            hint="check job.name, the location of the backend and, in plain Python, --task",
        )
    newest, data = records[-1]
    remains = LogRemains(next_position=newest + 1, link=link_of(data))
    expected = floor
    for position, data in records:
        if position > expected:  # a floor that was raised meanwhile may be above
            remains.fold_damaged(position - expected)
        expected = position + 1
        try:
            record = decode_record(data, where=f"position={position}")
        except CheckpointCorruptError:
            remains.fold_damaged()
            remains.has_damaged_clone_pins |= is_damaged_clone_pin(data)
        else:
            remains.fold(record)
    return remains
