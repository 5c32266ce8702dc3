import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from operator_kit import memory_store, run
from pyspark.errors import PySparkRuntimeError, PySparkTypeError, PySparkValueError
from pyspark.sql.streaming.state import GroupState

from statekeep.errors import StateSchemaError
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.group_state import TIME_MODES, GroupStateProcessor
from statekeep.stores.memory import MemoryStore

PROCESSING = "ProcessingTimeTimeout"
EVENT = "EventTimeTimeout"
Use = Callable[[Any], Any]


def look(state: GroupState) -> Any:
    return state.getOption


class Job:
    """Batches of one key; what a call of the function sees is a row of output."""

    def __init__(self, timeout: str = "NoTimeout", key: str = "key string") -> None:
        self.timeout = timeout
        self.store: MemoryStore = memory_store()
        self.key = key

    def batch(
        self, use: Use, at_ms: int = 1000, keys: tuple[Any, ...] = ("a",)
    ) -> list[tuple[bool, str]]:
        """Call ``use`` for each key with a row, and each timeout; return what it gave."""

        def function(
            key: Any, frames: Iterator[pd.DataFrame], state: GroupState
        ) -> Iterator[pd.DataFrame]:
            list(frames)
            yield pd.DataFrame({"timed": [state.hasTimedOut], "seen": [str(use(state))]})

        processor = GroupStateProcessor(
            function,
            parse_schema("n long not null"),
            self.timeout,
            parse_schema(self.key),
            ["key", "v"],
            has_watermark=self.timeout == EVENT,
            time_zone="UTC",
        )
        _, table = run(
            processor,
            [(key, 1) for key in keys],
            store=self.store,
            schema=f"{self.key}, v long",
            key=self.key,
            output="timed boolean, seen string",
            is_pandas=True,
            time_mode=TIME_MODES[self.timeout],
            clock=BatchClock(at_ms, at_ms),
        )
        return [(row["timed"], row["seen"]) for row in table.to_pylist()]


def test_a_value_is_kept_until_it_is_removed() -> None:
    job = Job()
    assert job.batch(lambda state: (state.exists, state.update((1,)))) == [(False, "(False, None)")]
    assert job.batch(lambda state: (state.get, state.remove())) == [(False, "((1,), None)")]
    assert job.batch(lambda state: state.getOption) == [(False, "None")]
    with pytest.raises(PySparkValueError, match="STATE_NOT_EXISTS"):
        job.batch(lambda state: state.get)


def test_a_timeout_comes_once_its_time_has_passed() -> None:
    job = Job(PROCESSING)
    job.batch(lambda state: (state.update((1,)), state.setTimeoutDuration(10)))
    assert job.batch(look, 1010, keys=()) == []
    assert job.batch(look, 1011, keys=()) == [(True, "(1,)")]
    assert job.batch(look, 2000, keys=()) == []


def test_what_a_call_does_decides_on_the_timeout_of_the_call_before() -> None:
    uses: dict[str, tuple[Use, int]] = {
        "nothing": (look, 1),
        "update": (lambda state: state.update((2,)), 0),
        "remove": (lambda state: state.remove(), 0),
        "later": (lambda state: state.setTimeoutDuration(50), 0),
    }
    job = Job(PROCESSING)
    for use, timeouts in uses.values():
        job = Job(PROCESSING)
        job.batch(lambda state: (state.update((1,)), state.setTimeoutDuration(10)))
        job.batch(use, 1005)
        assert len(job.batch(look, 1020, keys=())) == timeouts
    assert job.batch(look, 1100, keys=()) == [(True, "(1,)")]


def test_a_timeout_in_event_time_may_be_the_watermark_but_not_older() -> None:
    job = Job(EVENT)
    with pytest.raises(PySparkValueError, match="INVALID_TIMEOUT_TIMESTAMP"):
        job.batch(lambda state: state.setTimeoutTimestamp(999))
    job.batch(lambda state: state.setTimeoutTimestamp(1000))
    assert job.batch(lambda state: state.getOption, 1000, keys=()) == []
    assert job.batch(lambda state: state.getOption, 1001, keys=()) == [(True, "None")]


