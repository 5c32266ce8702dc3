"""The records of the job log, and how one record stands in bytes.

Every record is JSON under one header line, so a person can read the log with a text editor::

    statekeep-record 1 <crc32 of the payload, 8 hex digits> <payload length in bytes>
    {"type":"epoch","epoch":3,"nonce":"5f0c…","owner":"host-a:4711"}

``docs/formats.md`` has the table. Unknown fields are ignored, an unknown type or format version is
an error: a log that a newer statekeep wrote is not guessed at.
"""

import zlib
from collections.abc import Mapping
from typing import Final

import msgspec

from statekeep.errors import CheckpointCorruptError

_MAGIC: Final = b"statekeep-record"
_FORMAT_VERSION: Final = 1


class _Record(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="kebab",
    tag_field="type",
    omit_defaults=True,
):
    epoch: int
    """Epoch of the writer."""
    nonce: str
    """Drawn for each append: the writer knows its own record again after an unclear answer."""


class EpochRecord(_Record, frozen=True, kw_only=True, tag="epoch"):
    """A driver's reign begins; every older epoch is fenced from this position on."""

    owner: str
    """Host and process, for people."""


class BaseRecord(_Record, frozen=True, kw_only=True, tag="base"):
    """What a reign starts from: voids open attempts of older epochs and batches above ``head``."""

    query_id: str
    """The Spark query whose batch numbers these are."""
    commit_position: int
    """Position of the commit record that the reign starts from."""
    head: int
    """H: the newest batch that counts, max(L, C); -1 before the first."""


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
    """A batch whose sink has returned: its boundaries and the version each task chose.

    Of several records of one batch within a query the one at the highest position holds.
    """

    query_id: str
    batch: int
    offsets: str
    """Text of the query's ``offsets/<batch>``."""
    previous_commit: str | None = None
    """Text of ``commits/<batch - 1>``; None for the first batch."""
    source_logs: Mapping[str, str] = {}
    """New files of the query's ``sources/`` since the record before: relative path to text."""
    tasks: Mapping[str, TaskBatch] = {}


class AttemptRecord(_Record, frozen=True, kw_only=True, tag="attempt"):
    """A commit begins: the versions that are handed over for upload."""

    attempt: int
    """Number within the epoch, from 1."""
    batch: int
    checkpoint_id: str
    versions: Mapping[str, str]
    """``{task: VersionId}``; "" for a task whose state is still empty."""


class JobIdentity(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """What must not drift between runs of a job; a change is refused by name."""

    job_uid: str
    """Drawn when the log was created: tells this job's log from another of the same name."""
    job_name: str
    partitions: int
    """N, the number of tasks."""
    router: str = ""
    """Id of the function from key to task."""
    key_schema: str = ""
    """Grouping key columns and their types."""
    stores: Mapping[str, list[str]] = {}
    """``{operator: [store]}``."""
    settings: Mapping[str, str] = {}


class QueryState(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """The files of the query's checkpoint location that a rebuild needs, as text."""

    query_id: str
    metadata: str
    previous_offsets: str | None = None
    """``offsets/<C-1>``"""
    offsets: str | None = None
    """``offsets/<C>``"""
    commit: str | None = None
    """``commits/<C>``; None when the record is written inside the batch call."""
    source_logs: Mapping[str, str] = {}


class CommitRecord(_Record, frozen=True, kw_only=True, tag="commit"):
    """The commit point: this set of task checkpoints is durable and current.

    ``batch`` -1 is the empty commit with which a log begins: no checkpoints, empty state.
    """

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


class VoidRecord(_Record, frozen=True, kw_only=True, tag="void"):
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


class UnpinRecord(_Record, frozen=True, kw_only=True, tag="unpin"):
    """Gives a pinned commit back to retention."""

    name: str


class BadMarkerRecord(_Record, frozen=True, kw_only=True, tag="bad-marker"):
    """A marker that failed its checks: never again a source of restore or base of an increment."""

    backend: str
    task: str
    store: str
    marker: str
    reason: str


Record = (
    EpochRecord
    | BaseRecord
    | BatchRecord
    | AttemptRecord
    | CommitRecord
    | VoidRecord
    | ReleaseRecord
    | PinRecord
    | UnpinRecord
    | BadMarkerRecord
)
"""Every record of the job log."""

_encoder = msgspec.json.Encoder(order="deterministic")
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def encode_record(record: Record) -> bytes:
    """Return the bytes of one record: header line and JSON payload."""
    payload = _encoder.encode(record)
    header = b"%s %d %08x %d\n" % (_MAGIC, _FORMAT_VERSION, zlib.crc32(payload), len(payload))
    return header + payload


def decode_record(data: bytes, *, where: str) -> Record:
    """Read one record back.

    Args:
        data: What the log holds at one position.
        where: Named in errors, such as ``position=7``.

    Raises:
        CheckpointCorruptError: Truncated, damaged, of an unknown type or of a newer format.
    """
    header, _, payload = data.partition(b"\n")
    fields = header.split(b" ")
    if len(fields) != 4 or fields[0] != _MAGIC:
        msg = f"not a log record: {where} bytes={len(data)}"
        raise CheckpointCorruptError(msg)
    if fields[1] != b"%d" % _FORMAT_VERSION:
        msg = f"log record of an unknown format version: {where} version={fields[1].decode()!r}"
        raise CheckpointCorruptError(msg)
    if fields[3] != b"%d" % len(payload) or fields[2] != b"%08x" % zlib.crc32(payload):
        msg = f"log record is damaged: {where} bytes={len(data)}"
        raise CheckpointCorruptError(msg)
    try:
        return _decoder.decode(payload)
    except msgspec.MsgspecError as exc:
        msg = f"log record cannot be read: {where}"
        raise CheckpointCorruptError(msg) from exc
