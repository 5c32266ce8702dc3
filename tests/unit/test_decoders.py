"""Every decoder of the package: foreign bytes are damage, or a newer format, and nothing else.

The table below is the list of all decoders. Each gets random bytes and changed valid ones, with the
checksums around them put right, as an attacker would who can write to the storage.
"""

import hashlib
import io
import json
import os
import struct
import tempfile
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import lz4.block  # type: ignore[import-untyped]  # it ships no types
import msgspec
import pytest
import zstandard
from encoded_kit import SECRET, full_index
from foreign_bytes_kit import foreign_bytes, nested
from hypothesis import HealthCheck, given, settings
from typing_extensions import override

from statekeep.backends.blob.codec import Codec, EncodingSettings
from statekeep.backends.blob.encoded_stream import Encoding
from statekeep.backends.blob.index import IndexAddition, SnapshotIndex, decode_index
from statekeep.backends.blob.names import attempt_of as attempt_of_blob
from statekeep.backends.blob.names import index_digest, stream_place
from statekeep.backends.encryption_keys import EncryptionKey, KeyProvider
from statekeep.backends.hdfs.names import FileKind, FileName, UploadMarker
from statekeep.backends.hdfs.spark_files import plan_spark_load, read_spark_file, write_spark_file
from statekeep.backends.hdfs.spark_start import SparkStart
from statekeep.backends.hdfs.store_files import changed_bytes_of, check_header, lineage_of
from statekeep.backends.kafka.checkpoint_store import entry_key
from statekeep.backends.kafka.epochs import HEADER, EpochStamp, check_epoch
from statekeep.backends.kafka.job_log import position_of
from statekeep.backends.kafka.marker import ContentSummary, KafkaStateCheckpointMarker
from statekeep.backends.seals import Sealer
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
from statekeep.checkpoint.event_log import decode_segment
from statekeep.checkpoint.framing import frame, sealed, unframe
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.names import is_escaped
from statekeep.checkpoint.records import (
    AbortRecord,
    AttemptRecord,
    BadMarkerRecord,
    BaseRecord,
    BatchRecord,
    CommitRecord,
    EpochRecord,
    JobIdentity,
    MovedRecord,
    PinRecord,
    QueryState,
    Record,
    ReleaseRecord,
    TaskBatch,
    UnpinRecord,
    decode_record,
    encode_record,
)
from statekeep.checkpoint.serde import (
    FailedTask,
    FinishedTask,
    decode_attempt_entry,
    decode_checkpoint_v2,
    decode_entries,
    encode_attempt_entry,
    encode_checkpoint_v2,
    encode_entries,
)
from statekeep.errors import (
    BlobNotFoundError,
    CheckpointCorruptError,
    TaskFencedError,
    UnknownFormatError,
)
from statekeep.spark.batch_token import BatchToken, decode_token, encode_token
from statekeep.spark.driver.commit_records import stands_apart, topic_offsets
from statekeep.spark.operator.clock import encode_time
from statekeep.spark.operator.codec import ValueCodec, list_header
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.evolution import EvolvedCodec
from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.operator.registry import (
    REGISTRY_KEY,
    RegisteredVariable,
    VariableKind,
    encode_registry,
    read_schema,
    stored_variables,
)
from statekeep.spark.sidecar.outbox import Outbox
from statekeep.spark.sidecar.paths import NO_JVM, SidecarSpec
from statekeep.spark.sidecar.protocol import (
    Candidate,
    Done,
    Hello,
    OtherVersion,
    Restore,
    SubmitVersion,
    decode_answer,
    decode_greeting,
    decode_request,
    encode,
)
from statekeep.spark.state.variable import StoredRows
from statekeep.stores.delta import MAGIC, Change, DeltaHeader, DeltaReader, DeltaWriter
from statekeep.stores.delta_feed import DeltaFeed
from statekeep.stores.memory import MemoryStore
from statekeep.stores.version import FileEntry, SealManifest
from statekeep.testing.executor import SerialExecutor

