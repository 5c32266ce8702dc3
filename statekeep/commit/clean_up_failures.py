"""Clean-up that fails: what is damage and not an outage, and what is said when it goes on for long."""

import logging
from dataclasses import dataclass
from typing import Final, cast

from statekeep.checkpoint.note import Note, reasons_of, summary_of
from statekeep.clock import Clock
from statekeep.errors import BlobNotFoundError, CheckpointCorruptError, StateBackupError

logger = logging.getLogger(__name__)

_MINUTE_NS: Final = 60 * 1_000_000_000
_LONG_NS: Final = 60 * _MINUTE_NS
"""An outage of minutes is made up for by the next clean-up; one of hours fills a store."""
_LONGEST_DISTANCE_NS: Final = 24 * 60 * _MINUTE_NS
_MOST_REASONS: Final = 8
"""Of one clean-up: hundreds of tasks may fail for one reason."""


@dataclass(frozen=True, slots=True)
class CleanUpFailing:
    """For people: clean-up has not ended well lately."""

    minutes: int
    """Since when."""
    error: str
    """What the newest one failed with."""


class CleanUpFailures:
    """Reports a clean-up that fails, at growing distances for as long as it does.

    It fails again after each commit. The first failure is a warning, as are those one minute later, two
    minutes after that, and so on. From an hour on they are errors and events.
    """

    def __init__(self, clock: Clock, note: Note, *, subject: str = "") -> None:
        """Start with none.

        Args:
            clock: For durations.
            note: Told of a failure that lasts.
            subject: For logs: whose clean-up it is, as ``key=value``.
        """
        self._clock = clock
        self._note = note
        self._subject = f"{subject} " if subject else ""
        self._since_ns: int | None = None
        self._error = ""
        self._next_ns = 0
        self._distance_ns = _MINUTE_NS
        self._is_long = False

    @property
    def failing(self) -> CleanUpFailing | None:
        """Since when clean-up fails, and why; None if the newest one ended well."""
        if self._since_ns is None:
            return None
        elapsed_ns = self._clock.monotonic_ns() - self._since_ns
        return CleanUpFailing(elapsed_ns // _MINUTE_NS, self._error)

    def ended_well(self) -> None:
        """Record that nothing is left to be deleted."""
        self._since_ns = None

    def failed(self, error: Exception) -> None:
        """Record that something is left, and report it if it is time to."""
        now_ns = self._clock.monotonic_ns()
        if self._since_ns is None:
            self._since_ns = self._next_ns = now_ns
            self._distance_ns, self._is_long = _MINUTE_NS, False
        self._error = summary_of(_first_of(error))
        is_long = now_ns - self._since_ns >= _LONG_NS
        if now_ns < self._next_ns and is_long == self._is_long:
            return
        self._is_long = is_long
        self._next_ns = now_ns + self._distance_ns
        self._distance_ns = min(2 * self._distance_ns, _LONGEST_DISTANCE_NS)
        if is_long:
            self._alarm()
        else:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        reasons = list(dict.fromkeys(reasons_of(error)))
        is_ours = isinstance(error, StateBackupError | OSError | ExceptionGroup)
        for reason in reasons[:_MOST_REASONS]:
            logger.warning(
                "clean-up failed and will be repeated: %serror=%s",
                self._subject,
                reason,
                exc_info=None if is_ours else error,
            )
        if len(reasons) > _MOST_REASONS:
            logger.warning(
                "clean-up failed for more reasons: count=%d", len(reasons) - _MOST_REASONS
            )

    def _alarm(self) -> None:
        failing = self.failing
        assert failing is not None  # noqa: S101 - it has just failed
        logger.error(
            "old backups are not deleted and fill the backend: %sfailing_minutes=%d error=%s "
            "(an outage: give the backend back to the job, with the right to list and to delete; a lost "
            "or damaged index: `statekeep verify COMMIT` tells which commit has it, `statekeep checkpoints "
            "unpin` lets it go)",
            self._subject,
            failing.minutes,
            failing.error,
        )
        self._note("clean-up-failing", minutes=failing.minutes, error=failing.error)


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
