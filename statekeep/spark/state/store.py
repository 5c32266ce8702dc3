"""One store of a job in plain Python as a table: only the program knows what its bytes mean."""

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from statekeep.errors import ConfigError
from statekeep.spark.operator.scalars import as_sequence
from statekeep.spark.state.variable import Shown, StateRow, StoredRows
from statekeep.stores.base import KeyValueStore

_KEY: Final = StructField("key", BinaryType())
_VALUE: Final = StructField("value", BinaryType())
_TASK: Final = StructField("task", StringType())


class StoreTable:
    """A row for each entry of a store."""

    keys: Final = StructType([_KEY])
    """What a user types for a key."""
    columns: Final[tuple[tuple[StructField, Shown], ...]] = (
        (_KEY, "key"),
        (_VALUE, "value"),
        (_TASK, "task"),
    )
    """Every column, with what it shows."""

    def open(self, store: KeyValueStore, *, has_values: bool) -> "StoredEntries":  # noqa: ARG002 - as a variable's table
        """Return the rows of the store of a task, which is only read."""
        return StoredEntries(store)


class StoredEntries:
    """The entries of one store, in order of the key."""

    schemas: Final = MappingProxyType[int, str]({})
    """There is none: the same bytes are the same row."""

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store

    def entries(self, key: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield all entries, or that of one key."""
        if key is None:
            yield from self._store.scan()
        elif (value := self._store.get(key)) is not None:
            yield key, value

    def rows(self, key: bytes, data: bytes) -> Iterator[StateRow]:
        """Yield the one row of an entry."""
        yield StateRow(key, value=data)


Rows = StoredRows | StoredEntries
"""The rows of a table in one store."""


class ByteKeys:
    """Takes the keys of a store that a reader names, as `KeyRouter` those of a variable."""

    def encode(self, key: object) -> bytes:
        """Return a key as it is stored: it is bytes, by itself or as the only one of a sequence.

        Raises:
            ConfigError: It is something else.
        """
        values = as_sequence(key)
        found = values[0] if values is not None and len(values) == 1 else key
        if not isinstance(found, bytes):
            raise ConfigError(
                f"a key of a store in plain Python is bytes: key={key!r}",
                hint="give bytes, such as b'user-1'; as text they are hexadecimal",
            )
        return found

    def task_of(self, key: bytes) -> int | None:  # noqa: ARG002 - as `KeyRouter`
        """Return None: which task has a key is known to the program alone."""
        return None
