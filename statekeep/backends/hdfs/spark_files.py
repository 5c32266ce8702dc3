"""State files of Spark's own HDFSBackedStateStoreProvider: ``<version>.delta``, ``.snapshot``.

A file is a stream of LZ4 blocks in the framing of lz4-java. In it, big-endian: i32 key bytes, key,
i32 value bytes (-1 in a delta: the key is deleted), value; a key size of -1 is the end. There are
no unique ids: version n is the newest snapshot up to n and every delta after it.

Source: Spark 4.3 ``HDFSBackedStateStoreProvider``, lz4-java ``LZ4BlockOutputStream``.
"""

import os
import re
import struct
from collections.abc import Collection, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final

import xxhash

from statekeep.errors import BlobNotFoundError, CheckpointCorruptError
from statekeep.stores.base import KeyValueStore
from statekeep.stores.delta import Change
from statekeep.stores.local_files import explained_errors, sync_directory

_MAGIC: Final = b"LZ4Block"
_BLOCK: Final = struct.Struct("<BiiI")
_SIZE: Final = struct.Struct(">i")
_METHOD_RAW: Final = 0x10
_METHOD_LZ4: Final = 0x20
_LEVEL: Final = 0x06
"""Of a block size of 64 KiB."""
_BLOCK_BYTES: Final = 64 << 10
_SMALLEST_BLOCK_BITS: Final = 10
"""The low half of a block's token says by how many bits its stream's block size is larger."""
_SEED: Final = 0x9747B28C
_CHECKSUM_BITS: Final = 0x0FFFFFFF
_END: Final = -1
_DELETED: Final = -1
_SNAPSHOT: Final = re.compile(r"([1-9][0-9]{0,17})\.snapshot")

# It ships no types.
_lz4: Final[Any] = import_module("lz4.block")


def plan_spark_load(version: int, names: Collection[str]) -> list[str]:
    """Return the files that give a version, in the order in which they are applied.

    Args:
        version: From 1; 0 is the empty state and has no files.
        names: What there is.

    Raises:
        ValueError: The version is negative.
        BlobNotFoundError: A delta is missing.
    """
    if version < 0:
        msg = f"a version of a state store is negative: version={version}"
        raise ValueError(msg)
    # By what there is, not by what is asked for: a version may be any number.
    snapshots = (int(match[1]) for name in names if (match := _SNAPSHOT.fullmatch(name)))
    newest = max((number for number in snapshots if number <= version), default=0)
    deltas: list[str] = []
    for number in range(newest + 1, version + 1):
        deltas.append(f"{number}.delta")
        if deltas[-1] not in names:
            raise BlobNotFoundError(deltas[-1])
    return [f"{newest}.snapshot"] * bool(newest) + deltas


def read_spark_file(file: BinaryIO, *, where: str, may_delete: bool) -> Iterator[Change]:
    """Yield the records of a file in order.

    Args:
        file: The bytes as they are on disk.
        where: Named in errors.
        may_delete: False for a snapshot.

    Raises:
        CheckpointCorruptError: Truncated or damaged, here or further on.
    """
    stream = BlockReader(file, where)
    while (key_bytes := stream.read_size()) != _END:
        if key_bytes < 0:
            msg = f"a key size is below 0: {where} bytes={key_bytes}"
            raise CheckpointCorruptError(msg)
        key = stream.read(key_bytes)
        value_bytes = stream.read_size()
        if value_bytes >= 0:
            yield key, stream.read(value_bytes)
        elif value_bytes == _DELETED and may_delete:
            yield key, None
        else:
            msg = f"a value size is below 0: {where} bytes={value_bytes}"
            raise CheckpointCorruptError(msg)


def write_spark_file(entries: Iterable[Change], file: BinaryIO) -> None:
    """Write a delta, or with no deletions a snapshot, that Spark's provider reads."""
    waiting = bytearray()
    for key, value in entries:
        waiting += _SIZE.pack(len(key)) + key
        waiting += _SIZE.pack(_DELETED if value is None else len(value)) + (value or b"")
        while len(waiting) >= _BLOCK_BYTES:
            _write_block(bytes(waiting[:_BLOCK_BYTES]), file)
            del waiting[:_BLOCK_BYTES]
    _write_block(bytes(waiting) + _SIZE.pack(_END), file)
    file.write(_MAGIC + _BLOCK.pack(_METHOD_RAW | _LEVEL, 0, 0, 0))


