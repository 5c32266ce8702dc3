"""The rows of state variables and timers in a task's store, as tables, and what differs between two."""

import datetime as dt
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from operator_kit import ByFunction, memory_store, run
from pyspark.sql import Row
from pyspark.sql.types import StructType
from typing_extensions import override

from statekeep.errors import CheckpointCorruptError, StateSchemaError
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.codec import ValueCodec
from statekeep.spark.operator.columns import arrow_schema, record_batch
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.state.changes import changed_rows
from statekeep.spark.state.variable import StoredRows, VariableTable
from statekeep.stores.base import KeyValueStore

PROCESSING: dict[str, Any] = {"time_mode": TimeMode.PROCESSING, "clock": BatchClock(1_000, 0)}


def batch(
    store: KeyValueStore,
    declare: Callable[[Any], Any],
    write: Callable[[Any, str], Any],
    keys: str = "ab",
    **options: Any,
) -> None:
    """Run a batch with a row for each of some keys, which writes to the variable that is declared."""

    def rows(variable: Any, key: Any, _: Iterator[Any]) -> Iterator[Any]:
        write(variable, key[0])
        return iter(())

    run(ByFunction(declare, rows), [(key, 0) for key in keys], store=store, **options)


def find(store: KeyValueStore, variable: str | None) -> VariableTable:
    table = VariableTable.find(store, variable)
    assert table is not None
    return table


def opened(table: VariableTable, store: KeyValueStore) -> StoredRows:
    rows = table.open(store, has_values=True)
    assert rows is not None
    return rows


def read(store: KeyValueStore, variable: str | None, front: bytes = b"") -> list[dict[str, Any]]:
    """Return the rows of a variable by the names of the columns."""
    table = find(store, variable)
    stored = opened(table, store)
    found = [row for entry in stored.entries(front) for row in stored.rows(*entry)]
    schema = StructType([field for field, _ in table.columns])
    columns = [[getattr(row, what) for row in found] for _, what in table.columns]
    rows: list[dict[str, Any]] = record_batch(schema, columns).to_pylist()
    return rows


def test_a_value_is_a_row() -> None:
    store = memory_store()
    batch(
        store,
        lambda h: h.getValueState("total", "n long, s string"),
        lambda state, key: state.update((1, key)),
    )
    assert read(store, "total") == [
        {"key": {"key": key}, "value": {"n": 1, "s": key}} for key in "ab"
    ]


def test_each_item_of_a_list_is_a_row_with_its_position() -> None:
    store = memory_store()
    batch(
        store,
        lambda h: h.getListState("seen", "n long"),
        lambda state, key: state.put([(5,), (4,)]),
        keys="a",
    )
    assert read(store, "seen") == [
        {"key": {"key": "a"}, "list_position": at, "list_element": {"n": n}}
        for at, n in [(0, 5), (1, 4)]
    ]


def test_each_entry_of_a_map_is_a_row_with_its_key() -> None:
    store = memory_store()
    batch(
        store,
        lambda h: h.getMapState("by day", "day date", "n long"),
        lambda state, key: [state.updateValue((dt.date(2026, 1, d),), (d,)) for d in (2, 1)],
        keys="a",
    )
    assert read(store, "by day") == [
        {
            "key": {"key": "a"},
            "user_map_key": {"day": dt.date(2026, 1, d)},
            "user_map_value": {"n": d},
        }
        for d in (1, 2)
    ]


def test_each_timer_is_a_row_with_its_time() -> None:
    store = memory_store()
    batch(
        store,
        lambda h: h,
        lambda handle, key: [handle.registerTimer(time) for time in (7_000, 3_000)],
        keys="a",
        **PROCESSING,
    )
    assert read(store, None) == [
        {"key": {"key": "a"}, "expiration_timestamp_ms": time} for time in (3_000, 7_000)
    ]


@pytest.mark.parametrize(
    ("declare", "write", "column"),
    [
        (
            lambda h: h.getValueState("v", "n long", 500),
            lambda state, _: state.update((1,)),
            "value",
        ),
        (
            lambda h: h.getMapState("v", "k long", "n long", 500),
            lambda state, _: state.updateValue((1,), (1,)),
            "user_map_value",
        ),
        (
            lambda h: h.getListState("v", "n long", 500),
            lambda state, _: state.appendValue((1,)),
            "list_element",
        ),
    ],
    ids=["value", "map", "list"],
)
def test_what_has_a_time_to_live_has_the_time_of_its_end(
    declare: Any, write: Any, column: str
) -> None:
    store = memory_store()
    batch(store, declare, write, keys="a", **PROCESSING)
    (row,) = read(store, "v")
    assert (row[column], row["expiration_timestamp_ms"]) == ({"n": 1}, 1_500)


