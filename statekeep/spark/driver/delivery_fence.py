"""One more look for a successor, directly before a batch goes to its sink."""

from typing import Final

from statekeep.clock import Clock
from statekeep.spark.driver.reign import Reign

_FRESH_NS: Final = 1_000_000_000
"""How long the append of the batch record stands for the look. The append finds a successor, too, and
usually ends within this time, so that a look costs a request only where something took long. A
successor needs longer than this to take over, recover, and deliver a batch."""


class DeliveryFence:
    """Keeps a driver that was paused after it recorded a batch from delivering it; on the batch thread.

    A process can be stopped at any instruction: it may still be stopped after `check` and go on
    later. `statekeep.spark.current_batch` is for sinks that must refuse it even then.
    """

    def __init__(self, reign: Reign, clock: Clock) -> None:
        self._reign = reign
        self._clock = clock
        self._recorded_at_ns = self._now_ns()

    def begin(self) -> None:
        """Note the time: the record of the batch is appended next."""
        self._recorded_at_ns = self._now_ns()

    def check(self) -> None:
        """Read the end of the job log, unless the record was appended just now.

        Raises:
            TaskFencedError: Another driver has taken over.
            RetriableError: The job log does not answer.
        """
        # The monotonic clock may stand still while the machine is suspended. The wall clock catches
        # up then. Where it is wrong it can only bring about one more look.
        passed_ns = [
            abs(now - then) for now, then in zip(self._now_ns(), self._recorded_at_ns, strict=True)
        ]
        if max(passed_ns) > _FRESH_NS:
            self._reign.run(self._reign.look_for_successor())

    def _now_ns(self) -> tuple[int, int]:
        return self._clock.monotonic_ns(), self._clock.time_ns()
