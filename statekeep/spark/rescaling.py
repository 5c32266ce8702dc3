"""The state of a Spark job on another number of tasks: each key where Spark's hash puts it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from pyspark.sql.types import StructType
from typing_extensions import override

from statekeep.checkpoint.checkpoints import TaskName
from statekeep.errors import CheckpointCorruptError, StateSchemaError
from statekeep.inspection.splitting import RoutedWrites, StateSplitter
from statekeep.spark.operator.clock import TIME_BYTES
from statekeep.spark.operator.evolution import (
    MAX_SCHEMA_NUMBER,
    EvolutionError,
    schema_header,
    split_header,
)
from statekeep.spark.operator.expiry import with_values
from statekeep.spark.operator.key_hash import KeyHasher, partition_of_hash
from statekeep.spark.operator.registry import (
    REGISTRY_KEY,
    RegisteredVariable,
    check_evolution,
    decode_registry,
    encode_registry,
    simple_schema,
)
from statekeep.stores.base import KeyValueStore

_ID_BYTES = 2


class SparkSplitter(StateSplitter):
    """Routes the entries of state variables by their grouping key (`statekeep.spark.placement`).

    Two tasks may have numbered their variables differently, where some were added or deleted over
    time: the new tasks have one numbering, and the keys of entries are written in it.
    """

    def __init__(self, partitions: int) -> None:
        super().__init__(partitions)
        self._registry = MergedRegistry()

    @override
    def split(
        self,
        task: TaskName,
        source: KeyValueStore,
        targets: Sequence[KeyValueStore],
        on_entries: Callable[[int], None],
    ) -> None:
        routed = RoutedEntries(source, len(targets))
        if routed.registry is None:
            return
        moves = self._registry.add(routed.registry)
        writes = RoutedWrites(task, targets, self.counts, on_entries)
        for partition, key, value in routed:
            writes.add(partition, *moves.moved(key, value))
        writes.flush()

    @override
    def finish(self, targets: Sequence[KeyValueStore]) -> None:
        for partition, store in enumerate(targets):
            if self.counts[partition]:
                store.put(REGISTRY_KEY, self._registry.encode())


class RoutedEntries:
    """The entries of one task's store, without its registry, each with the number of its new task."""

    def __init__(
        self, source: KeyValueStore, partitions: int, own: tuple[int, int] | None = None
    ) -> None:
        """Read the registry.

        Args:
            source: The store.
            partitions: How many new tasks the operator has.
            own: The number of the old task, and of how many; None: keys that belong to another
                one are taken.

        Raises:
            CheckpointCorruptError: The registry cannot be read, or is missing where there is state.
        """
        self._source = source
        self._partitions = partitions
        self._own = own
        self.registry = source.get(REGISTRY_KEY)
        """None: the store is empty."""
        if self.registry is None:
            _require_empty(source)

    def __iter__(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield each entry, ordered by its key.

        Raises:
            CheckpointCorruptError: One cannot be routed, or is in a task that it does not belong to.
        """
        if self.registry is None:
            return
        key_schema, variables = decode_registry(self.registry)
        route = _Route(key_schema, self._partitions, self._own)
        starts = {
            v.prefix: _ID_BYTES + (TIME_BYTES if v.kind == "by_time" else 0)
            for v in variables.values()
        }
        for key, value in self._source.scan():
            if key == REGISTRY_KEY:
                continue
            start = starts.get(key[:_ID_BYTES])
            if start is None:
                raise CheckpointCorruptError(f"entry of an unknown variable: key={key.hex()}")
            yield route(key, start), key, value


class Moves:
    """What becomes of the entries of one task's store."""

    def __init__(self, moves: Mapping[bytes, "_Move"]) -> None:
        self._moves = moves

    @property
    def is_none(self) -> bool:
        """Whether every entry stays as it is."""
        return all(not m.numbers and m.prefix == prefix for prefix, m in self._moves.items())

    def moved(self, key: bytes, value: bytes) -> tuple[bytes, bytes]:
        """Return an entry as the new task has it."""
        move = self._moves[key[:_ID_BYTES]]
        return move.prefix + key[_ID_BYTES:], move.renumbered(value)


@dataclass(frozen=True, slots=True)
class _Move:
    """What becomes of the entries of one variable of one task."""

    prefix: bytes
    numbers: Mapping[int, int]
    """``{number of a schema there: number here}``; empty where all are the same."""
    expires: bool
    """Whether entries have a time to live."""
    is_list: bool

    def renumbered(self, entry: bytes) -> bytes:
        """Return an entry with the numbers that its schemas have here."""
        if not self.numbers:
            return entry
        if self.expires:
            return with_values(entry, self._renumbered, is_list=self.is_list)
        return self._renumbered(entry)

    def _renumbered(self, value: bytes) -> bytes:
        number, body = split_header(value)
        if number not in self.numbers:
            raise CheckpointCorruptError(f"entry of an unknown schema: number={number}")
        return schema_header(self.numbers[number]) + body


class MergedRegistry:
    """One numbering for the variables of all tasks, by name, and for the schemas of each variable.

    Variables keep the number that the first task with them has, unless another one has taken it: where
    all tasks have one numbering, stored keys stay as they are, and so do digests of changes. The same
    registries in the same order give the same numbering.
    """

    def __init__(self) -> None:
        self._key_schema: StructType | None = None
        self._variables: dict[str, RegisteredVariable] = {}

    def add(self, registry: bytes) -> Moves:
        """Take in the registry of one task; return what becomes of its entries.

        Raises:
            CheckpointCorruptError: It cannot be read.
            StateSchemaError: Two tasks have a variable of one name, but not of one form.
        """
        key_schema, variables = decode_registry(registry)
        if self._key_schema is None:
            self._key_schema = key_schema
        elif self._key_schema.simpleString() != key_schema.simpleString():
            raise StateSchemaError(
                "tasks have different grouping keys: "
                f"found={self._key_schema.simpleString()} other={key_schema.simpleString()}"
            )
        return Moves(
            {variable.prefix: self._move(name, variable) for name, variable in variables.items()}
        )

    def encode(self) -> bytes:
        """Return the registry of every new task that has state.

        Raises:
            StateSchemaError: No schema of a variable can take the values of all others.
        """
        variables = {name: _readable(name, found) for name, found in self._variables.items()}
        return encode_registry(self._key_schema or StructType(), variables)

    def _move(self, name: str, variable: RegisteredVariable) -> _Move:
        known = self._variables.get(name)
        if known is None:
            taken = {v.id for v in self._variables.values()}
            number = variable.id if variable.id not in taken else max(taken) + 1
            known = msgspec.structs.replace(variable, id=number)
            self._variables[name] = known
            return _Move(known.prefix, {}, known.expires, known.kind == "list")
        merged, numbers = _merged(name, known, variable)
        self._variables[name] = merged
        is_same = all(here == there for there, here in numbers.items())
        moved: Mapping[int, int] = {} if is_same else numbers
        return _Move(merged.prefix, moved, merged.expires, merged.kind == "list")


def _merged(
    name: str, known: RegisteredVariable, other: RegisteredVariable
) -> tuple[RegisteredVariable, Mapping[int, int]]:
    """Return the variable with the schemas of both, and the numbers here of the other's schemas."""
    here = {simple_schema(text): number for number, text in known.schemas.items()}
    schemas = dict(known.schemas)
    numbers: dict[int, int] = {}
    for there, text in sorted(other.schemas.items()):
        number = here.setdefault(simple_schema(text), max(schemas) + 1)
        schemas.setdefault(number, text)
        numbers[there] = number
    # A schema that the other one was changed from is the older one of the two.
    is_other_newer = simple_schema(known.schema) in map(simple_schema, other.others.values())
    merged = known.with_schemas(schemas, numbers[other.number] if is_other_newer else known.number)
    forms = [(v.kind, v.map_key_schema, v.expires) for v in (known, other)]
    is_alike = forms[0] == forms[1]
    if not is_alike or max(schemas) > MAX_SCHEMA_NUMBER:
        raise StateSchemaError(f"tasks have different forms of a state variable: name={name}")
    return merged, numbers


def _readable(name: str, variable: RegisteredVariable) -> RegisteredVariable:
    """Return the variable with a schema as which all its entries can be read."""
    schemas = variable.schemas
    failure: EvolutionError | None = None
    for number in sorted(schemas, key=lambda n: (n != variable.number, -n)):
        candidate = variable.with_schemas(schemas, number)
        try:
            check_evolution(candidate)
        except EvolutionError as exc:
            failure = failure or exc
        else:
            return candidate
    raise StateSchemaError(f"tasks have different forms of a state variable: name={name} {failure}")


class _Route:
    """From a stored key to its task; remembers the last grouping key, as maps have many entries."""

    def __init__(
        self, key_schema: StructType, partitions: int, own: tuple[int, int] | None
    ) -> None:
        self._hasher = KeyHasher(key_schema)
        self._partitions = partitions
        self._own = own
        self._front = b""
        self._partition = -1

    def __call__(self, key: bytes, start: int) -> int:
        """Return the task of a stored key whose grouping key begins at ``start``."""
        if not (self._front and key.startswith(self._front)):
            value, end = self._hasher.hash_front(key[start:])
            self._front = key[: start + end]
            self._partition = partition_of_hash(value, self._partitions)
            if self._own is not None:
                found, (expected, count) = partition_of_hash(value, self._own[1]), self._own
                if found != expected:
                    raise CheckpointCorruptError(
                        "a task has a key of another one: "
                        f"key={key.hex()} task={expected} of={count} belongs_to={found}"
                    )
        return self._partition


def _require_empty(source: KeyValueStore) -> None:
    first = next(source.scan(), None)
    if first is not None:
        raise CheckpointCorruptError(f"state without a registry of variables: key={first[0].hex()}")
