"""Storing the files of one store in one upload: small ones in packs, large ones piece by piece."""

import asyncio
import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from statekeep.backends.awaiting import run_all
from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.codec import Codec
from statekeep.backends.blob.diff import LocalFile
from statekeep.backends.blob.encoded_stream import FRAME_BYTES, Encoding, StreamEncoder
from statekeep.backends.blob.image import (
    DigestRun,
    FileDigests,
    check_sealed,
    digest_sealed_file,
    gone,
    read_sealed_file,
)
from statekeep.backends.blob.index import BlobRange, FileBlob
from statekeep.backends.blob.names import file_blob_name, stream_place
from statekeep.backends.blob_store import BlobMetadata, BlobStoreManager
from statekeep.backends.pacing import ByteBudget
from statekeep.fault_points import fault_point

_PACK_NAME: Final = "small-files.pack"
_PACK_BYTES: Final = 4 << 20
"""Most raw bytes of a pack: what a restore of a single file of it could cost on some stores."""

_HASHED_AT_ONCE: Final = 2
"""Large files of a store; more would take the threads that send them, and leave the link idle."""


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """What may be in memory, and how much of it is one request."""

    buffers: ByteBudget
    """Of the container: bytes of content that is on its way."""
    part_bytes: int
    """Raw bytes up to which a file is one request, and of each piece of an encoded one."""
    pack_file_bytes: int
    """Files up to this size share a blob; 0: none do."""


@dataclass(frozen=True, slots=True)
class Upload:
    """What the blobs of one store have in common in one upload."""

    prefix: str
    """Of the attempt."""
    uid: str
    encoding: Encoding
    metadata: Callable[[str, str | None], BlobMetadata]
    """Makes the metadata of a payload's name and sha-256."""


@dataclass(frozen=True, slots=True)
class Written:
    """A file that is durable."""

    blobs: tuple[FileBlob, ...]
    digests: FileDigests


