"""A backup that is malformed is damage, whatever its decoder trips over: an older commit is restored."""

import base64
import hashlib
import json
import os
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import lz4.block  # type: ignore[import-untyped]  # it ships no types
import pytest
import zstandard
from increments_kit import BLOB, TASK, IncrementJob, Made, folded

from statekeep.backends.blob import backup
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.checkpoint.checkpoints import CheckpointV2, Marker
from statekeep.config.store_settings import StoreSettings
from statekeep.restore.manager import RestoreCandidate, RestoreOutcome, TaskRestorer
from statekeep.stores.factory import open_store
from statekeep.stores.task_directory import TaskDirectory
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.storage import bare_manager
from statekeep.testing.versions import STORE

MIB: Final = 1 << 20
FIRST = {b"%04d" % number: b"v" * 100 for number in range(200)}
SECOND = {b"0001": b"second"}

Spoil = Callable[[IncrementJob, dict[str, Any]], bytes | None]
"""Changes an index, or returns the bytes that take its place."""


def put(job: IncrementJob, data: bytes) -> str:
    """Store a blob as an attacker would who can write to the storage; return its id."""
    name = f"job/state/blob/main/t/s/1-9/{hashlib.sha256(data).hexdigest()[:8]}-1-x"
    path = job.root / "place" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return name


def first_file(index: dict[str, Any]) -> dict[str, Any]:
    files: list[dict[str, Any]] = index["dir-index"]["files-present"]
    return max(files, key=lambda file: file["file-metadata"]["size"])


def named(blob_id: str) -> Spoil:
    def spoil(job: IncrementJob, index: dict[str, Any]) -> None:
        first_file(index)["blobs"] = [{"blob-id": blob_id, "offset": 0}]

    return spoil


def delta_named(blob_id: str) -> Spoil:
    def spoil(job: IncrementJob, index: dict[str, Any]) -> None:
        index["deltas"][0]["blob-id"] = blob_id

    return spoil


DEPTH = 100_000
"""More than each Python goes down; 3.13 goes ten times as far as 3.11."""


def deep(job: IncrementJob, index: dict[str, Any]) -> bytes:
    index["zz"] = 0
    return json.dumps(index).replace('"zz": 0', '"zz": ' + "[" * DEPTH + "]" * DEPTH).encode()


def deep_directories(job: IncrementJob, index: dict[str, Any]) -> None:
    for _ in range(200):
        below = {**index["dir-index"], "dir-name": "d"}
        index["dir-index"] = {
            **below,
            "dir-name": "",
            "files-present": [],
            "sub-dirs-present": [below],
        }


def long_file_name(job: IncrementJob, index: dict[str, Any]) -> None:
    first_file(index)["file-name"] = "x" * 300


def half_a_character(job: IncrementJob, index: dict[str, Any]) -> bytes:
    return json.dumps(index).replace("Partition 3", "Partition \xff").encode("latin-1")


def many_files(count: int) -> Spoil:
    """Name a file of the image many times."""

    def spoil(job: IncrementJob, index: dict[str, Any]) -> None:
        files = index["dir-index"]["files-present"]
        files += [{**files[0], "file-name": f"x{number}.sst"} for number in range(count)]

    return spoil


def many_directories(count: int) -> Spoil:
    def spoil(job: IncrementJob, index: dict[str, Any]) -> None:
        root = index["dir-index"]
        root["sub-dirs-present"] = [
            {**root, "dir-name": f"d{number}", "files-present": [], "files-removed": []}
            for number in range(count)
        ]

    return spoil


def huge_file(job: IncrementJob, index: dict[str, Any]) -> None:
    first_file(index)["file-metadata"]["size"] = 2**40


def huge_range(job: IncrementJob, index: dict[str, Any]) -> None:
    file = first_file(index)
    blob = file["blobs"][0]
    sha256 = file["sha-256"]
    file["blobs"] = [{**blob, "range": {"start": 0, "size": 2**40, "sha-256": sha256}}]
    file["file-metadata"]["size"] = 2**40


def distant_ranges(job: IncrementJob, index: dict[str, Any]) -> None:
    """Two files of one pack, a terabyte apart."""
    files = index["dir-index"]["files-present"][:2]
    blob_id = put(job, b"x" * 100)
    for number, file in enumerate(files):
        part = {"start": number * 2**40, "size": 10, "sha-256": "0" * 64}
        file["blobs"] = [{"blob-id": blob_id, "offset": 0, "range": part}]
        file["file-metadata"]["size"] = 10


def overlapping(job: IncrementJob, index: dict[str, Any]) -> None:
    file = first_file(index)
    blob = file["blobs"][0]
    file["blobs"] = [blob, {**blob, "offset": 2**50}]


