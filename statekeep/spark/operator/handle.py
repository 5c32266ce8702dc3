"""What a processor's ``init`` gets: the door to its state variables."""

from collections.abc import Callable, Iterator
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
from statekeep.spark.operator.registry import RegisteredVariable, VariableKind, VariableRegistry
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
    cursor from key to key and calls `flush` before it leaves a chunk of keys.
    """

    def __init__(self, access: StateAccess, key_schema: StructType) -> None:
        """Read the registry of the store.

        Raises:
            StateSchemaError: The store's format or grouping key is another one.
        """
        self._access = access
        self._registry = VariableRegistry(access.store, key_schema, access.writer)
        self._variables: dict[str, LocalVariable] = {}
        self._is_sealed = False

    def seal(self) -> None:
        """Refuse further declarations: ``init`` has returned."""
        self._is_sealed = True

    def flush(self) -> None:
        """Write the changes of all variables for the keys at hand."""
        for variable in self._variables.values():
            variable.flush()

    @override
    def getValueState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ValueState:
        codec = self._codec(stateName, schema, ttlDurationMs)
        registered = self._register(stateName, "value", codec)
        return self._once(
            stateName,
            LocalValueState,
            lambda: LocalValueState(stateName, registered.prefix, codec, self._access),
        )

    @override
    def getListState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ListState:
        codec = self._codec(stateName, schema, ttlDurationMs)
        registered = self._register(stateName, "list", codec)
        return self._once(
            stateName,
            LocalListState,
            lambda: LocalListState(stateName, registered.prefix, codec, self._access),
        )

    @override
    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        keys = self._codec(stateName, userKeySchema, ttlDurationMs)
        codec = self._codec(stateName, valueSchema, ttlDurationMs)
        registered = self._register(stateName, "map", codec, keys)
        return self._once(
            stateName,
            LocalMapState,
            lambda: LocalMapState(stateName, registered.prefix, keys, codec, self._access),
        )

    @override
    def deleteIfExists(self, stateName: str) -> None:
        self._require_init(stateName)
        self._variables.pop(stateName, None)
        self._registry.remove(stateName)

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
        try:
            return ValueCodec(parse_schema(schema))
        except StateSchemaError as exc:
            exc.add_note(f"in the declaration of the state variable {name!r}")
            raise

    def _register(
        self, name: str, kind: VariableKind, codec: ValueCodec, keys: ValueCodec | None = None
    ) -> RegisteredVariable:
        key_schema = None if keys is None else keys.schema
        return self._registry.register(name, kind, codec.schema, key_schema)

    def _once(self, name: str, kind: type[_V], make: Callable[[], _V]) -> _V:
        variable = self._variables.get(name)
        if variable is None:
            variable = self._variables[name] = make()
        assert isinstance(variable, kind)  # noqa: S101 - the registry has checked the kind
        return variable

    def _require_init(self, name: str) -> None:
        if self._is_sealed:
            raise ConfigError(
                f"state variables are declared and deleted in init() only: variable={name}"
            )


def _refuse(feature: str) -> NoReturn:
    raise ConfigError(f"not supported yet: {feature}")
