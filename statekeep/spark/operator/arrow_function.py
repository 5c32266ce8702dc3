"""``transformWithStateInArrow`` as a processor: a function that is given the rows of many keys at once."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from statekeep.spark.operator.arrow_state import ArrowValueState, Rows
from statekeep.spark.operator.handle import LocalHandle

ArrowFunction: TypeAlias = Callable[[pa.RecordBatch, Mapping[str, ArrowValueState]], Iterable[Rows]]
"""From the rows of some keys, sorted by key, and the state variables by name, to output."""


class ArrowProcessor(StatefulProcessor):
    """A function of record batches and the state variables that it declares."""

    def __init__(self, function: ArrowFunction, state: Mapping[str, StructType | str]) -> None:
        """Prepare for one query; ``state`` is the schema of each variable."""
        self._function = function
        self._schemas = dict(state)
        self._state: dict[str, ArrowValueState] = {}

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        assert isinstance(handle, LocalHandle)  # noqa: S101 - this runtime's
        self._state = {
            name: handle.getArrowValueState(name, schema) for name, schema in self._schemas.items()
        }

    def handle_rows(self, rows: pa.RecordBatch) -> Iterable[Rows]:
        """Call the function."""
        return self._function(rows, self._state)

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Any:
        raise NotImplementedError("a function of record batches has no single keys")

    @override
    def close(self) -> None:
        """Nothing is open."""
