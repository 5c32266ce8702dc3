"""Checkpoints in Samza's JSON, and what a sidecar writes for one task of an attempt.

Source: Samza 1.8 ``CheckpointV2Serde``; ``docs/reference/formats.md`` has the tables.
Unlike Samza's own reader, a stream name may hold dots: the system of an input offset's key ends at
the first dot, the partition begins after the last one.

Events that a sidecar of Spark has seen go to the driver in these entries and in its answers. They are
for people only: what cannot be read is left out, and nothing else suffers.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from typing import Final, TypeVar

import msgspec

from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
    SystemStreamPartition,
    TaskName,
    VersionId,
)
from statekeep.checkpoint.framing import decode_json, frame, unframe
from statekeep.errors import CheckpointCorruptError, UnknownFormatError
from statekeep.events import BackendUploaded, Event, RequestDone, SnapshotTaken, StoreFetched

T = TypeVar("T")
logger = logging.getLogger(__name__)

NO_EVENTS: Final = b"null"
"""Stands where events may be and none are."""

_Request = tuple[str, str, str, int, int, str, str, int]
"""The fields of a `RequestDone`, in their order: there are several in each entry."""


class _Events(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    snapshots: list[SnapshotTaken] = []
    uploads: list[BackendUploaded] = []
    fetches: list[StoreFetched] = []
    requests: list[_Request] = []


_event_encoder: Final = msgspec.json.Encoder()
_event_decoder: Final = msgspec.json.Decoder(_Events | None)


def encode_events(events: Iterable[Event]) -> bytes:
    """Return events in JSON; those that a sidecar does not see are left out."""
    found = _Events()
    for event in events:
        match event:
            case SnapshotTaken():
                found.snapshots.append(event)
            case BackendUploaded():
                found.uploads.append(event)
            case StoreFetched():
                found.fetches.append(event)
            case RequestDone():
                found.requests.append(astuple(event))
            case _:
                pass
    return _event_encoder.encode(found)


def decode_events(carried: bytes) -> Iterator[Event]:
    """Yield what `encode_events` was given, by class; nothing where it cannot be read."""
    try:
        found = _event_decoder.decode(carried)
    except msgspec.DecodeError as exc:
        logger.debug("events of a sidecar cannot be read: error=%s", exc)
        return
    if found is not None:
        yield from found.snapshots
        for request in found.requests:
            yield RequestDone(*request)
        yield from found.fetches
        yield from found.uploads


_V2: Final = 2
_OFFSET_KEY: Final = re.compile(r"([^.]*)\.(.*)\.(0|[1-9][0-9]{0,9})", re.DOTALL)
_FINISHED: Final = "finished-task"
_FAILED: Final = "failed-task"
_ENTRIES: Final = "task-entries"


class _CheckpointV2Json(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    checkpoint_id: str
    input_offsets: Mapping[str, str]
    state_checkpoint_markers: Mapping[str, Mapping[str, str]]
    version: int = _V2


class _Versioned(msgspec.Struct, frozen=True, kw_only=True):
    version: int = _V2


class BackendUpload(msgspec.Struct, frozen=True, kw_only=True):
    """What one task sent to one backend in one attempt; for people."""

    bytes: int
    """As far as the backend counts."""
    elapsed_ms: int


class _FinishedJson(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    checkpoint: msgspec.Raw
    version: str
    bytes_uploaded: int = 0
    elapsed_ms: int = 0
    base: str = ""
    uploads: Mapping[BackendName, BackendUpload] = {}
    changed_bytes: int | None = None
    state_bytes: int = 0
    events: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _FailedJson(msgspec.Struct, frozen=True, kw_only=True):
    step: str
    error: str
    events: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_v2_decoder = msgspec.json.Decoder(_CheckpointV2Json)
_version_decoder = msgspec.json.Decoder(_Versioned)
_finished_decoder = msgspec.json.Decoder(_FinishedJson)
_failed_decoder = msgspec.json.Decoder(_FailedJson)
_entries_decoder = msgspec.json.Decoder(dict[str, bytes])


def encode_checkpoint_v2(checkpoint: CheckpointV2) -> bytes:
    """Return the bytes that Samza's ``CheckpointV2Serde`` reads.

    Raises:
        ValueError: A system name holds a dot, or a partition is negative: it could not be read
            back.
    """
    return msgspec.json.encode(
        _CheckpointV2Json(
            checkpoint_id=checkpoint.checkpoint_id.serialize(),
            input_offsets={
                _offset_key(ssp): offset for ssp, offset in checkpoint.input_offsets.items()
            },
            state_checkpoint_markers={
                str(backend): {str(store): str(marker) for store, marker in markers.items()}
                for backend, markers in checkpoint.state_markers.items()
            },
        )
    )


def decode_checkpoint_v2(data: bytes, where: str) -> CheckpointV2:
    """Read what `encode_checkpoint_v2` or Samza wrote; unknown fields are ignored.

    Args:
        data: The JSON.
        where: Named in errors, such as ``task=Partition 3``.

    Raises:
        CheckpointCorruptError: Truncated, damaged, or of another form.
        UnknownFormatError: Of a newer form.
    """
    # First: the fields of another form may be others.
    version = _decode(_version_decoder, data, where).version
    if version > _V2:
        raise UnknownFormatError(f"unknown checkpoint version: {where} version={version}")
    if version < _V2:
        raise CheckpointCorruptError(f"not a checkpoint of form {_V2}: {where} version={version}")
    found = _decode(_v2_decoder, data, where)
    return CheckpointV2(
        checkpoint_id=CheckpointId.parse(found.checkpoint_id),
        input_offsets={_v2_ssp(key, where): offset for key, offset in found.input_offsets.items()},
        state_markers={
            BackendName(backend): {
                StoreName(store): Marker(marker) for store, marker in markers.items()
            }
            for backend, markers in found.state_checkpoint_markers.items()
        },
    )


@dataclass(frozen=True, slots=True)
class FinishedTask:
    """What a sidecar writes once a task's uploads of an attempt are durable."""

    checkpoint: CheckpointV2
    version_id: VersionId | None
    """The version that was uploaded; None for state that is still empty."""
    bytes_uploaded: int = 0
    """By all backends together, as far as they count; for people."""
    elapsed_ms: int = 0
    """From the start of the backup until all of it was durable; for people."""
    base_id: CheckpointId | None = None
    """The commit that increments were built on; None where there was none, and all is full."""
    uploads: Mapping[BackendName, BackendUpload] = field(
        default_factory=dict[BackendName, BackendUpload]
    )
    """By backend, without those left out; for people."""
    changed_bytes: int | None = None
    """What was written to the stores since that commit; None where that is not known."""
    state_bytes: int = 0
    """Size of the version's stores on the local disk; for people."""
    events: bytes = NO_EVENTS
    """What the sidecar has seen, for listeners (`encode_events`)."""


