"""Reads files of changes by the formats page alone, and what uploads of the HDFS backend add up to."""

import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import lz4.block  # type: ignore[import-untyped] # ships no types
import zstandard

from chaos.evidence.files import Files

_MAGIC: Final = b"SKDELTA\n"
_VERSION: Final = 1
_END: Final = 0xFFFFFFFF
_DECODERS: Final[Mapping[int, Callable[[bytes, int], bytes]]] = {
    0: lambda data, _: data,
    1: lambda data, size: bytes(lz4.block.decompress(data, uncompressed_size=size)),
    2: lambda data, size: zstandard.decompress(data, max_output_size=size),
}
Change = tuple[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class Delta:
    """One file of changes."""

    header: Mapping[str, Any]
    changes: list[Change]


def parse_delta(data: bytes) -> Delta:
    """Take a file apart and check every checksum.

    Raises:
        ValueError: It is damaged, or not of this form.
    """
    try:
        return _parse(data)
    except (struct.error, KeyError, RuntimeError, zstandard.ZstdError) as exc:
        raise ValueError("a delta is damaged") from exc


def _parse(data: bytes) -> Delta:
    version, length = struct.unpack_from("<II", data, 8)
    if data[:8] != _MAGIC or version != _VERSION:
        raise ValueError("no delta of version 1")
    at = 16 + length
    header_crc = data[at : at + 4]
    if zlib.crc32(data[:at]) != int.from_bytes(header_crc, "little"):
        raise ValueError("the header of a delta is damaged")
    header = json.loads(data[16:at])
    at += 4
    raw, chain, changes = bytearray(), 0, list[Change]()
    while (size := int.from_bytes(data[at : at + 4], "little")) != _END:
        _, raw_size, codec, stored_crc, head_crc = struct.unpack_from("<IIBII", data, at)
        chain = zlib.crc32(data[at : at + 17 - 4], chain)
        stored = data[at + 17 : at + 17 + size]
        if chain != head_crc or zlib.crc32(stored) != stored_crc:
            raise ValueError("a block of a delta is damaged")
        raw += _DECODERS[codec](stored, raw_size)
        at += 17 + size
    changes = _records(bytes(raw))
    _, puts, deletes, end_crc = struct.unpack_from("<IQQI", data, at)
    counted = zlib.crc32(data[at : at + 20], zlib.crc32(header_crc, chain))
    is_counted = (puts, deletes) == _counts(changes) and len(data) == at + 24
    if counted != end_crc or not is_counted:
        raise ValueError("the end of a delta is damaged")
    return Delta(header, changes)


def load_upload(files: Files, marker: str) -> dict[bytes, bytes]:
    """Return what an upload of the HDFS backend holds: its snapshot, and the deltas since.

    Raises:
        ValueError: A file is missing or damaged, or they do not connect.
    """
    name, _, digest = marker.partition(";v=2;sha256=")
    if digest and hashlib.sha256(files.read(name)).hexdigest() != digest:
        raise ValueError(f"a file differs from the digest in its marker: {name}")
    place, _, name = name.rpartition("/")
    upload = name.partition(".")[0]
    deltas: list[Delta] = []
    lineage: list[str] = [upload]
    while lineage:
        upload = lineage.pop(0)
        snapshot = _read(files, f"{place}/{upload}.snapshot")
        if snapshot is not None:
            return _applied(snapshot, deltas)
        delta = _read(files, f"{place}/{upload}.delta")
        if delta is None:
            raise ValueError(f"neither delta nor snapshot: {place}/{upload}")
        deltas.append(delta)
        lineage = lineage or list(delta.header.get("lineage", ()))
    raise ValueError(f"no snapshot leads to {marker}")


def _applied(snapshot: Delta, deltas: list[Delta]) -> dict[bytes, bytes]:
    content: dict[bytes, bytes] = {}
    version = snapshot.header["version"]
    for delta in [snapshot, *reversed(deltas)]:
        if delta is not snapshot:
            if delta.header.get("parent", "") != version:
                raise ValueError(f"{delta.header['version']} does not follow on {version}")
            version = delta.header["version"]
        for key, value in delta.changes:
            if value is None:
                content.pop(key, None)
            else:
                content[key] = value
    return content


def _read(files: Files, name: str) -> Delta | None:
    try:
        return parse_delta(files.read(name))
    except FileNotFoundError:
        return None


def _records(raw: bytes) -> list[Change]:
    changes: list[Change] = []
    at = 0
    while at < len(raw):
        (size,) = struct.unpack_from("<I", raw, at)
        key = raw[at + 4 : at + 4 + size]
        at += 4 + size
        (size,) = struct.unpack_from("<i", raw, at)
        at += 4
        changes.append((key, None if size < 0 else raw[at : at + size]))
        at += max(size, 0)
    return changes


def _counts(changes: list[Change]) -> tuple[int, int]:
    deletes = sum(value is None for _, value in changes)
    return len(changes) - deletes, deletes