MIB: Final = 1 << 20
_MOST_MEMORY: Final = 24 * MIB
"""That a decoder may take for the small inputs here; the bound of a block is 16 MiB."""
_DAMAGE: Final = (CheckpointCorruptError, UnknownFormatError)


def same(part: bytes) -> bytes:
    return part


@dataclass(frozen=True)
class Decoder:
    """A decoder, and what it is given."""

    name: str
    read: Callable[[bytes], object]
    """Decodes, and looks at all of what it got."""
    samples: Sequence[bytes]
    """Valid; these are changed."""
    wrap: Callable[[bytes], bytes] = same
    """Puts what stands around a sample, digests included."""
    errors: tuple[type[Exception], ...] = field(default=_DAMAGE)
    is_readable: bool = True
    """Whether the samples are right for what stands around them."""


class OneKey(KeyProvider):
    """The key of the kit, whatever is asked for."""

    @override
    def current(self) -> EncryptionKey:
        return self.find("2026-11")

    @override
    def find(self, key_id: str) -> EncryptionKey:
        return EncryptionKey("2026-11", SECRET)


# Checkpoints and records

CHECKPOINT = CheckpointV2(
    CheckpointId(1700000000123, 456789),
    {SystemStreamPartition("kafka", "clicks.v2", 3): "17"},
    {BackendName("blob"): {StoreName("s"): Marker("job/1-1/aa-snapshot-index-00.json")}},
)
RAW_CHECKPOINT = msgspec.Raw(encode_checkpoint_v2(CHECKPOINT))
IDENTITY = JobIdentity(
    job_uid="0" * 16, job_name="job", partitions=2, stores={"main": ["s"]}, settings={"a": "b"}
)
RECORDS: Sequence[Record] = (
    EpochRecord(epoch=1, nonce="aa", owner="host:1"),
    BaseRecord(epoch=1, nonce="aa", query_id="q", commit_position=1, head=3),
    BatchRecord(
        epoch=1,
        nonce="aa",
        query_id="q",
        batch=3,
        offsets="v1\n{}",
        tasks={"t": TaskBatch(version="")},
    ),
    AttemptRecord(
        epoch=1,
        nonce="aa",
        attempt=1,
        batch=3,
        checkpoint_id="1-1",
        versions={"t": "3_00000000"},
        identity=IDENTITY,
    ),
    CommitRecord(
        epoch=1,
        nonce="aa",
        attempt_epoch=1,
        attempt=1,
        batch=3,
        checkpoint_id="1-1",
        identity=IDENTITY,
        checkpoints={"t": RAW_CHECKPOINT},
        versions={"t": "3_00000000"},
        query=QueryState(query_id="q", metadata="{}"),
    ),
    AbortRecord(epoch=1, nonce="aa", attempt_epoch=1, attempt=2, reason="late"),
    ReleaseRecord(epoch=1, nonce="aa", positions=[1, 2]),
    PinRecord(epoch=1, nonce="aa", name="p", position=1),
    PinRecord(epoch=1, nonce="aa", name="clone:c:1", position=1, clone="c"),
    BadMarkerRecord(
        epoch=1, nonce="aa", backend="blob", task="t", store="s", marker="m", reason="gone"
    ),
    UnpinRecord(epoch=1, nonce="aa", name="p"),
    MovedRecord(epoch=1, nonce="aa", backend="blob"),
)


def payload_of(framed: bytes) -> bytes:
    return framed.partition(b"\n")[2]


def framed_as(kind: str) -> Callable[[bytes], bytes]:
    return partial(frame, kind)


def read_record(data: bytes) -> None:
    record = decode_record(data, where="position=0")
    view = LogView()
    view.fold(0, record)
    for commit in view.commit_records.values():
        for task in commit.checkpoints:
            view.usable_checkpoint(commit, task)
    _ = view.trusted_batches, view.newest_possible_batch, view.lowest_needed, view.pinned_behind(0)


def record_decoder(record: Record) -> Decoder:
    data = encode_record(record)
    kind = unframe(data, where="").kind
    return Decoder(f"record {kind}", read_record, [payload_of(data)], framed_as(kind))