class BlockReader:
    """The bytes inside the blocks of a file.

    Its methods raise `CheckpointCorruptError` where the file is truncated or damaged.
    """

    def __init__(self, file: BinaryIO, where: str) -> None:
        """Take a file at its beginning.

        Args:
            file: The bytes as they are on disk.
            where: Named in errors.
        """
        self._file = file
        self._where = where
        self._waiting = b""
        self._offset = 0

    def read_size(self) -> int:
        """Return the next four bytes as a number."""
        return int(_SIZE.unpack(self.read(_SIZE.size))[0])

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        if self._offset + size > len(self._waiting):
            parts = [self._waiting[self._offset :]]
            missing = size - len(parts[0])
            while missing > 0:
                parts.append(self._next_block())
                missing -= len(parts[-1])
            self._waiting, self._offset = b"".join(parts), 0
        start, self._offset = self._offset, self._offset + size
        return self._waiting[start : self._offset]

    def read_to_end(self) -> None:
        """Read all blocks, up to the empty one at the end."""
        while self._next_block(may_end=True):
            pass

    def _next_block(self, *, may_end: bool = False) -> bytes:
        head = self._file.read(len(_MAGIC) + _BLOCK.size)
        if len(head) < len(_MAGIC) + _BLOCK.size or not head.startswith(_MAGIC):
            raise self._corrupt("truncated, or no LZ4 blocks")
        token, stored_bytes, raw_bytes, checksum = _BLOCK.unpack_from(head, len(_MAGIC))
        if token & 0xF0 not in {_METHOD_RAW, _METHOD_LZ4}:
            raise self._corrupt(f"a block is of an unknown method, token={token}")
        most_bytes = 1 << (_SMALLEST_BLOCK_BITS + (token & 0x0F))
        if not (0 <= stored_bytes <= most_bytes and 0 <= raw_bytes <= most_bytes):
            raise self._corrupt(f"a block is larger than any, bytes={raw_bytes}")
        if may_end and stored_bytes == raw_bytes == 0:
            return b""
        stored = self._file.read(stored_bytes)
        if not stored or len(stored) < stored_bytes:
            raise self._corrupt("truncated")
        try:
            is_raw = token & 0xF0 == _METHOD_RAW
            raw = stored if is_raw else bytes(_lz4.decompress(stored, uncompressed_size=raw_bytes))
        except (_lz4.LZ4BlockError, ValueError) as exc:
            raise self._corrupt("a block is damaged") from exc
        if len(raw) != raw_bytes or _checksum(raw) != checksum:
            raise self._corrupt("a block is damaged")
        return raw

    def _corrupt(self, what: str) -> CheckpointCorruptError:
        return CheckpointCorruptError(f"state file of Spark is damaged, {what}: {self._where}")


def _write_block(raw: bytes, file: BinaryIO) -> None:
    for start in range(0, len(raw), _BLOCK_BYTES):
        part = raw[start : start + _BLOCK_BYTES]
        stored = bytes(_lz4.compress(part, store_size=False))
        method = _METHOD_LZ4 if len(stored) < len(part) else _METHOD_RAW
        if method == _METHOD_RAW:
            stored = part
        head = _BLOCK.pack(method | _LEVEL, len(stored), len(part), _checksum(part))
        file.write(_MAGIC + head + stored)


def _checksum(raw: bytes) -> int:
    return xxhash.xxh32_intdigest(raw, seed=_SEED) & _CHECKSUM_BITS


def export_snapshot(store: KeyValueStore, directory: Path, version: int) -> Path:
    """Write a store's content as ``<directory>/<version>.snapshot``; return that path.

    Spark's ``HDFSBackedStateStoreProvider`` reads it as the state before the batch of that number,
    if keys and values are as the operator of Spark encodes them: those of a state that was started
    from Spark's files are. Blocking. The file has its name once it is whole and durable; one of
    that name is replaced.

    Args:
        store: Open; not written meanwhile.
        directory: ``<checkpoint location>/state/<operator>/<partition>``, or where it is copied
            from. Files of later versions there must be removed first.
        version: From 1: the number of batches that the content holds.

    Raises:
        ValueError: The version is below 1.
        ConfigError: The disk is full or not writable.
    """
    if version < 1:
        msg = f"a version of a state store is below 1: version={version}"
        raise ValueError(msg)
    target = directory / f"{version}.snapshot"
    temporary = target.with_name(f".{target.name}.tmp")
    with explained_errors(directory):
        with temporary.open("wb") as file:
            write_spark_file(store.scan(), file)
            file.flush()
            os.fsync(file.fileno())
        # On a local disk, Hadoop keeps a checksum beside each file, and trusts an old one.
        target.with_name(f".{target.name}.crc").unlink(missing_ok=True)
        temporary.replace(target)
        sync_directory(directory)
    return target
