"""The state of a Spark job on another number of tasks: each key where Spark's hash puts it."""

from collections.abc import Callable, Mapping, Sequence

import msgspec
from pyspark.sql.types import StructType
from typing_extensions import override

from statekeep.checkpoint.checkpoints import TaskName
from statekeep.errors import CheckpointCorruptError, StateSchemaError
from statekeep.inspection.splitting import RoutedWrites, StateSplitter
from statekeep.spark.operator.key_hash import KeyHasher, partition_of_hash
from statekeep.spark.operator.registry import (
    REGISTRY_KEY,
    RegisteredVariable,
    encode_registry,
    stored_variables,
)
from statekeep.stores.base import KeyValueStore

_ID_BYTES = 2


class SparkSplitter(StateSplitter):
    """Routes the entries of state variables by their grouping key (`statekeep.spark.anchor`).

    Two tasks may have numbered their variables differently, where some were added or deleted over
    time: the new tasks have one numbering, and the keys of entries are written in it.
    """

    def __init__(self, partitions: int) -> None:
        super().__init__(partitions)
        self._registry = _MergedRegistry()

    @override
    def split(
        self,
        task: TaskName,
        source: KeyValueStore,
        targets: Sequence[KeyValueStore],
        on_entries: Callable[[int], None],
    ) -> None:
        key_schema, variables = stored_variables(source)
        if not variables:
            _require_empty(source)
            return
        prefixes = self._registry.add(key_schema, variables)
        writes = RoutedWrites(task, targets, self.counts, on_entries)
        route = _Route(key_schema, len(targets))
        for key, value in source.scan():
            if key == REGISTRY_KEY:
                continue
            prefix = prefixes.get(key[:_ID_BYTES])
            if prefix is None:
                raise CheckpointCorruptError(f"entry of an unknown variable: key={key.hex()}")
            writes.add(route(key), prefix + key[_ID_BYTES:], value)
        writes.flush()

    @override
    def finish(self, targets: Sequence[KeyValueStore]) -> None:
        for partition, store in enumerate(targets):
            if self.counts[partition]:
                store.put(REGISTRY_KEY, self._registry.encode())


class _MergedRegistry:
    """One numbering for the variables of all tasks, by name."""

    def __init__(self) -> None:
        self._key_schema: StructType | None = None
        self._variables: dict[str, RegisteredVariable] = {}

    def add(
        self, key_schema: StructType, variables: Mapping[str, RegisteredVariable]
    ) -> Mapping[bytes, bytes]:
        """Take in the variables of one task; return ``{prefix there: prefix here}``.

        Raises:
            StateSchemaError: Two tasks have a variable of one name, but not of one form.
        """
        if self._key_schema is None:
            self._key_schema = key_schema
        elif self._key_schema.simpleString() != key_schema.simpleString():
            raise StateSchemaError(
                "tasks have different grouping keys: "
                f"found={self._key_schema.simpleString()} other={key_schema.simpleString()}"
            )
        return {
            variable.prefix: self._place(name, variable).prefix
            for name, variable in variables.items()
        }

    def encode(self) -> bytes:
        """Return the registry of every new task that has state."""
        return encode_registry(self._key_schema or StructType(), self._variables)

    def _place(self, name: str, variable: RegisteredVariable) -> RegisteredVariable:
        known = self._variables.get(name)
        if known is None:
            known = msgspec.structs.replace(variable, id=len(self._variables) + 1)
            self._variables[name] = known
        elif msgspec.structs.replace(variable, id=known.id) != known:
            raise StateSchemaError(f"tasks have different forms of a state variable: name={name}")
        return known


class _Route:
    """From a stored key to its task; remembers the last grouping key, as maps have many entries."""

    def __init__(self, key_schema: StructType, partitions: int) -> None:
        self._hasher = KeyHasher(key_schema)
        self._partitions = partitions
        self._front = b""
        self._partition = -1

    def __call__(self, key: bytes) -> int:
        if not (self._front and key.startswith(self._front)):
            value, end = self._hasher.hash_front(key[_ID_BYTES:])
            self._front = key[: _ID_BYTES + end]
            self._partition = partition_of_hash(value, self._partitions)
        return self._partition


def _require_empty(source: KeyValueStore) -> None:
    first = next(source.scan(), None)
    if first is not None:
        raise CheckpointCorruptError(f"state without a registry of variables: key={first[0].hex()}")
