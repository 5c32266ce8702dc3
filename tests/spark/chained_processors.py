"""Two processors for one query: the second reads what the first puts out."""

import datetime as dt
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from typing_extensions import override

FIRST = "key string, at timestamp, n long"
"""What `Counts` puts out."""
SECOND = "half long, at timestamp, total long, what string"
"""What `Totals` puts out."""


class Counts(StatefulProcessor):
    """Counts the rows of a key; says so at once, and again five seconds later."""

    def __init__(self, time_mode: str) -> None:
        self._is_timed = time_mode == "EventTime"

    @override
    def init(self, handle: Any) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for at in sorted(row.t for row in rows):
            (count,) = self._count.get() or (0,)
            self._count.update((count + 1,))
            if self._is_timed:
                self._handle.registerTimer(int(at.timestamp() * 1000) + 5000)
            yield Row(key=key[0], at=at, n=count + 1)

    @override
    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        at = dt.datetime.fromtimestamp(expiredTimerInfo.getExpiryTimeInMs() / 1000, dt.UTC)
        (count,) = self._count.get()
        yield Row(key=key[0], at=at, n=-count)

    @override
    def close(self) -> None:
        pass


class Named(StatefulProcessor):
    """Counts the rows of a key in a variable of a given name."""

    def __init__(self, name: str) -> None:
        self._name = name

    @override
    def init(self, handle: Any) -> None:
        self._count = handle.getValueState(self._name, "n long")

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        (count,) = self._count.get() or (0,)
        count += len(list(rows))
        self._count.update((count,))
        yield Row(key=key[0], n=count)

    @override
    def close(self) -> None:
        pass


class Other(Named):
    """Has the same variables, and another name."""


class Totals(StatefulProcessor):
    """Sums what `Counts` says of many keys; its timer tells the sum once more."""

    def __init__(self, time_mode: str) -> None:
        self._is_timed = time_mode == "EventTime"

    @override
    def init(self, handle: Any) -> None:
        self._handle = handle
        self._total = handle.getValueState("total", "n long, rows long")

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        found = [(row.at, row.n) for row in rows]
        total, count = self._total.get() or (0, 0)
        total, count = total + sum(n for _, n in found), count + len(found)
        self._total.update((total, count))
        newest = max(at for at, _ in found)
        if self._is_timed:
            self._handle.registerTimer(int(newest.timestamp() * 1000) + 2000)
        yield Row(half=key[0], at=newest, total=total, what=f"{count} rows")

    @override
    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        at = dt.datetime.fromtimestamp(expiredTimerInfo.getExpiryTimeInMs() / 1000, dt.UTC)
        watermark_ms = timerValues.getCurrentWatermarkInMs() - 1_704_067_200_000
        yield Row(half=key[0], at=at, total=self._total.get()[0], what=f"at {watermark_ms}")

    @override
    def close(self) -> None:
        pass
