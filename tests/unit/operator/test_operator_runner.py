import datetime as dt
import math
import pickle
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from operator_kit import ByFunction, memory_store, record_batch, run
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from typing_extensions import override

from statekeep.errors import StateSchemaError
from statekeep.spark.operator import grouping, inputs, outputs
from statekeep.spark.operator.grouping import GroupingOverflow
from statekeep.spark.operator.inputs import FrameLimits


def _yielding(*rows: Any) -> ByFunction:
    return ByFunction(handle_rows=lambda state, key, given: iter(rows))


def _collecting(seen: list[Any]) -> ByFunction:
    def handle_rows(state: Any, key: Any, rows: Iterator[Any]) -> Iterator[Any]:
        seen.append((key, list(rows)))
        return iter(())

    return ByFunction(handle_rows=handle_rows)


def _counting(handle: StatefulProcessorHandle) -> Any:
    return handle.getValueState("count", "n long")


def _count(state: Any, key: tuple[Any, ...], rows: Iterator[Any]) -> Iterator[Row]:
    (n,) = state.get() or (0,)
    n += sum(1 for _ in rows)
    state.update((n,))
    yield Row(key=key[0], n=n)


def test_each_key_is_processed_once_with_all_its_rows_and_the_grouping_column() -> None:
    seen: list[Any] = []
    processor = _collecting(seen)
    run(processor, [("b", 1), ("a", 2), ("b", 3)])
    assert seen == [(("a",), [("a", 2)]), (("b",), [("b", 1), ("b", 3)])]
    assert processor.calls == ["init", "rows of ('a',)", "rows of ('b',)", "close"]
    assert processor.timer_values is not None
    assert processor.timer_values.getCurrentProcessingTimeInMs() == -1


def test_rows_behave_as_rows_of_spark() -> None:
    seen: list[Any] = []
    run(_collecting(seen), [("a", 1, 2)], schema="key string, v long, count long")
    (row,) = seen[0][1]
    assert isinstance(row, Row)
    assert (row.v, row["v"], row[1], row.asDict()) == (1, 1, 1, {"key": "a", "v": 1, "count": 2})
    assert repr(row) == "Row(key='a', v=1, count=2)"
    assert row.count(1) == 1  # Row's own method, in Spark as here
    assert row["count"] == 2
    assert type(pickle.loads(pickle.dumps(row))) is Row  # noqa: S301 - made a line above
    with pytest.raises(AttributeError):
        _ = row.missing


def test_values_are_those_of_sparks_row_mode() -> None:
    seen: list[Any] = []
    instant = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    schema = (
        "key string, t timestamp, s struct<x: int>, m map<string,int>, b binary, d decimal(5,2)"
    )
    values = (instant, {"x": 1}, [("a", 1)], b"x", Decimal("1.50"))
    run(_collecting(seen), [("a", *values)], schema=schema)
    row = seen[0][1][0]
    assert row[1:] == values
    assert row.t.tzinfo is not None
    assert type(row.s) is dict


def test_state_goes_from_batch_to_batch_and_output_is_cast_to_the_declared_types() -> None:
    store = memory_store()
    run(ByFunction(_counting, _count), [("a", 1), ("a", 1), ("b", 1)], store=store)
    outcome, output = run(
        ByFunction(_counting, _count), [("a", 1)], store=store, output="key string, n int"
    )
    assert output.to_pylist() == [{"key": "a", "n": 3}]
    assert output.schema.field("n").type == pa.int32()
    assert (outcome.rows_in, outcome.rows_out, outcome.keys, outcome.changed_keys) == (1, 1, 1, 1)


def test_output_is_read_by_name_where_rows_have_names() -> None:
    _, output = run(
        _yielding(Row(n=1, key="x"), Row(key="y"), Row(key="z", n=3, more=0)), [("a", 1)]
    )
    assert output.to_pylist() == [
        {"key": "x", "n": 1},
        {"key": "y", "n": None},
        {"key": "z", "n": 3},
    ]


def test_output_is_read_by_position_where_rows_have_no_names() -> None:
    unnamed: list[Any] = ["y", 2]
    _, output = run(_yielding(("x", 1), Row(*unnamed)), [("a", 1)])
    assert output.to_pylist() == [{"key": "x", "n": 1}, {"key": "y", "n": 2}]