def checkpoint_decoders() -> Sequence[Decoder]:
    finished = FinishedTask(CHECKPOINT, VersionId(3, "00000000"), 7, 8, CheckpointId(1, 2))
    failed = FailedTask("upload", "out of reach")
    manifest = SealManifest(
        version=VersionId(3, "00000000"),
        parent=VersionId(2, "00000000"),
        lineage=(VersionId(2, "00000000"),),
        job_name="job",
        operator="main",
        task_name=TaskName("Partition 0"),
        files=(FileEntry("s/db/000001.sst", 7, 8),),
    ).encode()
    event = b'{"epoch":1,"sequence":0,"time-ms":5,"kind":"commit","details":{"a":[1,"b"]}}'
    read_entry = partial(decode_attempt_entry, where="x")
    return [
        Decoder("frame", partial(unframe, where="x"), [frame("events", b"{}")]),
        *map(record_decoder, RECORDS),
        Decoder(
            "checkpoint v2",
            partial(decode_checkpoint_v2, where="x"),
            [encode_checkpoint_v2(CHECKPOINT)],
        ),
        Decoder(
            "entry of a finished task",
            read_entry,
            [payload_of(encode_attempt_entry(finished))],
            framed_as("finished-task"),
        ),
        Decoder(
            "entry of a failed task",
            read_entry,
            [payload_of(encode_attempt_entry(failed))],
            framed_as("failed-task"),
        ),
        Decoder(
            "entries of tasks",
            partial(decode_entries, where="x"),
            [payload_of(encode_entries({TaskName("t"): encode_attempt_entry(failed)}))],
            framed_as("task-entries"),
        ),
        Decoder(
            "seal manifest",
            partial(SealManifest.decode, where="x"),
            [payload_of(manifest)],
            framed_as(unframe(manifest, where="").kind),
        ),
        Decoder(
            "segment of events",
            partial(decode_segment, where="x"),
            [event, event + b"\n" + event],
            framed_as("events"),
        ),
        Decoder("checkpoint id", lambda data: CheckpointId.parse(text_of(data)), [b"17-3"]),
        Decoder("version id", lambda data: VersionId.parse(text_of(data)), [b"17_00000000"]),
    ]


def text_of(data: bytes) -> str:
    """Return what JSON would give: text without halves of characters."""
    return data.decode(errors="replace")


# Deltas, in all codecs

DELTA_HEADER = DeltaHeader(
    version="3_00000000000000aa",
    parent="2_00000000000000bb",
    lineage=("2_00000000000000bb", "1_00000000000000cc"),
    store="s",
    attributes={"id": "3_00000000000000aa", "delta-bytes": "99"},
)
_BLOCK = struct.Struct("<IIBI")


def raw_block(changes: Sequence[Change]) -> bytes:
    """Return the records of a block."""
    target = io.BytesIO()
    writer = DeltaWriter(target, DeltaHeader())
    writer.write_entries(changes)
    writer.finish()
    data = target.getvalue()
    (header_bytes,) = struct.unpack_from("<I", data, 12)
    return data[16 + header_bytes + 4 + _BLOCK.size + 4 : -24]


RAW_BLOCKS = [
    raw_block([(b"k%d" % number, b"v" * number) for number in range(5)]),
    raw_block([(b"key%d" % number, b"same") for number in range(9)]),
    raw_block([(b"gone", None), (b"k", b"v")]),
]


DECOMPRESS: Sequence[Callable[[bytes], bytes]] = (
    same,
    partial(lz4.block.decompress, uncompressed_size=4096),
    lambda stored: zstandard.ZstdDecompressor().stream_reader(stored).read(4096),
)


def values_of(decompress: Callable[[bytes], bytes], stored: bytes) -> Iterator[int]:
    """Yield the sizes of the values in a block, as far as it makes sense."""
    try:
        raw = b"" if len(stored) > 4096 else decompress(stored)
    except (ValueError, zstandard.ZstdError, lz4.block.LZ4BlockError):
        return
    at = 0
    while at + 8 <= len(raw):
        at += 4 + struct.unpack_from("<I", raw, at)[0]
        if at + 4 > len(raw):
            return
        (size,) = struct.unpack_from("<i", raw, at)
        yield size
        at += 4 + max(size, 0)