@dataclass(frozen=True, slots=True)
class FailedTask:
    """What a sidecar writes when a task's part of an attempt has failed."""

    step: str
    """As `CommitFailedError.step`."""
    error: str
    """For people."""
    events: bytes = NO_EVENTS
    """As `FinishedTask.events`."""


AttemptEntry = FinishedTask | FailedTask
"""What stands in the checkpoint store for one task of one attempt."""


def encode_attempt_entry(entry: AttemptEntry) -> bytes:
    """Return the framed bytes of an entry (`statekeep.checkpoint.framing`)."""
    if isinstance(entry, FailedTask):
        failed = _FailedJson(step=entry.step, error=entry.error, events=_given(entry.events))
        return frame(_FAILED, msgspec.json.encode(failed))
    finished = _FinishedJson(
        checkpoint=msgspec.Raw(encode_checkpoint_v2(entry.checkpoint)),
        version="" if entry.version_id is None else str(entry.version_id),
        bytes_uploaded=entry.bytes_uploaded,
        elapsed_ms=entry.elapsed_ms,
        base="" if entry.base_id is None else entry.base_id.serialize(),
        uploads=entry.uploads,
        changed_bytes=entry.changed_bytes,
        state_bytes=entry.state_bytes,
        events=_given(entry.events),
    )
    return frame(_FINISHED, msgspec.json.encode(finished))


