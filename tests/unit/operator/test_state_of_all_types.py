"""State variables of random nested types hold what plain dicts hold, over several batches."""

import datetime as dt
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_kit import ByFunction, memory_store, run
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from statekeep.spark.releases import RELEASE, TimeType

_FLOATS = st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324])
_MICROS = st.integers(-(10**15), 10**16)
_KEY_TYPES: list[tuple[DataType, Any]] = [
    (BooleanType(), st.booleans()),
    (ByteType(), st.integers(-(2**7), 2**7 - 1)),
    (ShortType(), st.integers(-(2**15), 2**15 - 1)),
    (IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    (LongType(), st.integers(-(2**63), 2**63 - 1)),
    (FloatType(), _FLOATS.filter(lambda x: x != 5e-324) | st.floats(width=32)),
    (DoubleType(), _FLOATS | st.floats()),
    (StringType(), st.text(st.characters(codec="utf-8"), max_size=5)),
    (BinaryType(), st.binary(max_size=5)),
    (DecimalType(38, 6), st.decimals(-(10**30), 10**30, places=6)),
    (DateType(), st.dates()),
    (TimestampType(), _MICROS.map(TimestampType().fromInternal)),
    (TimestampNTZType(), st.datetimes().map(lambda time: time.replace(fold=0))),
    (DayTimeIntervalType(), st.timedeltas(dt.timedelta(-(10**8)), dt.timedelta(10**8))),
]
if RELEASE >= (4, 1):
    _KEY_TYPES.append((TimeType(6), st.times().map(lambda time: time.replace(fold=0))))


def _structs(types: Any) -> Any:
    def of(parts: list[Any]) -> tuple[DataType, Any]:
        schema = StructType()
        for number, (kind, _) in enumerate(parts):
            schema.add(f"f{number}", kind)
        row = Row(*schema.names)
        return schema, st.tuples(*[st.none() | values for _, values in parts]).map(
            lambda given: row(*given)
        )

    return st.lists(types, min_size=1, max_size=3).map(of)


def _arrays(types: Any) -> Any:
    def of(part: Any) -> tuple[DataType, Any]:
        return ArrayType(part[0]), st.lists(st.none() | part[1], max_size=3)

    return types.map(of)


def _maps(types: Any) -> Any:
    def of(parts: Any) -> tuple[DataType, Any]:
        (key_type, keys), (value_type, values) = parts
        kind = MapType(key_type, value_type)
        return kind, st.dictionaries(keys, st.none() | values, max_size=3)

    return st.tuples(st.sampled_from(_KEY_TYPES), types).map(of)


_KEYS = st.recursive(
    st.sampled_from(_KEY_TYPES), lambda types: _structs(types) | _arrays(types), max_leaves=4
)
_VALUES = st.recursive(
    st.sampled_from(_KEY_TYPES),
    lambda types: _structs(types) | _arrays(types) | _maps(types),
    max_leaves=5,
)


def _text(value: Any) -> str:
    """A value with the types of its parts: -0.0 is not 0.0, 1 not 1.0, and NaN is NaN."""
    if isinstance(value, dict):
        return str([(_text(key), _text(item)) for key, item in value.items()])
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} {[_text(item) for item in value]}"
    return repr(value)


def _same_key(value: Any) -> Any:
    """What grouping takes for the same key has the same text: zeros and NaNs."""
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, Decimal):
        return value + 0
    if isinstance(value, list):
        return [_same_key(item) for item in value]
    return Row(*map(_same_key, value)) if isinstance(value, tuple) else value


@dataclass
class Plain:
    """What the variables should hold of one key."""

    value: Any = None
    items: list[Any] = field(default_factory=list[Any])
    entries: dict[str, Any] = field(default_factory=dict[str, Any])

    def seen(self) -> tuple[str, str, list[tuple[str, str]]]:
        entries = [(key, _text((value,))) for key, value in self.entries.items()]
        return _text(self.value), _text(self.items), sorted(entries)


@st.composite
def _jobs(draw: Any) -> Any:
    key_type, keys = draw(_KEYS)
    value_type, values = draw(_VALUES)
    operation = st.tuples(
        st.sampled_from(["update", "clear", "append", "put", "set", "remove"]),
        st.none() | keys,
        st.none() | values,
    )
    batch = st.dictionaries(st.sampled_from("ab"), st.lists(operation, max_size=5), min_size=1)
    return key_type, value_type, draw(st.lists(batch, min_size=1, max_size=3))


@settings(deadline=None, max_examples=150)
@given(_jobs())
def test_variables_of_any_type_hold_what_dicts_hold(job: Any) -> None:
    key_type, value_type, batches = job
    store = memory_store()
    expected: dict[str, Plain] = {}
    for batch in batches:
        seen: dict[str, Any] = {}

        def init(handle: StatefulProcessorHandle) -> Any:
            schema = StructType().add("x", value_type)
            return (
                handle.getValueState("value", schema),
                handle.getListState("list", schema),
                handle.getMapState("map", StructType().add("k", key_type), schema),
            )

        def handle_rows(
            variables: Any,
            key: Any,
            rows: Iterator[Any],
            batch: dict[str, Any] = batch,
            seen: dict[str, Any] = seen,
        ) -> Iterator[Any]:
            value, items, entries = variables
            for name, k, x in batch[key[0]]:
                match name:
                    case "update":
                        value.update((x,))
                    case "clear":
                        value.clear()
                    case "append":
                        items.appendValue((x,))
                    case "put":
                        items.put([(x,), (None,)])
                    case "set":
                        entries.updateValue((k,), (x,))
                    case _:
                        entries.removeKey((k,))
            pairs = [(_text(_same_key(k)), _text(x)) for (k,), x in entries.iterator()]
            seen[key[0]] = _text(value.get()), _text(list(items.get())), sorted(pairs)
            return iter(())

        run(ByFunction(init, handle_rows), [(key, 0) for key in batch], store=store)
        for key, operations in batch.items():
            plain = expected.setdefault(key, Plain())
            for name, k, x in operations:
                match name:
                    case "update":
                        plain.value = (x,)
                    case "clear":
                        plain.value = None
                    case "append":
                        plain.items.append((x,))
                    case "put":
                        plain.items = [(x,), (None,)]
                    case "set":
                        plain.entries[_text(_same_key(k))] = x
                    case _:
                        plain.entries.pop(_text(_same_key(k)), None)
        assert seen == {key: expected[key].seen() for key in batch}


def test_arrays_and_numbers_of_numpy_are_taken_for_pythons() -> None:
    def init(handle: StatefulProcessorHandle) -> Any:
        return handle.getValueState("v", "a array<double>, n long, d decimal(5,2), b boolean")

    def handle_rows(value: Any, key: Any, rows: Iterator[Any]) -> Iterator[Any]:
        value.update((np.array([1.5, 2.0]), np.int32(3), np.int64(4), np.bool_(1)))
        assert value.get() == ([1.5, 2.0], 3, Decimal("4.00"), True)
        assert type(value.get()[1]) is int
        return iter(())

    run(ByFunction(init, handle_rows), [("a", 1)])
