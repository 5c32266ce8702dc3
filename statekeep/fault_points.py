"""Named points where a crash must do no harm, so that a test can make one happen there.

A boundary calls `fault_point` with its name. Nothing happens unless a handler is installed, which
only tests do: it may kill the process, raise, or take notes. There are two ways to install one:
`fault_handler` for the calling context, and the environment variable `HANDLER_VARIABLE` for every
process that inherits it, such as the workers and sidecars of a Spark job.
"""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from typing import Final

FAULT_POINTS: Final = (
    "take_over.before_epoch",
    "take_over.before_base",
    "restore.before_fetch",
    "restore.before_adopt",
    "adopt.before_rename",
    "restore.after_adopt",
    "seal.before_rename",
    "seal.after_rename",
    "attempt_record.before",
    "attempt_record.after",
    "snapshot.before",
    "snapshot.after",
    "upload.before",
    "upload.before_blob",
    "upload.before_index",
    "upload.after_index",
    "checkpoint.before_write",
    "checkpoint.after_write",
    "commit_record.before",
    "commit_record.after",
    "release.before",
    "release.after",
    "clean_up.before_delete",
    "clean_up.before_files",
    "trim.before",
    "trim.after_floor",
    "retain.before_remove",
)
"""The boundaries of a task, in plain Python and elsewhere, in the order in which a restore, a
commit and its clean-up reach them."""

KAFKA_FAULT_POINTS: Final = (
    "upload.after_tail",
    "transaction.before_commit",
    "transaction.after_commit",
    "upload.before_marker",
)
"""Names in use besides where a changelog is written, in the order in which an upload reaches them;
the first one where something stands behind the base's marker."""

HDFS_FAULT_POINTS: Final = (
    "upload.before_file",
    "late_snapshot.before",
    "late_snapshot.after",
    "clean_up.before_uploads",
)
"""Names in use besides where deltas and snapshots are written, in the order in which a commit
reaches them; those in the middle where a lineage has become long."""

CLONE_FAULT_POINTS: Final = (
    "clone.before_pins",
    "clone.after_pins",
    "clone.before_record",
    "clone.after_record",
    "clone.before_release",
    "clone.before_unpin",
    "clone.before_last_record",
)
"""Names in use where a clone is made, then promoted or dropped."""

SPARK_FAULT_POINTS: Final = (
    "epoch_record.before",
    "epoch_record.after",
    "roll_forward.before",
    "roll_forward.after",
    "base_record.before",
    "base_record.after",
    "reshape.before_pin",
    "reshape.after_pin",
    "reshape.before_split",
    "reshape.before_make",
    "recovery.before",
    "restore.before_request",
    "replay.before_step",
    "replay.after_step",
    "replay.before_record",
    "empty_commit.before",
    "empty_commit.after",
    "move.before",
    "move.after_table",
    "move.after",
    "submit_versions.before",
    "seal.before",
    "image.after_write",
    "seal.after",
    "outbox.before_write",
    "outbox.after_entry",
    "outbox.after_write",
    "submit_versions.after",
    "open.before",
    "open.after",
    "catch_up.after_step",
    "process.before",
    "process.after",
    "changes.before_rename",
    "changes.after_rename",
    "receipt.before",
    "batch_record.before",
    "batch_record.after",
    "sink.before",
    "output.before_read",
    "sink.after",
    "entry.before_write",
    "outbox.before_remove",
    "abort_record.before",
)
"""Names in use on Spark besides, in the order in which a start, a batch and its commit reach them."""

HANDLER_VARIABLE: Final = "STATEKEEP_FAULT_HANDLER"
"""A hook for tests: ``package.module:callable``, the handler of every process that has it set.
Read once per process, at the first fault point."""

FaultHandler = Callable[[str], None]
"""Given the name of each fault point that is reached. Called where the boundary lies: on the event
loop, on an executor thread, in a Spark worker; so by several threads at once."""

# A context variable, not a module variable: asyncio tasks and executor threads inherit it, and a
# test that installs a handler cannot disturb another one.
_handler: ContextVar[FaultHandler | None] = ContextVar("fault_handler", default=None)


def fault_point(name: str) -> None:
    """Tell the installed handler that a boundary is reached; without one do nothing.

    Called on the event loop or on an executor thread. What the handler raises goes through. The
    handler of the context goes before that of the process.
    """
    handler = _handler.get() or _process_handler()
    if handler is not None:
        handler(name)


@contextmanager
def fault_handler(handler: FaultHandler) -> Generator[None]:
    """Install ``handler`` for the calling context and what is started from it."""
    token = _handler.set(handler)
    try:
        yield
    finally:
        _handler.reset(token)


@cache
def _process_handler() -> FaultHandler | None:
    """Return the handler that the environment names; a name that leads nowhere raises."""
    target = os.environ.get(HANDLER_VARIABLE)
    if not target:
        return None
    module_name, _, attribute = target.partition(":")
    handler: FaultHandler = getattr(import_module(module_name), attribute)
    return handler
