"""Reads encoded streams by the description of the format alone, without the code under test; and indexes."""

import hashlib
import json
import struct
import zlib

import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from statekeep.backends.blob.index import SnapshotIndex, decode_index

SECRET = bytes(range(32))
KEY_LINE = "2026-11 AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
"""`SECRET` as a key file has it."""


def place_of(blob_id: str, start: int = 0) -> str:
    """Return what a stream in a blob is bound to."""
    *above, name = blob_id.split("/")[-8:]
    if "snapshot-index" in name:
        return "/".join([*above, f"{name.partition('-')[0]}-snapshot-index"])
    return "/".join([*above, f"{name}#{start}"])


def read_stream(stored: bytes, place: str) -> bytes:
    """Return what a stream stands for."""
    magic, version, length = struct.unpack_from("<8sII", stored)
    assert magic == b"SKSTREAM"
    end = 16 + length
    (crc32,) = struct.unpack_from("<I", stored, end)
    assert zlib.crc32(stored[:end]) == crc32
    header = json.loads(stored[16:end])
    start, rest = stored[: end + 4], stored[end + 4 :]
    cipher = None
    if header.get("encryption") is None:
        assert version == 1
    if header.get("encryption") is not None:
        assert version in {1, 2}
        assert (header["encryption"], header["key-id"]) == ("aes-256-gcm", "2026-11")
        if version == 1:
            place = "/".join(place.split("/")[-2:])
        bound = hashlib.sha256(start).digest() + place.encode()
        salt = bytes.fromhex(header["salt"])
        info = b"statekeep stream %d" % version + bound
        cipher = AESGCM(HKDF(SHA256(), 32, salt, info).derive(SECRET))
    pieces: list[bytes] = []
    flags = 0
    while rest:
        assert not flags & 1
        size, raw_size, flags = struct.unpack_from("<IIB", rest)
        head, data, rest = rest[:9], rest[9 : 9 + size], rest[9 + size :]
        if cipher is not None:
            data = cipher.decrypt(struct.pack(">IQ", 0, len(pieces)), data, head)
        if flags & 2:
            data = zstandard.ZstdDecompressor().decompress(data)
        assert len(data) == raw_size
        pieces.append(data)
    assert flags & 1
    return b"".join(pieces)


def plain_index(stored: bytes, marker: str) -> bytes:
    """Return the JSON of an index, whether it is encoded or not."""
    return read_stream(stored, place_of(marker)) if stored.startswith(b"SKSTREAM") else stored


def full_index(data: bytes, *, where: str) -> SnapshotIndex:
    """Read an index that adds to no other one."""
    index = decode_index(data, where=where)
    assert isinstance(index, SnapshotIndex)
    return index
