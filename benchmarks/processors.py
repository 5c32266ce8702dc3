"""What is measured: a running count and sum per key."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from typing_extensions import override

import statekeep as sk

OUTPUT_SCHEMA = "id BIGINT, count BIGINT, total BIGINT"
STATE_SCHEMA = "count BIGINT, total BIGINT"
FIRST_FILLER_KEY = 1 << 32
COMBINED = {"count": ("*", "count"), "total": ("value", "sum")}


class RunningTotal(StatefulProcessor):
    """Adds up the rows of a key."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("total", STATE_SCHEMA)

    @override
    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        count, total = self._state.get() or (0, 0)
        for row in rows:
            count += 1
            total += row.value
        self._state.update((count, total))
        yield Row(id=key[0], count=count, total=total)

    @override
    def close(self) -> None:
        pass


class WithFiller(RunningTotal):
    """Also keeps bytes that no later row reads, under keys from `FIRST_FILLER_KEY` on:
    as many bytes as the row says."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self._filler = handle.getValueState("filler", "data BINARY")

    @override
    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        if key[0] < FIRST_FILLER_KEY:
            yield from super().handleInputRows(key, rows, timerValues)
            return
        for row in rows:
            self._filler.update((os.urandom(row.value),))


class RunningTotalInPandas(RunningTotal):
    """The same for ``transformWithStateInPandas``."""

    @override
    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        count, total = self._state.get() or (0, 0)
        for frame in rows:
            count += len(frame)
            total += int(frame["value"].sum())
        self._state.update((count, total))
        yield pd.DataFrame({"id": [key[0]], "count": [count], "total": [total]})


def running_total(
    rows: pa.RecordBatch, state: Mapping[str, sk.ArrowValueState]
) -> Iterator[pa.RecordBatch]:
    """Add up the rows of all keys, for ``transformWithStateInArrow``."""
    ones = pa.array(np.ones(rows.num_rows, np.int64))
    values = pa.record_batch({"count": ones, "total": rows["value"]})
    yield state["total"].merge(rows, values, "sum")


def combined_total(
    rows: pa.RecordBatch, state: Mapping[str, sk.ArrowValueState]
) -> Iterator[pa.RecordBatch]:
    """The same for rows that ``COMBINED`` has added up before the shuffle."""
    yield state["total"].merge(rows, rows, "sum")
