"""The records of the job log, and how one record stands in bytes.

Every record is JSON in a frame (`statekeep.checkpoint.framing`); its kind is the record's type.
``docs/reference/formats.md`` has the tables. Unknown fields are ignored, an unknown type or format version is
an error: a log that a newer statekeep wrote is not guessed at.
"""

import hashlib
from collections.abc import Mapping
from typing import Final, get_args

import msgspec

from statekeep.checkpoint.framing import claimed_kind, decode_json, frame, unframe
from statekeep.errors import CheckpointCorruptError, UnknownFormatError

NO_QUERY: Final = ""
"""`QueryState.query_id` of a clone that was made without a checkpoint location: no location is its own."""


class _Record(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="kebab",
    tag_field="type",
    omit_defaults=True,
):
    epoch: int = 0
    """Epoch of the writer. `LogSession` fills it in, and the nonce."""
    nonce: str = ""
    """Drawn for each append: the writer knows its own record again after an unclear answer."""
    previous: str = ""
    """`link_of` the record before it, which its writer had read; "" where there was none, or where a
    release wrote it that stated none."""


class EpochRecord(_Record, frozen=True, kw_only=True, tag="epoch"):
    """A driver session begins; every older epoch is fenced from this position on."""

    owner: str
    """Host and process, for people."""
    is_reset: bool = False
    """Whether all that stands before it in the log counts for nothing: the job begins anew."""


class BaseRecord(_Record, frozen=True, kw_only=True, tag="base"):
    """What a driver session starts from: aborts open attempts of older epochs and batches above ``head``."""

    query_id: str
    """The Spark query whose batch numbers these are; "" for a new one that has not begun."""
    commit_position: int
    """Position of the commit record that the session starts from."""
    head: int
    """H: the newest batch that counts, max(L, C); -1 before the first."""
    stores: Mapping[str, list[str]] = {}
    """``{operator: stores that the session backs up}``; empty: those of the last commit."""


