"""Processors and functions of queries that move, in a module that executors can import."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from group_functions import obey
from processors import Count
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from typing_extensions import override

NEVER = 4_000_000_000_000
"""A time in milliseconds that no test sees."""
LONG_MS = 10**9


class Remembering(Count):
    """Counts and sums as `Count`, and tells in the sum what a list and a map hold."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self._list = handle.getListState("sums", "s long, texts array<string>")
        self._map = handle.getMapState("digits", "digit int, text string", "n long, last timestamp")

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        (row,) = super().handleInputRows(key, rows, timerValues)
        before = [s for s, _ in self._list.get()]
        if len(before) == 7:
            self._list.clear()
        self._list.appendList([(row.s, [str(row.n), None])])
        digit = (row.s % 10, f"d{row.n % 3}")
        n, _ = self._map.getValue(digit) or (0, None)
        self._map.updateValue(digit, (n + 1, pd.Timestamp(row.s, unit="s").to_pydatetime()))
        seen = sum(i * s for i, s in enumerate(before)) + 7 * sum(
            k[0] + v[0] + v[1].second for k, v in self._map.iterator()
        )
        yield Row(key=row.key, n=row.n, s=seen)


class Waiting(StatefulProcessor):
    """Has timers and times to live by what the rows say, and tells what it sees."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._short = handle.getValueState("short", "v long", 1)
        self._long = handle.getValueState("long", "v long", LONG_MS)
        self._list = handle.getListState("list", "v long", LONG_MS)
        self._map = handle.getMapState("map", "k string", "v long", LONG_MS)

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield Row(key=key[0], what="before", text=self._seen())
        for row in rows:
            self._short.update((row.v,))
            self._long.update((row.v,))
            self._list.appendValue((row.v,))
            self._map.updateValue((f"k{row.v}",), (row.v,))
            self._handle.registerTimer(NEVER + row.v)
            if row.v == 0:
                self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)

    @override
    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield Row(key=key[0], what="timer", text=self._seen())

    def _seen(self) -> str:
        held = [v for (v,) in self._list.get()], sorted(key for (key,), _ in self._map.iterator())
        return f"{self._short.get()} {self._long.get()} {held}"

    @override
    def close(self) -> None: ...


class Watermarked(StatefulProcessor):
    """Registers a timer in event time at each row's time, and ten seconds later."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        n = (self._count.get() or (0,))[0] + sum(map(self._wait, rows))
        self._count.update((n,))
        return iter(())

    def _wait(self, row: Row) -> int:
        self._handle.registerTimer(int(row.t.timestamp()) * 1000 + 10_000)
        return 1

    @override
    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        time_s = expiredTimerInfo.getExpiryTimeInMs() // 1000
        yield Row(key=key[0], what="timer", text=f"{time_s} {self._count.get()}")

    @override
    def close(self) -> None: ...


def obey_key(key: Any, frames: Any, state: Any) -> Any:
    """Do as `obey`, with a grouping key of one column."""
    return obey((*key, 1), frames, state)
