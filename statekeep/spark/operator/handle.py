"""What a processor's ``init`` gets: the door to its state variables."""

from collections import Counter
from collections.abc import Iterator
from typing import Final, TypeVar

from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from statekeep.errors import ConfigError, StateSchemaError
from statekeep.spark.operator.changes import ChangeWriter
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.codec import ValueCodec
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.expiry import ExpiringEntries, ExpiringItems, ExpiringListState
from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.operator.registry import (
    RegisteredVariable,
    VariableKind,
    VariableRegistry,
    value_codec,
)
from statekeep.spark.operator.timers import Timers
from statekeep.spark.operator.variables import (
    KeyCursor,
    LocalListState,
    LocalMapState,
    LocalValueState,
    LocalVariable,
    StateAccess,
)
from statekeep.stores.base import KeyValueStore

_V = TypeVar("_V", bound=LocalVariable)
TIMER_NAMES: Final = {TimeMode.PROCESSING: "$procTimers", TimeMode.EVENT: "$eventTimers"}
"""Names in the registry, as Spark has them; a processor's own begin with a letter."""
_NO_SCHEMA: Final = StructType()


def timer_index(mode: TimeMode) -> str:
    """Return the name of the index by time of a mode's timers."""
    return f"{TIMER_NAMES[mode]}_byTime"


def _expiry_index(name: str) -> str:
    return f"$ttl_{name}"


