"""Processors of the tests, in a module that executors can import."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pandas as pd
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor import TimerValues
from typing_extensions import override

OUTPUT = "key string, n long, s long"


class Count(StatefulProcessor):
    """Counts and sums ``v`` of each key; one row a key and batch."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("count", "n long, s long")

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        n, s = self._state.get() or (0, 0)
        for row in rows:
            n += 1
            s += row.v
        self._state.update((n, s))
        yield Row(key=key[0], n=n, s=s)

    @override
    def close(self) -> None:
        """Nothing is open."""


class Begun(Count):
    """Counts on from an initial state, and keeps the rows of it."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self._begun = handle.getListState("begun", "s long")

    @override
    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:
        assert initialState.name == key[0]
        self._begin([initialState.begin])

    def _begin(self, values: list[int]) -> None:
        n, s = self._state.get() or (0, 0)
        self._state.update((n + 1000 * len(values), s + sum(values)))
        self._begun.appendList([(value,) for value in values])

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        (row,) = super().handleInputRows(key, rows, timerValues)
        begun = sum(s for (s,) in self._begun.get())
        yield Row(key=row.key, n=row.n, s=row.s + 1_000_000 * begun)


class BegunFrames(Begun):
    """The same on pandas frames."""

    @override
    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:
        assert set(initialState["name"]) == {key[0]}
        self._begin([int(value) for value in initialState["begin"]])

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Any:
        flat = (Row(v=int(v)) for frame in rows for v in frame["v"])
        (row,) = super().handleInputRows(key, flat, timerValues)
        yield pd.DataFrame({"key": [row.key], "n": [row.n], "s": [row.s]})


class Wider(Count):
    """Counts on in a state with wider numbers, another order and one more field."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("count", "s double, last string, n decimal(20, 0)")

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        s, last, n = self._state.get() or (0.0, None, Decimal(0))
        for row in rows:
            n, s, last = n + 1, s + row.v, str(row.v)
        self._state.update((s, last, n))
        yield Row(key=key[0], n=int(n), s=int(s))


class Narrow(Count):
    """What `Wider` was made from: 32 bits each."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("count", "n int, s int")
        self._seen = handle.getMapState("seen", "v long", "n int")

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        self._seen.updateValue((1,), (1,))
        return super().handleInputRows(key, rows, timerValues)


class Overflowing(Count):
    """Puts a text where the state holds a number."""

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        self._state.update((sum(1 for _ in rows), "many"))
        yield Row(key=key[0], n=0, s=0)


class CountFrames(Count):
    """The same on pandas frames."""

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Any:
        n, s = self._state.get() or (0, 0)
        for frame in rows:
            n += len(frame)
            s += int(frame["v"].sum())
        self._state.update((n, s))
        yield pd.DataFrame({"key": [key[0]], "n": [n], "s": [s]})


class Silent(Count):
    """Counts, and puts nothing out."""

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        list(super().handleInputRows(key, rows, timerValues))
        yield from ()


MANY_TYPES = (
    "key string, ts timestamp, ntz timestamp_ntz, day date, price decimal(20, 4), raw binary,"
    " real double, flag boolean, small smallint, span interval day to second,"
    " numbers array<int>, by_name map<string, double>, both struct<a: int, b: array<string>>,"
    " moments array<timestamp>, nothing string"
)
SIMPLE_TYPES = MANY_TYPES.replace(" span interval day to second,", "").replace(
    " moments array<timestamp>,", ""
)
"""Those that may travel with the receipts."""


class ManyTypes(Count):
    """Two rows of many types a key; in one every other value is null."""

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        n = sum(1 for _ in rows)
        ts = datetime(2026, 3, 29, 1, 30, n % 60, 123456, UTC)
        row = {
            "ts": ts,
            "ntz": ts.replace(tzinfo=None),
            "day": ts.date(),
            "price": Decimal(n) / 8,
            "raw": bytes([0, n % 256]),
            "real": n / 3,
            "flag": n % 2 == 0,
            "small": -n,
            "span": timedelta(days=n, microseconds=1),
            "numbers": [1, None, n],
            "by_name": {"n": n / 7, "none": None},
            "both": Row(a=n, b=["x", None]),
            "moments": [ts, None],
        }
        kept = {name: row[name] for at, name in enumerate(row) if (at + len(key[0])) % 2}
        yield Row(key=key[0], **{name: kept.get(name) for name in row}, nothing=None)
        yield Row(key=key[0], **row, nothing=None)


class Unsteady(Count):
    """Its output differs from run to run: the pid of the worker is in it."""

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        count = sum(1 for _ in rows)
        self._state.update((count, time.perf_counter_ns()))
        yield Row(key=key[0], n=count, s=time.perf_counter_ns())


class Totals(StatefulProcessor):
    """What the README's programs run: the sum of ``v`` of each ``id``."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "total long")

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        (total,) = self._total.get() or (0,)
        total += sum(row.v for row in rows)
        self._total.update((total,))
        yield Row(id=key[0], total=total)

    @override
    def close(self) -> None:
        """Nothing is open."""