def test_nested_output_is_taken_from_rows_dicts_and_tuples() -> None:
    kind = "s struct<x: int, m: map<string,int>>, l array<struct<y: int>>"
    rows = [
        Row(s=Row(x=1, m={"a": 1}), l=[Row(y=1), None]),
        Row(s={"x": 2}, l=[(2,)]),
        Row(s=None, l=None),
    ]
    _, output = run(_yielding(*rows), [("a", 1)], output=kind)
    assert output.to_pylist() == [
        {"s": {"x": 1, "m": [("a", 1)]}, "l": [{"y": 1}, None]},
        {"s": {"x": 2, "m": None}, "l": [{"y": 2}]},
        {"s": None, "l": None},
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row(key=5, n=1), "column=key expected=string found=int value=5"),
        (Row(key="x", n="1"), "column=n expected=int64 found=str value='1'"),
        (Row(key="x", n=2**63), "column=n expected=int64 found=int"),
        (Row(key="x", n=1.5), "column=n expected=int64 found=float value=1.5"),
        (Row(key="x", m=1), "missing=n unknown=m"),
        (("x",), "expected=2 found=1"),
        ({"key": "x", "n": 1}, "output must be rows"),
    ],
    ids=lambda value: None if isinstance(value, str) else repr(value),
)
def test_output_that_does_not_fit_is_refused_with_column_and_types(row: Any, message: str) -> None:
    with pytest.raises(StateSchemaError) as caught:
        run(_yielding(Row(key="good", n=1), row), [("a", 1)])
    assert message in str(caught.value)


def test_a_null_in_a_column_declared_not_null_is_refused() -> None:
    with pytest.raises(StateSchemaError, match="column=n found=null"):
        run(_yielding(Row(key="x", n=None)), [("a", 1)], output="key string, n long not null")


def test_output_is_written_in_batches_of_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "OUTPUT_ROWS", 8)
    monkeypatch.setattr(outputs, "_STAGED_ROWS", 4)
    processor = ByFunction(
        handle_rows=lambda state, key, rows: (Row(key=key[0], n=i) for i in range(5))
    )
    outcome, output = run(processor, [(key, 0) for key in "abcd"])
    assert outcome.rows_out == 20
    assert [len(chunk) for chunk in output["n"].chunks] == [8, 8, 4]
    assert output["n"].to_pylist() == [0, 1, 2, 3, 4] * 4


def test_a_lazy_processor_is_run_to_its_end() -> None:
    store = memory_store()

    def handle_rows(state: Any, key: Any, rows: Any) -> Iterator[Any]:
        yield Row(key=key[0], n=0)
        state.update((7,))

    run(ByFunction(_counting, handle_rows), [("a", 1)], store=store)
    _, output = run(ByFunction(_counting, _count), [("a", 1)], store=store)
    assert output["n"].to_pylist() == [8]


def test_rows_that_a_processor_leaves_do_not_reach_the_next_key() -> None:
    seen: list[Any] = []

    def handle_rows(state: Any, key: Any, rows: Iterator[Any]) -> Iterator[Any]:
        seen.append(next(rows))
        return iter(())

    run(ByFunction(handle_rows=handle_rows), [("a", 1), ("a", 2), ("b", 3), ("b", 4)])
    assert seen == [("a", 1), ("b", 3)]


def test_an_error_of_the_processor_names_its_key_and_still_closes_it() -> None:
    def handle_rows(state: Any, key: Any, rows: Any) -> Iterator[Any]:
        yield Row(key="x", n=1)
        if key == ("b",):
            raise KeyError("boom")

    processor = ByFunction(handle_rows=handle_rows)
    with pytest.raises(KeyError, match="boom") as caught:
        run(processor, [("a", 1), ("b", 1), ("c", 1)])
    assert caught.value.__notes__ == ["while processing grouping key ('b',)"]
    assert processor.calls[-1] == "close"


def test_an_error_of_close_does_not_hide_the_one_before_it() -> None:
    class Failing(ByFunction):
        @override
        def close(self) -> None:
            raise OSError("closing")

    def boom(handle: Any) -> None:
        raise KeyError("boom")

    with pytest.raises(KeyError, match="boom") as caught:
        run(Failing(boom), [])
    assert "closing" in caught.value.__notes__[0]
    with pytest.raises(OSError, match="closing"):
        run(Failing(), [])


def test_an_overflow_comes_before_the_processor_is_called() -> None:
    processor = ByFunction()
    with pytest.raises(GroupingOverflow):
        run(processor, [("a", 1)], grouping_max_bytes=1)
    assert processor.calls == []


def test_a_batch_without_rows_still_opens_and_closes_the_processor() -> None:
    processor = ByFunction(_counting)
    outcome, output = run(processor, [])
    assert processor.calls == ["init", "close"]
    assert (outcome.rows_in, outcome.keys, outcome.changed_keys) == (0, 0, 0)
    assert output.num_rows == 0


@pytest.mark.parametrize("chunk_rows", [2, 3, 1000])
def test_sorted_and_unsorted_runs_have_equal_outcomes(
    chunk_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouping, "CHUNK_ROWS", chunk_rows)
    monkeypatch.setattr(inputs, "CHUNK_ROWS", chunk_rows)
    rows = [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 1), ("c", 1), ("c", 2)]
    shuffled = [rows[i] for i in (4, 0, 5, 1, 2, 6, 3)]
    sorted_batches = [record_batch(rows[i : i + 2]) for i in range(0, len(rows), 2)]
    one, one_output = run(ByFunction(_counting, _count), shuffled)
    other, other_output = run(ByFunction(_counting, _count), sorted_batches, is_sorted=True)
    assert one == other
    assert one_output.to_pylist() == other_output.to_pylist()


