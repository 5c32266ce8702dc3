"""Copies of what a processor yields: it may change a list, a dict or a frame after that.

Output is held for many keys before it is converted. Spark converts a frame, and copies a row, when it
takes it; so do these, as far as something in it can change.
"""

# pandas ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from collections.abc import Collection, Iterable
from copy import deepcopy
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pandas as pd
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    MapType,
    StructType,
    VariantType,
)

_IMMUTABLE: Final = frozenset(
    {type(None), bool, int, float, str, bytes, Decimal, date, datetime, timedelta}
)
_MUTABLE: Final = (ArrayType, BinaryType, MapType, StructType, VariantType)


def holds_mutable(schema: StructType) -> bool:
    """Return whether a value of one of the columns may be something that can change."""
    return any(isinstance(field.dataType, _MUTABLE) for field in schema.fields)


def owned(value: Any) -> Any:  # noqa: ANN401 - whatever a processor yields
    """Return ``value``, or an equal one that its maker cannot change."""
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if kind is list:
        return list(_owned_items(value))
    if kind is dict:
        return dict(zip(value, _owned_items(value.values()), strict=True))
    if not isinstance(value, tuple):
        return deepcopy(value)
    if _IMMUTABLE.issuperset(map(type, value)):
        return value
    copied = tuple.__new__(kind, map(owned, value))
    if hasattr(value, "__dict__"):
        vars(copied).update(vars(value))  # the names of a Row
    return copied


def _owned_items(values: Collection[Any]) -> Iterable[Any]:
    # Most hold nothing that can change: a copy of the outside is enough, and has no loop in Python.
    return values if _IMMUTABLE.issuperset(map(type, values)) else map(owned, values)


def owned_frame(frame: pd.DataFrame, *, is_deep: bool) -> pd.DataFrame:
    """Return a copy of ``frame``; ``is_deep``: of the objects in it too."""
    copied = frame.copy()
    if is_deep:
        for at, kind in enumerate(copied.dtypes):
            if pd.api.types.is_object_dtype(kind):
                values = [owned(value) for value in copied.iloc[:, at]]
                copied.isetitem(at, pd.Series(values, index=copied.index, dtype=object))
    return copied
