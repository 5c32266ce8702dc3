"""How one piece of data stands in bytes, so that damage is seen before the data is used.

A header line, then the payload, which is JSON; so a person can read it with a text editor::

    statekeep 1 <kind> <crc32, 8 hex digits> <payload length in bytes>
    {"type":"epoch","epoch":3,"nonce":"5f0c…","owner":"host-a:4711"}

The CRC-32 is that of the kind's letters followed by the payload; from version 2 on, of the version
number and a space before these. A later format has to keep the header and what its checksum and
length say: so an older release tells it from damage, that of a version number included.

A frame of the kind ``sealed`` holds another one, and by which key that was authenticated
(`statekeep.backends.seals`). Without the keys its authenticity cannot be checked.
"""

import re
import zlib
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from statekeep.errors import CheckpointCorruptError, KeyUnavailableError, UnknownFormatError

T = TypeVar("T")

_SEALED: Final = "sealed"
"""Kind of a frame around another one."""
_REFUSED: Final = b"refused: "
"""Begins what stands for bytes that are not authentic; it is never stored."""

_FORMAT_VERSION: Final = 1
_HEADER: Final = re.compile(rb"statekeep ([0-9]{1,9}) ([a-z-]{1,32}) ([0-9a-f]{8}) ([0-9]{1,12})")
_MAX_HEADER_BYTES: Final = 80


@dataclass(frozen=True, slots=True)
class Frame:
    """What a frame holds, checked."""

    kind: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class _Header:
    version: int
    kind: bytes
    crc: int
    payload_bytes: int


def frame(kind: str, payload: bytes) -> bytes:
    """Return ``payload`` behind its header line.

    Args:
        kind: What it is, in lower-case letters and dashes.
        payload: Any bytes.
    """
    crc = _crc(_FORMAT_VERSION, kind.encode(), payload)
    return (
        b"statekeep %d %s %08x %d\n" % (_FORMAT_VERSION, kind.encode(), crc, len(payload)) + payload
    )


def unframe(data: bytes, *, where: str) -> Frame:
    """Take a frame apart and check it.

    Args:
        data: The whole frame.
        where: Named in errors, such as ``position=7``.

    Raises:
        CheckpointCorruptError: Truncated, damaged or foreign.
        UnknownFormatError: Of a newer format, and whole as far as this one can tell.
        KeyUnavailableError: It is authenticated, and that has not been checked.
    """
    if data.startswith(_REFUSED):
        raise CheckpointCorruptError(data.removeprefix(_REFUSED).decode(errors="replace"))
    found = _open(data, where=where)
    if found.kind == _SEALED:
        raise KeyUnavailableError(
            f"a record is authenticated and no keys are configured: {where}",
            hint="set blob.store.encryption.keys as the job has it, such as file:/etc/statekeep/keys",
        )
    return found


def sealed(payload: bytes) -> bytes:
    """Return the frame that is to hold another one."""
    return frame(_SEALED, payload)


def sealed_payload(data: bytes, *, where: str) -> bytes | None:
    """Return what a sealed frame holds; None for a whole frame of any other kind.

    Raises:
        CheckpointCorruptError: Truncated, damaged or foreign.
        UnknownFormatError: As of `unframe`.
    """
    found = _open(data, where=where)
    return found.payload if found.kind == _SEALED else None


def refused(reason: str) -> bytes:
    """Return what `unframe` refuses with a reason, in place of what must not be trusted."""
    return _REFUSED + reason.encode()


def decode_json(decoder: msgspec.json.Decoder[T], data: bytes, damage: str) -> T:
    """Return what a JSON document holds.

    Args:
        decoder: Of the type that is expected.
        data: The document.
        damage: The message of the error, such as ``checkpoint cannot be read: task=...``.

    Raises:
        CheckpointCorruptError: It is not JSON, not of the type, or nested too deep.
    """
    try:
        return decoder.decode(data)
    # The library raises errors that are not its own for invalid text and deep nesting.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise CheckpointCorruptError(damage) from exc


def _open(data: bytes, *, where: str) -> Frame:
    header = _read_header(data)
    if header is None:
        msg = f"no statekeep header: {where} bytes={len(data)}"
        raise CheckpointCorruptError(msg)
    payload = data.partition(b"\n")[2]
    if header.payload_bytes != len(payload):
        msg = f"wrong length: {where} expected_bytes={header.payload_bytes} actual_bytes={len(payload)}"
        raise CheckpointCorruptError(msg)
    if header.crc != _crc(header.version, header.kind, payload):
        msg = f"wrong checksum: {where} bytes={len(data)}"
        raise CheckpointCorruptError(msg)
    if header.version > _FORMAT_VERSION:
        raise UnknownFormatError(f"unknown format version: {where} version={header.version}")
    if header.version < _FORMAT_VERSION:
        msg = f"there was no such format version: {where} version={header.version}"
        raise CheckpointCorruptError(msg)
    return Frame(header.kind.decode(), payload)


def claimed_kind(data: bytes) -> str | None:
    """Return what a frame that `unframe` refuses says it is; None where it does not say.

    None also for a frame of a newer format, whose kinds may mean something else.
    """
    header = _read_header(data)
    if header is None or header.version != _FORMAT_VERSION:
        return None
    return header.kind.decode()


def _read_header(data: bytes) -> _Header | None:
    line = data[:_MAX_HEADER_BYTES].partition(b"\n")
    match = _HEADER.fullmatch(line[0]) if line[1] else None
    if match is None:
        return None
    return _Header(int(match[1]), match[2], int(match[3], 16), int(match[4]))


def _crc(version: int, kind: bytes, payload: bytes) -> int:
    before = b"" if version == 1 else b"%d " % version
    return zlib.crc32(payload, zlib.crc32(before + kind))
