"""The processor that is measured: a running count and sum per key."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from typing_extensions import override

OUTPUT_SCHEMA = "id BIGINT, count BIGINT, total BIGINT"
STATE_SCHEMA = "count BIGINT, total BIGINT"


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
