"""A local file whose parts arrive in any order, and are written and hashed in theirs."""

import hashlib
import threading
from pathlib import Path

from statekeep.errors import ConfigError


class OrderedFile:
    """A file that is written by the threads that bring its parts, while these are in their caches.

    Who brings a part calls `write` next: one thread at a time writes the parts whose turn it is, its
    own and those of others. No thread waits for another's.
    """

    def __init__(self, target: Path) -> None:
        """Write nothing yet; ``target`` must not exist."""
        self._target = target
        self._digest = hashlib.sha256()
        self._parts: dict[int, bytes] = {}
        """Those that have come and are not written."""
        self._next = 0
        self._changing = threading.Condition()
        self._is_writing = False
        self._is_closed = False

    def bring(self, number: int, data: bytes) -> None:
        """Leave a part here, once; numbers begin at 0. `write` has to be called after it."""
        with self._changing:
            if not self._is_closed:
                self._parts[number] = data

    def write(self) -> int:
        """Write the parts whose turn it is, unless another thread does; return how many are written.

        That many, from the first on, are out of memory: of the file, and here.

        Raises:
            ConfigError: The disk is full or not writable.
        """
        with self._changing:
            if self._is_writing:
                return self._next
            self._is_writing = True
        try:
            while self._write_next():
                pass
        except BaseException:
            with self._changing:
                self._is_writing = False
                self._close()
            raise
        return self._next

    def close(self) -> bool:
        """Write no other part from now on; return whether none is being written. Never waits."""
        with self._changing:
            self._close()
            return not self._is_writing

    def wait_closed(self) -> None:
        """Wait for the end of the part that is being written as the file is closed."""
        with self._changing:
            self._changing.wait_for(lambda: not self._is_writing)

    @property
    def sha256(self) -> str:
        """In hex, of what was written; once the file is closed and nobody writes."""
        return self._digest.hexdigest()

    def _close(self) -> None:
        self._is_closed = True
        self._parts.clear()
        self._changing.notify_all()

    def _write_next(self) -> bool:
        """Write the part whose turn it is; without one, False ends the writing."""
        with self._changing:
            data = None if self._is_closed else self._parts.pop(self._next, None)
            if data is None:
                self._is_writing = False
                self._changing.notify_all()
                return False
        self._append(data)
        self._digest.update(data)
        del data  # another part may have its memory as soon as it counts as written
        with self._changing:
            self._next += 1
        return True

    def _append(self, data: bytes) -> None:
        try:
            with self._target.open("ab" if self._next else "xb", buffering=0) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
        except OSError as exc:
            raise ConfigError(
                f"a blob cannot be written to this machine: path={self._target}"
                f" reason={exc.strerror}"
            ) from exc