def test_the_items_of_a_list_end_one_by_one() -> None:
    store = memory_store()
    for now in (1_000, 1_200):
        batch(
            store,
            lambda h: h.getListState("v", "n long", 500),
            lambda state, _: state.appendValue((1,)),
            keys="a",
            time_mode=TimeMode.PROCESSING,
            clock=BatchClock(now, 0),
        )
    found = [(row["list_position"], row["expiration_timestamp_ms"]) for row in read(store, "v")]
    assert found == [(0, 1_500), (1, 1_700)]


def test_the_rows_of_one_key_are_found_by_the_front_of_their_keys() -> None:
    store = memory_store()
    batch(store, lambda h: h.getValueState("v", "n long"), lambda s, _: s.update((1,)), keys="abc")
    table = find(store, "v")
    key = next(k for k, _ in opened(table, store).entries() if b"b" in k)
    assert [row["key"] for row in read(store, "v", key)] == [{"key": "b"}]


def test_a_task_with_an_older_schema_is_read_in_the_newest_one() -> None:
    older, newer = memory_store(), memory_store()
    batch(older, lambda h: h.getValueState("v", "n int, s string"), lambda s, _: s.update((1, "x")))
    batch(newer, lambda h: h.getValueState("v", "n long, d date"), lambda s, _: s.update((2, None)))
    rows = opened(find(newer, "v"), older)
    found = [row.value for entry in rows.entries() for row in rows.rows(*entry)]
    assert found == [(1, None), (1, None)]


def test_a_task_whose_values_cannot_be_read_in_the_newest_schema_is_an_error() -> None:
    older, newer = memory_store(), memory_store()
    batch(older, lambda h: h.getValueState("v", "n string"), lambda s, _: s.update(("x",)))
    batch(newer, lambda h: h.getValueState("v", "n long"), lambda s, _: s.update((2,)))
    with pytest.raises(StateSchemaError, match="field=n stored=string declared=bigint"):
        find(newer, "v").open(older, has_values=True)


def test_a_task_that_has_the_variable_in_another_form_is_an_error() -> None:
    older, newer = memory_store(), memory_store()
    batch(older, lambda h: h.getListState("v", "n long"), lambda s, _: s.appendValue((1,)))
    batch(newer, lambda h: h.getMapState("v", "k int", "n long"), lambda s, _: s.clear())
    batch(
        newer,
        lambda h: h.getMapState("v", "k int", "n long"),
        lambda s, _: s.updateValue((1,), (1,)),
    )
    with pytest.raises(
        StateSchemaError, match=r"task=list newest=map by struct<k:int>.*partition_id"
    ):
        find(newer, "v").open(older, has_values=True)


def test_a_task_without_the_variable_has_no_rows() -> None:
    with_it, without = memory_store(), memory_store()
    batch(with_it, lambda h: h.getValueState("v", "n long"), lambda s, _: s.update((1,)))
    assert find(with_it, "v").open(without, has_values=True) is None


def test_an_index_is_no_variable() -> None:
    store = memory_store()
    batch(
        store,
        lambda h: h.getValueState("v", "n long", 500),
        lambda s, _: s.update((1,)),
        **PROCESSING,
    )
    assert VariableTable.find(store, "$ttl_v") is None
    assert VariableTable.find(store, "$procTimers") is None


def test_values_that_are_not_asked_for_are_not_decoded() -> None:
    store = memory_store()
    batch(store, lambda h: h.getValueState("v", "n long"), lambda s, _: s.update((1,)), keys="a")
    table = find(store, "v")
    ((key, _),) = opened(table, store).entries()
    with pytest.raises(CheckpointCorruptError):
        list(opened(table, store).rows(key, b"damaged"))
    without = table.open(store, has_values=False)
    assert without is not None
    assert [row.value for row in without.rows(key, b"damaged")] == [None]


SCHEMA = (
    "b boolean, i1 byte, i2 short, i4 int, i8 long, f float, d double, s string, c char(3), x binary,"
    " day date, t timestamp, local timestamp_ntz, wait interval day to second, dec decimal(12, 3),"
    " nested struct<n: long, t: timestamp>, items array<struct<n: long>>, by map<string, decimal(5,1)>"
)
NOON = dt.datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=dt.UTC)
LOCAL_NOON = NOON.astimezone().replace(tzinfo=None)
"""As a processor gets it: in local time, without a zone."""
GIVEN = (
    *(True, 1, 2, 3, 4, 0.5, math.inf, "text", "abc", b"\0x"),
    *(NOON.date(), LOCAL_NOON, LOCAL_NOON, dt.timedelta(seconds=3), Decimal("1.250")),
    *(Row(n=1, t=LOCAL_NOON), [Row(n=2), None], {"k": Decimal("7.5"), "none": None}),
)