def delta_of(header: bytes, blocks: Sequence[tuple[int, bytes, int]]) -> bytes:
    """Return a delta with right checksums.

    Args:
        header: JSON.
        blocks: Of each block the codec, the stored bytes, and how many raw bytes it claims to be.
    """
    start = struct.pack("<8sII", MAGIC, 1, len(header)) + header
    header_crc = zlib.crc32(start)
    parts, chain = [start, struct.pack("<I", header_crc)], 0
    puts, deletes = 0, 0
    for codec, stored, raw_bytes in blocks:
        values = list(values_of(DECOMPRESS[codec], stored))
        deletes += values.count(-1)
        puts += len(values) - values.count(-1)
        head = _BLOCK.pack(len(stored), raw_bytes & 0xFFFFFFFF, codec, zlib.crc32(stored))
        chain = zlib.crc32(head, chain)
        parts += [head, struct.pack("<I", chain), stored]
    mark = b"\xff" * 4 + struct.pack("<QQ", puts, deletes)
    crc = zlib.crc32(mark, zlib.crc32(struct.pack("<I", header_crc), chain))
    return b"".join([*parts, mark, struct.pack("<I", crc)])


def read_delta(data: bytes) -> None:
    reader = DeltaReader(io.BytesIO(data), where="x")
    lineage_of(reader.header)
    changed_bytes_of(reader.header)
    check_header(
        reader.header, FileName(VersionId(3, "00000000000000aa"), FileKind.DELTA), StoreName("s")
    )
    list(reader)


def feed_delta(data: bytes) -> None:
    feed = DeltaFeed(where="x")
    for start in range(0, len(data), 100):
        for _ in feed.feed(data[start : start + 100]):
            pass
    feed.finish()


def delta_decoders() -> Sequence[Decoder]:
    header = msgspec.json.encode(DELTA_HEADER)
    compress: Mapping[int, Callable[[bytes], bytes]] = {
        0: same,
        1: partial(lz4.block.compress, store_size=False),
        2: zstandard.ZstdCompressor().compress,
    }

    def claimed(codec: int) -> Callable[[bytes], bytes]:
        """Take the first four bytes of what is changed for the size."""
        return lambda part: delta_of(
            header, [(codec, part[4:], int.from_bytes(part[:4].ljust(4, b"\0"), "little"))]
        )

    found = [
        Decoder(
            "delta", read_delta, [delta_of(header, [(0, raw, len(raw)) for raw in RAW_BLOCKS])]
        ),
        Decoder("header of a delta", read_delta, [header], lambda part: delta_of(part, [])),
    ]
    for codec, name in enumerate(("as it is", "lz4", "zstd")):
        blocks = [len(raw).to_bytes(4, "little") + compress[codec](raw) for raw in RAW_BLOCKS]
        found.append(Decoder(f"block of a delta, {name}", read_delta, blocks, claimed(codec)))
        found.append(
            Decoder(f"block that comes in pieces, {name}", feed_delta, blocks, claimed(codec))
        )
        if codec:
            found.append(
                Decoder(
                    f"records of a block, {name}",
                    read_delta,
                    RAW_BLOCKS,
                    lambda raw, c=codec: delta_of(header, [(c, compress[c](raw), len(raw))]),  # type: ignore[misc]
                )
            )
    return found


# Blobs