class ContentWriter:
    """Writes the content of one store in one upload.

    Each file is read once; a large one that is stored as it is, once more to be hashed. What was read
    is compared with the seal manifest before anything refers to it. Memory: raw and encoded bytes of
    what is on its way, within ``limits.buffers``; what is put from a file without being encoded is the
    manager's to bound, and what is given as bytes its giver's.
    """

    def __init__(
        self,
        manager: BlobStoreManager,
        executor: BlockingExecutor,
        codec: Codec,
        limits: WriterLimits,
        upload: Upload,
    ) -> None:
        self._manager = manager
        self._run = executor.run
        self._codec = codec
        self._limits = limits
        self._upload = upload
        self._numbers = itertools.count()
        self._hashing = asyncio.Semaphore(_HASHED_AT_ONCE)

    async def write_files(self, root: Path, files: Sequence[LocalFile]) -> Sequence[Written]:
        """Store files of an image, whose paths are relative to ``root``; in the order given.

        Raises:
            VersionDamagedError: One is gone or not what was sealed.
        """
        batches = list(_packs(enumerate(files), self._limits.pack_file_bytes))
        written = await run_all([self._write_batch(root, [f for _, f in b]) for b in batches])
        by_number = {
            number: one
            for batch, found in zip(batches, written, strict=True)
            for (number, _), one in zip(batch, found, strict=True)
        }
        return [by_number[number] for number in range(len(files))]

    async def write_bytes(self, content: bytes, name: str, sha256: str) -> tuple[FileBlob, ...]:
        """Store what is in memory already; return its blobs."""
        blob_name = self._name(name)
        encoding = self._upload.encoding
        if encoding.is_plain:
            return (FileBlob(blob_id=await self._put(blob_name, content, name, sha256), offset=0),)
        place = stream_place(blob_name)
        stored = await self._run(self._codec.encode, content, encoding, place)
        digest = await self._run(_sha256, stored)
        blob_id = await self._put(blob_name, stored, name, digest)
        return (FileBlob(blob_id=blob_id, offset=0, range=_whole(stored, digest)),)

    async def write_file(
        self, path: Path, file: LocalFile, name: str, *, known: FileDigests | None = None
    ) -> Written:
        """Store one file, as one blob or piece by piece.

        Args:
            path: Where it is.
            file: What was sealed.
            name: Kept for people.
            known: Its digests, if it was compared with them just now.

        Raises:
            VersionDamagedError: It is gone or not what was sealed.
        """
        if file.size <= self._limits.part_bytes:
            async with self._limits.buffers.hold(2 * file.size):
                data, digests = await self._run(read_sealed_file, path, file)
                return Written(await self.write_bytes(data, name, digests.sha256), digests)
        if self._upload.encoding.is_plain:
            return await self._write_plain(path, file, name, known)
        return await self._write_pieces(path, file, name)

    async def _write_batch(self, root: Path, files: Sequence[LocalFile]) -> Sequence[Written]:
        if len(files) > 1:
            return await self._write_pack(root, files)
        (file,) = files
        if file.size == 0:
            _, digests = await self._run(read_sealed_file, root / file.path, file)
            return [Written((), digests)]
        return [await self.write_file(root / file.path, file, file.path.name)]

    async def _write_pack(self, root: Path, files: Sequence[LocalFile]) -> Sequence[Written]:
        name = self._name(_PACK_NAME)
        async with self._limits.buffers.hold(2 * sum(file.size for file in files)):
            stored, parts = await self._run(self._pack, root, files, name)
            blob_id = await self._put(name, stored, _PACK_NAME, await self._run(_sha256, stored))
        return [
            Written((FileBlob(blob_id=blob_id, offset=0, range=part),), digests)
            for part, digests in parts
        ]

    def _pack(
        self, root: Path, files: Sequence[LocalFile], name: str
    ) -> tuple[bytes, list[tuple[BlobRange, FileDigests]]]:
        """Read and encode files one after the other; blocks."""
        pack = bytearray()
        parts: list[tuple[BlobRange, FileDigests]] = []
        for file in files:
            data, digests = read_sealed_file(root / file.path, file)
            place = stream_place(name, len(pack))
            stored = self._codec.encode(data, self._upload.encoding, place)
            part = BlobRange(start=len(pack), size=len(stored), sha256=_sha256(stored))
            parts.append((part, digests))
            pack += stored
        return bytes(pack), parts

    async def _write_plain(
        self, path: Path, file: LocalFile, name: str, known: FileDigests | None
    ) -> Written:
        """Store a large file as it is; it is read again and hashed while it is on its way."""
        if known is not None:
            blob_id = await self._put(self._name(name), path, name, known.sha256)
            return Written((FileBlob(blob_id=blob_id, offset=0),), known)
        found: list[FileDigests] = []

        async def digest() -> str:
            async with self._hashing:
                found.append(await self._run(digest_sealed_file, path, file))
            return ""

        blob_id, _ = await run_all([self._put(self._name(name), path, name, None), digest()])
        return Written((FileBlob(blob_id=blob_id, offset=0),), found[0])

    async def _write_pieces(self, path: Path, file: LocalFile, name: str) -> Written:
        """Store a large file as a stream that is cut into blobs; read and encoded in order."""
        piece_bytes = max(self._limits.part_bytes // FRAME_BYTES, 1) * FRAME_BYTES
        starts = range(0, file.size, piece_bytes)
        names = [self._name(name) for _ in starts]
        encoder = await self._run(
            self._codec.encoder, self._upload.encoding, stream_place(names[0])
        )
        digests = DigestRun()
        turns = [asyncio.Event() for _ in range(len(starts) + 1)]
        turns[0].set()

        async def write(number: int) -> FileBlob:
            # Pieces are given buffers in order, so the one whose turn is next has one.
            async with self._limits.buffers.hold(2 * piece_bytes):
                await turns[number].wait()
                start = starts[number]
                is_last = start + piece_bytes >= file.size
                piece = _Piece(start, min(piece_bytes, file.size - start), is_last)
                stored, digest = await self._run(_encode_piece, path, piece, encoder, digests)
                turns[number + 1].set()
                blob_id = await self._put(names[number], stored, name, digest)
                return FileBlob(blob_id=blob_id, offset=start, range=_whole(stored, digest))

        blobs = await run_all([write(number) for number in range(len(starts))])
        check_sealed(path, file, digests.digests)
        return Written(tuple(blobs), digests.digests)

    def _name(self, file_name: str) -> str:
        number = next(self._numbers)
        return file_blob_name(self._upload.prefix, self._upload.uid, number, file_name)

    async def _put(self, name: str, content: bytes | Path, payload: str, sha256: str | None) -> str:
        fault_point("upload.before_blob")
        return await self._manager.put(name, content, self._upload.metadata(payload, sha256))


@dataclass(frozen=True, slots=True)
class _Piece:
    """A range of a file."""

    start: int
    size: int
    is_last: bool


def _encode_piece(
    path: Path, piece: _Piece, encoder: StreamEncoder, digests: DigestRun
) -> tuple[bytes, str]:
    """Read and encode a piece; return what is to be stored and its sha-256."""
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(piece.start)
            raw = file.read(piece.size)
    except FileNotFoundError as exc:
        raise gone(path) from exc
    digests.update(raw)
    stored = encoder.encode(raw, is_last=piece.is_last)
    return stored, _sha256(stored)


def _packs(
    files: Iterable[tuple[int, LocalFile]], max_file_bytes: int
) -> Iterable[list[tuple[int, LocalFile]]]:
    """Group files into packs; one that is not to be packed, or is empty, is a group of its own."""
    pack: list[tuple[int, LocalFile]] = []
    pack_bytes = 0
    for number, file in files:
        if not 0 < file.size <= max_file_bytes:
            yield [(number, file)]
            continue
        if pack and pack_bytes + file.size > _PACK_BYTES:
            yield pack
            pack, pack_bytes = [], 0
        pack.append((number, file))
        pack_bytes += file.size
    if pack:
        yield pack


def _whole(stored: bytes, sha256: str) -> BlobRange:
    return BlobRange(start=0, size=len(stored), sha256=sha256)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
