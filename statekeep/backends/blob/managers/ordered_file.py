"""A local file whose parts arrive in any order, and are written and hashed in theirs."""

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

from statekeep.backends.blob.managers.object_client import PartBytes
from statekeep.errors import ConfigError


class OrderedFile:
    """A file that is written by the threads that bring its parts, while these are in their caches.

    Whoever brings the part whose turn it is writes it, and those after it that have come already;
    who comes while another writes leaves the part to them. No thread waits for another's.
    """

    def __init__(self, target: Path) -> None:
        """Write nothing yet; ``target`` must not exist."""
        self._target = target
        self._digest = hashlib.sha256()
        self._parts: dict[int, tuple[PartBytes, Callable[[], None]]] = {}
        """Those that have come and are not written, each with what lets its memory go."""
        self._next = 0
        self._changing = threading.Condition()
        self._is_writing = False
        self._is_closed = False

    def bring(self, number: int, data: PartBytes, release: Callable[[], None]) -> int:
        """Leave a part here, once; return how many parts are written for certain.

        Args:
            number: From 0.
            data: Nobody changes it before ``release`` is called.
            release: Called on any thread once the part is written, or never will be.

        Raises:
            ConfigError: The disk is full or not writable.
        """
        with self._changing:
            if self._is_closed:
                release()
                return self._next
            self._parts[number] = (data, release)
            if self._is_writing:
                return self._next
            self._is_writing = True
        try:
            while (part := self._take_next()) is not None:
                data, release = part
                self._write(data)
                release()
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
        for _, release in self._parts.values():
            release()
        self._parts.clear()
        self._changing.notify_all()

    def _take_next(self) -> tuple[PartBytes, Callable[[], None]] | None:
        """Return the part whose turn it is; None ends the writing."""
        with self._changing:
            part = None if self._is_closed else self._parts.pop(self._next, None)
            if part is None:
                self._is_writing = False
                self._changing.notify_all()
            return part

    def _write(self, data: PartBytes) -> None:
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
        self._digest.update(data)
        with self._changing:
            self._next += 1