_FILE = {
    "file-name": "000001.sst",
    "blobs": [{"blob-id": "job/1-1/aa-1-000001.sst", "offset": 0}],
    "file-metadata": {
        "creation-time-millis": 1,
        "last-modified-time-millis": 2,
        "size": 7,
        "owner": "o",
        "group": "g",
        "permissions": "rw-r-----",
    },
    "checksum": 5,
    "sha-256": "0" * 64,
}
_STORED = {
    **_FILE,
    "file-name": "000002.sst",
    "stored-form": {"compression": "zstd", "encryption": "aes-256-gcm", "key-id": "2026-11"},
    "blobs": [
        {
            "blob-id": "job/1-1/aa-2-small-files.pack",
            "offset": 0,
            "range": {"start": 3, "size": 4, "sha-256": "1" * 64},
        }
    ],
}
INDEX: Mapping[str, Any] = {
    "creation-time-millis": 1,
    "snapshot-metadata": {
        "checkpoint-id": "1-2",
        "job-name": "job",
        "job-id": "1",
        "task-name": "Partition 0",
        "store-name": "s",
    },
    "dir-index": {
        "dir-name": "",
        "files-present": [_FILE, _STORED],
        "files-removed": [],
        "sub-dirs-present": [
            {
                "dir-name": "sub",
                "files-present": [_FILE],
                "files-removed": [],
                "sub-dirs-present": [],
                "sub-dirs-removed": [],
            }
        ],
        "sub-dirs-removed": [],
    },
    "prev-snapshot-index-blob-id": None,
    "schema-version": 3,
    "version": "4_00000000",
    "image-version": "3_00000000",
    "deltas": [
        {
            "parent": "3_00000000",
            "version": "4_00000000",
            "blob-id": "job/1-1/aa-3-4_00000000.delta",
            "size": 7,
            "checksum": 5,
            "sha-256": "0" * 64,
        }
    ],
}


def read_index(data: bytes) -> None:
    found = decode_index(data, where="x")
    if isinstance(found, SnapshotIndex):
        look_at_index(found)


def look_at_index(index: SnapshotIndex) -> None:
    index.blob_ids()
    index.key_ids()
    index.image_bytes()
    index.delta_bytes()
    for file in index.files():
        os.fsencode(file.file_name)
        _ = file.stored_bytes


ADDITION: Mapping[str, Any] = {
    name: INDEX[name]
    for name in ("creation-time-millis", "snapshot-metadata", "schema-version", "deltas")
} | {
    "full-index-blob-id": "job/1-1/aa-snapshot-index-00.json",
    "prev-snapshot-index-blob-id": "job/1-1/aa-snapshot-index-00.json",
    "version": "5_00000000",
    "schema-version": 4,
    "deltas": [{**INDEX["deltas"][0], "parent": "4_00000000", "version": "5_00000000"}],
}
FULL: Final = full_index(json.dumps(INDEX).encode(), where="x")


def read_addition(data: bytes) -> None:
    found = decode_index(data, where="x")
    if isinstance(found, IndexAddition):
        look_at_index(found.joined(FULL, where="x"))


SEALER: Final = Sealer(
    [OneKey()], "job", is_on=True, accepts_plain=lambda: False, executor=SerialExecutor()
)


def stream_decoders() -> Sequence[Decoder]:
    codec = Codec(EncodingSettings(), OneKey(), lambda: bytes(32))
    raw = b"content" * 99
    streams = {
        "compressed": codec.encode(raw, Encoding("zstd"), "p"),
        "encrypted": codec.encode(raw, Encoding("none", OneKey().current()), "p"),
        "both": codec.encode(raw, Encoding("zstd", OneKey().current()), "p"),
    }

    def read(data: bytes) -> None:
        codec.decode_index(data, "p", where="x", max_bytes=MIB)

    def with_header(header: bytes) -> bytes:
        start = struct.pack("<8sII", b"SKSTREAM", 1, len(header)) + header
        frame_head = struct.pack("<IIB", 7, 7, 1)
        return start + struct.pack("<I", zlib.crc32(start)) + frame_head + b"content"

    def with_frame(part: bytes) -> bytes:
        start = with_header(b'{"compression":"zstd"}')[:-16]
        raw_bytes = int.from_bytes(part[:4].ljust(4, b"\0"), "little")
        return start + struct.pack("<IIB", len(part[4:]), raw_bytes, 3) + part[4:]

    headers = [data[16 : 16 + struct.unpack_from("<I", data, 12)[0]] for data in streams.values()]
    frames = [len(raw).to_bytes(4, "little") + zstandard.ZstdCompressor().compress(raw)]
    damage = (*_DAMAGE, *_key_errors())
    return [
        *(
            Decoder(f"stream, {name}", read, [data], errors=damage)
            for name, data in streams.items()
        ),
        Decoder("header of a stream", read, headers, with_header, damage, is_readable=False),
        Decoder("frame of a stream", read, frames, with_frame),
    ]


