"""When a commit is wanted, and the gate: whether it may start now, is skipped, or must be waited for.

Pure state machines. They do no I/O and have no clock: methods take ``now_ns``, monotonic
nanoseconds. One task in plain Python, or one whole job on Spark, has one gate. A commit on request,
such as the last one of a query, needs no policy.

Source: Samza 1.8 ``TaskInstance.commit`` (SEP-28). Different on purpose: an attempt that timed out
is aborted before the next one starts, so that two are never open; and a tolerated failure is counted
once, when it happens, not when the next commit finds it.
"""

from enum import Enum
from typing import Final

from statekeep.config.job_settings import TaskSettings
from statekeep.errors import CommitFailedError

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
    """Decides by time, bytes and batches. Pure: time is an argument, in monotonic nanoseconds."""

    def __init__(self, settings: TaskSettings) -> None:
        self._period_ns = settings.commit_ms * _NS_PER_MS
        self._most_bytes = settings.commit_changed_bytes
        self._changed_bytes = 0
        """Since the newest commit began."""
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
        self._changed_bytes = 0

    def note_changes(self, size: int) -> None:
        """Count bytes of state that a batch has changed."""
        self._changed_bytes += size

    def is_wanted(self, now_ns: int) -> bool:
        """Return whether it is time for a commit, or ``task.commit.changed.bytes`` are changed."""
        is_much = self._most_bytes > 0 and self._changed_bytes >= self._most_bytes
        return is_much or self.is_time(now_ns)

    def is_time(self, now_ns: int) -> bool:
        """Return whether ``task.commit.ms`` is over; 0 or less: never."""
        began_ns = self._began_ns
        return began_ns is not None and self._period_ns > 0 and now_ns - began_ns >= self._period_ns

    def is_near(self, now_ns: int) -> bool:
        """Return whether the last tenth of the period has begun."""
        if self._began_ns is None or self._period_ns <= 0:
            return False
        lead_ns = min(self._period_ns // 10, _MAX_LEAD_NS)
        return now_ns - self._began_ns >= self._period_ns - lead_ns

    def before_batch(self, uncommitted: int) -> Urgency | None:
        """Return how urgent a commit is before the next batch; None: not at all.

        Args:
            uncommitted: How many batches are without a commit.
        """
        if self.is_each_batch:
            return None
        if uncommitted >= self._most_batches:
            return Urgency.HOLDS_UP
        is_close = uncommitted >= self._most_batches - BATCH_MARGIN
        return Urgency.WAITS_FOR_OPEN if is_close else Urgency.IF_DUE


class Decision(Enum):
    """What `CommitGate.request` answers."""

    START = "start"
    """Begin a commit and report it by `CommitGate.started`."""
    SKIP = "skip"
    """Go on processing; the commit is due again when the open one ends."""
    BLOCK = "block"
    """Process nothing until the open commit ends or `CommitGate.remaining_block_ns` is 0."""


class CommitGate:
    """Lets at most one commit be open, and says what a wish for another one means.

    - No commit open: `Decision.START`.
    - One open for less than ``task.commit.max.delay.ms``: `Decision.SKIP`.
    - Longer: `Decision.BLOCK`, for at most ``task.commit.timeout.ms`` from the first such answer.
      If it is still open then, its owner aborts it and reports `timed_out`.

    A commit that fails or times out counts against the tolerated number in a row; a success sets
    both numbers back to 0. Once the tolerance is used up, every `request` raises.

    Used by one event loop. The owner of a commit reports how it ends, exactly one of
    `succeeded`, `failed`, `timed_out` and `abandoned` for each `started`.
    """

    def __init__(self, settings: TaskSettings) -> None:
        self._policy = CommitPolicy(settings)
        self._max_delay_ns = settings.commit_max_delay_ms * _NS_PER_MS
        self._timeout_ns = settings.commit_timeout_ms * _NS_PER_MS
        is_tolerant = settings.is_skipping_failures
        self._max_failures = settings.exception_max_limit if is_tolerant else 0
        self._max_timeouts = settings.timeout_max_limit if is_tolerant else 0
        self._open_since_ns: int | None = None
        self._open_id = ""
        self._block_deadline_ns: int | None = None
        self._is_owed = False
        self._final_error: CommitFailedError | None = None
        self.consecutive_failures = 0
        """Commits that failed since the last success."""
        self.consecutive_timeouts = 0
        """Commits that timed out since the last success."""
        self.starts = 0
        self.skips = 0
        self.successes = 0
        self.failures = 0
        self.timeouts = 0

    @property
    def is_open(self) -> bool:
        """Whether a commit is under way."""
        return self._open_since_ns is not None

    @property
    def final_error(self) -> CommitFailedError | None:
        """The failure that used up the tolerance; `request` raises it."""
        return self._final_error

    def is_near(self, now_ns: int) -> bool:
        """Return whether the last tenth of the period has begun, and no commit is open.

        Time to do ahead what shortens the pause of the next one.
        """
        return self._open_since_ns is None and self._policy.is_near(now_ns)

    def is_due(self, now_ns: int) -> bool:
        """Return whether `request` should be called before the next batch or message.

        True when ``task.commit.ms`` has passed since the last commit began (0 or less: never by
        itself), or ``task.commit.changed.bytes`` have changed since; when a skipped one waits and
        none is open; and when the open one has lasted so long that processing must wait. The first
        call starts the period.
        """
        self._policy.start(now_ns)
        if self._final_error is not None:
            return True
        is_wanted = self._policy.is_wanted(now_ns)
        if self._open_since_ns is None:
            return self._is_owed or is_wanted
        if now_ns - self._open_since_ns >= self._max_delay_ns:
            return self._is_owed or is_wanted
        return is_wanted and not self._is_owed

    def note_changes(self, size: int) -> None:
        """Count bytes of state that have changed."""
        self._policy.note_changes(size)

    def is_overdue(self, now_ns: int) -> bool:
        """Return whether the open commit has lasted for the max delay and the time-out together.

        For an owner who has nothing to process, and so does not ask by `request`.
        """
        limit_ns = self._max_delay_ns + self._timeout_ns
        return self._open_since_ns is not None and now_ns - self._open_since_ns >= limit_ns

    def request(self, now_ns: int, *, is_forced: bool = False) -> Decision:
        """Answer the wish for a commit.

        Args:
            now_ns: Monotonic time.
            is_forced: Never skip: an open commit is waited for at once, such as at the end of the
                input or when the replay limit is near.

        Raises:
            CommitFailedError: More commits in a row failed or timed out than are tolerated.
        """
        if self._final_error is not None:
            raise self._final_error
        if self._open_since_ns is None:
            return Decision.START
        self._is_owed = True
        if not is_forced and now_ns - self._open_since_ns < self._max_delay_ns:
            self.skips += 1
            return Decision.SKIP
        if self._block_deadline_ns is None:
            self._block_deadline_ns = now_ns + self._timeout_ns
        return Decision.BLOCK

    def remaining_block_ns(self, now_ns: int) -> int:
        """Return how long the open commit may still be waited for; 0 when its time is over.

        Without an answer of `Decision.BLOCK` before, the whole time-out is left.
        """
        if self._block_deadline_ns is None:
            return self._timeout_ns
        return max(0, self._block_deadline_ns - now_ns)

    def started(self, now_ns: int, checkpoint_id: str) -> None:
        """Record that a commit has begun.

        Raises:
            RuntimeError: One is open already: the caller did not ask, or not for this one.
        """
        if self._open_since_ns is not None:
            msg = f"a commit is open already: open={self._open_id} checkpoint_id={checkpoint_id}"
            raise RuntimeError(msg)
        self._open_since_ns = now_ns
        self._policy.restart(now_ns)
        self._open_id = checkpoint_id
        self._is_owed = False
        self.starts += 1

    def passed_over(self, now_ns: int) -> None:
        """Let the next period begin: there is nothing to commit."""
        self._policy.restart(now_ns)
        self._is_owed = False

    def succeeded(self, now_ns: int) -> None:
        """Record that the open commit is durable, and reset the failure counters."""
        self._end(now_ns)
        self.successes += 1
        self.consecutive_failures = self.consecutive_timeouts = 0

    def failed(self, now_ns: int, error: CommitFailedError) -> None:
        """Record that the open commit failed and that nothing will refer to it.

        When that is one too many, `request` raises ``error`` from now on.
        """
        self._end(now_ns)
        self.failures += 1
        self.consecutive_failures += 1
        if self.consecutive_failures > self._max_failures:
            self._final_error = error

    def timed_out(self, now_ns: int) -> None:
        """Record that the open commit was given up.

        The caller has aborted it first: it runs no longer, and what it uploaded will never be
        referred to. Only then may the next commit start.
        """
        checkpoint_id = self._open_id
        self._end(now_ns)
        self.timeouts += 1
        self.consecutive_timeouts += 1
        if self.consecutive_timeouts > self._max_timeouts:
            self._final_error = CommitFailedError(
                f"the commit did not end in time: timeouts_in_a_row={self.consecutive_timeouts}",
                checkpoint_id=checkpoint_id,
                step="timeout",
            )

    def abandoned(self, now_ns: int) -> None:
        """Record that the open commit was given up because what it uploads was lost.

        Losing a process is not the backend's failure: nothing is counted, and the commit is due
        again at once. The caller has aborted it first, as for `timed_out`.
        """
        self._end(now_ns)
        self._is_owed = True

    def _end(self, now_ns: int) -> None:
        if self._open_since_ns is None:
            msg = f"no commit is open: now_ns={now_ns}"
            raise RuntimeError(msg)
        self._open_since_ns = None
        self._block_deadline_ns = None
