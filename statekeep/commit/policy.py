"""When a commit is wanted: after some time, after some batches without one, or at each batch.

What somebody asks for, such as the last commit of a query, is on demand and needs no policy.
"""

from enum import Enum
from typing import Final

from statekeep.config.model import TaskSettings

_NS_PER_MS: Final = 1_000_000
_MAX_LEAD_NS: Final = 1_000 * _NS_PER_MS
"""How long before a commit there is something to prepare at most: what is written afterwards has to
be flushed in its pause."""
BATCH_MARGIN: Final = 2
"""Batches between the replay limit and what Spark keeps: the one in flight and its predecessor."""


class Urgency(Enum):
    """How much a commit is wanted before the next batch."""

    IF_DUE = "if due"
    """Begin one if its time has come and none is open."""
    WAITS_FOR_OPEN = "waits for open"
    """Begin one, whether its time has come or not; wait for one that is open."""
    HOLDS_UP = "holds up"
    """Process nothing before everything is committed."""


class CommitPolicy:
    """Decides by time and by batches. Pure: it is told the time, in monotonic nanoseconds."""

    def __init__(self, settings: TaskSettings) -> None:
        self._period_ns = settings.commit_ms * _NS_PER_MS
        self._most_batches = settings.replay_max_batches
        self._began_ns: int | None = None
        self.is_each_batch = settings.is_commit_every_batch
        """Whether each batch is committed before it ends."""

    def start(self, now_ns: int) -> None:
        """Let the period begin, unless it has begun."""
        if self._began_ns is None:
            self._began_ns = now_ns

    def restart(self, now_ns: int) -> None:
        """Let a period begin: a commit has begun."""
        self._began_ns = now_ns

    def is_time(self, now_ns: int) -> bool:
        """Tell whether ``task.commit.ms`` is over; 0 or less: never."""
        began_ns = self._began_ns
        return began_ns is not None and self._period_ns > 0 and now_ns - began_ns >= self._period_ns

    def is_near(self, now_ns: int) -> bool:
        """Tell whether the last tenth of the period has begun."""
        if self._began_ns is None or self._period_ns <= 0:
            return False
        lead_ns = min(self._period_ns // 10, _MAX_LEAD_NS)
        return now_ns - self._began_ns >= self._period_ns - lead_ns

    def before_batch(self, uncommitted: int) -> Urgency | None:
        """Tell how much a commit is wanted before the next batch; None: not at all.

        Args:
            uncommitted: How many batches are without a commit.
        """
        if self.is_each_batch:
            return None
        if uncommitted >= self._most_batches:
            return Urgency.HOLDS_UP
        is_close = uncommitted >= self._most_batches - BATCH_MARGIN
        return Urgency.WAITS_FOR_OPEN if is_close else Urgency.IF_DUE
