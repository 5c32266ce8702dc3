"""The job's processor, as its user would write it for Spark alone."""

import datetime as dt
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor import MapState, TimerValues
from typing_extensions import override

OUTPUT = "key string, n long, total long, recent long, at timestamp"
EVENT_SECOND = "1000 + v - if(v % 9 = 0, 12, 0)"
"""The event time of a row of the input, by SQL: one in nine comes late."""
BETWEEN = (
    "concat('half-', pmod(n, 7)) as key",
    "pmod(n * 31 + total, 1000) as v",
    "at as t",
)
"""What another operator takes of `OUTPUT`, by SQL."""
KEYS = 23
"""Different keys; a batch has some of them."""
RESIDUES = 5
"""Each key counts its values by residue, so that a map is in the state too."""
LIVE_MS: Final = 1500
"""What is counted as recent lives so long: some batches."""
RING_MS: Final = 4000
"""In event time, a timer rings so long after its row."""


class Tally(StatefulProcessor):
    """Counts and sums ``v`` of each key; one row a key and batch, whatever the rows' order.

    With a time mode, each row registers a timer, and one in seven deletes those before; a timer that
    rings is counted and put out, and some ring once more. In processing time, it also counts what came
    lately.
    """

    def __init__(self, time_mode: str) -> None:
        self._time_mode = time_mode

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._total = handle.getValueState("total", "n long, total long")
        self._residues = handle.getMapState("residues", "residue int", "n long")
        if self._time_mode != "None":
            self._rung = handle.getValueState("rung", "n long, last long")
        if self._time_mode == "ProcessingTime":
            self._recent = handle.getMapState("recent", "residue int", "n long", LIVE_MS)

    @override
    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        n, total = self._total.get() or (0, 0)
        for row in sorted(rows, key=lambda row: (row.v, str(row.t))):
            n += 1
            total += row.v
            residue = (row.v % RESIDUES,)
            self._count(self._residues, residue)
            if self._time_mode != "None":
                self._wind(row, timerValues)
            if self._time_mode == "ProcessingTime":
                self._count(self._recent, residue)
        self._total.update((n, total))
        yield self._row(key[0], n, total, timerValues)

    @override
    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        time_ms = expiredTimerInfo.getExpiryTimeInMs()
        n, _ = self._rung.get() or (0, 0)
        self._rung.update((n + 1, time_ms))
        if time_ms % 7 == 0:
            self._handle.registerTimer(time_ms + 701)
        yield self._row(key[0], -n - 1, time_ms, timerValues)

    def _wind(self, row: Row, times: TimerValues) -> None:
        if row.v % 7 == 0:
            for time_ms in list(self._handle.listTimers()):
                self._handle.deleteTimer(time_ms)
        if self._time_mode == "EventTime":
            self._handle.registerTimer(round(row.t.timestamp() * 1000) + RING_MS)
        else:  # one in four rings in the same batch
            self._handle.registerTimer(times.getCurrentProcessingTimeInMs() + 400 * (row.v % 4))

    def _count(self, counts: MapState, residue: tuple[int]) -> None:
        (n,) = counts.getValue(residue) or (0,)
        counts.updateValue(residue, (n + 1,))

    def _row(self, key: str, n: int, total: int, times: TimerValues) -> Row:
        recent = at = None
        if self._time_mode == "ProcessingTime":
            recent = sum(count for (count,) in self._recent.values())
        if self._time_mode == "EventTime":
            # Newer than the watermark, as Spark asks of an event time that goes to another operator.
            newer_ms = times.getCurrentWatermarkInMs() + 1000 * (1 + n % 5)
            at = dt.datetime.fromtimestamp(newer_ms / 1000, dt.UTC)
        return Row(key=key, n=n, total=total, recent=recent, at=at)

    @override
    def close(self) -> None:
        """Nothing is open."""
