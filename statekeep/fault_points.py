"""Named places where a crash must do no harm, so that a test can make one happen there.

A boundary calls `fault_point` with its name. Nothing happens unless a handler was installed, which
only tests do: it may kill the process, raise, or take notes.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

FAULT_POINTS: Final = (
    "snapshot.before",
    "snapshot.after",
    "upload.before",
    "checkpoint.before_write",
    "checkpoint.after_write",
    "record.before",
    "record.after",
    "clean_up.before_delete",
    "restore.before_adopt",
)
"""Every name in use, in the order in which a commit and a restore reach them."""

# A context variable, not a module variable: asyncio tasks and executor threads inherit it, and a
# test that installs a handler cannot disturb another one.
_handler: ContextVar[Callable[[str], None] | None] = ContextVar("fault_handler", default=None)


def fault_point(name: str) -> None:
    """Tell the installed handler that a boundary is reached; without one do nothing.

    Called on the event loop or on an executor thread. What the handler raises goes through.
    """
    handler = _handler.get()
    if handler is not None:
        handler(name)


@contextmanager
def fault_handler(handler: Callable[[str], None]) -> Generator[None]:
    """Install ``handler`` for the calling context and what is started from it."""
    token = _handler.set(handler)
    try:
        yield
    finally:
        _handler.reset(token)
