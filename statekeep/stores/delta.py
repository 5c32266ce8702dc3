r"""The one format of deltas and of in-memory images: keys and values in checked blocks.

Little-endian throughout::

    "SKDELTA\n"                                       magic
    u32 format version (1)
    u32 header bytes, header, u32 CRC-32              header: JSON, may end in spaces
    block*: u32 stored bytes, u32 raw bytes, u8 codec, u32 CRC-32 of the stored bytes,
            u32 CRC-32 of the 13 bytes before; stored bytes
    end:    u32 0xFFFFFFFF, u64 puts, u64 deletes, u32 CRC-32

A block holds whole records: u32 key bytes, key, i32 value bytes (-1: the key is deleted), value.
Records apply in order; of two records of one key the later one holds. The CRC of a block's head
goes on from that of the block before (the first from 0), and that of the end from the last one and
then the header's, so that blocks cannot be left out, swapped or taken from another file unseen.

``docs/reference/formats.md`` has the tables.
"""

import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import BinaryIO, Final

import msgspec
from typing_extensions import override

from statekeep.checkpoint.framing import decode_json
from statekeep.errors import CheckpointCorruptError, UnknownFormatError
from statekeep.stores.block_codec import (
    MAX_BLOCK_BYTES,
    BlockCodec,
    NoCodec,
    codec_numbered,
    compressed,
    most_raw_bytes,
)

_LENGTH: Final = struct.Struct("<I")
_VALUE_LENGTH: Final = struct.Struct("<i")
_LONGEST: Final = (1 << 31) - 1


