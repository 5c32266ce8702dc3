"""When a query needs a batch although its input has nothing new."""

from collections.abc import Callable, Mapping
from typing import Final

from statekeep.clock import Clock
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.due import NextTimes

_EVICTION_MS: Final = 60_000
"""What has outlived its time is invisible already: a batch of its own removes it only so long after
the batch before."""


class TickRule:
    """Decides for one run of a query.

    In event time it is Spark's rule: another batch once the newest one has moved the watermark. In
    processing time Spark runs batch after batch; here a batch comes when a timer is due, or when nobody
    knows yet what is due. An availableNow run gets one such batch, with its first rows: as timers may
    register timers, it would not end otherwise.

    Used by the threads on which Spark runs the query, one at a time.
    """

    def __init__(
        self, mode: TimeMode, tasks: int, clock: Clock, read_watermark_ms: Callable[[], int]
    ) -> None:
        """Know nothing yet.

        Args:
            mode: Of the timers.
            tasks: Their number.
            clock: Tells the time.
            read_watermark_ms: Returns the watermark that the next batch will have.
        """
        self._mode = mode
        self._tasks = tasks
        self._clock = clock
        self._read_watermark_ms = read_watermark_ms
        self._last: BatchClock | None = None
        self._next_watermark_ms: int | None = None
        self._times: dict[int, NextTimes] = {}
        self._next_batch_ms: int | None = None
        """When a batch is needed next; None: never, as far as is known."""
        self._has_ticked = False

    def note_batch(self, clock: BatchClock, times: Mapping[int, NextTimes]) -> None:
        """Take note of a batch that has run, and of what its tasks wait for."""
        self._last = clock
        self._next_watermark_ms = None
        self._times |= times
        timers = [known.timer_ms for known in self._times.values() if known.timer_ms is not None]
        ends = [known.expiry_ms for known in self._times.values() if known.expiry_ms is not None]
        if ends:
            timers.append(max(min(ends), clock.processing_time_ms + _EVICTION_MS))
        self._next_batch_ms = min(timers, default=None)

    def waiting(self, clock: BatchClock) -> frozenset[int]:
        """Return the tasks that may have something to do in a batch, rows or not."""
        return frozenset(
            task
            for task in range(self._tasks)
            if (known := self._times.get(task)) is None or known.are_due(clock, self._mode)
        )

    def wants_batch(self, *, is_available_now: bool) -> bool:
        """Tell whether Spark should run a batch now."""
        if self._mode is TimeMode.EVENT:
            return self._has_watermark_moved()
        if is_available_now and self._has_ticked:
            return False
        # By the wall clock, as Spark's time of the batch will be: this only says when to ask for it.
        is_known = len(self._times) == self._tasks
        is_due = self._next_batch_ms is not None and (
            self._next_batch_ms <= self._clock.time_ns() // 1_000_000
        )
        is_wanted = is_due or not is_known
        self._has_ticked |= is_wanted
        return is_wanted

    def _has_watermark_moved(self) -> bool:
        if self._last is None:
            return False
        if self._next_watermark_ms is None:
            self._next_watermark_ms = self._read_watermark_ms()
        return self._next_watermark_ms > self._last.watermark_ms