class TaskBatch(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """What one task did in one batch."""

    version: str
    """`VersionId` after the batch; of an older batch when nothing changed; "" for empty state."""
    rows_in: int = 0
    rows_out: int = 0
    input_digest: str = ""
    """Order-free digest of the rows of the task."""
    output_digest: str = ""
    changes_digest: str = ""
    is_sorted: bool = False
    """Whether Spark sorted the rows by key, because they were too many to group in the task."""


class BatchRecord(_Record, frozen=True, kw_only=True, tag="batch"):
    """A batch that is processed and not yet delivered: its boundaries, and the version of each task.

    Of several records of one batch within a query the one at the highest position holds.
    """

    query_id: str
    batch: int
    offsets: str
    """Text of the query's ``offsets/<batch>``."""
    previous_commit: str | None = None
    """Text of ``commits/<batch - 1>``; None for the first batch."""
    tasks: Mapping[str, TaskBatch] = {}


class Share(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """A commit of another job whose backups a clone uses, without a copy of them."""

    job_name: str
    job_uid: str
    log: str
    """The backend that held its log when the clone was made."""
    position: int
    """Of the commit record."""
    pin: str
    """Keeps the commit there. Each try to make a clone has its own, which may be dropped at any time once
    that try has failed for good."""


class JobIdentity(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """What must not drift between runs of a job; a change is refused by name."""

    job_uid: str
    """Drawn when the log was created: tells this job's log from another of the same name."""
    job_name: str
    partitions: int
    """N, the number of tasks that the log is of: 1 in plain Python."""
    task_count: int = 0
    """In plain Python, the number of tasks of the job, if a tool has fixed it; else 0."""
    router: str = ""
    """Id of the function from key to task."""
    key_schema: str = ""
    """Grouping key columns and their types."""
    stores: Mapping[str, list[str]] = {}
    """``{operator: [store]}``."""
    processors: list[str] = []
    """Of a query with several operators, the class names of their processors, in their order."""
    retired_stores: list[str] = []
    """Those that the job has given up, sorted: their names are not used again, as the disk of some host may
    still have what they held."""
    settings: Mapping[str, str] = {}
    shares: list[Share] = []
    """What a clone uses of other jobs. Frames of records with it are of kinds of their own: a release that
    does not know this would lose track of it."""


class AttemptRecord(_Record, frozen=True, kw_only=True, tag="attempt"):
    """A commit begins: the versions that are submitted for upload."""

    attempt: int
    """Number within the epoch, from 1."""
    batch: int
    checkpoint_id: str
    versions: Mapping[str, str]
    """``{task: VersionId}``; "" for a task whose state is still empty."""
    uploads: list[str] = []
    """The tasks that must upload; the others keep the markers of the commit before. Empty in plain
    Python, whose one task always uploads."""
    identity: JobIdentity | None = None
    """Of a job that a tool makes: until its first commit only this says below which uid its uploads
    lie. None in the log of a job that has a commit."""


class QueryState(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """Files of the query's checkpoint location as they are at C, as text.

    For a replay, and for people. They do not make a location: what a source has read stands in
    ``sources/``.
    """

    query_id: str
    """`NO_QUERY`: the files are those of the job that this one was made of."""
    metadata: str
    previous_offsets: str | None = None
    """``offsets/<C-1>``"""
    offsets: str | None = None
    """``offsets/<C>``"""
    commit: str | None = None
    """``commits/<C>``; None when the record is written inside the batch call."""
    started_from: str | None = None
    """Id of the checkpoint that the query went on from; None: it began with empty state."""
    imported_time_mode: str = ""
    """Of a commit whose state was imported from Spark's own operator: the time mode of that. The offsets
    are then as the first start writes them."""


class StateChange(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """Who changed the state of a stopped job or its number of tasks, and why.

    Names no keys: they may be about persons.
    """

    kind: str
    """``put``, ``delete``, ``erase``, ``undo`` or ``reshape``."""
    by: str
    """User and host, for people."""
    reason: str
    operator: str = ""
    """Whose tasks were changed; "" for an undo, which changes them all back."""
    variable: str = ""
    """The state variable; "" where all of them were changed."""
    keys: int = 0
    """How many grouping keys were given."""
    made_from: str = ""
    """Checkpoint id of the commit that was changed; "" in logs of before it was recorded."""


class CommitRecord(_Record, frozen=True, kw_only=True, tag="commit"):
    """The commit point: this set of task checkpoints is durable and current.

    ``batch`` -1 is that with which a query begins: no checkpoints, empty state, in a new log; else
    a commit of the query before, once more, without a query until the new one has begun.
    """

    attempt_epoch: int
    """Epoch of the attempt: older than the record's when a new driver rolled it forward (R5)."""
    attempt: int
    batch: int
    checkpoint_id: str
    identity: JobIdentity
    checkpoints: Mapping[str, msgspec.Raw] = {}
    """``{task: CheckpointV2 in Samza's JSON}``, all N of them."""
    versions: Mapping[str, str] = {}
    """``{task: VersionId}``, as in the attempt's record."""
    query: QueryState | None = None
    """None in plain Python."""
    change: StateChange | None = None
    """Of a commit that holds other state than its batch left, or has it in another number of tasks. What
    was recorded before it is of other state or other tasks: no task goes back past it. Its frame is of a
    kind of its own, which a release refuses that does not know this."""


class AbortRecord(_Record, frozen=True, kw_only=True, tag="void"):  # the stored name
    """An attempt that will never complete, whatever its uploads still do."""

    attempt_epoch: int
    attempt: int
    reason: str


class ReleaseRecord(_Record, frozen=True, kw_only=True, tag="release"):
    """Commits that are never restored again: what only they reach may be deleted by anyone."""

    positions: list[int]
    """Positions of the commit records."""


class PinRecord(_Record, frozen=True, kw_only=True, tag="pin"):
    """Keeps a commit from being released, under a name."""

    name: str
    position: int
    expires_ms: int = 0
    """Wall-clock milliseconds after which the job's clean-up may unpin it; 0: never. Until it has, the
    pin holds: what a log says depends on no clock."""
    clone: str = ""
    """The job that uses the backups of the commit. Only a tool or clean-up of that job drops the pin; its
    frame is of a kind of its own, as a release that does not know this would let users drop it."""


class UnpinRecord(_Record, frozen=True, kw_only=True, tag="unpin"):
    """Gives a pinned commit back to retention."""

    name: str
    clone: str = ""
    """The job whose pin it is, if it is a clone's: without it such a pin stays."""


class KeptRecord(_Record, frozen=True, kw_only=True, tag="kept"):
    """A pinned commit, written once more, so that the log can be trimmed between the two.

    Has an effect only while the commit is retained. A reader of a trimmed log finds the commit
    here, under the position that it always had.
    """

    position: int
    """Of the commit record."""
    commit: CommitRecord
    pins: Mapping[str, int]
    """``{name: expires_ms}`` of its pins."""
    bad_markers: list[tuple[str, str, str, str]] = []
    """(backend, task, store, marker) of those in the commit that are not to be used."""
    clones: Mapping[str, str] = {}
    """``{name: job}`` of the pins that clones hold."""


class BadMarkerRecord(_Record, frozen=True, kw_only=True, tag="bad-marker"):
    """A marker that failed its checks: never again a source of restore or base of an increment."""

    backend: str
    task: str
    store: str
    marker: str
    reason: str


class MovedRecord(_Record, frozen=True, kw_only=True, tag="moved"):
    """The log goes on elsewhere; this one is never written again."""

    backend: str
    """Name of the backend that holds it now, as it was called then."""


Record = (
    EpochRecord
    | BaseRecord
    | BatchRecord
    | AttemptRecord
    | CommitRecord
    | AbortRecord
    | ReleaseRecord
    | PinRecord
    | UnpinRecord
    | KeptRecord
    | BadMarkerRecord
    | MovedRecord
)
"""Every record of the job log."""

_LINK_DIGITS: Final = 32
_CHANGED_COMMIT: Final = "changed-commit"
"""Kind of the frame of a commit with a change."""
_RESHAPED_COMMIT: Final = "reshaped-commit"
"""Kind of the frame of a commit that has the state in another number of tasks."""
_CLONE_PIN: Final = "clone-pin"
_KEPT_FOR_CLONES: Final = "kept-for-clones"
_SHARED_ATTEMPT: Final = "shared-attempt"
_SHARED_COMMIT: Final = "shared-commit"
"""Kinds of the frames of what a clone writes and of what is kept for one."""
RESHAPE: Final = "reshape"
"""The kind of a change that gives the state of a job to another number of tasks."""

_encoder = msgspec.json.Encoder(order="deterministic")
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def encode_record(record: Record) -> bytes:
    """Return the bytes of one record: header line and JSON payload."""
    return frame(_frame_kind(record), _encoder.encode(record))


def _frame_kind(record: Record) -> str:
    """Return the kind of a record's frame: its type, but where older releases must not read on."""
    kind = _kind_of(type(record))
    match record:
        case CommitRecord() if record.identity.shares:
            kind = _SHARED_COMMIT
        case CommitRecord() if record.change is not None:
            kind = _RESHAPED_COMMIT if record.change.kind == RESHAPE else _CHANGED_COMMIT
        case AttemptRecord() if record.identity is not None and record.identity.shares:
            kind = _SHARED_ATTEMPT
        case PinRecord() if record.clone:
            kind = _CLONE_PIN
        case KeptRecord() if record.clones or record.commit.identity.shares:
            kind = _KEPT_FOR_CLONES
        case _:
            pass
    return kind


def link_of(data: bytes) -> str:
    """Return what the next record has as ``previous``, given the bytes of this one."""
    return hashlib.sha256(data).hexdigest()[:_LINK_DIGITS]


def decode_record(data: bytes, *, where: str) -> Record:
    """Read one record back.

    Args:
        data: What the log holds at one position.
        where: Named in errors, such as ``position=7``.

    Raises:
        CheckpointCorruptError: Truncated or damaged.
        UnknownFormatError: A newer version of Statekeep wrote it: of another format or type.
    """
    framed = unframe(data, where=where)
    if framed.kind not in _KINDS:
        raise UnknownFormatError(f"log record of an unknown type: {where} type={framed.kind}")
    damage = f"log record cannot be read: {where} type={framed.kind}"
    record = decode_json(_decoder, framed.payload, damage)
    if record.epoch < 1 or not record.nonce:
        raise CheckpointCorruptError(f"{damage} (it has no epoch or no nonce)")
    return record


def is_damaged_batch(data: bytes) -> bool:
    """Return whether a record that `decode_record` refuses says that it is a batch record."""
    return claimed_kind(data) == _kind_of(BatchRecord)


def is_damaged_clone_pin(data: bytes) -> bool:
    """Return whether a record that `decode_record` refuses says that it keeps a commit for a clone."""
    return claimed_kind(data) in {_CLONE_PIN, _KEPT_FOR_CLONES}


def _kind_of(record_type: type[Record]) -> str:
    return str(record_type.__struct_config__.tag)


_KINDS: Final = frozenset(
    [
        *map(_kind_of, get_args(Record)),
        _CHANGED_COMMIT,
        _RESHAPED_COMMIT,
        _CLONE_PIN,
        _KEPT_FOR_CLONES,
        _SHARED_ATTEMPT,
        _SHARED_COMMIT,
    ]
)