class Records(Collection[tuple[bytes, bytes | None]]):
    """Keys and their new values in order, None for a deletion; pairs are made as they are read.

    A pair per record, kept, would set off the interpreter's garbage collector all the time: it
    costs twice what taking the block apart does.
    """

    __slots__ = ("_keys", "_values")

    def __init__(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Take the lists, which are of one length."""
        self._keys = keys
        self._values = values

    @override
    def __len__(self) -> int:
        return len(self._keys)

    @override
    def __iter__(self) -> Iterator[tuple[bytes, bytes | None]]:
        return zip(self._keys, self._values, strict=True)

    @override
    def __contains__(self, record: object) -> bool:
        return any(record == each for each in self)


def read_records(raw: bytes) -> tuple[Records, int]:
    """Take a block apart; return its records, and how many of them delete.

    Raises:
        IndexError: A length leads beyond the end (or struct.error: there is no room for one).
        ValueError: A key has a size below 0, or a value one below -1: says the how many-th.
    """
    return (raw and _equal_records(raw)) or _any_records(raw)


def _equal_records(raw: bytes) -> tuple[Records, int] | None:
    """Take apart a block whose keys are of one length, and its values too; None: they are not."""
    (key_bytes,) = _LENGTH.unpack_from(raw)
    value_at = key_bytes + _LENGTH.size + _VALUE_LENGTH.size
    if value_at > len(raw):
        return None
    (value_bytes,) = _VALUE_LENGTH.unpack_from(raw, value_at - _VALUE_LENGTH.size)
    stride = value_at + value_bytes
    if value_bytes < 0 or len(raw) % stride:
        return None
    count = len(raw) // stride
    lengths = (*range(_LENGTH.size), *range(value_at - _VALUE_LENGTH.size, value_at))
    if any(raw[at::stride] != raw[at : at + 1] * count for at in lengths):
        return None
    starts = range(0, len(raw), stride)
    keys = [raw[start + _LENGTH.size : start + _LENGTH.size + key_bytes] for start in starts]
    return Records(keys, [raw[start + value_at : start + stride] for start in starts]), 0


def _any_records(raw: bytes) -> tuple[Records, int]:
    unpack_length, unpack_value_length = _LENGTH.unpack_from, _VALUE_LENGTH.unpack_from
    keys: list[bytes] = []
    values: list[bytes | None] = []
    offset, start, size, deletes = 0, 0, len(raw), 0
    try:
        while offset < size:
            start = offset + 4
            offset = start + unpack_length(raw, offset)[0]
            (value_bytes,) = unpack_value_length(raw, offset)
            keys.append(raw[start:offset])
            start = offset + 4
            if value_bytes >= 0:
                offset = start + value_bytes
                if offset > size:
                    raise IndexError(offset)
                values.append(raw[start:offset])
            elif value_bytes == -1:
                offset = start
                deletes += 1
                values.append(None)
            else:
                raise ValueError(f"value size below -1: key={len(keys) - 1} size={value_bytes}")
    except struct.error:
        key_bytes = offset - start
        if key_bytes <= _LONGEST:
            raise
        key_bytes -= 1 << 32
        raise ValueError(f"key size below 0: key={len(keys)} size={key_bytes}") from None
    return Records(keys, values), deletes


MAGIC: Final = b"SKDELTA\n"
FORMAT_VERSION: Final = 1

_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_PREAMBLE: Final = struct.Struct("<8sII")
_BLOCK: Final = struct.Struct("<IIBI")
_COUNTS: Final = struct.Struct("<QQ")
END_MARK: Final = b"\xff\xff\xff\xff"
"""Stands where a block would begin with its size."""
_MAX_HEADER_BYTES: Final = 1 << 24
_RESERVED_HEADER_BYTES: Final = 512
"""Room for a header that is filled in last: two version ids, a store name, attributes."""
_BLOCK_BYTES: Final = 256 << 10
"""A block is closed at this size: small enough to hold in memory, large enough to be cheap."""
_CHUNK: Final = 1024
"""Records that are packed in one go: enough that the cost per call does not count."""
_PIECE_BYTES: Final = 4 << 20
"""Read in one go."""
_FEW: Final = 4
"""Up to here a loop over the records is as fast."""

Change = tuple[bytes, bytes | None]
"""A key and its new value; None deletes the key."""


class DeltaHeader(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """What a delta leads from and to. Unknown fields are ignored."""

    version: str = ""
    """The `VersionId` that the content belongs to, as text."""
    parent: str = ""
    """The version that a delta starts from; "" for the whole content or from empty state."""
    lineage: tuple[str, ...] = ()
    """Ancestors of ``version``, nearest first, where the location of the file does not say them."""
    store: str = ""
    attributes: Mapping[str, str] = {}
    """What else a backend wants to find here, such as epoch and attempt."""


_header_decoder: Final = msgspec.json.Decoder(DeltaHeader)


@dataclass(frozen=True, slots=True)
class DeltaCounts:
    """How many records a delta has."""

    puts: int
    deletes: int


class DeltaWriter:
    """Writes one delta to a binary file or stream, holding at most one block in memory.

    Used by one thread. The caller owns ``target`` and closes it. A delta without its end marker
    (because `finish` was not reached) is refused by readers.
    """

    def __init__(
        self,
        target: BinaryIO,
        header: DeltaHeader | None = None,
        *,
        codec: BlockCodec | None = None,
    ) -> None:
        """Begin a delta.

        Args:
            target: Where to; written from its current position on.
            header: None where it is known only at the end: `finish` takes it then, and ``target``
                must be able to seek.
            codec: Compresses every block; None: they are stored as they are.
        """
        self._target = target
        self._codec = codec or NoCodec()
        self._start = target.tell() if header is None else 0
        self._header_crc: int | None = None
        self._chain = 0
        self._packed_lengths = _PackedLengths()
        self._parts: list[bytes] = []
        self._part_bytes = 0
        self._puts = 0
        self._deletes = 0
        if header is None:
            target.write(bytes(_PREAMBLE.size + _RESERVED_HEADER_BYTES + _U32.size))
        else:
            self._write_header(header, 0)

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Append the changes of one write of a store."""
        if len(changes) <= _FEW:
            self._append_each(changes.items())
            return
        keys, values = list(changes), list(changes.values())
        for start in range(0, len(keys), _CHUNK):
            end = start + _CHUNK
            self._append(keys[start:end], values[start:end])

    def write_entries(self, entries: Iterable[Change]) -> None:
        """Append changes in their order."""
        iterator = iter(entries)
        while chunk := list(islice(iterator, _CHUNK)):
            keys, values = zip(*chunk, strict=True)
            self._append(keys, values)

    def finish(self, header: DeltaHeader | None = None) -> DeltaCounts:
        """Write what is left and the end marker; nothing may be written afterwards.

        Args:
            header: Given if and only if none was given at the beginning.

        Raises:
            ValueError: The header is missing, given twice, or too long to be filled in.
        """
        if (header is None) == (self._header_crc is None):
            raise ValueError("the header of a delta is given once, at its beginning or at its end")
        self._write_block()
        if header is not None:
            end = self._target.tell()
            self._target.seek(self._start)
            self._write_header(header, _RESERVED_HEADER_BYTES)
            self._target.seek(end)
        mark = END_MARK + _COUNTS.pack(self._puts, self._deletes)
        crc = zlib.crc32(mark, zlib.crc32(_U32.pack(self._header_crc or 0), self._chain))
        self._target.write(mark + _U32.pack(crc))
        return DeltaCounts(self._puts, self._deletes)

    def _append(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Append records whose loops all run in C: this is beside every write of a task."""
        try:
            lengths = list(map(len, values))  # type: ignore[arg-type]  # a deletion is what the except is for
        except TypeError:
            self._append_each(zip(keys, values, strict=True))
            return
        size = 8 * len(keys) + sum(map(len, keys)) + sum(lengths)
        if size > _BLOCK_BYTES:
            if len(keys) <= _FEW:
                self._append_each(zip(keys, values, strict=True))
                return
            half = len(keys) // 2
            self._append(keys[:half], values[:half])
            self._append(keys[half:], values[half:])
            return
        if self._part_bytes + size > _BLOCK_BYTES:
            self._write_block()
        packed = self._packed_lengths.__getitem__
        records = zip(map(packed, map(len, keys)), keys, map(packed, lengths), values, strict=True)
        self._parts.append(b"".join(chain.from_iterable(records)))  # type: ignore[arg-type]  # no value is None here
        self._part_bytes += size
        self._puts += len(keys)
        if self._part_bytes >= _BLOCK_BYTES:
            self._write_block()

    def _append_each(self, entries: Iterable[Change]) -> None:
        """Append records of any kind, one at a time."""
        pack_length, pack_value_length = _U32.pack, _I32.pack
        deleted = pack_value_length(-1)
        for key, value in entries:
            if value is None:
                self._deletes += 1
                self._parts += (pack_length(len(key)), key, deleted)
                self._part_bytes += 8 + len(key)
            else:
                self._puts += 1
                self._parts += (pack_length(len(key)), key, pack_value_length(len(value)), value)
                self._part_bytes += 8 + len(key) + len(value)
            if self._part_bytes >= _BLOCK_BYTES:
                self._write_block()

    def _write_header(self, header: DeltaHeader, reserved: int) -> None:
        payload = msgspec.json.encode(header).ljust(reserved)
        if reserved and len(payload) > reserved:
            msg = f"header of a delta is too long: bytes={len(payload)} reserved_bytes={reserved}"
            raise ValueError(msg)
        data = _PREAMBLE.pack(MAGIC, FORMAT_VERSION, len(payload)) + payload
        self._header_crc = zlib.crc32(data)
        self._target.write(data + _U32.pack(self._header_crc))

    def _write_block(self) -> None:
        if not self._parts:
            return
        raw = b"".join(self._parts)
        if len(raw) > MAX_BLOCK_BYTES:
            msg = f"a key and its value are too long for a delta: bytes={len(raw)}"
            raise ValueError(msg)
        number, stored = compressed(self._codec, raw)
        head = _BLOCK.pack(len(stored), len(raw), number, zlib.crc32(stored))
        self._chain = zlib.crc32(head, self._chain)
        self._target.write(head + _U32.pack(self._chain))
        self._target.write(stored)
        self._parts.clear()
        self._part_bytes = 0


class DeltaReader:
    """Reads one delta from a binary file or stream, a block at a time.

    Every block is checked before its records are given out. That the delta is *whole* is known
    only when the iteration has ended without an error: a caller that applies records earlier must
    discard the result when one is raised.
    """

    def __init__(self, source: BinaryIO, *, where: str) -> None:
        """Read and check the header.

        Args:
            source: Read from its current position to its end; closed by the caller.
            where: Named in errors, such as a path.

        Raises:
            CheckpointCorruptError: No delta, or damaged.
            UnknownFormatError: A newer version of Statekeep wrote it.
        """
        self._source = source
        self._where = where
        self._codec: BlockCodec = NoCodec()
        self._counts: DeltaCounts | None = None
        self._head = b""
        self._chain, self._puts, self._deletes = 0, 0, 0
        preamble = self._read(_PREAMBLE.size)
        magic, version, header_bytes = _PREAMBLE.unpack(preamble)
        if magic != MAGIC:
            raise self._corrupt("not a delta")
        if header_bytes > _MAX_HEADER_BYTES:
            raise self._corrupt("header of a delta is damaged")
        payload = self._read(header_bytes)
        self._header_crc = zlib.crc32(payload, zlib.crc32(preamble))
        if self._read(_U32.size) != _U32.pack(self._header_crc):
            raise self._corrupt("header of a delta is damaged")
        if version != FORMAT_VERSION:
            raise self._unknown(f"delta of an unknown format: version={version}")
        damage = f"header of a delta cannot be read: {where}"
        self.header = decode_json(_header_decoder, payload, damage)

    @property
    def counts(self) -> DeltaCounts:
        """The counts of the end marker, known after the iteration.

        Raises:
            ValueError: The end has not been read yet.
        """
        if self._counts is None:
            raise ValueError("the counts of a delta stand at its end, which has not been read")
        return self._counts

    def __iter__(self) -> Iterator[Change]:
        """Yield the records in order. Once only.

        Raises:
            CheckpointCorruptError: Truncated or damaged, here or further on.
        """
        for block in self.blocks():
            yield from block

    def blocks(self) -> Iterator[Records]:
        """Yield the records block by block. Once only.

        Raises:
            CheckpointCorruptError: Truncated or damaged, here or further on.
        """
        while self.read_head() is not None:
            yield self.read_block()

    def read_head(self) -> int | None:
        """Read and check what stands before a block; return the bytes of the block.

        For a caller who must know before each block how much it is: `blocks` does this and
        `read_block` by turns. None at the end, which is checked too.

        Raises:
            CheckpointCorruptError: Truncated or damaged.
        """
        mark = self._read(_U32.size)
        if mark == END_MARK:
            self._read_end(mark)
            return None
        self._head = mark + self._read(_BLOCK.size - _U32.size)
        self._chain = zlib.crc32(self._head, self._chain)
        if self._read(_U32.size) != _U32.pack(self._chain):
            raise self._corrupt("head of a block is damaged or out of place")
        stored_bytes, raw_bytes, _, _ = _BLOCK.unpack(self._head)
        if stored_bytes > MAX_BLOCK_BYTES or raw_bytes > most_raw_bytes(stored_bytes):
            raise self._corrupt(f"block is too large: bytes={stored_bytes} raw_bytes={raw_bytes}")
        return int(stored_bytes)

    def read_block(self) -> Records:
        """Return the records of the block whose head was read last.

        Raises:
            CheckpointCorruptError: Truncated or damaged.
            UnknownFormatError: It is compressed in another way.
        """
        stored_bytes, raw_bytes, codec, crc = _BLOCK.unpack(self._head)
        if self._codec.number != codec:
            self._codec = self._find_codec(codec)
        stored = self._read(stored_bytes)
        if zlib.crc32(stored) != crc:
            raise self._corrupt("block is damaged")
        try:
            records, deletes = read_records(self._codec.decompress(stored, raw_bytes))
        except (struct.error, IndexError, ValueError) as exc:
            raise self._corrupt(f"records of a block do not add up ({exc})") from exc
        self._deletes += deletes
        self._puts += len(records) - deletes
        return records

    def _find_codec(self, number: int) -> BlockCodec:
        codec = codec_numbered(number)
        if codec is None:
            raise self._unknown(f"block of an unknown codec: codec={number}")
        return codec

    def _read_end(self, mark: bytes) -> None:
        end = mark + self._read(_COUNTS.size)
        crc = zlib.crc32(end, zlib.crc32(_U32.pack(self._header_crc), self._chain))
        if self._read(_U32.size) != _U32.pack(crc):
            raise self._corrupt("end of a delta is damaged")
        puts, deletes = _COUNTS.unpack_from(end, len(mark))
        if (self._puts, self._deletes) != (puts, deletes):
            raise self._corrupt("delta has another number of records than its end says")
        if self._source.read(1):
            raise self._corrupt("delta goes on after its end")
        self._counts = DeltaCounts(puts, deletes)

    def _read(self, size: int) -> bytes:
        data = self._source.read(min(size, _PIECE_BYTES))
        if len(data) == size:
            return data
        pieces, missing = [data], size - len(data)
        # A stream from the network may give less than was asked for; and a file takes the memory
        # for all that it is asked for before it looks how much there is.
        while missing:
            piece = self._source.read(min(missing, _PIECE_BYTES))
            if not piece:
                raise self._corrupt("delta is truncated")
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def _corrupt(self, what: str) -> CheckpointCorruptError:
        return CheckpointCorruptError(f"{what}: {self._where}")

    def _unknown(self, what: str) -> UnknownFormatError:
        return UnknownFormatError(f"{what} {self._where}")


def header_end(start: bytes) -> int:
    """Return where the header of a delta ends: so many bytes of it `DeltaReader` needs at first.

    Args:
        start: At least the first 16 bytes; of what is no delta, 0 is returned.
    """
    magic, _, header_bytes = _PREAMBLE.unpack_from(start.ljust(_PREAMBLE.size))
    if magic != MAGIC or header_bytes > _MAX_HEADER_BYTES:
        return 0
    return int(_PREAMBLE.size + header_bytes + _U32.size)


class _PackedLengths(dict[int, bytes]):
    """Lengths as they are written; the first few that are seen are kept, for few make up most."""

    _MOST: Final = 4096

    def __missing__(self, length: int) -> bytes:
        packed = _U32.pack(length)
        if len(self) < self._MOST:
            self[length] = packed
        return packed