class LocalHandle(StatefulProcessorHandle):
    """A `StatefulProcessorHandle` whose variables live in a local store.

    Variables are declared in the processor's ``init`` only; `seal` ends it. The runner moves the
    cursor from key to key, calls `flush` before it leaves a chunk of keys, and `close` at the end.

    Attributes:
        clock: The time of the batch; None where no state is used.
        declared_counts: How many variables of each kind ``init`` has declared and deleted, by
            Spark's names of metrics.
    """

    def __init__(
        self,
        store: KeyValueStore,
        cursor: KeyCursor,
        writer: ChangeWriter,
        key_schema: StructType,
        *,
        time_mode: TimeMode = TimeMode.NONE,
        clock: BatchClock | None = None,
    ) -> None:
        """Read the registry of the store.

        Args:
            store: The task's state.
            cursor: Stands at the key that is processed.
            writer: Gets every change.
            key_schema: Of the grouping key.
            time_mode: Of the timers.
            clock: The time of the batch; None where no state is used.

        Raises:
            StateSchemaError: The store's format or grouping key is another one, or its timers are of
                another time mode.
        """
        self._store = store
        self._writer = writer
        self._access = StateAccess(store, cursor, writer)
        self._time_mode = time_mode
        self.clock = clock
        self._registry = VariableRegistry(store, key_schema, writer)
        self._variables: dict[str, LocalVariable] = {}
        self._expiring: dict[str, ExpiringEntries] = {}
        self._declared: set[str] = set()
        self.declared_counts = Counter[str]()
        self._is_sealed = False
        self.timers = self._open_timers(key_schema)
        """None in a time mode without timers."""

    def seal(self) -> None:
        """Refuse further declarations: ``init`` has returned."""
        self._is_sealed = True

    def flush(self) -> None:
        """Write the changes of all variables for the keys at hand."""
        for variable in self._variables.values():
            variable.flush()
        if self.timers is not None:
            self.timers.flush()

    def evict(self) -> int:
        """Remove what has outlived its time; return how many values that were.

        Called once nothing is left to `flush`. Variables that ``init`` does not declare any more are
        among them: what is left of them would be due for ever.
        """
        for name, variable in self._registry.expiring.items():
            if name not in self._expiring:
                self._expiring_entries(name, variable, 0)
        return sum(entries.evict() for entries in self._expiring.values())

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
        declared = self._codec(stateName, schema)
        registered, codec = self._register(stateName, "value", declared, ttlDurationMs)
        access = self._access_past(self._expiring_entries(stateName, registered, ttlDurationMs))
        return self._kept(stateName, LocalValueState(stateName, registered.prefix, codec, access))

    @override
    def getListState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ListState:
        declared = self._codec(stateName, schema)
        registered, codec = self._register(stateName, "list", declared, ttlDurationMs)
        entries = self._expiring_entries(stateName, registered, ttlDurationMs)
        make = LocalListState if entries is None else ExpiringListState
        access = self._access_past(entries)
        return self._kept(stateName, make(stateName, registered.prefix, codec, access))

    @override
    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        declared = self._codec(stateName, valueSchema)
        keys = _codec(stateName, userKeySchema)
        registered, codec = self._register(stateName, "map", declared, ttlDurationMs, keys)
        access = self._access_past(self._expiring_entries(stateName, registered, ttlDurationMs))
        return self._kept(
            stateName, LocalMapState(stateName, registered.prefix, keys, codec, access)
        )

    @override
    def deleteIfExists(self, stateName: str) -> None:
        self._require_init(stateName)
        variable = self._variables.pop(stateName, None)
        if variable is not None:
            variable.delete()
        self._expiring.pop(stateName, None)
        if self._registry.remove(stateName):
            self.declared_counts["numDeletedStateVars"] += 1
        self._registry.remove(_expiry_index(stateName))

    @override
    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._require_timers().register(expiryTimestampMs)

    @override
    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._require_timers().delete(expiryTimestampMs)

    @override
    def listTimers(self) -> Iterator[int]:
        return self._require_timers().list()

    def _open_timers(self, key_schema: StructType) -> Timers | None:
        for mode, name in TIMER_NAMES.items():
            if mode is not self._time_mode and name in self._registry:
                raise StateSchemaError(
                    "the state has timers of another time mode: "
                    f"stored={mode.value} timeMode={self._time_mode.value}"
                )
        if self._time_mode is TimeMode.NONE:
            return None
        by_key = self._registry.register(TIMER_NAMES[self._time_mode], "timers", _NO_SCHEMA)
        by_time = self._registry.register(timer_index(self._time_mode), "by_time", _NO_SCHEMA)
        return Timers(by_key.prefix, by_time.prefix, KeyCodec(key_schema), self._access)

    def _require_timers(self) -> Timers:
        if self.timers is None:
            raise ConfigError(
                "[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE] timers cannot be"
                " used with timeMode=None",
                hint='give transformWithState timeMode="ProcessingTime" or "EventTime"',
            )
        return self.timers

    def _codec(self, name: str, schema: StructType | str) -> ValueCodec:
        self._require_init(name)
        if name in self._declared:
            raise StateSchemaError(f"state variable is declared twice in init(): variable={name}")
        codec = _codec(name, schema)
        _require_nullable(name, codec.schema)
        return codec

    def _register(
        self,
        name: str,
        kind: VariableKind,
        declared: ValueCodec,
        ttl_ms: int | None,
        keys: ValueCodec | None = None,
    ) -> tuple[RegisteredVariable, ValueCodec]:
        """Return the variable as the store has it now, and what reads and writes its values."""
        if ttl_ms is not None:
            _check_ttl(name, ttl_ms, self._time_mode)
        key_schema = None if keys is None else keys.schema
        variable = self._registry.register(
            name, kind, declared.schema, key_schema, expires=ttl_ms is not None
        )
        return variable, value_codec(variable) if variable.others else declared

    def _expiring_entries(
        self, name: str, variable: RegisteredVariable, ttl_ms: int | None
    ) -> ExpiringEntries | None:
        """Return the entries of a variable with a time to live; None if it has none."""
        if ttl_ms is None:
            return None
        index = self._registry.register(_expiry_index(name), "by_time", _NO_SCHEMA)
        kind = ExpiringItems if variable.kind == "list" else ExpiringEntries
        prefixes = (variable.prefix, index.prefix)
        now_ms = 0 if self.clock is None else self.clock.processing_time_ms
        entries = kind(*prefixes, self._store, self._writer, now_ms=now_ms, ttl_ms=ttl_ms)
        self._expiring[name] = entries
        return entries

    def _access_past(self, entries: ExpiringEntries | None) -> StateAccess:
        """Return the access of a variable, to the entries that have not ended if these can."""
        if entries is None:
            return self._access
        return StateAccess(entries, self._access.cursor, entries, is_refreshed=True)

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


def _check_ttl(name: str, ttl_ms: object, mode: TimeMode) -> None:
    if mode is not TimeMode.PROCESSING:
        raise ConfigError(
            "[STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL] ttlDurationMs needs processing time:"
            f" variable={name} timeMode={mode.value}",
            hint='give transformWithState timeMode="ProcessingTime"',
        )
    if not isinstance(ttl_ms, int) or ttl_ms <= 0:
        raise ConfigError(
            "[STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE] ttlDurationMs must be a whole number of"
            f" milliseconds greater than zero: variable={name} ttlDurationMs={ttl_ms!r}",
            hint="leave ttlDurationMs out for state that stays",
        )


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