def _key_errors() -> tuple[type[Exception], ...]:
    """What a stream raises that names another key: it may be whole."""
    from statekeep.errors import KeyUnavailableError  # noqa: PLC0415

    return (KeyUnavailableError,)


def blob_decoders() -> Sequence[Decoder]:
    digest = hashlib.sha256(b"").hexdigest()
    marker = f"job/state-1/blob/main/Partition_0/s/1-1/aa-snapshot-index-{digest}.json".encode()
    return [
        Decoder("snapshot index", read_index, [json.dumps(INDEX).encode()]),
        Decoder("index that adds to another", read_addition, [json.dumps(ADDITION).encode()]),
        Decoder(
            "seal of a record",
            partial(SEALER.open, ["job-log", "0"], where="x"),
            [payload_of(SEALER.seal(["job-log", "0"], b"x").data).partition(b"\n")[0]],
            lambda part: sealed(part + b"\nx"),
            (*_DAMAGE, *_key_errors()),
        ),
        Decoder("marker of a blob", lambda data: index_digest(Marker(text_of(data))), [marker]),
        Decoder("name of a blob", lambda data: _names(text_of(data)), [marker], errors=()),
        *stream_decoders(),
    ]


def _names(blob_id: str) -> None:
    """Fosession names are not ours, and no error at all."""
    attempt_of_blob(blob_id)
    stream_place(blob_id)
    is_escaped(blob_id)


# HDFS and Spark's state files


def spark_file(changes: Sequence[Change]) -> bytes:
    file = io.BytesIO()
    write_spark_file(changes, file)
    return file.getvalue()


def read_spark(data: bytes) -> None:
    for _ in read_spark_file(io.BytesIO(data), where="x", may_delete=True):
        pass


def hdfs_decoders() -> Sequence[Decoder]:
    import xxhash  # noqa: PLC0415

    def block(part: bytes) -> bytes:
        """Take five bytes of what is changed for token and size, the rest for an lz4 block."""
        token, raw_bytes = (
            (part[:1] or b"&")[0],
            int.from_bytes(part[1:5].ljust(4, b"\0"), "little"),
        )
        try:
            size = min(raw_bytes, MIB)
            raw = lz4.block.decompress(part[5:], uncompressed_size=size)
        except (lz4.block.LZ4BlockError, ValueError):
            raw = part[5:]
        checksum = xxhash.xxh32_intdigest(raw, seed=0x9747B28C) & 0x0FFFFFFF
        stored = part[5:]
        return b"LZ4Block" + struct.pack("<BiII", token, len(stored), raw_bytes, checksum) + stored

    plain = struct.pack(">i1si2si", 1, b"k", 2, b"vv", -1)
    packed = lz4.block.compress(plain, store_size=False)
    blocks = [
        bytes([0x26]) + len(plain).to_bytes(4, "little") + packed,
        bytes([0x16]) + len(plain).to_bytes(4, "little") + plain,
    ]
    return [
        Decoder("state file of Spark", read_spark, [spark_file([(b"k", b"v"), (b"l", None)])]),
        Decoder("block of a state file of Spark", read_spark, blocks, block),
        Decoder(
            "marker of an upload",
            lambda data: UploadMarker.parse(Marker(text_of(data))),
            [b"a/3_00000000"],
        ),
        Decoder(
            "marker of Spark's",
            _find_spark_start,
            [b"a/3", b"999999999999999999", b"-1"],
            is_readable=False,
        ),
        Decoder(
            "name of an upload", lambda data: FileName.parse(text_of(data)), [b"3_00000000.delta"]
        ),
    ]


