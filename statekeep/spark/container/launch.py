"""The lock that makes a container the only one of its place."""

import fcntl
import threading
from collections.abc import Callable
from typing import Final, TextIO

_PATIENCE_S: Final = 30.0
_PAUSE_S: Final = 0.1
_tick = threading.Event()
"""Never set: the end of another process is no event of ours."""


def take_lock(lock: TextIO, pause: Callable[[float], object] = _tick.wait) -> bool:
    """Take the lock of a container's place; False if another container keeps it.

    The container of a query that has just ended holds it until its backends are closed: that is
    waited for, at most 30 seconds.
    """
    for _ in range(round(_PATIENCE_S / _PAUSE_S)):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pause(_PAUSE_S)
        else:
            return True
    return False