@pytest.mark.parametrize(
    ("timeout", "use", "error"),
    [
        ("NoTimeout", lambda state: state.setTimeoutDuration(1), PySparkRuntimeError),
        ("NoTimeout", lambda state: state.getCurrentWatermarkMs(), PySparkRuntimeError),
        (PROCESSING, lambda state: state.setTimeoutTimestamp(1), PySparkRuntimeError),
        (PROCESSING, lambda state: state.setTimeoutDuration(0), PySparkValueError),
        (PROCESSING, lambda state: state.setTimeoutDuration("1 hour"), PySparkTypeError),
        (EVENT, lambda state: state.setTimeoutDuration(1), PySparkRuntimeError),
        (EVENT, lambda state: state.update(None), PySparkTypeError),
        (EVENT, lambda state: state.update(("x",)), StateSchemaError),
    ],
    ids=range(8),
)
def test_errors_are_those_of_spark_or_name_the_value(
    timeout: str, use: Use, error: type[Exception]
) -> None:
    with pytest.raises(error):
        Job(timeout).batch(use)


def test_the_time_of_the_batch_is_known_without_timeouts_too() -> None:
    assert Job().batch(lambda state: state.getCurrentProcessingTimeMs()) == [(False, "1000")]
    assert Job(EVENT).batch(lambda state: state.getCurrentWatermarkMs()) == [(False, "1000")]


def test_the_parts_of_a_key_are_numpys_and_pandas_as_in_spark() -> None:
    seen: list[Any] = []

    def function(key: Any, frames: Iterator[Any], state: GroupState) -> Iterator[Any]:
        seen.append(key)
        if not state.hasTimedOut:
            state.setTimeoutDuration(1)
        return iter(())

    columns = "key int, x double, t string, at timestamp, local timestamp_ntz"
    processor = GroupStateProcessor(
        function,
        parse_schema("n long"),
        PROCESSING,
        parse_schema(columns),
        [],
        has_watermark=False,
        time_zone="Asia/Tokyo",
    )
    local = dt.datetime(2024, 1, 1, 5)  # noqa: DTZ001 - without a zone
    row = (5, 1.5, "a", dt.datetime(2024, 1, 1, tzinfo=dt.UTC), local)
    store = memory_store()
    for at_ms in (1000, 2000):
        run(
            processor,
            [row] if at_ms == 1000 else [],
            store=store,
            schema=columns,
            key=columns,
            is_pandas=True,
            time_zone="Asia/Tokyo",
            time_mode=TimeMode.PROCESSING,
            clock=BatchClock(at_ms, at_ms),
        )
    times = [pd.Timestamp("2024-01-01 09:00"), pd.Timestamp("2024-01-01 05:00")]
    assert seen == [(5, 1.5, "a", *times)] * 2
    for key in seen:
        kinds = [np.int32, np.float64, str, pd.Timestamp, pd.Timestamp]
        assert [type(part) for part in key] == kinds


def test_frames_keep_the_widths_of_numbers() -> None:
    seen: list[str] = []

    def function(key: Any, frames: Iterator[Any], state: GroupState) -> Iterator[Any]:
        seen.extend(str(kind) for frame in frames for kind in frame.dtypes)
        return iter(())

    schema = "key int, x float, n long"
    processor = GroupStateProcessor(
        function,
        parse_schema("n long"),
        "NoTimeout",
        parse_schema("key int"),
        [],
        has_watermark=False,
        time_zone="UTC",
    )
    run(processor, [(1, 1.5, 2)], schema=schema, key="key int", is_pandas=True, is_widened=False)
    assert seen == ["int32", "float32", "int64"]


@pytest.mark.parametrize("result", [pd.DataFrame({"n": [1]}), None], ids=["frame", "nothing"])
def test_a_function_that_gives_no_iterable_of_frames_is_refused(result: object) -> None:
    processor = GroupStateProcessor(
        lambda key, frames, state: result,
        parse_schema("n long"),
        "NoTimeout",
        parse_schema("key string"),
        [],
        has_watermark=False,
        time_zone="UTC",
    )
    with pytest.raises(PySparkTypeError, match="UDF_RETURN_TYPE"):
        run(processor, [("a", 1)], is_pandas=True)
