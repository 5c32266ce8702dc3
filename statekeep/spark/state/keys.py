"""Grouping keys that a reader names: checked, encoded, and routed to their task."""

import datetime as dt
from collections.abc import Sequence
from typing import Any

from pyspark.sql.types import DataType, StructType, TimestampType

from statekeep.errors import ConfigError
from statekeep.spark.operator.codec import ValueCodec
from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.operator.key_hash import KeyHasher, partition_of_hash
from statekeep.spark.operator.scalars import MisfitError, as_mapping, as_sequence
from statekeep.spark.placement import operators_of
from statekeep.spark.state.key_text import in_utc


class KeyRouter:
    """Encodes the grouping keys of a job and tells which task has them."""

    def __init__(self, schema: StructType, router: str, tasks: range) -> None:
        """Prepare for the keys of an operator.

        Args:
            schema: Of the grouping key.
            router: Of the job, by its commit.
            tasks: Those of the operator.
        """
        self._schema = schema
        self._router = router
        self._tasks = tasks

    def encode(self, key: object) -> bytes:
        """Return a key as it is stored.

        Args:
            key: A mapping by name, a sequence of all fields, or the value of the one field. A timestamp without
                a zone is in UTC.

        Raises:
            ConfigError: It does not fit the grouping key.
        """
        values = [
            # As `write_state` takes it, whatever the zone of this host.
            in_utc(value) if _is_moment(value, field.dataType) else value
            for value, field in zip(self._values(key), self._schema.fields, strict=True)
        ]
        codec = ValueCodec(self._schema)
        try:
            # What a codec gives back is what a processor gets: rounded and scaled as declared.
            fitting = codec.decode(codec.encode(tuple(values)))
        except MisfitError as exc:
            raise self._misfit(tuple(values), str(exc)) from exc
        return KeyCodec(self._schema).encode(fitting)

    def task_of(self, key: bytes) -> int | None:
        """Return the number of the task that has an encoded key; None if that is not known here."""
        if operators_of(self._router) is None:
            return None
        key_hash = KeyHasher(self._schema).hash_front(key)[0]
        return self._tasks[partition_of_hash(key_hash, len(self._tasks))]

    def _values(self, key: object) -> Sequence[Any]:
        names = self._schema.names
        by_name = as_mapping(key)
        if by_name is not None:
            unknown = [str(name) for name in by_name if name not in names]
            missing = [name for name in names if name not in by_name]
            if unknown or missing:
                found = f"missing={','.join(missing)} unknown={','.join(unknown)}"
                raise self._misfit(by_name, found)
            return [by_name[name] for name in names]
        values = as_sequence(key)
        if values is None:
            values = (key,)
        if len(values) != len(names):
            raise self._misfit(key, f"values={len(values)} fields={len(names)}")
        return values

    def _misfit(self, key: object, found: str) -> ConfigError:
        return ConfigError(
            f"the key does not fit the grouping key: key={key!r} "
            f"expected={self._schema.simpleString()} {found}",
            hint="give a value for each field, in their order or by name, with the types that the"
            " stream is grouped by",
        )


def _is_moment(value: object, data_type: DataType) -> bool:
    return isinstance(value, dt.datetime) and isinstance(data_type, TimestampType)
