"""Sums, minima and maxima of many groups at once; a sum that does not fit is an error, never wrong.

As in SQL, nulls are left out, and of nothing but nulls comes null. A NaN is larger than all else. Zeros
have no sign and NaNs are one: else a minimum or a maximum would depend on the order of rows.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

FOLDS: Final = ("sum", "min", "max")
_LAST: Final = (1 << 63) - 1


def can_fold(name: str, kind: pa.DataType) -> bool:
    """Return whether a fold takes columns of a type."""
    is_number = bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
    if name == "sum":
        return is_number
    is_time = bool(pa.types.is_date32(kind) or pa.types.is_timestamp(kind))
    return name in FOLDS and (is_number or is_time)


def fold(name: str, column: pa.Array, starts: NDArray[np.int64]) -> pa.Array:
    """Return the fold of each group, of the type of the column.

    Args:
        name: One of `FOLDS`.
        column: Of a type that `can_fold` takes.
        starts: Where each group begins, and the number of rows at the end; none is empty.

    Raises:
        OverflowError: A sum does not fit the type.
    """
    kind = column.type
    is_present: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    numbers = _numbers(column)
    if not is_present.all():
        numbers = np.where(is_present, numbers, _neutral(name, numbers.dtype))
    if name == "min":
        found = np.fmin.reduceat(numbers, starts[:-1])
    elif name == "max":
        found = np.maximum.reduceat(numbers, starts[:-1])
    else:
        found = _sums(numbers, starts)
    is_empty = ~np.logical_or.reduceat(is_present, starts[:-1])
    if numbers.dtype.kind == "f":
        if name == "min":
            found = _with_only_nans(found, numbers, is_present, starts)
        found = found + 0.0  # turns -0.0 into 0.0
        found[np.isnan(found)] = np.nan
    return _as_kind(found, kind, is_empty)


def _numbers(column: pa.Array) -> NDArray[Any]:
    if pa.types.is_floating(column.type):
        column = column.cast(pa.float64())
    else:
        column = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
        column = column.cast(pa.int64())
    zero = pa.scalar(0, column.type)
    numbers: NDArray[Any] = column.fill_null(zero).to_numpy(zero_copy_only=False)
    return numbers


def _neutral(name: str, dtype: np.dtype[Any]) -> Any:  # noqa: ANN401 - an integer or a float
    if name == "sum":
        return dtype.type(0)
    if dtype.kind == "f":
        return dtype.type(np.inf if name == "min" else -np.inf)
    return dtype.type(_LAST if name == "min" else -_LAST - 1)


def _sums(numbers: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[Any]:
    with np.errstate(over="ignore", invalid="ignore"):  # infinity and NaN, as in SQL
        sums: NDArray[Any] = np.add.reduceat(numbers, starts[:-1])
    if numbers.dtype.kind == "f" or not len(numbers):
        return sums
    largest = max(abs(int(numbers.min())), abs(int(numbers.max())))
    if largest * int(np.diff(starts).max()) > _LAST:  # some sum may have gone around
        exact = np.add.reduceat(numbers.astype(object), starts[:-1])
        sums = exact.astype(np.int64)  # raises OverflowError
    return sums


def _with_only_nans(
    found: NDArray[Any],
    numbers: NDArray[Any],
    is_present: NDArray[np.bool_],
    starts: NDArray[np.int64],
) -> NDArray[Any]:
    """Return minima, where the neutral element of a null has hidden that all others are NaN."""
    is_number = is_present & ~np.isnan(numbers)
    has_number = np.logical_or.reduceat(is_number, starts[:-1])
    return np.where(has_number, found, np.nan)


def _as_kind(found: NDArray[Any], kind: pa.DataType, is_empty: NDArray[np.bool_]) -> pa.Array:
    found = np.where(is_empty, found.dtype.type(0), found)
    mask = is_empty if is_empty.any() else None
    if pa.types.is_float32(kind):
        with np.errstate(over="ignore"):
            narrow = found.astype(np.float32)
        if (np.isinf(narrow) & ~np.isinf(found)).any():
            raise OverflowError("float out of range")
        return pa.array(narrow, mask=mask)
    array = pa.array(found, mask=mask)
    try:
        return array.cast(pa.int32()).cast(kind) if pa.types.is_date32(kind) else array.cast(kind)
    except pa.ArrowInvalid as exc:
        raise OverflowError(str(exc)) from exc