def test_the_digest_column_makes_the_input_digest_and_is_kept_from_the_processor() -> None:
    seen: list[Any] = []
    batch = record_batch([("a", 1, 10), ("b", 2, -11)], "key string, v long, hash long")
    outcome, _ = run(_collecting(seen), [batch], digest_column="hash")
    assert outcome.input_digest == f"{2**64 - 1:016x}"
    assert seen[0] == (("a",), [("a", 1)])
    assert run(ByFunction(), [batch])[0].input_digest == ""


def _frames(seen: list[Any]) -> ByFunction:
    def handle_rows(state: Any, key: Any, frames: Iterator[pd.DataFrame]) -> Iterator[Any]:
        seen.append((key, list(frames)))
        return iter(())

    return ByFunction(handle_rows=handle_rows)


def test_frames_hold_the_rows_of_one_key_with_an_index_from_zero() -> None:
    seen: list[Any] = []
    rows = [("b", 1), ("a", 2), ("b", 3)]
    run(_frames(seen), rows, is_pandas=True, schema="key string, v int")
    (_, [first]), (_, [second]) = seen
    assert first.to_dict("list") == {"key": ["a"], "v": [2]}
    assert second.to_dict("list") == {"key": ["b", "b"], "v": [1, 3]}
    assert list(second.index) == [0, 1]
    assert second.dtypes["v"] == "int64"


def test_the_types_of_a_frame_depend_on_its_own_key_alone() -> None:
    seen: list[Any] = []
    run(_frames(seen), [("a", 1), ("b", None), ("b", 2)], is_pandas=True)
    assert [frames[0].dtypes["v"] for _, frames in seen] == ["int64", "float64"]
    assert math.isnan(seen[1][1][0]["v"][0])


def test_a_large_key_comes_in_several_frames() -> None:
    seen: list[Any] = []
    rows = [("a", 1)] * 5 + [("b", 1)] * 3
    run(_frames(seen), rows, is_pandas=True, frame_limits=FrameLimits(rows=2))
    assert [[len(frame) for frame in frames] for _, frames in seen] == [[2, 2, 1], [2, 1]]


def test_frames_are_output_by_name_and_cast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "OUTPUT_ROWS", 2)
    frames = [
        pd.DataFrame({"n": [1, 2], "key": ["x", "y"], "more": [0, 0]}),
        pd.DataFrame({"n": [3.0], "key": ["z"]}),
        pd.DataFrame({"n": [], "key": []}),
        pd.DataFrame([["w", 4]]),
    ]
    outcome, output = run(
        _yielding(*frames), [("a", 1)], is_pandas=True, output="key string, n int"
    )
    assert output["key"].to_pylist() == ["x", "y", "z", "w"]
    assert output["n"].to_pylist() == [1, 2, 3, 4]
    assert output.schema.field("n").type == pa.int32()
    assert [len(chunk) for chunk in output["n"].chunks] == [2, 2]
    assert outcome.rows_out == 4


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame({"key": ["x"], "n": ["q"]}), "column=n expected=bigint found=object"),
        (pd.DataFrame({"key": ["x"], "n": [1.5]}), "column=n expected=bigint found=float64"),
        (pd.DataFrame({"key": ["x"]}), "missing=n found=key"),
        (pd.DataFrame([["x"]]), "expected=2 found=1"),
        (Row(key="x", n=1), "output must be pandas frames: found=Row"),
    ],
    ids=["text", "fraction", "missing", "too few", "row"],
)
def test_a_frame_that_does_not_fit_is_refused_with_column_and_types(
    frame: Any, message: str
) -> None:
    with pytest.raises(StateSchemaError) as caught:
        run(_yielding(frame), [("a", 1)], is_pandas=True)
    assert message in str(caught.value)


def test_naive_times_of_frames_are_in_the_sessions_time_zone() -> None:
    frame = pd.DataFrame({"t": [pd.Timestamp("2020-01-01")]})
    _, output = run(_yielding(frame), [("a", 1)], is_pandas=True, output="t timestamp")
    assert output["t"].to_pylist() == [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]


def test_the_error_of_a_processor_that_returns_no_rows_says_what_to_return() -> None:
    forgot_to_yield = ByFunction(handle_rows=lambda *_: None)
    with pytest.raises(
        StateSchemaError, match="rows of the output are not iterable: found=NoneType"
    ) as told:
        run(forgot_to_yield, [("a", 1)])
    assert "yield each row" in str(told.value)
    assert any("grouping key ('a',)" in note for note in told.value.__notes__)