def decode_attempt_entry(data: bytes, where: str) -> AttemptEntry:
    """Read what `encode_attempt_entry` wrote.

    Args:
        data: The framed bytes.
        where: Named in errors, such as ``attempt=7-3 task=Partition 3``.

    Raises:
        CheckpointCorruptError: Truncated, damaged, or of an unknown kind.
        UnknownFormatError: A newer version of Statekeep wrote it.
    """
    framed = unframe(data, where=where)
    if framed.kind == _FAILED:
        failed = _decode(_failed_decoder, framed.payload, where)
        return FailedTask(failed.step, failed.error, _carried(failed.events))
    if framed.kind == _FINISHED:
        finished = _decode(_finished_decoder, framed.payload, where)
        version = VersionId.parse(finished.version) if finished.version else None
        checkpoint = decode_checkpoint_v2(bytes(finished.checkpoint), where)
        base_id = CheckpointId.parse(finished.base) if finished.base else None
        return FinishedTask(
            checkpoint,
            version,
            finished.bytes_uploaded,
            finished.elapsed_ms,
            base_id,
            finished.uploads,
            finished.changed_bytes,
            finished.state_bytes,
            _carried(finished.events),
        )
    msg = f"not a task's entry: {where} kind={framed.kind}"
    raise CheckpointCorruptError(msg)


def _given(events: bytes) -> msgspec.Raw | msgspec.UnsetType:
    return msgspec.UNSET if events == NO_EVENTS else msgspec.Raw(events)


def _carried(events: msgspec.Raw | msgspec.UnsetType) -> bytes:
    return NO_EVENTS if events is msgspec.UNSET else bytes(events)


def encode_entries(entries: Mapping[TaskName, bytes]) -> bytes:
    """Return the framed bytes of several tasks' entries, whatever those are."""
    return frame(_ENTRIES, msgspec.json.encode({str(task): data for task, data in entries.items()}))


def decode_entries(data: bytes, where: str) -> Mapping[TaskName, bytes]:
    """Read what `encode_entries` wrote.

    Raises:
        CheckpointCorruptError: Truncated, damaged, or of an unknown kind.
        UnknownFormatError: A newer version of Statekeep wrote it.
    """
    framed = unframe(data, where=where)
    if framed.kind != _ENTRIES:
        raise CheckpointCorruptError(f"not entries of tasks: {where} kind={framed.kind}")
    found = _decode(_entries_decoder, framed.payload, where)
    return {TaskName(task): entry for task, entry in found.items()}


def _decode(decoder: msgspec.json.Decoder[T], data: bytes, where: str) -> T:
    return decode_json(decoder, data, f"checkpoint cannot be read: {where} bytes={len(data)}")


def _offset_key(ssp: SystemStreamPartition) -> str:
    if "." in ssp.system or ssp.partition < 0:
        msg = f"an input offset's key could not be read back: ssp={ssp}"
        raise ValueError(msg)
    return f"{ssp.system}.{ssp.stream}.{ssp.partition}"


def _v2_ssp(key: str, where: str) -> SystemStreamPartition:
    match = _OFFSET_KEY.fullmatch(key)
    if match is None:
        msg = f"not an input offset's key: {where} key={key!r}"
        raise CheckpointCorruptError(msg)
    return SystemStreamPartition(match[1], match[2], int(match[3]))
