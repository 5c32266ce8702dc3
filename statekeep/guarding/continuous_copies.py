"""A copy of a location after each batch of its query, until it is ended."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Never

from statekeep.backends.awaiting import run_to_end
from statekeep.checkpoint.error_summary import message_of
from statekeep.errors import StateBackupError, TaskFencedError, UnknownFormatError
from statekeep.guarding.copying import Copied, Copies, OtherQueryError, no_batch
from statekeep.stores.local_files import remove_tree

logger = logging.getLogger(__name__)


async def keep_copying(
    copies: Copies,
    directory: Path,
    *,
    pause: Callable[[], Awaitable[None]],
    on_copy: Callable[[Copied], None],
) -> Never:
    """Copy a location whenever its query has committed a batch, until this is cancelled.

    Whatever a later try can mend is logged once, however long it lasts, and tried again after the
    pause: the location or a backend that cannot be reached, damage, a query that has not begun.

    Args:
        copies: Of the location.
        directory: An empty one, for the new files of each copy.
        pause: Awaited after each look at the location.
        on_copy: Called with each new copy.

    Raises:
        TaskFencedError: Another one makes copies now.
        OtherQueryError: The location is of another query than the copies.
        UnknownFormatError: A newer version of Spark or of Statekeep wrote what is there.
    """
    problems = _Problems(copies)
    copied_commit: object = None
    for number in count():
        files = directory / str(number)
        try:
            commit = await copies.newest_commit()
            if commit is None:
                raise no_batch(copies.uri)
            if commit != copied_commit:
                copied = await copies.copy(files)
                copied_commit = commit
                if copied.is_new:
                    on_copy(copied)
            problems.end()
        except (TaskFencedError, OtherQueryError, UnknownFormatError):
            raise
        except StateBackupError as exc:
            problems.report(exc)
        await run_to_end(copies.job.storage.executor, partial(_remove, files))
        await pause()
    raise AssertionError  # pragma: no cover - there is no last number


class _Problems:
    """Why no copy is made now; each kind of error is logged once until a copy is made."""

    def __init__(self, copies: Copies) -> None:
        self._subject = f"job={copies.job.config.job.name}"
        self._kinds: set[tuple[type, type]] = set()

    def report(self, error: StateBackupError) -> None:
        kind = (type(error), type(error.__cause__))
        if kind not in self._kinds:
            self._kinds.add(kind)
            logger.warning(
                "no copy could be made, trying again: %s error=%s",
                self._subject,
                message_of(error),
            )

    def end(self) -> None:
        if self._kinds:
            logger.warning("copies are made again: %s", self._subject)
        self._kinds.clear()


def _remove(directory: Path) -> None:
    # A call that was given up may still write there: the caller removes the rest at the end.
    if directory.exists():
        with suppress(OSError):
            remove_tree(directory)
