"""``applyInPandasWithState`` as a processor: one value and one timer for each grouping key.

The function gets Spark's own `GroupState`, so what it may call and what that raises are Spark's.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pandas as pd
from pyspark.errors import PySparkTypeError
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    Row,
    ShortType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from typing_extensions import override

from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.handle import LocalHandle

StateFunction: TypeAlias = Callable[[Any, Iterator[pd.DataFrame], GroupState], Any]

TIME_MODES: Final = {
    GroupStateTimeout.NoTimeout: TimeMode.NONE,
    GroupStateTimeout.ProcessingTimeTimeout: TimeMode.PROCESSING,
    GroupStateTimeout.EventTimeTimeout: TimeMode.EVENT,
}
STATE_VARIABLE: Final = "groupState"
"""What the value is called among the state variables."""

_AS_GIVEN: Final[dict[type[DataType], Callable[[Any], Any]]] = {
    BooleanType: np.bool_,
    ByteType: np.int8,
    ShortType: np.int16,
    IntegerType: np.int32,
    LongType: np.int64,
    FloatType: np.float32,
    DoubleType: np.float64,
    TimestampNTZType: pd.Timestamp,
}


class GroupStateProcessor(StatefulProcessor):
    """Calls a function of ``applyInPandasWithState`` for each key with rows, or with a timeout."""

    def __init__(
        self,
        function: StateFunction,
        state_schema: StructType,
        timeout: str,
        key_schema: StructType,
        columns: Sequence[str],
        *,
        has_watermark: bool,
        time_zone: str,
    ) -> None:
        """Prepare for one query.

        Args:
            function: The user's.
            state_schema: Of the value.
            timeout: One of `GroupStateTimeout`.
            key_schema: Of the grouping key.
            columns: Of the frames.
            has_watermark: Whether a column of the input has a watermark.
            time_zone: The session's.
        """
        self._function = function
        # As Spark stores it: a value may lack whatever the schema says.
        self._state_schema = StructType(
            [StructField(f.name, f.dataType, metadata=f.metadata) for f in state_schema.fields]
        )
        self._timeout = timeout
        self._keys = [_given(f.dataType, time_zone) for f in key_schema.fields]
        self._columns = pd.Index(list(columns))
        self._has_watermark = has_watermark

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        assert isinstance(handle, LocalHandle)  # noqa: S101 - this runtime's
        self._handle = handle
        self._clock: BatchClock | None = handle.clock
        self._value = handle.getValueState(STATE_VARIABLE, self._state_schema)

    @override
    def handleInputRows(
        self, key: Any, rows: Iterator[Any], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        return self._call(key, rows, fired_ms=None)

    @override
    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        # Spark gives an empty frame here, and no empty iterator.
        frames = iter([pd.DataFrame(columns=self._columns)])
        return self._call(key, frames, fired_ms=expiredTimerInfo.getExpiryTimeInMs())

    @override
    def close(self) -> None:
        """Nothing is open."""

    def _call(
        self, key: Iterable[Any], frames: Iterator[pd.DataFrame], fired_ms: int | None
    ) -> Iterator[pd.DataFrame]:
        state = self._state(has_timed_out=fired_ms is not None)
        given = tuple(
            None if value is None else give(value)
            for give, value in zip(self._keys, key, strict=True)
        )
        yield from _checked(self._function(given, frames, state))
        self._take(state, fired_ms)

    def _state(self, *, has_timed_out: bool) -> GroupState:
        assert self._clock is not None  # noqa: S101 - rows and timers have a batch
        value: tuple[Any, ...] | None = self._value.get()
        return GroupState(
            optionalValue=Row(*(value or ())),
            batchProcessingTimeMs=self._clock.processing_time_ms,
            eventTimeWatermarkMs=self._clock.watermark_ms,
            timeoutConf=self._timeout,
            hasTimedOut=has_timed_out,
            watermarkPresent=self._has_watermark,
            defined=value is not None,
            updated=False,
            removed=False,
            timeoutTimestamp=GroupState.NO_TIMESTAMP,
            keyAsUnsafe=b"",
            valueSchema=self._state_schema,
        )

    def _take(self, state: GroupState, fired_ms: int | None) -> None:
        """Store what the function has done to its state, once it has given all its frames."""
        timeout_ms: int = state._timeout_timestamp  # noqa: SLF001 - Spark reads it so
        has_timeout = timeout_ms != GroupState.NO_TIMESTAMP
        if state._removed:  # noqa: SLF001
            self._value.clear()
        elif state._updated:  # noqa: SLF001
            value: tuple[Any, ...] = state.get
            self._value.update(value)
        elif not has_timeout and fired_ms is None:
            return  # the timeout of an earlier call holds on
        if self._timeout == GroupStateTimeout.NoTimeout:
            return
        for time_ms in list(self._handle.listTimers()):
            if time_ms != fired_ms:  # the runner removes the one that has fired
                self._handle.deleteTimer(time_ms)
        if has_timeout:
            # Timers fire at their time, timeouts once it has passed.
            self._handle.registerTimer(int(timeout_ms) + 1)


def _given(data_type: DataType, time_zone: str) -> Callable[[Any], Any]:
    """Return what gives a part of a key, of rows or of a timer, in the type that Spark gives."""
    if isinstance(data_type, TimestampType):
        return lambda value: _session_time(value, time_zone)
    return _AS_GIVEN.get(type(data_type), _same)


def _session_time(value: dt.datetime, time_zone: str) -> Any:  # noqa: ANN401 - pandas knows also no time
    if isinstance(value, pd.Timestamp):
        return value  # of rows: it is as frames have it
    return pd.Timestamp(value.astimezone()).tz_convert(time_zone).tz_localize(None)


def _same(value: Any) -> Any:  # noqa: ANN401 - of any type
    return value


def _checked(results: Any) -> Iterable[pd.DataFrame]:  # noqa: ANN401 - what a user's function gives
    if isinstance(results, pd.DataFrame) or not isinstance(results, Iterable):
        raise PySparkTypeError(
            errorClass="UDF_RETURN_TYPE",
            messageParameters={
                "expected": "iterable of pandas.DataFrame",
                "actual": type(results).__name__,
            },
        )
    return results