def _find_spark_start(data: bytes) -> None:
    if SparkStart.parse(Marker(text_of(data))) is not None:
        version = int(data.rpartition(b"/")[2])
        try:
            plan_spark_load(version, {"3.snapshot", "4.delta", "x.delta", "9" * 5000 + ".snapshot"})
        except (BlobNotFoundError, ValueError) as exc:
            raise CheckpointCorruptError("missing") from exc


# Kafka


def kafka_decoders() -> Sequence[Decoder]:
    marker = KafkaStateCheckpointMarker(
        "job-s-changelog",
        3,
        17,
        topic_id="id",
        version="3_00000000",
        content=ContentSummary(1, 2, 3),
    ).encode("kafka")
    stamp = EpochStamp("0" * 16, 3, 4)
    return [
        Decoder("marker of a changelog", _read_marker, [marker.encode()]),
        Decoder("key of an entry", partial(entry_key, where="x"), [b"1-2/Partition 0"]),
        Decoder(
            "key of the job log", lambda data: position_of(data, where="x"), [b"17", b"0" * 20]
        ),
        Decoder(
            "stamp of a record",
            lambda data: check_epoch(stamp, [(HEADER, data)], "t"),
            [stamp.headers[HEADER]],
            errors=(TaskFencedError,),
        ),
    ]


def _read_marker(data: bytes) -> None:
    found = KafkaStateCheckpointMarker.decode(Marker(text_of(data)))
    found.topic.encode("ascii")
    assert 0 <= found.partition < 2**31
    assert found.offset is None or 0 <= found.offset < 2**63


# Spark's side

NOW: Final = datetime(2026, 11, 23, 12, tzinfo=UTC)


def spark_decoders(outbox: Path) -> Sequence[Decoder]:
    submit_versions = SubmitVersion(
        epoch=1, attempt=2, partition=0, version="3_00000000", checkpoint=RAW_CHECKPOINT
    )
    other = OtherVersion(partition=1, version="3_00000000", checkpoint=RAW_CHECKPOINT)
    restore = Restore(
        epoch=1,
        partition=0,
        candidates=[Candidate(version="3_00000000", checkpoint=RAW_CHECKPOINT, stores=["state"])],
    )
    spec = SidecarSpec(
        job_name="job",
        job_uid="0" * 16,
        operator="main",
        settings={"a": "b"},
        stores=["s"],
        log_backend="blob",
        local_dir="/tmp/x",  # noqa: S108
        app_id="app",
        executor_id="1",
        jvm_pid=NO_JVM,
        local_name="job",
        python_path=[],
        session="a1",
    )
    schema = parse_schema(
        "a int, b string, c array<date>, d map<string, decimal(10,2)>, e timestamp"
    )
    values = ValueCodec(schema)
    keys = KeyCodec(
        parse_schema("a string, b long, c date, d timestamp_ntz, e decimal(38,4), f timestamp")
    )
    value = values.encode((1, "x", None, None, None))
    variable = RegisteredVariable(1, "map", schema.json(), schema.json())
    registry = encode_registry(parse_schema("a int"), {"v": variable})

    evolved = EvolvedCodec(schema, 1, {0: parse_schema("a int, b string")})
    expiring: dict[VariableKind, bool] = {
        "value": False,
        "list": True,
        "map": True,
        "timers": False,
    }
    kinds: dict[str, RegisteredVariable] = {
        kind: RegisteredVariable(
            1, kind, schema.json(), keys.schema.json() if kind == "map" else None, expires=expires
        )
        for kind, expires in expiring.items()
    }
    key = keys.encode(("x", 3, None, None, None, None))
    time = encode_time(17)
    one = list_header(1) + value
    entries = {
        "value": (key, value),
        "list": (key, time + time + len(one).to_bytes(4, "big") + one),
        "map": (key + key, time + value),
        "timers": (key + time, b""),
    }

    def read_rows(kind: str, entry_key: bytes, data: bytes) -> None:
        store = MemoryStore(StoreName("s"), outbox, is_new=True)
        rows = StoredRows(store, keys, kinds[kind], has_values=True)
        for row in rows.rows(entry_key, data):
            repr(row)

    def read_registry(data: bytes) -> None:
        store = MemoryStore(StoreName("s"), outbox, is_new=True)
        store.put(REGISTRY_KEY, data)
        _, variables = stored_variables(store)
        for found in variables.values():
            read_schema(found.schema)

    def read_outbox(data: bytes) -> None:
        outbox.mkdir(exist_ok=True)
        (outbox / f"{1:012d}-{2:012d}-{0:08d}.json").write_bytes(data)
        Outbox(outbox).pending()

    return [
        Decoder(
            "request to a container",
            decode_request,
            [encode(msgspec.structs.replace(submit_versions, others=(other,))), encode(restore)],
        ),
        Decoder("answer of a container", decode_answer, [encode(Done(version="3_00000000"))]),
        Decoder("entry of an outbox", read_outbox, [encode(submit_versions)]),
        Decoder("spec of a container", SidecarSpec.decode, [msgspec.json.encode(spec)]),
        Decoder("registry of variables", read_registry, [registry]),
        Decoder("stored value", values.decode, [value]),
        Decoder("stored list", values.decode_list, [b"\xdd\x00\x00\x00\x01" + value]),
        Decoder("stored key", keys.decode, [key, keys.encode(("x", 3, None, None, None, NOW))]),
        Decoder(
            "value of an older schema", evolved.decode, [evolved.encode((1, "x", None, None, None))]
        ),
        Decoder("list of an older schema", evolved.decode_list, [evolved.header + one]),
        *(
            Decoder(f"entry of {kind}", partial(read_rows, kind, of), [data])
            for kind, (of, data) in entries.items()
        ),
        *(
            Decoder(f"key of {kind}", partial(read_rows, kind, data=data), [of])
            for kind, (of, data) in entries.items()
        ),
        Decoder(
            "token of a batch",
            partial(decode_token, where="x"),
            [encode_token(BatchToken("uid", "query", 1, 2))],
        ),
        Decoder("greeting", decode_greeting, [encode(Hello(nonce="a"))]),
        Decoder(
            "offsets of a source",
            lambda data: (topic_offsets(text_of(data)), stands_apart(text_of(data))),
            [b'v1\n{"batchTimestampMs":1}\n{"clicks":{"0":17,"1":9}}'],
            errors=(),
        ),
    ]