def file_named(index: dict[str, Any], name: str) -> dict[str, Any]:
    files: list[dict[str, Any]] = index["dir-index"]["files-present"]
    return next(file for file in files if file["file-name"].startswith(name))


def unopenable_current(job: IncrementJob, index: dict[str, Any]) -> None:
    """Let the image below the deltas name a manifest that it does not have."""
    assert index["deltas"]
    data = b"MANIFEST-999999\n"
    file = file_named(index, "CURRENT")
    file["blobs"] = [{"blob-id": put(job, data), "offset": 0}]
    file |= {"sha-256": hashlib.sha256(data).hexdigest(), "checksum": zlib.crc32(data)}
    file["file-metadata"]["size"] = len(data)


def without_file(name: str) -> Spoil:
    """Take a file out of the image below the deltas."""

    def spoil(job: IncrementJob, index: dict[str, Any]) -> None:
        assert index["deltas"]
        index["dir-index"]["files-present"].remove(file_named(index, name))

    return spoil


def large_blob(job: IncrementJob, index: dict[str, Any]) -> None:
    """Four gigabytes, of which nothing is written."""
    os.truncate(job.root / "place" / first_file(index)["blobs"][0]["blob-id"], 4 << 30)


def large_index(job: IncrementJob, index: dict[str, Any]) -> bytes:
    return json.dumps(index).encode() + b" " * (65 * MIB)


def delta_with(codec: int, stored: bytes, raw_bytes: int) -> Spoil:
    """Put a delta in place of the right one, whose one block claims to be something."""

    def spoil(job: IncrementJob, index: dict[str, Any]) -> None:
        delta = index["deltas"][0]
        header = json.dumps({key: delta[key] for key in ("version", "parent")}).encode()
        start = struct.pack("<8sII", b"SKDELTA\n", 1, len(header)) + header
        head = struct.pack("<IIBI", len(stored), raw_bytes, codec, zlib.crc32(stored))
        data = start + struct.pack("<I", zlib.crc32(start))
        data += head + struct.pack("<I", zlib.crc32(head)) + stored
        delta |= {
            "blob-id": put(job, data),
            "size": len(data),
            "checksum": zlib.crc32(data),
            "sha-256": hashlib.sha256(data).hexdigest(),
        }
        delta.pop("blobs", None)

    return spoil