class Alarms(StatefulProcessor):
    """Registers a timer at each value of its rows; tells of rows and of timers that fire.

    Values below 1,000,000 are seconds after `START`, others are milliseconds. A timer at a multiple of
    ten seconds registers the next second, the second before, and deletes the timer two seconds later.
    """

    START = 1_704_067_200_000

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._fired = handle.getListState("fired", "t long")

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        values = sorted(row.v for row in rows)
        for value in values:
            self._handle.registerTimer(value if value >= 1_000_000 else self.START + 1000 * value)
        yield self._row(key, "rows", values, timerValues)

    @override
    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        time_ms = expiredTimerInfo.getExpiryTimeInMs()
        self._fired.appendValue((time_ms,))
        if time_ms % 10_000 == 0:
            self._handle.registerTimer(time_ms + 1_000)
            self._handle.registerTimer(time_ms - 1_000)
            self._handle.deleteTimer(time_ms + 2_000)
        yield self._row(key, "fired", [time_ms], timerValues)

    def _row(self, key: Any, what: str, values: list[int], times: Any) -> Row:
        fired = [t for (t,) in self._fired.get()]
        left = sorted(self._handle.listTimers())
        text = f"{values} fired={fired} left={left} watermark={times.getCurrentWatermarkInMs()}"
        return Row(key=key[0], what=what, text=text)

    @override
    def close(self) -> None:
        """Nothing is open."""


class AlarmsOnFrames(Alarms):
    """The same on pandas frames."""

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Any:
        given = [Row(v=int(v)) for frame in rows for v in frame["v"]]
        yield from self._framed(super().handleInputRows(key, iter(given), timerValues))

    @override
    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield from self._framed(super().handleExpiredTimer(key, timerValues, expiredTimerInfo))

    @staticmethod
    def _framed(rows: Iterator[Row]) -> Iterator[pd.DataFrame]:
        for row in rows:
            yield pd.DataFrame([row.asDict()])


class ForgetfulAlarms(Alarms):
    """Also keeps what it has seen: for a millisecond, and for ten days."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self._kept = [
            (
                handle.getValueState(f"value{ttl_ms}", "v long", ttl_ms),
                handle.getListState(f"list{ttl_ms}", "v long", ttl_ms),
                handle.getMapState(f"map{ttl_ms}", "v long", "n long", ttl_ms),
            )
            for ttl_ms in (1, 864_000_000)
        ]

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        given = sorted(rows, key=lambda row: int(row.v))
        yield Row(key=key[0], what="kept", text=self._seen())
        for value, items, entries in self._kept:
            for row in given:
                value.update((row.v,))
                items.appendValue((row.v,))
                entries.updateValue((row.v,), (1,))
        yield from super().handleInputRows(key, iter(given), timerValues)

    @override
    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(key=key[0], what="kept", text=self._seen())
        yield from super().handleExpiredTimer(key, timerValues, expiredTimerInfo)

    def _seen(self) -> str:
        return "; ".join(
            f"{value.get()} {[v for (v,) in items.get()]} {sorted(v for (v,), _ in entries.iterator())}"
            for value, items, entries in self._kept
        )


class OfEveryKind(Count):
    """Keeps a value, a list, a map, a value that ends and a timer for each key."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self._handle = handle
        self._seen = handle.getListState("seen", "v long")
        self._parity = handle.getMapState("parity", "odd boolean", "last timestamp, d decimal(9,2)")
        self._brief = handle.getValueState("brief", "v long", 86_400_000)

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        given = list(rows)
        for row in given:
            moment = datetime.fromtimestamp(row.v)  # noqa: DTZ006 - a processor's are local
            self._parity.updateValue((row.v % 2 == 1,), (moment, Decimal(row.v)))
        self._seen.appendList([(row.v,) for row in given])
        self._brief.update((given[-1].v,))
        self._handle.registerTimer(4_000_000_000_000 + len(given))
        return super().handleInputRows(key, iter(given), timerValues)


class KeysSeen(StatefulProcessor):
    """Tells of each key what it was given as, also by a timer, with the number of its rows so far."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Any:
        yield self._row("rows", key, self._counted(sum(1 for _ in rows)))

    def _counted(self, rows: int) -> int:
        (before,) = self._count.get() or (0,)
        self._count.update((before + rows,))
        self._handle.registerTimer(1)
        return int(before) + rows

    @override
    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield self._row("timer", key, self._counted(0))
        self._handle.deleteTimer(1)

    def _row(self, what: str, key: Any, count: int) -> Any:
        return Row(what=what, key=repr(key), n=count)

    @override
    def close(self) -> None:
        """Nothing is open."""


class KeysSeenOfFrames(KeysSeen):
    """The same of pandas frames."""

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Any:
        yield self._row("rows", key, self._counted(sum(map(len, rows))))

    @override
    def _row(self, what: str, key: Any, count: int) -> Any:
        return pd.DataFrame({"what": [what], "key": [repr(key)], "n": [count]})


OUTPUT_OF_STORES = f"{OUTPUT}, calls long"


class InStores(Count):
    """Counts as `Count` does; keeps each row too, and in a cache how often the key had rows."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self._seen = handle.getMapState("seen", "v long", "n int")
        self._calls = handle.getValueState("calls", "n long")

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        kept = list(rows)
        for row in kept:
            self._seen.updateValue((row.v,), (1,))
        (calls,) = self._calls.get() or (0,)
        self._calls.update((calls + 1,))
        (found,) = super().handleInputRows(key, iter(kept), timerValues)
        yield Row(**found.asDict(), calls=calls)


class InStoresOfExecutors(InStores):
    """Needs what only executors have."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        if TaskContext.get() is None:
            raise OSError("there is no such file on the driver")
        super().init(handle)


class WithoutStores(Count):
    """What `InStores` was before it had more than one variable."""

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        for found in super().handleInputRows(key, rows, timerValues):
            yield Row(**found.asDict(), calls=0)
