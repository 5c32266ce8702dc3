"""Keeps a driver session warm, and the next one starting: a lost driver costs little waiting."""

import atexit
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from chaos.spark.class_archive import java_options
from chaos.spark.session import DriverSession

_START_S = 120.0
_POLL_S = 0.02


class SessionPool:
    """Hands out one session at a time; used by one thread."""

    def __init__(self) -> None:
        self._root: Path | None = None
        self._count = 0
        self._current: DriverSession | None = None
        self._spare: DriverSession | None = None

    def take(self, meanwhile: Callable[[], None]) -> DriverSession:
        """Return the session in use, or the spare one if that has died.

        Args:
            meanwhile: Called repeatedly while a session starts: other drivers may live.

        Raises:
            TimeoutError: Spark does not start.
        """
        if self._current is None or not self._current.is_alive():
            self._current, self._spare = self._spare or self._start(), None
            self._await_ready(self._current, meanwhile)
        return self._current

    def warm_up(self) -> None:
        """Start the session that will be next, if none is starting."""
        if self._spare is None:
            self._spare = self._start()

    def drop(self) -> DriverSession | None:
        """Part with the session in use without ending it: it may be a zombie."""
        dropped, self._current = self._current, None
        return dropped

    def close(self) -> None:
        """Kill every session and delete what they left."""
        for session in (self._current, self._spare):
            if session is not None:
                session.kill_all()
        self._current = self._spare = None
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
            self._root = None

    def _start(self) -> DriverSession:
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="statekeep-chaos-"))
            atexit.register(self.close)
            java_options()  # what they make may take a while
        self._count += 1
        return DriverSession(self._root / f"session-{self._count}")

    def _await_ready(self, session: DriverSession, meanwhile: Callable[[], None]) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and session.is_alive():
            if session.events():
                return
            meanwhile()
            time.sleep(_POLL_S)  # noqa: TID251 - another process is awaited
        text = (session.directory / "log").read_text(errors="replace")[-2000:]
        msg = f"Spark does not start: {text}"
        raise TimeoutError(msg)