def test_values_of_every_type_have_the_types_of_spark() -> None:
    schema = parse_schema(SCHEMA)
    codec = ValueCodec(schema)
    values = [codec.decode(codec.encode(given)) for given in (GIVEN, (None,) * len(GIVEN))]
    found = record_batch(StructType().add("value", schema), [[*values, None]])
    assert found.schema == arrow_schema(StructType().add("value", schema))
    whole, empty, absent = found.column(0).to_pylist()
    assert absent is None
    assert set(empty.values()) == {None}
    assert (whole["t"], whole["nested"]["t"]) == (NOON, NOON)
    assert whole["local"] == LOCAL_NOON
    assert whole["by"] == [("k", Decimal("7.5")), ("none", None)]
    assert whole["items"] == [{"n": 2}, None]
    expected = dict(zip(schema.names, GIVEN, strict=True))
    for name in ("b", "i1", "i2", "i4", "i8", "f", "d", "s", "c", "x", "day", "wait", "dec"):
        assert whole[name] == expected[name], name


def test_a_struct_without_fields_keeps_its_rows() -> None:
    found = record_batch(StructType().add("value", StructType()), [[(), None, ()]])
    assert found.column(0).to_pylist() == [{}, None, {}]
    assert isinstance(found, pa.RecordBatch)


def changes(old: KeyValueStore, new: KeyValueStore, variable: str | None = "v") -> list[Any]:
    table = find(new, variable)
    both = [table.open(store, has_values=True) for store in (old, new)]
    return [
        (what, row.key[0], row.within, row.value, row.time_ms)
        for what, row in changed_rows(both[0], both[1], b"")
    ]


def test_a_change_feed_reports_what_is_new_changed_and_gone() -> None:
    def declare(handle: Any) -> Any:
        return handle.getValueState("v", "n long")

    old, new = memory_store(), memory_store()
    batch(old, declare, lambda s, _: s.update((1,)), keys="bcd")
    batch(new, declare, lambda s, key: s.update((2 if key == "c" else 1,)), keys="abc")
    assert changes(old, new) == [
        ("insert", "a", None, (1,), None),
        ("update", "c", None, (2,), None),
        ("delete", "d", None, (1,), None),
    ]


def test_a_change_feed_of_a_list_goes_by_position() -> None:
    def declare(handle: Any) -> Any:
        return handle.getListState("v", "n long")

    old, new = memory_store(), memory_store()
    batch(old, declare, lambda s, key: s.put([(1,), (2,), (3,)]), keys="a")
    batch(new, declare, lambda s, key: s.put([(1,), (5,)]), keys="a")
    assert changes(old, new) == [
        ("update", "a", 1, (5,), None),
        ("delete", "a", 2, (3,), None),
    ]


def test_a_change_feed_of_timers_and_of_times_to_live() -> None:
    class Both(ByFunction):
        @override
        def init(self, handle: Any) -> None:
            self.variable = (handle, handle.getValueState("v", "n long", 500))

    def write(times: list[int]) -> Any:
        def rows(variable: Any, key: Any, _: Iterator[Any]) -> Iterator[Any]:
            handle, value = variable
            for time in times:
                handle.registerTimer(time)
            value.update((1,))
            return iter(())

        return Both(handle_rows=rows)

    old, new = memory_store(), memory_store()
    for store, now, times in [(old, 1_000, [9_000]), (new, 1_100, [9_000, 9_500])]:
        clock = BatchClock(now, 0)
        run(write(times), [("a", 0)], store=store, time_mode=TimeMode.PROCESSING, clock=clock)
    assert changes(old, new, None) == [("insert", "a", None, None, 9_500)]
    assert changes(old, new) == [("update", "a", None, (1,), 1_600)]


def test_a_change_feed_does_not_take_equal_bytes_of_different_schemas_for_equal_rows() -> None:
    old, new = memory_store(), memory_store()
    batch(old, lambda h: h.getValueState("v", "n long, m long"), lambda s, _: s.update((1, 2)))
    # Dropped and made anew under the same name: its schema has the number 0 again.
    batch(new, lambda h: h.getValueState("v", "m long, n long"), lambda s, _: s.update((1, 2)))
    assert [what for what, *_ in changes(old, new)] == ["update", "update"]


def test_a_change_feed_does_not_show_what_was_only_written_anew_in_a_newer_schema() -> None:
    old, new = memory_store(), memory_store()
    for store in (old, new):
        batch(store, lambda h: h.getValueState("v", "n int"), lambda s, _: s.update((1,)))
    batch(new, lambda h: h.getValueState("v", "n long"), lambda s, _: s.update((1,)))
    assert changes(old, new) == []


def test_a_variable_that_only_one_side_has_is_new_or_gone() -> None:
    full = memory_store()
    batch(full, lambda h: h.getValueState("v", "n long"), lambda s, _: s.update((1,)))
    rows = opened(find(full, "v"), full)
    assert {what for what, _ in changed_rows(None, rows, b"")} == {"insert"}
    assert {what for what, _ in changed_rows(rows, None, b"")} == {"delete"}
    assert list(changed_rows(None, None, b"")) == []
