"""The stateful part: follows one aircraft of one carrier from leg to leg.

Nothing in this file knows of Statekeep: it is a ``StatefulProcessor`` as Spark defines it.
"""

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from typing_extensions import override

HISTORY_SCHEMA = (
    "flights BIGINT, cancelled BIGINT, delay_minutes BIGINT, carried_minutes BIGINT, "
    "day BIGINT, day_delay BIGINT, arrival_delay BIGINT, worst_day BIGINT, worst_day_delay BIGINT"
)
OUTPUT_SCHEMA = (
    "tail_number STRING, carrier STRING, scheduled BIGINT, flight BIGINT, origin STRING, "
    f"destination STRING, carried BIGINT, {HISTORY_SCHEMA}"
)
LEG_WITH_HISTORY = Row(*(column.split()[0] for column in OUTPUT_SCHEMA.split(", ")))
"""Makes rows of the output schema."""


@dataclass
class History:
    """What is known of an aircraft after a leg: the value in the state store."""

    flights: int = 0
    cancelled: int = 0
    delay_minutes: int = 0
    """Sum of the late departures; an early one counts as 0."""
    carried_minutes: int = 0
    """The part of it that came from the leg before."""
    day: int | None = None
    """Day of the newest leg, as 20131231."""
    day_delay: int = 0
    """Minutes of late departure on that day."""
    arrival_delay: int = 0
    """Minutes by which the newest leg of that day arrived late."""
    worst_day: int | None = None
    worst_day_delay: int = 0

    def add(self, leg: Row) -> int:
        """Take in the next leg; return how much delay it took over from the one before."""
        day = leg.scheduled // 10_000
        if day != self.day:
            self.day, self.day_delay, self.arrival_delay = day, 0, 0
        if leg.departure_delay is None:
            self.cancelled += 1
            return 0
        late: int = max(leg.departure_delay, 0)
        carried = min(late, self.arrival_delay)
        self.flights += 1
        self.delay_minutes += late
        self.carried_minutes += carried
        self.day_delay += late
        self.arrival_delay = max(leg.arrival_delay or 0, 0)
        if self.day_delay > self.worst_day_delay:
            self.worst_day, self.worst_day_delay = day, self.day_delay
        return carried


class AircraftHistory(StatefulProcessor):
    """Emits each leg with the history of its aircraft up to it."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._history = handle.getValueState("history", HISTORY_SCHEMA)

    @override
    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        known = self._history.get()
        history = History() if known is None else History(*known)
        # Rows of one key come in any order: sorted, the result depends on the input alone.
        for leg in sorted(rows, key=_order):
            carried = history.add(leg)
            place = (leg.scheduled, leg.flight, leg.origin, leg.destination)
            yield LEG_WITH_HISTORY(*key, *place, carried, *astuple(history))
        self._history.update(astuple(history))

    @override
    def close(self) -> None:
        pass


def _order(leg: Row) -> tuple[int, int, str, str]:
    return leg.scheduled, leg.flight, leg.origin, leg.destination
