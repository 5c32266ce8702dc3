"""Value state that is read and written for many grouping keys at once, as Arrow columns.

The store holds what `LocalValueState` would have put there: a processor of rows can go on with it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.types import StructType
from typing_extensions import override

from statekeep.errors import ConfigError, StateSchemaError
from statekeep.spark.operator.codec import ValueCodec
from statekeep.spark.operator.columns import fitted
from statekeep.spark.operator.folds import FOLDS, can_fold, fold
from statekeep.spark.operator.grouping import KeyChunk
from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.operator.scalars import MisfitError
from statekeep.spark.operator.value_columns import ValueColumns, has_columns
from statekeep.spark.operator.variables import KeyCursor, LocalVariable, StateAccess

Rows: TypeAlias = pa.RecordBatch | pa.Table
Values: TypeAlias = pa.RecordBatch | pa.Table | pa.StructArray


class ChunkCursor(KeyCursor):
    """The rows and grouping keys that a function is called with."""

    def __init__(self, names: Sequence[str], schema: StructType) -> None:
        """Stand at no rows; ``names`` are those of the grouping columns."""
        super().__init__("state is used outside the call of the function")
        self.names = list(names)
        self._codec = KeyCodec(schema)
        self._chunk: KeyChunk | None = None
        self._indexes: dict[bytes, int] | None = None

    def enter_chunk(self, chunk: KeyChunk) -> None:
        """Go to the keys of a chunk."""
        self.enter(chunk.key_columns, chunk.key_bytes)
        self._chunk = chunk
        self._indexes = None

    def keys(self, indexes: NDArray[np.int64]) -> list[pa.Array]:
        """Return the grouping columns of the keys at ``indexes``."""
        assert self._chunk is not None  # noqa: S101 - within a call
        first = pa.array(np.asarray(self._chunk.starts)[indexes])
        return [self._chunk.rows.column(name).take(first) for name in self.names]

    def indexes(self, rows: Rows) -> NDArray[np.int64]:
        """Return for each row the index of its key.

        Raises:
            ConfigError: State is used outside the call, or a key has no row in it.
            StateSchemaError: A grouping column is missing or of another type.
        """
        self.require_key()
        assert self._chunk is not None  # noqa: S101 - there are keys
        count = len(self.key_bytes)
        if rows is self._chunk.rows:
            return np.repeat(np.arange(count), np.diff(self._chunk.starts))
        encoded = self._encoded(rows, self._chunk.rows.schema)
        if encoded == self.key_bytes:
            return np.arange(count)
        if self._indexes is None:
            self._indexes = {key: index for index, key in enumerate(self.key_bytes)}
        try:
            found = map(self._indexes.__getitem__, encoded)
            return np.fromiter(found, np.int64, len(encoded))
        except KeyError as exc:
            raise ConfigError(
                "state of a key that has no row in this call: "
                f"key={self._codec.decode(exc.args[0])!r}"
            ) from None

    def _encoded(self, rows: Rows, schema: pa.Schema) -> list[bytes]:
        columns: list[list[Any]] = []
        for name in self.names:
            if rows.schema.names.count(name) != 1:
                raise StateSchemaError(
                    f"keys need each grouping column once: column={name} "
                    f"found={','.join(rows.schema.names)}"
                )
            expected = schema.field(name).type
            try:
                columns.append(fitted(rows.column(name), expected).to_pylist())
            except (TypeError, pa.ArrowException) as exc:
                raise StateSchemaError(
                    f"grouping column is of another type: column={name} expected={expected} ({exc})"
                ) from exc
        return self._codec.encode_columns(columns)


class ArrowValueState(LocalVariable):
    """One value for each grouping key, used for many keys at once.

    ``keys`` is a record batch or a table with the grouping columns; others in it are left alone. It
    may name a key several times, and only keys that have rows in this call of the function.
    ``values`` is one with the fields of the state as columns, or a struct array of them.
    """

    metric = "numValueStateVars"
    operations: ClassVar[Mapping[str, str]] = {}

    def __init__(self, name: str, prefix: bytes, codec: ValueCodec, access: StateAccess) -> None:
        """Prepare for one run.

        Raises:
            StateSchemaError: Columns cannot give such values.
        """
        super().__init__(name, prefix, codec, access)
        if not codec.schema.fields or not has_columns(codec.schema):
            error = StateSchemaError(
                "state of this type has no columns: "
                f"variable={name} type={codec.schema.simpleString()}"
            )
            error.add_note(
                "hint: without fields, with a variant, or with a map whose keys are structs, use"
                " transformWithState"
            )
            raise error
        self._columns = ValueColumns(codec)
        self._store_keys: list[bytes] = []
        self._stored: list[bytes | None] | None = None
        self._slots: list[bytes | None] = []
        """What `_stored` has become."""

    def get_many(self, keys: Rows) -> pa.StructArray:
        """Return the value of each key; null where it has none."""
        indexes = self._load(keys)
        return self._columns.decode([self._slots[index] for index in indexes.tolist()])

    def put_many(self, keys: Rows, values: Values) -> None:
        """Set the value of each key; of a key that is named several times, the last one holds.

        Raises:
            StateSchemaError: The values do not fit the declared fields.
        """
        indexes = self._load(keys)
        self._put(indexes, self._fitted(values, len(indexes)))

    def delete_many(self, keys: Rows) -> None:
        """Remove the values of keys; a key without a value is no error."""
        for index in self._load(keys).tolist():
            self._slots[index] = None

    def merge(self, keys: Rows, values: Values, how: str | Mapping[str, str]) -> pa.RecordBatch:
        """Fold values into those that keys have: all values of one key, into one.

        Args:
            keys: A key for each row of ``values``.
            values: The same fields as the state; null changes nothing.
            how: ``sum``, ``min`` or ``max``: for all fields, or by field.

        Returns:
            The grouping columns and the new value of each key that is named, sorted by key.

        Raises:
            StateSchemaError: The values do not fit the declared fields, or a sum does not.
        """
        names = self._codec.schema.names
        folds = dict.fromkeys(names, how) if isinstance(how, str) else dict(how)
        self._check_folds(folds)
        indexes = self._load(keys)
        columns = self._fitted(values, len(indexes))
        touched, starts, order = _groups(indexes)
        before = self._columns.decode([self._slots[index] for index in touched.tolist()])
        merged: list[pa.Array] = []
        for name, old, new in zip(names, before.flatten(), columns, strict=True):
            rows = pa.concat_arrays([old, new]).take(order)
            try:
                merged.append(fold(folds[name], rows, starts))
            except OverflowError as exc:
                raise self._unfit(f"field={name} found={folds[name]} out of range") from exc
        self._put(touched, merged)
        fields = [*self._cursor_of_chunk.names, *names]
        return pa.RecordBatch.from_arrays([*self._cursor_of_chunk.keys(touched), *merged], fields)

    @override
    def flush(self) -> None:
        stored, self._stored = self._stored, None
        if stored is None:
            return
        entries = zip(self._store_keys, stored, self._slots, strict=True)
        self._writer.write({key: new for key, old, new in entries if new != old})

    @override
    def _forget(self) -> None:
        self._stored = None

    @property
    def _cursor_of_chunk(self) -> ChunkCursor:
        # Of a variable that is retired, the cursor is one that refuses all use.
        self._cursor.require_key()
        assert isinstance(self._cursor, ChunkCursor)  # noqa: S101 - only a function has such a variable
        return self._cursor

    def _load(self, keys: Rows) -> NDArray[np.int64]:
        """Return the indexes of keys, with the slots of all keys of the call at hand."""
        cursor = self._cursor_of_chunk
        indexes = cursor.indexes(keys)
        if self._stored is None:
            prefix = self._prefix
            self._store_keys = [prefix + key for key in cursor.key_bytes]
            self._stored = self._store.get_many(self._store_keys)
            self._slots = list(self._stored)
        return indexes

    def _put(self, indexes: NDArray[np.int64], columns: list[pa.Array]) -> None:
        try:
            entries = self._columns.encode(columns)
        except MisfitError as exc:
            raise self._unfit(str(exc)) from None
        if len(indexes) == len(self._slots) and (indexes == np.arange(len(indexes))).all():
            self._slots[:] = entries
            return
        for index, entry in zip(indexes.tolist(), entries, strict=True):
            self._slots[index] = entry

    def _fitted(self, values: Values, row_count: int) -> list[pa.Array]:
        if isinstance(values, pa.StructArray):
            if values.null_count:
                raise self._unfit("found=null, which delete_many is for")
            values = pa.RecordBatch.from_struct_array(values)
        if len(values) != row_count:
            raise self._unfit(f"found={len(values)} values for {row_count} keys")
        columns: list[pa.Array] = []
        for field in self._columns.arrow_type:
            if values.schema.names.count(field.name) != 1:
                found = ",".join(values.schema.names)
                raise self._unfit(f"field={field.name} found={found}, which must have it once")
            try:
                columns.append(fitted(values.column(field.name), field.type))
            except (TypeError, pa.ArrowException) as exc:
                raise self._unfit(f"field={field.name} declared={field.type} found={exc}") from exc
        return columns

    def _check_folds(self, folds: Mapping[str, str]) -> None:
        names = self._codec.schema.names
        if set(folds) != set(names):
            raise self._unfit(f"fields={','.join(names)} found={','.join(folds)}")
        for field in self._columns.arrow_type:
            if not can_fold(folds[field.name], field.type):
                error = self._unfit(
                    f"field={field.name} declared={field.type} found={folds[field.name]}"
                )
                error.add_note(
                    f"hint: merge knows {', '.join(FOLDS)} of numbers, min and max of times"
                )
                raise error

    def _unfit(self, what: str) -> StateSchemaError:
        return StateSchemaError(
            f"values do not fit the state variable: variable={self._name} {what}"
        )


def _groups(
    indexes: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], pa.Array]:
    """Return the indexes without repetition, and how to group one value of each, then all rows.

    The second is where each group begins, the third the order of rows that makes the groups, after
    a row for each index.
    """
    touched, group = np.unique(indexes, return_inverse=True)
    all_groups = np.concatenate((np.arange(len(touched)), group))
    order = np.argsort(all_groups, kind="stable")
    counts = np.bincount(all_groups, minlength=len(touched))
    return touched, np.concatenate(([0], np.cumsum(counts))), pa.array(order)
