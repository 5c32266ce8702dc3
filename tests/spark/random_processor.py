"""A processor that does what its rows say, in a module that executors can import."""

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor import TimerValues
from typing_extensions import override

OUTPUT = "key string, what string, text string, at timestamp"
BASE_MS = 1_704_067_200_000
NEVER_MS = 4_000_000_000_000
ORDERS = ("set", "clear", "append", "put", "empty", "enter", "leave", "wipe", "timer", "untimer")
TTLS_MS = (1, 864_000_000)


class Obedient(StatefulProcessor):
    """Carries out the orders of its rows, and tells all that it has after each key and timer."""

    def __init__(self, time_mode: str) -> None:
        self._time_mode = time_mode

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._value = handle.getValueState("value", "v long, s struct<x: double, t: string>")
        self._list = handle.getListState("list", "v long, t string")
        self._map = handle.getMapState("map", "k long, t string", "v long")
        self._expiring: list[tuple[Any, Any, Any]] = []
        if self._time_mode == "ProcessingTime":
            self._expiring = [
                (
                    handle.getValueState(f"value{ttl_ms}", "v long", ttl_ms),
                    handle.getListState(f"list{ttl_ms}", "v long", ttl_ms),
                    handle.getMapState(f"map{ttl_ms}", "v long", "n long", ttl_ms),
                )
                for ttl_ms in TTLS_MS
            ]

    @override
    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:
        values = [initialState.v] if isinstance(initialState, Row) else initialState["v"].tolist()
        for v in values:
            self._obey("append", int(v))
            self._obey("enter", int(v))
            self._obey("timer", int(v))

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Any:
        given = sorted((int(row.v), str(row.op)) for row in rows)
        before = self._expired_seen()
        for v, order in given:
            self._obey(order, v)
        yield from self._told(key, f"rows {given} {before}", timerValues)

    @override
    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        time_ms = expiredTimerInfo.getExpiryTimeInMs()
        self._list.appendValue((-time_ms, None))
        if time_ms % 5_000 == 0:
            self._handle.registerTimer(time_ms + 2_000)
        yield from self._told(key, f"fired {time_ms}", timerValues)

    def _obey(self, order: str, v: int) -> None:
        text = None if v % 5 == 0 else f"t{v % 3}"
        match order:
            case "set":
                self._value.update((v, None if v % 4 == 0 else Row(x=v / 2, t=text)))
            case "clear":
                self._value.clear()
            case "append":
                self._list.appendValue((v, text))
            case "put":
                self._list.put([(v, text), (v + 1, None)])
            case "empty":
                self._list.clear()
            case "enter":
                self._map.updateValue((v % 4, text), (v,))
            case "leave":
                self._map.removeKey((v % 4, text))
            case "wipe":
                self._map.clear()
            case _:
                self._time(order, v)
        for value, items, entries in self._expiring:
            value.update((v,))
            items.appendValue((v,))
            entries.updateValue((v % 4,), (v,))

    def _time(self, order: str, v: int) -> None:
        if self._time_mode == "None":
            return
        is_far = self._time_mode == "ProcessingTime" and v % 2 == 0
        time_ms = (NEVER_MS if is_far else BASE_MS) + 1000 * v
        (self._handle.registerTimer if order == "timer" else self._handle.deleteTimer)(time_ms)

    def _told(self, key: Any, what: str, times: Any) -> Iterator[Any]:
        timers = [] if self._time_mode == "None" else sorted(self._handle.listTimers())
        entries = sorted((str(tuple(k)), tuple(v)) for k, v in self._map.iterator())
        items = [tuple(item) for item in self._list.get()]
        watermark = times.getCurrentWatermarkInMs() if self._time_mode == "EventTime" else None
        text = f"{self._value.get()} {items} {entries} {timers} {watermark}"
        # Newer than the watermark, as Spark asks of an event time that goes to another operator.
        newer_ms = None if watermark is None else watermark + 1000 * (1 + len(text) % 9)
        at = None if newer_ms is None else dt.datetime.fromtimestamp(newer_ms / 1000, dt.UTC)
        yield Row(key=key[0], what=what, text=text, at=at)

    def _expired_seen(self) -> str:
        return "; ".join(
            f"{value.get()} {[v for (v,) in items.get()]} {sorted(k for (k,), _ in entries.iterator())}"
            for value, items, entries in self._expiring
        )

    @override
    def close(self) -> None:
        """Nothing is open."""


class ObedientOfFrames(Obedient):
    """The same of pandas frames."""

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Any:
        given = [row for frame in rows for row in frame.itertuples(index=False)]
        yield from super().handleInputRows(key, iter(given), timerValues)

    @override
    def _told(self, key: Any, what: str, times: Any) -> Iterator[Any]:
        for row in super()._told(key, what, times):
            yield pd.DataFrame([row.asDict()])
