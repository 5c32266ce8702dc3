"""Fetching files from what `content_writer` made of them: from blobs, packs, encoded pieces."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.codec import Codec
from statekeep.backends.blob.image import DigestRun
from statekeep.backends.blob.index import BlobRange, FileBlob, FileIndex
from statekeep.backends.blob.names import stream_place
from statekeep.backends.blob.restored_file import (
    append_part,
    check_file,
    check_stored,
    write_piece,
    write_small_file,
)
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.fan_out import run_all
from statekeep.backends.pacing import ByteBudget
from statekeep.backends.run_to_end import run_to_end
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.errors import CheckpointCorruptError

logger = logging.getLogger(__name__)

_TRIES: Final = 2
"""What arrives damaged is fetched once more: the damage may lie in the transfer."""
_SMALL_BYTES: Final = 1 << 20
"""A delta up to this size is fetched by one call, in memory; the calls in flight are bounded."""


@dataclass(frozen=True, slots=True)
class Target:
    """One file to restore, and where to."""

    store: StoreName
    file: FileIndex
    path: Path
    spare: Path
    """Where a part of it may wait."""
    is_delta: bool = False


class ContentReader:
    """Fetches files and proves them; what is damaged is fetched once more.

    A cancel waits for what is being written: then the files are another's to remove or to fill.

    Memory: stored and raw bytes of what is encoded or packed, within ``buffers``.
    """

    def __init__(
        self,
        manager: BlobStoreManager,
        executor: BlockingExecutor,
        codec: Codec,
        buffers: ByteBudget,
        on_bytes: Callable[[int], None],
    ) -> None:
        """Take what is needed.

        Args:
            manager: Where the blobs are.
            executor: For everything that blocks.
            codec: Decodes.
            buffers: Of the container.
            on_bytes: Told of restored bytes, on the loop; each byte of a file once.
        """
        self._manager = manager
        self._executor = executor
        self._codec = codec
        self._buffers = buffers
        self._on_bytes = on_bytes

    async def fetch(self, targets: Sequence[Target]) -> None:
        """Fetch all files, several of one pack at once.

        Raises:
            CheckpointCorruptError: One is damaged, also when fetched anew.
            KeyUnavailableError: The key of one is missing.
            UnknownFormatError: A newer version of Statekeep wrote one.
            BlobNotFoundError: A blob is gone.
            RetriableError: The service may answer later.
        """
        packs: dict[str, list[Target]] = {}
        others: list[Target] = []
        for target in targets:
            blobs = target.file.blobs
            if len(blobs) == 1 and blobs[0].range is not None:
                packs.setdefault(blobs[0].blob_id, []).append(target)
            else:
                others.append(target)
        await run_all(
            [
                *(self._fetch_pack(blob_id, pack) for blob_id, pack in packs.items()),
                *(self._fetch_one(target) for target in others),
            ]
        )

    async def _fetch_one(self, target: Target) -> None:
        on_bytes = self._on_bytes
        for tries_left in reversed(range(_TRIES)):
            try:
                sha256 = await self._download(target, on_bytes)
                await self._executor.run(check_file, target.path, target.file, sha256)
            except CheckpointCorruptError as exc:
                if not tries_left:
                    raise
                _log_repeat(target, exc)
                await run_to_end(self._executor, _remove, target.path, target.spare)
                on_bytes = _ignore_bytes
            else:
                return

    async def _download(self, target: Target, on_bytes: Callable[[int], None]) -> str | None:
        """Write a file's blobs to its path; return the sha-256 if one pass has given it."""
        blobs = sorted(target.file.blobs, key=lambda blob: blob.offset)
        if target.file.stored_form is not None:
            return await self._decode(target, blobs, on_bytes)
        if target.is_delta and target.file.size <= _SMALL_BYTES:
            data = await self._manager.get(blobs[0].blob_id)
            on_bytes(len(data))
            return await run_to_end(self._executor, write_small_file, target.path, [data])
        if len(blobs) == 1 and blobs[0].offset == 0:
            return await self._manager.download(blobs[0].blob_id, target.path, on_bytes)
        await run_to_end(self._executor, target.path.touch, exist_ok=False)
        for blob in blobs:
            await self._manager.download(blob.blob_id, target.spare, on_bytes)
            await run_to_end(self._executor, append_part, target.spare, target.path, blob.offset)
        return None

    async def _decode(
        self, target: Target, blobs: Sequence[FileBlob], on_bytes: Callable[[int], None]
    ) -> str:
        """Fetch the pieces of a stream side by side, and decode and write them in order."""
        ranges = _ranges(blobs)
        place = stream_place(blobs[0].blob_id, ranges[0].start)
        form = target.file.stored_form
        assert form is not None  # noqa: S101 - asked before
        decoder = self._codec.decoder(place, form, where=f"blob_id={blobs[0].blob_id}")
        digests = DigestRun()
        await run_to_end(self._executor, target.path.touch, exist_ok=False)
        ends = [*(blob.offset for blob in blobs[1:]), target.file.size]
        turns = [asyncio.Event() for _ in range(len(blobs) + 1)]
        turns[0].set()

        async def fetch(number: int) -> None:
            part, blob = ranges[number], blobs[number]
            # Pieces are given buffers in order, so the one whose turn is next has one.
            async with self._buffers.hold(part.size + ends[number] - blob.offset):
                stored = await self._manager.get_range(blob.blob_id, part.start, part.size)
                await turns[number].wait()
                size = await run_to_end(
                    self._executor, write_piece, target.path, stored, part, decoder, digests
                )
            turns[number + 1].set()
            on_bytes(size)

        await run_all([fetch(number) for number in range(len(blobs))])
        decoder.finish()
        return digests.digests.sha256

    async def _fetch_pack(self, blob_id: str, targets: Sequence[Target]) -> None:
        """Fetch what lies between the first and the last file wanted of a blob; then each file."""
        parts = {target.path: _ranges(target.file.blobs)[0] for target in targets}
        start = min(part.start for part in parts.values())
        size = max(part.start + part.size for part in parts.values()) - start
        # Files are taken out one after the other; a compressed one may be many times what is stored.
        raw = max(size, *(target.file.size for target in targets))
        for tries_left in reversed(range(_TRIES)):
            async with self._buffers.hold(size + raw):
                stored = await self._manager.get_range(blob_id, start, size)
                try:
                    await run_to_end(
                        self._executor, self._unpack, blob_id, stored, start, targets, parts
                    )
                except CheckpointCorruptError as exc:
                    if not tries_left:
                        raise
                    _log_repeat(targets[0], exc)
                else:
                    break
        self._on_bytes(sum(target.file.size for target in targets))

    def _unpack(
        self,
        blob_id: str,
        stored: bytes,
        start: int,
        targets: Sequence[Target],
        parts: Mapping[Path, BlobRange],
    ) -> None:
        """Write the files of a pack, each proven; blocks."""
        for target in targets:
            part = parts[target.path]
            data = stored[part.start - start : part.start - start + part.size]
            check_stored(data, part, f"blob_id={blob_id}")
            form = target.file.stored_form
            if form is None:
                sha256 = write_small_file(target.path, [data])
            else:
                place = stream_place(blob_id, part.start)
                decoder = self._codec.decoder(place, form, where=f"blob_id={blob_id}")
                sha256 = write_small_file(target.path, decoder.frames(data))
                decoder.finish()
            check_file(target.path, target.file, sha256)


def _ranges(blobs: Sequence[FileBlob]) -> Sequence[BlobRange]:
    """Return the ranges of a file's blobs; an index that lacks one is refused when it is read."""
    return [blob.range for blob in blobs if blob.range is not None]


def _log_repeat(target: Target, error: CheckpointCorruptError) -> None:
    logger.warning("damaged download is repeated: store=%s error=%s", target.store, error)


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _ignore_bytes(size: int) -> None:
    del size
