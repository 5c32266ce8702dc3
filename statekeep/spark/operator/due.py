"""What in a task's store waits for its time, without a processor."""

from collections.abc import Iterable
from dataclasses import dataclass

from statekeep.spark.operator.clock import BatchClock, TimeMode, decode_time
from statekeep.spark.operator.registry import stored_variables
from statekeep.spark.operator.timers import timer_index
from statekeep.stores.base import KeyValueStore


@dataclass(frozen=True, slots=True)
class NextTimes:
    """When the next batch of a task has something to do although it has no rows."""

    timer_ms: int | None = None
    """The time of the first timer; None if there is none."""
    expiry_ms: int | None = None
    """The time at which the first value ends."""

    def are_due(self, clock: BatchClock, mode: TimeMode) -> bool:
        """Return whether a batch at this time fires a timer or removes a value."""
        is_timer_due = self.timer_ms is not None and self.timer_ms <= clock.now_ms(mode)
        return is_timer_due or (
            self.expiry_ms is not None and self.expiry_ms <= clock.processing_time_ms
        )


def next_times(
    store: KeyValueStore, mode: TimeMode, others: Iterable[KeyValueStore] = ()
) -> NextTimes:
    """Return the first times in the stores of a task; one look at each index.

    Raises:
        CheckpointCorruptError: The registry cannot be read.
        UnknownFormatError: A newer version of Statekeep wrote it.
    """
    timer_ms: int | None = None
    expiries: list[int] = []
    for each in (store, *others):
        for name, variable in stored_variables(each)[1].items():
            if variable.kind != "by_time":
                continue
            first = next(each.scan(variable.prefix), None)
            if first is None:
                continue
            time_ms = decode_time(first[0][len(variable.prefix) :])
            if name == timer_index(mode):
                timer_ms = time_ms
            else:
                expiries.append(time_ms)
    return NextTimes(timer_ms, min(expiries, default=None))
