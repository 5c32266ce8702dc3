"""Compressed and encrypted streams: frames, each authenticated with its place in the stream.

``docs/reference/formats.md`` has the layout. A stream may be cut between any two frames and stored in several
blobs. What is encrypted cannot be changed, cut off, repeated, put into another order or taken from
another file unseen:

- Each stream has a key of its own, derived (HKDF-SHA256) from the key of the provider, 32 random
  bytes, the header, and the place that the stream is stored at: the job, its log's uid, the backend,
  operator, task, store, attempt and name. So the nonces, which count frames, are used once.
- Each frame's position is its nonce; its sizes and whether it is the last one are authenticated with
  it.

Source: the construction is that of AES-GCM-HKDF streaming in Google's Tink (STREAM: Hoang,
Reyhanitabar, Rogaway, Vizar 2015), with a header of our own.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from statekeep.backends.encryption_keys import EncryptionKey
from statekeep.backends.frame_cipher import FrameCipher, key_check
from statekeep.checkpoint.framing import decode_json
from statekeep.config.values import BlobCompression
from statekeep.errors import (
    CheckpointCorruptError,
    ConfigError,
    KeyUnavailableError,
    UnknownFormatError,
)
from statekeep.stores.block_codec import ZstdCodec

ENCRYPTION: Final = "aes-256-gcm"
FORMAT_VERSION: Final = 2
"""Of what is encrypted: 1 was bound to the last two parts of its place alone. What is only compressed
is still of version 1."""
SALT_BYTES: Final = 32
FRAME_BYTES: Final = 1 << 20
"""Raw bytes of every frame but the last: what a reader accepts before it has checked anything."""

MAGIC: Final = b"SKSTREAM"
_START: Final = struct.Struct("<8sII")
_CRC32: Final = struct.Struct("<I")
_FRAME: Final = struct.Struct("<IIB")
_LAST: Final = 1
_COMPRESSED: Final = 2
_TAG_BYTES: Final = 16
_MAX_HEADER_BYTES: Final = 1 << 16


def most_stored_bytes(raw_bytes: int) -> int:
    """Return how many bytes a stream of so many raw ones may take, or a piece of one."""
    frames = raw_bytes // FRAME_BYTES + 1
    beginning = _START.size + _MAX_HEADER_BYTES + _CRC32.size
    return beginning + raw_bytes + frames * (_FRAME.size + _TAG_BYTES)


@dataclass(frozen=True, slots=True)
class Encoding:
    """How something is to be stored."""

    compression: BlobCompression = "none"
    key: EncryptionKey | None = None

    @property
    def is_plain(self) -> bool:
        """Whether bytes are stored as they are."""
        return self.compression == "none" and self.key is None


class _Header(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    compression: str
    encryption: str | None = None
    key_id: str | None = None
    key_check: str | None = None
    """Tells another key of the same id from damage."""
    salt: str | None = None


_header_decoder: Final = msgspec.json.Decoder(_Header)


class StreamEncoder:
    """Makes one stream; blocking work for one thread at a time."""

    def __init__(self, encoding: Encoding, place: str, salt: bytes) -> None:
        """Begin a stream.

        Args:
            encoding: How; not a plain one.
            place: Where it will be stored; a reader has to name the same.
            salt: 32 random bytes, never used for another stream.

        Raises:
            ConfigError: A library is not installed.
        """
        self._zstd = _zstd() if encoding.compression == "zstd" else None
        header = _Header(compression=encoding.compression)
        if encoding.key is not None:
            header = _Header(
                compression=encoding.compression,
                encryption=ENCRYPTION,
                key_id=encoding.key.id,
                key_check=key_check(encoding.key),
                salt=salt.hex(),
            )
        data = msgspec.json.encode(header)
        version = 1 if encoding.key is None else FORMAT_VERSION
        start = _START.pack(MAGIC, version, len(data)) + data
        self._start = start + _CRC32.pack(zlib.crc32(start))
        self._cipher = (
            None
            if encoding.key is None
            else FrameCipher(encoding.key, salt, self._start, place, version)
        )
        self._number = 0

    def encode(self, raw: bytes, *, is_last: bool) -> bytes:
        """Return the next bytes of the stream, its beginning included at the first call.

        Args:
            raw: A multiple of `FRAME_BYTES` unless it is the end.
            is_last: Ends the stream.
        """
        pieces = [self._start] if self._number == 0 else []
        view = memoryview(raw)
        starts = range(0, len(raw), FRAME_BYTES) or range(1 if is_last else 0)
        for start in starts:
            is_end = is_last and start + FRAME_BYTES >= len(raw)
            pieces += self._frame(view[start : start + FRAME_BYTES], is_end=is_end)
        return b"".join(pieces)

    def _frame(self, raw: memoryview, *, is_end: bool) -> tuple[bytes, bytes]:
        data, flags = bytes(raw), _LAST if is_end else 0
        if self._zstd is not None:
            compressed = self._zstd.compress(data)
            if len(compressed) < len(data):
                data, flags = compressed, flags | _COMPRESSED
        tag_bytes = 0 if self._cipher is None else _TAG_BYTES
        head = _FRAME.pack(len(data) + tag_bytes, len(raw), flags)
        if self._cipher is not None:
            data = self._cipher.encrypt(self._number, data, head)
        self._number += 1
        return head, data


class StreamDecoder:
    """Reads one stream back; blocking work for one thread at a time."""

    def __init__(
        self,
        place: str,
        find_key: Callable[[str], EncryptionKey],
        *,
        where: str,
        is_encrypted: bool = False,
    ) -> None:
        """Read nothing yet.

        Args:
            place: Where it is stored, as its writer named it.
            find_key: See `KeyProvider.find`.
            where: Named in errors, such as ``blob_id=...``.
            is_encrypted: A stream that is not is damage.
        """
        self._must_be_encrypted = is_encrypted
        self._place = place
        self._find_key = find_key
        self._where = where
        self._number = 0
        self._is_begun = False
        self._is_ended = False
        self._zstd: ZstdCodec | None = None
        self._cipher: FrameCipher | None = None
        self.version = 0
        """Of the stream's format; 0 before its beginning is read."""

    @property
    def is_encrypted(self) -> bool:
        """Whether it is, as far as it was read."""
        return self._cipher is not None

    def frames(self, stored: bytes) -> Iterator[bytes]:
        """Give what the next bytes of the stream stand for, which end where a frame ends.

        A frame is decoded when it is asked for, so that one is in memory at a time.

        Raises:
            CheckpointCorruptError: They are not the next bytes of a stream for this place.
            KeyUnavailableError: The key is missing, or another one has its id.
            UnknownFormatError: It is of another version, or compressed or encrypted in another way.
            ConfigError: A library is not installed.
        """
        view = memoryview(stored)
        if not self._is_begun:
            view = view[self._begin(view) :]
        while view:
            if self._is_ended:
                raise self._damaged("it goes on after its end")
            size = _FRAME.size + self._frame_bytes(view)
            yield self._frame(view[:size])
            view = view[size:]

    def finish(self) -> None:
        """Check that the stream has come to its end.

        Raises:
            CheckpointCorruptError: It was cut off.
        """
        if not self._is_ended:
            raise self._damaged("it is cut off")

    def _begin(self, view: memoryview) -> int:
        """Read the beginning; return its length."""
        if len(view) < _START.size:
            raise self._damaged("it has no beginning")
        magic, version, length = _START.unpack_from(view)
        end = _START.size + length + _CRC32.size
        if magic != MAGIC or length > _MAX_HEADER_BYTES or len(view) < end:
            raise self._damaged("it has no beginning")
        start = bytes(view[:end])
        if zlib.crc32(start[: -_CRC32.size]) != _CRC32.unpack(start[-_CRC32.size :])[0]:
            raise self._damaged("its beginning differs from its checksum")
        if not 1 <= version <= FORMAT_VERSION:
            raise self._unknown(f"version={version}")
        data = start[_START.size : -_CRC32.size]
        damage = f"the header of an encoded stream cannot be read: {self._where}"
        header = decode_json(_header_decoder, data, damage)
        try:
            salt = bytes.fromhex(header.salt or "")
        except ValueError as exc:
            raise self._damaged("its header cannot be read") from exc
        self._zstd = self._decompressor(header.compression)
        if header.encryption is not None:
            self._cipher = self._open_cipher(header, salt, start, version)
        elif version != 1 or self._must_be_encrypted:
            raise self._damaged("it is not encrypted")
        self.version = version
        self._is_begun = True
        return int(end)

    def _decompressor(self, compression: str) -> ZstdCodec | None:
        if compression not in {"none", "zstd"}:
            raise self._unknown(f"compression={compression}")
        return _zstd() if compression == "zstd" else None

    def _open_cipher(self, header: _Header, salt: bytes, start: bytes, version: int) -> FrameCipher:
        if header.encryption != ENCRYPTION:
            raise self._unknown(f"encryption={header.encryption}")
        if header.key_id is None or len(salt) != SALT_BYTES:
            raise self._damaged("its header cannot be read")
        key = self._find_key(header.key_id)
        if key_check(key) != header.key_check:
            raise KeyUnavailableError(
                f"another key has the id of the encryption key: key_id={key.id} {self._where}",
                hint="each key needs an id of its own: give the old key its id back",
            )
        place = self._place if version > 1 else place_of_version_1(self._place)
        return FrameCipher(key, salt, start, place, version)

    def _frame_bytes(self, view: memoryview) -> int:
        """Return how many bytes follow the head of the next frame."""
        if len(view) < _FRAME.size:
            raise self._damaged("a frame is cut off")
        stored_bytes, raw_bytes, _ = _FRAME.unpack_from(view)
        if raw_bytes > FRAME_BYTES or stored_bytes > raw_bytes + _TAG_BYTES:
            raise self._damaged("a frame is larger than any")
        if len(view) < _FRAME.size + stored_bytes:
            raise self._damaged("a frame is cut off")
        return int(stored_bytes)

    def _frame(self, frame: memoryview) -> bytes:
        head, data = bytes(frame[: _FRAME.size]), bytes(frame[_FRAME.size :])
        _, raw_bytes, flags = _FRAME.unpack(head)
        if flags & ~(_LAST | _COMPRESSED) or (flags & _COMPRESSED and self._zstd is None):
            raise self._damaged("a frame has unknown flags")
        if self._cipher is not None:
            data = self._decrypt(self._cipher, head, data)
        self._number += 1
        self._is_ended = bool(flags & _LAST)
        try:
            if flags & _COMPRESSED and self._zstd is not None:
                data = self._zstd.decompress(data, raw_bytes)
        except ValueError as exc:
            raise self._damaged("a frame cannot be decompressed") from exc
        if len(data) != raw_bytes or (raw_bytes < FRAME_BYTES and not self._is_ended):
            raise self._damaged("a frame has another size")
        return data

    def _decrypt(self, cipher: FrameCipher, head: bytes, data: bytes) -> bytes:
        try:
            return cipher.decrypt(self._number, data, head)
        except ValueError as exc:
            raise self._damaged(
                f"a frame is not what was encrypted here: frame={self._number}"
            ) from exc

    def _damaged(self, what: str) -> CheckpointCorruptError:
        return CheckpointCorruptError(f"an encoded stream is damaged: {what}: {self._where}")

    def _unknown(self, what: str) -> UnknownFormatError:
        return UnknownFormatError(f"an encoded stream of an unknown format: {what} {self._where}")


def place_of_version_1(place: str) -> str:
    """Return what a stream of version 1 was bound to, of the place that it would have today."""
    return "/".join(place.rsplit("/", 2)[-2:])


def _zstd() -> ZstdCodec:
    try:
        return ZstdCodec()
    except ConfigError as exc:
        msg = "blobs are compressed by a package that is not installed: package=zstandard"
        raise ConfigError(msg, hint="pip install 'statekeep[zstd]'") from exc
