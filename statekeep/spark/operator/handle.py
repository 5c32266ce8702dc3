"""What a processor's ``init`` gets: the door to its state variables."""

from collections import Counter
from collections.abc import Iterator
from typing import NoReturn, TypeVar

from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from statekeep.errors import ConfigError, StateSchemaError
from statekeep.spark.operator.codec import ValueCodec
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.registry import VariableKind, VariableRegistry, value_codec
from statekeep.spark.operator.variables import (
    LocalListState,
    LocalMapState,
    LocalValueState,
    LocalVariable,
    StateAccess,
)

_V = TypeVar("_V", bound=LocalVariable)


class LocalHandle(StatefulProcessorHandle):
    """A `StatefulProcessorHandle` whose variables live in a local store.

    Variables are declared in the processor's ``init`` only; `seal` ends it. The runner moves the
    cursor from key to key, calls `flush` before it leaves a chunk of keys, and `close` at the end.

    Attributes:
        declared_counts: How many variables of each kind ``init`` has declared and deleted, by
            Spark's names of metrics.
    """

    def __init__(self, access: StateAccess, key_schema: StructType) -> None:
        """Read the registry of the store.

        Raises:
            StateSchemaError: The store's format or grouping key is another one.
        """
        self._access = access
        self._registry = VariableRegistry(access.store, key_schema, access.writer)
        self._variables: dict[str, LocalVariable] = {}
        self._declared: set[str] = set()
        self.declared_counts = Counter[str]()
        self._is_sealed = False

    def seal(self) -> None:
        """Refuse further declarations: ``init`` has returned."""
        self._is_sealed = True

    def flush(self) -> None:
        """Write the changes of all variables for the keys at hand."""
        for variable in self._variables.values():
            variable.flush()

    def close(self) -> None:
        """Refuse everything from now on: the batch is over, or has failed."""
        self.seal()
        for variable in self._variables.values():
            variable.retire("state variable is of a batch that is over")

    @property
    def undeclared(self) -> frozenset[str]:
        """The variables that the store holds and ``init`` has not declared."""
        return self._registry.names - self._declared

    @override
    def getValueState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ValueState:
        declared = self._codec(stateName, schema, ttlDurationMs)
        prefix, codec = self._register(stateName, "value", declared)
        return self._kept(stateName, LocalValueState(stateName, prefix, codec, self._access))

    @override
    def getListState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ListState:
        declared = self._codec(stateName, schema, ttlDurationMs)
        prefix, codec = self._register(stateName, "list", declared)
        return self._kept(stateName, LocalListState(stateName, prefix, codec, self._access))

    @override
    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        declared = self._codec(stateName, valueSchema, ttlDurationMs)
        keys = _codec(stateName, userKeySchema)
        prefix, codec = self._register(stateName, "map", declared, keys)
        return self._kept(stateName, LocalMapState(stateName, prefix, keys, codec, self._access))

    @override
    def deleteIfExists(self, stateName: str) -> None:
        self._require_init(stateName)
        variable = self._variables.pop(stateName, None)
        if variable is not None:
            variable.delete()
        if self._registry.remove(stateName):
            self.declared_counts["numDeletedStateVars"] += 1

    @override
    def registerTimer(self, expiryTimestampMs: int) -> None:
        _refuse("timers")

    @override
    def deleteTimer(self, expiryTimestampMs: int) -> None:
        _refuse("timers")

    @override
    def listTimers(self) -> Iterator[int]:
        _refuse("timers")

    def _codec(self, name: str, schema: StructType | str, ttl_ms: int | None) -> ValueCodec:
        self._require_init(name)
        if ttl_ms is not None:
            _refuse("time to live of state variables (ttlDurationMs)")
        if name in self._declared:
            raise StateSchemaError(f"state variable is declared twice in init(): variable={name}")
        codec = _codec(name, schema)
        _require_nullable(name, codec.schema)
        return codec

    def _register(
        self, name: str, kind: VariableKind, declared: ValueCodec, keys: ValueCodec | None = None
    ) -> tuple[bytes, ValueCodec]:
        """Return what the keys of its entries begin with, and what reads and writes its values."""
        key_schema = None if keys is None else keys.schema
        variable = self._registry.register(name, kind, declared.schema, key_schema)
        return variable.prefix, value_codec(variable) if variable.others else declared

    def _kept(self, name: str, variable: _V) -> _V:
        self._variables[name] = variable
        self._declared.add(name)
        self.declared_counts[variable.metric] += 1
        return variable

    def _require_init(self, name: str) -> None:
        if self._is_sealed:
            raise ConfigError(
                f"state variables are declared and deleted in init() only: variable={name}"
            )


def _refuse(feature: str) -> NoReturn:
    raise ConfigError(f"not supported yet: {feature}")


def _codec(name: str, schema: StructType | str) -> ValueCodec:
    try:
        return ValueCodec(parse_schema(schema))
    except StateSchemaError as exc:
        exc.add_note(f"in the declaration of the state variable {name!r}")
        raise


def _require_nullable(name: str, schema: StructType) -> None:
    # Spark refuses them too (TRANSFORM_WITH_STATE_SCHEMA_MUST_BE_NULLABLE), with Avro encoding. The
    # state may hold nulls from a time when the field was declared otherwise.
    fields = [field.name for field in schema.fields if not field.nullable]
    if fields:
        error = StateSchemaError(
            "fields of a state variable are declared not null:"
            f" [TRANSFORM_WITH_STATE_SCHEMA_MUST_BE_NULLABLE] column family {name} must be nullable: "
            f"variable={name} fields={','.join(fields)}"
        )
        error.add_note("hint: leave out NOT NULL (in a StructField: nullable=True)")
        raise error