def zstd_of_zeros(size: int) -> bytes:
    """Return a frame that states its size."""
    compressor = zstandard.ZstdCompressor(level=1).compressobj(size=size)
    pieces = [compressor.compress(bytes(MIB)) for _ in range(size // MIB)]
    return b"".join([*pieces, compressor.flush()])


BOMB: Final = zstd_of_zeros(512 * MIB)
PACKED: Final = lz4.block.compress(b"\1\0\0\0k\1\0\0\0v", store_size=False)
SPOILED: Final[dict[str, Spoil]] = {
    "id above the place": named("../../etc/passwd"),
    "absolute id": named("/etc/passwd"),
    "name of 300 characters": named("x" * 300),
    "id below a file": named("x/" * 900 + "x"),
    "directory": named("job"),
    "delta above the place": delta_named("../../etc/passwd"),
    "delta of a long name": delta_named("x" * 300),
    "nested index": deep,
    "nested directories": deep_directories,
    "long file name": long_file_name,
    "half a character": half_a_character,
    "1,000 files that the manifest lacks": many_files(1_000),
    "index of 33,000 files": many_files(33_000),
    "index of 33,000 directories": many_directories(33_000),
    "file of 2^40 bytes": huge_file,
    "range of 2^40 bytes": huge_range,
    "distant ranges": distant_ranges,
    "overlapping blobs": overlapping,
    "image that does not open, under deltas": unopenable_current,
    "image without CURRENT, under deltas": without_file("CURRENT"),
    "image without MANIFEST, under deltas": without_file("MANIFEST"),
    "blob of 4 GiB": large_blob,
    "index of 65 MiB": large_index,
    "lz4 block of 2^31 bytes": delta_with(1, PACKED, 2**31),
    "lz4 block of 2^31 - 1 bytes": delta_with(1, PACKED, 2**31 - 1),
    "zstd block of another size": delta_with(2, BOMB, 10),
    "zstd block of 512 MiB": delta_with(2, BOMB, 512 * MIB),
    "block of 4 GiB": delta_with(0, b"x", 2**32 - 2),
    "block of an unknown form": delta_with(1, b"", 0),
}


def full_named(blob_id: str) -> Spoil:
    def spoil(job: IncrementJob, index: dict[str, Any]) -> None:
        index["full-index-blob-id"] = blob_id

    return spoil


def full_is_no_index(job: IncrementJob, index: dict[str, Any]) -> None:
    index["full-index-blob-id"] = put(job, b"{}")


def full_of_another_content(job: IncrementJob, index: dict[str, Any]) -> None:
    head, _, tail = index["full-index-blob-id"].rpartition("-")
    index["full-index-blob-id"] = f"{head}-{'0' * 64}.json"
    (job.root / "place" / f"{head}-{'0' * 64}.json").write_bytes(b"{}")
    assert tail


def held_elsewhere(job: IncrementJob, index: dict[str, Any]) -> None:
    delta = index["deltas"][0]
    del delta["content"]
    delta["blob-id"] = index["full-index-blob-id"]


def held_nowhere(job: IncrementJob, index: dict[str, Any]) -> None:
    del index["deltas"][0]["content"]


def other_content(job: IncrementJob, index: dict[str, Any]) -> None:
    delta = index["deltas"][0]
    delta["content"] = base64.b64encode(bytes(delta["size"])).decode()


def adds_nothing(job: IncrementJob, index: dict[str, Any]) -> None:
    index["deltas"] = []


SPOILED_ADDITIONS: Final[dict[str, Spoil]] = {
    "full index above the place": full_named("../../etc/passwd"),
    "full index of a long name": full_named("x" * 300),
    "full index that is none": full_is_no_index,
    "full index of another content": full_of_another_content,
    "delta in another index": held_elsewhere,
    "delta in no index": held_nowhere,
    "delta of another content": other_content,
    "addition of nothing": adds_nothing,
    "nested addition": deep,
    "addition of 65 MiB": large_index,
}


LARGE: Final = {
    "index of 65 MiB",
    "addition of 65 MiB",
    "index of 33,000 files",
    "index of 33,000 directories",
}


async def spoiled(job: IncrementJob, made: Made, spoil: Spoil) -> CheckpointV2:
    """Return a checkpoint of which the index is spoiled, with right digests."""
    index = json.loads(await job.blobs.get(made.marker))
    data = spoil(job, index) or json.dumps(index).encode()
    name = f"job/x/1-1/aa-snapshot-index-{hashlib.sha256(data).hexdigest()}.json"
    path = job.root / "place" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return CheckpointV2(made.checkpoint.checkpoint_id, {}, {BLOB: {STORE: Marker(name)}})


async def restore(job: IncrementJob, *candidates: tuple[CheckpointV2, Made]) -> RestoreOutcome:
    settings = StoreSettings(
        STORE, factory="rocksdb", backup_factories=(BLOB,), restore_factories=(BLOB,)
    )
    restorer = TaskRestorer(
        TASK,
        TaskDirectory.of(job.root / "other", TASK),
        {STORE: settings},
        {BLOB: job.factory},
        executor=SerialExecutor(),
        clock=FakeClock(),
        on_progress=lambda _: None,
    )
    listed = frozenset({STORE})
    return await restorer.restore(
        [RestoreCandidate(found, made.version.id, listed) for found, made in candidates]
    )


@pytest.mark.asyncio
@pytest.mark.parametrize("name", [*SPOILED, *SPOILED_ADDITIONS])
async def test_a_malformed_backup_gives_way_to_an_older_commit_and_costs_little(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in SPOILED:
        monkeypatch.setattr(backup, "MAX_ADDED_DELTAS", 0)
        monkeypatch.setattr(backup, "MAX_INDEX_DELTA_BYTES", 0)

    def make_blobs() -> BlobStoreManager:
        return bare_manager(f"file://{tmp_path}/place", {}, SerialExecutor())

    job = IncrementJob(tmp_path, "rocksdb", {"pack.max.file.bytes": "0"}, make_blobs)
    await job.blobs.init()
    await job.manager.init()
    old = await job.commit(job.seal(None, FIRST))
    new = await job.commit(job.seal(old.version, SECOND))
    bad = await spoiled(job, new, (SPOILED | SPOILED_ADDITIONS)[name])
    kept = old
    if name == "blob of 4 GiB":  # the old commit has the same blob
        kept = await job.commit(job.seal(None, FIRST))
    tracemalloc.start()
    try:
        outcome = await restore(job, (bad, new), (kept.checkpoint, kept))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert outcome.version is not None
    assert outcome.version.id == kept.version.id
    assert [failure.is_marker_bad for failure in outcome.failures] == [True]
    assert "of another store" not in outcome.failures[0].error
    assert len(outcome.failures[0].error) < 3_000
    assert peak < (300 if name in LARGE else 64) * MIB
    store = open_store(STORE, "rocksdb", outcome.version.store_directory(STORE), is_new=False)
    assert dict(store.scan()) == folded(FIRST)
    store.close()
