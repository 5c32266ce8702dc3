"""Fetching files from what `content_writer` made of them: from blobs, packs, encoded pieces."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from statekeep.backends.awaiting import run_all, run_bounded, run_to_end
from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.codec import Codec, at_most
from statekeep.backends.blob.encoded_stream import most_stored_bytes
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
from statekeep.backends.pacing import ByteBudget
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.errors import CheckpointCorruptError

logger = logging.getLogger(__name__)

_TRIES: Final = 2
"""What arrives damaged is fetched once more: the damage may lie in the transfer."""
_FILES_AT_ONCE: Final = 1024
"""As many requests as a task may have under way; the others wait without taking memory."""
_MAX_PART_BYTES: Final = 5 << 30
"""Of a range that is fetched in one go: no object store takes a larger part."""
_MAX_SPAN_BYTES: Final = 32 << 20
"""Of ranges of one blob that are fetched together; a pack holds 4 MiB."""
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
            on_bytes: Called with restored bytes, on the loop; each byte of a file once.
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
        parts = ((blob_id, part) for blob_id, pack in packs.items() for part in _cut(pack))
        await run_bounded(
            chain(
                (partial(self._fetch_pack, blob_id, part) for blob_id, part in parts),
                (partial(self._fetch_one, target) for target in others),
            ),
            at_once=min(_FILES_AT_ONCE, len(targets)),
        )

    async def fetch_small(self, target: Target, load: Callable[[], Awaitable[bytes]]) -> None:
        """Write a file that ``load`` fetches into memory; raises as `fetch` does."""

        async def download(on_bytes: Callable[[int], None]) -> str:
            data = await load()
            on_bytes(len(data))
            return await run_to_end(self._executor, write_small_file, target.path, [data])

        await self._fetch_proven(target, download)

    async def _fetch_one(self, target: Target) -> None:
        await self._fetch_proven(target, partial(self._download, target))

    async def _fetch_proven(
        self,
        target: Target,
        download: Callable[[Callable[[int], None]], Awaitable[str | None]],
    ) -> None:
        on_bytes = self._on_bytes
        for tries_left in reversed(range(_TRIES)):
            try:
                sha256 = await download(on_bytes)
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
        size = target.file.size
        if target.file.stored_form is not None:
            return await self._decode(target, blobs, on_bytes)
        if target.is_delta and size <= _SMALL_BYTES:
            data = await self._manager.get(blobs[0].blob_id, max_bytes=size)
            on_bytes(len(data))
            return await run_to_end(self._executor, write_small_file, target.path, [data])
        if len(blobs) == 1 and blobs[0].offset == 0:
            return await self._manager.download(
                blobs[0].blob_id, target.path, on_bytes, max_bytes=size
            )
        await run_to_end(self._executor, target.path.touch, exist_ok=False)
        for blob, end in zip(blobs, _ends(target, blobs), strict=True):
            await self._manager.download(
                blob.blob_id, target.spare, on_bytes, max_bytes=end - blob.offset
            )
            await run_to_end(self._executor, append_part, target.spare, target.path, blob.offset)
        return None

    async def _decode(
        self, target: Target, blobs: Sequence[FileBlob], on_bytes: Callable[[int], None]
    ) -> str:
        """Fetch the pieces of a stream side by side, and decode and write them in order."""
        ranges, ends = _ranges(blobs), _ends(target, blobs)
        for blob, part, end in zip(blobs, ranges, ends, strict=True):
            _check_part(part, end - blob.offset, target.file, blob.blob_id)
        place = stream_place(blobs[0].blob_id, ranges[0].start)
        form = target.file.stored_form
        assert form is not None  # noqa: S101 - asked before
        decoder = self._codec.decoder(place, form, where=f"blob_id={blobs[0].blob_id}")
        digests = DigestRun()
        await run_to_end(self._executor, target.path.touch, exist_ok=False)
        turns = [asyncio.Event() for _ in range(len(blobs) + 1)]
        turns[0].set()

        async def fetch(number: int) -> None:
            part, blob = ranges[number], blobs[number]
            raw_bytes = ends[number] - blob.offset
            # Pieces are given buffers in order, so the one whose turn is next has one.
            async with self._buffers.hold(part.size + raw_bytes):
                stored = await self._manager.get_range(blob.blob_id, part.start, part.size)
                await turns[number].wait()
                size = await run_to_end(
                    self._executor,
                    write_piece,
                    target.path,
                    stored,
                    part,
                    decoder,
                    digests,
                    max_bytes=raw_bytes,
                )
            turns[number + 1].set()
            on_bytes(size)

        await run_all([fetch(number) for number in range(len(blobs))])
        decoder.finish()
        return digests.digests.sha256

    async def _fetch_pack(self, blob_id: str, targets: Sequence[Target]) -> None:
        """Fetch what lies between the first and the last file wanted of a blob; then each file."""
        parts = {target.path: _ranges(target.file.blobs)[0] for target in targets}
        for target in targets:
            _check_part(parts[target.path], target.file.size, target.file, blob_id)
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
                frames = at_most(decoder.frames(data), target.file.size, f"blob_id={blob_id}")
                sha256 = write_small_file(target.path, frames)
                decoder.finish()
            check_file(target.path, target.file, sha256)


def _ranges(blobs: Sequence[FileBlob]) -> Sequence[BlobRange]:
    """Return the ranges of a file's blobs; an index that lacks one is refused when it is read."""
    return [blob.range for blob in blobs if blob.range is not None]


def _cut(pack: Sequence[Target]) -> Iterator[Sequence[Target]]:
    """Group the files of one blob so that what lies between the first and the last is not too much."""
    group: list[Target] = []
    start = end = 0
    for target in sorted(pack, key=lambda target: _ranges(target.file.blobs)[0].start):
        part = _ranges(target.file.blobs)[0]
        if group and max(end, part.start + part.size) - start > _MAX_SPAN_BYTES:
            yield group
            group = []
        if not group:
            start = end = part.start
        end = max(end, part.start + part.size)
        group.append(target)
    if group:
        yield group


def _ends(target: Target, blobs: Sequence[FileBlob]) -> Sequence[int]:
    """Return where in a file the range of each blob ends.

    Args:
        target: The file.
        blobs: Its blobs, in order.

    Raises:
        CheckpointCorruptError: They do not make up a file of its size.
    """
    ends = [*(blob.offset for blob in blobs[1:]), target.file.size] if blobs else []
    if any(end < blob.offset for blob, end in zip(blobs, ends, strict=True)):
        msg = f"blobs of a file go beyond its end: path={target.path} bytes={target.file.size}"
        raise CheckpointCorruptError(msg)
    return ends


def _check_part(part: BlobRange, raw_bytes: int, file: FileIndex, blob_id: str) -> None:
    """Refuse a range that cannot be what it should stand for, before memory is taken for it.

    Raises:
        CheckpointCorruptError: It is too large.
    """
    most = raw_bytes if file.stored_form is None else most_stored_bytes(raw_bytes)
    if part.size > min(most, _MAX_PART_BYTES):
        msg = (
            f"range of a blob is larger than what it stands for: blob_id={blob_id} "
            f"bytes={part.size} raw_bytes={raw_bytes}"
        )
        raise CheckpointCorruptError(msg)


def _log_repeat(target: Target, error: CheckpointCorruptError) -> None:
    logger.warning("damaged download is repeated: store=%s error=%s", target.store, error)


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _ignore_bytes(size: int) -> None:
    del size
