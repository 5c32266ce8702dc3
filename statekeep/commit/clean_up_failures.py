"""Clean-up that fails: what is damage and not an outage, and what is said when it goes on for long."""

import logging
from typing import Final, cast

from statekeep.checkpoint.note import Note, summary_of
from statekeep.clock import Clock
from statekeep.errors import BlobNotFoundError, CheckpointCorruptError

logger = logging.getLogger(__name__)

_LONG_NS: Final = 3_600 * 1_000_000_000
"""An outage of minutes is made up for by the next clean-up; one of hours fills a store."""


class CleanUpFailures:
    """Raises the alarm, once an hour, while the clean-up of a job has not ended well for an hour."""

    def __init__(self, clock: Clock, note: Note) -> None:
        self._clock = clock
        self._note = note
        self._since_ns: int | None = None
        self._told_ns = 0

    def ended_well(self) -> None:
        """Take note that nothing is left to be deleted."""
        self._since_ns = None

    def failed(self, error: Exception) -> None:
        """Take note that something is left; a failure for long is an error in the log and an event."""
        now_ns = self._clock.monotonic_ns()
        if self._since_ns is None:
            self._since_ns = self._told_ns = now_ns
        if now_ns - self._told_ns < _LONG_NS:
            return
        self._told_ns = now_ns
        minutes, reason = (now_ns - self._since_ns) // (60 * 10**9), summary_of(_first_of(error))
        logger.error(
            "old backups are not deleted and fill the backend: failing_minutes=%d error=%s "
            "(an outage: give the backend back to the job, with the right to list and to delete; a lost "
            "or damaged index: `statekeep verify COMMIT` tells which commit has it, `statekeep checkpoints "
            "unpin` lets it go)",
            minutes,
            reason,
        )
        self._note("clean-up-failing", minutes=minutes, error=reason)


def is_damage(error: BaseException) -> bool:
    """Return whether an error, or each of a group, is of something that is lost or cannot be read.

    The clean-up of what it belongs to fails until a person mends it; that of the rest need not.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_damage, cast("BaseExceptionGroup[BaseException]", error).exceptions))
    return isinstance(error, BlobNotFoundError | CheckpointCorruptError)


def _first_of(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