DECODERS = {
    decoder.name: decoder
    for decoder in (
        *checkpoint_decoders(),
        *delta_decoders(),
        *blob_decoders(),
        *hdfs_decoders(),
        *kafka_decoders(),
        *spark_decoders(Path(tempfile.mkdtemp())),
    )
}


def check(decoder: Decoder, part: bytes) -> None:
    """Give a decoder a changed part, and hold it to its errors and its memory."""
    data = decoder.wrap(part)
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    with suppress(*decoder.errors):
        decoder.read(data)
    _, peak = tracemalloc.get_traced_memory()
    assert peak - before < _MOST_MEMORY, f"bytes taken: {peak - before}"


@pytest.mark.parametrize("name", [d.name for d in DECODERS.values() if d.is_readable])
def test_valid_bytes_are_read(name: str) -> None:
    decoder = DECODERS[name]
    for sample in decoder.samples:
        decoder.read(decoder.wrap(sample))


@pytest.fixture
def traced() -> Any:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name", DECODERS)
def test_foreign_bytes_are_damage_and_cost_little(name: str) -> None:
    decoder = DECODERS[name]

    @settings(deadline=2000, max_examples=40, suppress_health_check=list(HealthCheck))
    @given(foreign_bytes(decoder.samples))
    def run(part: bytes) -> None:
        check(decoder, part)

    run()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name", DECODERS)
def test_brackets_within_brackets_are_damage(name: str) -> None:
    decoder = DECODERS[name]
    for depth in (300, 100_000):
        check(decoder, nested(depth))
        check(decoder, b'{"zz":' + nested(depth) + b"}")
        for sample in decoder.samples:
            if sample.startswith(b"{"):
                check(decoder, b'{"zz":' + nested(depth) + b"," + sample[1:])
