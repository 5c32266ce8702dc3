"""Reading a delta whose bytes come piece by piece, as over a network."""

import io
from collections.abc import Iterator
from typing import Final

from statekeep.stores.delta import END_MARK, DeltaReader, Records, header_end

_PREAMBLE_BYTES: Final = 16
_END_BYTES: Final = 24
"""Of what stands at the end; what stands before a block is shorter."""


class DeltaFeed:
    """Takes the bytes of one delta in order, and gives out the records of what is whole by then.

    Holds a piece and a block in memory. Used by one thread at a time. As with `DeltaReader`, that
    the delta is *whole* is known only at its end: when `finish` has returned.
    """

    def __init__(self, *, where: str) -> None:
        """Begin.

        Args:
            where: Named in errors, such as a path.
        """
        self._where = where
        self._waiting = io.BytesIO()
        self._waiting_bytes = 0
        self._reader: DeltaReader | None = None
        self._block_bytes: int | None = None

    def feed(self, piece: bytes) -> Iterator[Records]:
        """Take the next bytes and yield the blocks that are whole by now; to be used up.

        Raises:
            CheckpointCorruptError: No delta, damaged, or of a newer format.
        """
        self._append(piece)
        if self._reader is None:
            if not self._has_header():
                return
            self._reader = self._read_header()
        while self._has_block(self._reader):
            self._block_bytes = None
            yield self._reader.read_block()

    def finish(self) -> DeltaReader:
        """Check the end; return what has read the delta, which knows its header and counts.

        Raises:
            CheckpointCorruptError: Truncated or damaged.
        """
        reader = self._reader or self._read_header()
        # Only the end is left. A block here is cut off, or followed by nothing: both raise.
        if self._block_bytes is not None:
            reader.read_block()
        for _ in reader.blocks():
            pass
        return reader

    def _append(self, piece: bytes) -> None:
        rest = self._waiting.read()
        self._waiting.seek(0)
        self._waiting.truncate()
        self._waiting.write(rest)
        self._waiting.write(piece)
        self._waiting.seek(0)
        self._waiting_bytes = len(rest) + len(piece)

    def _has_header(self) -> bool:
        start = self._waiting.getvalue()
        return len(start) >= max(_PREAMBLE_BYTES, header_end(start))

    def _read_header(self) -> DeltaReader:
        return DeltaReader(self._waiting, where=self._where)

    def _has_block(self, reader: DeltaReader) -> bool:
        """Return whether a block is all there; its head is read as soon as that cannot be the end."""
        if self._block_bytes is None:
            if self._left() < _END_BYTES or (self._left() == _END_BYTES and self._is_at_end()):
                return False
            self._block_bytes = reader.read_head()
        return self._block_bytes is not None and self._left() >= self._block_bytes

    def _left(self) -> int:
        return self._waiting_bytes - self._waiting.tell()

    def _is_at_end(self) -> bool:
        mark = self._waiting.read(len(END_MARK))
        self._waiting.seek(-len(mark), io.SEEK_CUR)
        return mark == END_MARK
