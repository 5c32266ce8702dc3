"""State that begins with the rows of a frame, given to the processor before all others."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_kit import memory_store, record_batch
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from typing_extensions import override

from statekeep.spark.initial_state import INITIAL_COLUMN, divide
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.grouping import GroupingOverflow
from statekeep.spark.operator.inputs import FrameLimits
from statekeep.spark.operator.runner import (
    InitialStateSpec,
    OperatorOutcome,
    OperatorSpec,
    run_operator,
    stream_operator,
)
from statekeep.spark.placement import DIGEST_COLUMN

ROWS, INITIAL = "key string, v long", "begin long, id string"
CLOCK = BatchClock(processing_time_ms=5, watermark_ms=7)


class Adding(StatefulProcessor):
    """Adds to what the state began with; a row of output for each key that has rows."""

    is_pandas = False

    def __init__(self) -> None:
        self.calls: list[str] = []

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.calls.append("init")
        self._total = handle.getValueState("total", "n long")
        self._began = handle.getListState("began", "n long")

    @override
    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        assert timerValues.getCurrentProcessingTimeInMs() == CLOCK.processing_time_ms
        values = initialState["begin"].tolist() if self.is_pandas else [initialState.begin]
        assert (initialState["id"].iloc[0] if self.is_pandas else initialState.id) == key[0]
        self.calls.append(f"begin {key[0]} {len(values)}")
        for value in values:
            self._began.appendValue((value,))
            self._total.update(((self._total.get() or (0,))[0] + value,))

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        self.calls.append(f"rows {key[0]}")
        added = sum(int(row["v"].sum()) if self.is_pandas else row.v for row in rows)
        self._total.update(((self._total.get() or (0,))[0] + added,))
        (total,) = self._total.get() or (None,)
        yield pd.DataFrame({"key": [key[0]], "n": [total]}) if self.is_pandas else (key[0], total)

    @override
    def close(self) -> None:
        self.calls.append("close")


class AddingFrames(Adding):
    is_pandas = True


def spec_of(processor: Adding, **options: Any) -> OperatorSpec:
    given = {"grouping_max_bytes": 1 << 30} | options
    return OperatorSpec(
        time_mode=TimeMode.PROCESSING,
        processor=processor,
        key_columns=("key",),
        key_schema=parse_schema("key string"),
        row_schema=parse_schema(ROWS),
        output_schema=parse_schema("key string, n long"),
        is_pandas=processor.is_pandas,
        initial_state=InitialStateSpec(("id",), parse_schema(INITIAL)),
        **given,
    )


Pairs = Sequence[tuple[str, int]]


def united(rows: Pairs, initial: Pairs) -> pa.RecordBatch:
    """The rows as Spark brings them: beside each other, told apart by a column."""
    data = record_batch(list(rows), ROWS)
    begun = record_batch([(value, key) for key, value in initial], INITIAL)
    struct = pa.StructArray.from_arrays(begun.columns, fields=list(begun.schema))
    columns = [
        pa.concat_arrays([begun["id"], data["key"]]),
        pa.concat_arrays([pa.nulls(len(begun), pa.int64()), data["v"]]),
        pa.concat_arrays([struct, pa.nulls(len(data), struct.type)]),
        pa.array(range(len(begun) + len(data)), pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["key", "v", INITIAL_COLUMN, DIGEST_COLUMN])


def run(
    processor: Adding, rows: Pairs, initial: Pairs, cut: int = 0, *, is_sorted: bool, **options: Any
) -> tuple[OperatorOutcome, dict[str, int]]:
    """Run one batch, whose rows come sorted and in some batches of ``cut`` rows, or in one."""
    whole = united(sorted(rows), sorted(initial))
    if is_sorted:
        parts = [whole.slice(at, cut) for at in range(0, len(whole), cut)]
    else:
        first = len(initial)
        order = [*range(first, len(whole)), *range(first)]
        parts = [whole.take(pa.array(order, pa.int64()))]
    begun, following = divide(iter(parts), DIGEST_COLUMN)
    written: list[pa.RecordBatch] = []
    outcome = run_operator(
        spec_of(processor, **options),
        memory_store(),
        following,
        is_sorted=is_sorted,
        clock=CLOCK,
        write_output=written.append,
        digest_column=DIGEST_COLUMN,
        initial=begun,
    )
    return outcome, {row["key"]: row["n"] for batch in written for row in batch.to_pylist()}


pairs = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 99)), max_size=30)


@pytest.mark.parametrize("kind", [Adding, AddingFrames])
@settings(max_examples=60, deadline=None)
@given(rows=pairs, initial=pairs, cut=st.integers(1, 8), is_sorted=st.booleans())
def test_each_key_begins_with_its_initial_state_whatever_the_way_of_the_rows(
    kind: type[Adding],
    rows: Pairs,
    initial: Pairs,
    cut: int,
    is_sorted: bool,  # noqa: FBT001 - drawn
) -> None:
    processor = kind()
    outcome, found = run(processor, rows, initial, cut, is_sorted=is_sorted)
    expected: dict[str, int] = defaultdict(int)
    for key, value in [*initial, *rows]:
        expected[key] += value
    with_rows = {key for key, _ in rows}
    assert found == {key: n for key, n in expected.items() if key in with_rows}
    assert outcome.rows_in == len(rows)
    # Each key once for its rows; every initial row before any of them.
    kinds = [call.split()[0] for call in processor.calls]
    assert kinds == sorted(kinds, key=["init", "begin", "rows", "close"].index)
    assert [call for call in processor.calls if call.startswith("rows")] == [
        f"rows {key}" for key in sorted(with_rows)
    ]
    begun = [call.split() for call in processor.calls if call.startswith("begin")]
    assert sum(int(count) for *_, count in begun) == len(initial)
    again, _ = run(kind(), rows, initial, cut, is_sorted=not is_sorted)
    assert again.changes_digest == outcome.changes_digest
    assert again.input_digest == outcome.input_digest


def test_initial_rows_count_in_the_digest_of_the_input() -> None:
    one, _ = run(Adding(), [("a", 1)], [("a", 2)], is_sorted=False)
    other, _ = run(Adding(), [("a", 1)], [], is_sorted=False)
    assert one.input_digest != other.input_digest
    assert (one.rows_in, other.rows_in) == (1, 1)


def test_frames_of_the_initial_state_keep_the_limits() -> None:
    processor = AddingFrames()
    initial = [("a", n) for n in range(5)]
    run(processor, [], initial, 1, is_sorted=False, frame_limits=FrameLimits(rows=2))
    assert processor.calls[1:-1] == ["begin a 2", "begin a 2", "begin a 1"]


@pytest.mark.parametrize("which", ["rows", "initial"])
def test_too_many_rows_to_group_call_no_processor(which: str) -> None:
    processor = Adding()
    many = [("a", n) for n in range(1000)]
    rows, initial = (many, [("a", 1)]) if which == "rows" else ([("a", 1)], many)
    with pytest.raises(GroupingOverflow):
        run(processor, rows, initial, is_sorted=False, grouping_max_bytes=500)
    assert processor.calls == []


def test_an_error_in_the_initial_state_names_the_key() -> None:
    class Failing(Adding):
        @override
        def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
            if key == ("b",):
                raise KeyError("no such")

    with pytest.raises(KeyError) as caught:
        run(Failing(), [], [("a", 1), ("b", 1)], is_sorted=False)
    assert caught.value.__notes__ == ["while taking the initial state of grouping key ('b',)"]


def test_a_stream_of_output_is_what_a_batch_writes() -> None:
    rows, initial = [("a", 1), ("b", 2), ("c", 3)], [("b", 10)]
    expected = run(Adding(), rows, initial, is_sorted=False)[1]
    begun, following = divide(iter([united(rows, initial)]))
    written = stream_operator(
        spec_of(Adding()), memory_store(), following, clock=CLOCK, initial=begun
    )
    assert {row["key"]: row["n"] for batch in written for row in batch.to_pylist()} == expected


def test_rows_are_divided_as_they_come_and_none_is_lost() -> None:
    whole = united([("a", 1), ("b", 2)], [("a", 5), ("c", 6)])
    for cut in (1, 2, 3, 4):
        parts = [whole.slice(i, cut) for i in range(0, len(whole), cut)]
        begun, following = divide(iter(parts))
        assert [row for batch in begun for row in batch.to_pylist()] == [
            {"begin": 5, "id": "a"},
            {"begin": 6, "id": "c"},
        ]
        rows = [row for batch in following for row in batch.to_pylist()]
        assert [(row["key"], row["v"]) for row in rows] == [("a", 1), ("b", 2)]
