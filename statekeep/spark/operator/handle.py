"""What a processor's ``init`` gets: the door to its state variables."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.errors import ConfigError, StateSchemaError
from statekeep.spark.operator.arrow_state import ArrowValueState
from statekeep.spark.operator.changes import ChangeWriter, combined_digest
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.codec import ValueCodec
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.expiry import (
    ExpiringEntries,
    ExpiringItems,
    ExpiringListState,
    expiry_index,
)
from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.operator.registry import (
    RegisteredVariable,
    VariableKind,
    VariableRegistry,
    value_codec,
)
from statekeep.spark.operator.timers import TIMER_NAMES, Timers, timer_index
from statekeep.spark.operator.variables import (
    KeyCursor,
    LocalListState,
    LocalMapState,
    LocalValueState,
    LocalVariable,
    StateAccess,
)
from statekeep.spark.tasks import STATE_STORE
from statekeep.spark.variable_stores import VariableStores
from statekeep.stores.base import KeyValueStore

_V = TypeVar("_V", bound=LocalVariable)
_NO_SCHEMA: Final = StructType()
_SESSION_KEY: Final = b"\x00\x00\x01"
"""Of a cache, under the id of its registry, which no variable has: the driver session that filled it."""


@dataclass(frozen=True, slots=True)
class _OpenStore:
    """One store, with what its variables share."""

    store: KeyValueStore
    writer: ChangeWriter
    registry: VariableRegistry
    access: StateAccess
    is_cache: bool


class LocalHandle(StatefulProcessorHandle):
    """A `StatefulProcessorHandle` whose variables live in local stores.

    Each store has a registry of its own variables, and the index of those with a time to live; the
    first one has the timers. Variables are declared in the processor's ``init`` only; `seal` ends
    it. The runner moves the cursor from key to key, calls `flush` before it leaves a chunk of keys,
    and `close` at the end.

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
        operator: str = MAIN_OPERATOR,
        others: Mapping[StoreName, KeyValueStore] | None = None,
        variable_stores: VariableStores | None = None,
        session: str = "",
    ) -> None:
        """Read the registries of the stores.

        Args:
            store: The task's store `STATE_STORE`.
            cursor: Stands at the key that is processed.
            writer: Gets every change of ``store``.
            key_schema: Of the grouping key.
            time_mode: Of the timers.
            clock: The time of the batch; None where no state is used.
            operator: Its name, for errors.
            others: The task's other stores.
            variable_stores: Which variables are in them.
            session: Of the driver. A cache of another one is emptied.

        Raises:
            StateSchemaError: The store's format or grouping key is another one, or its timers are of
                another time mode.
        """
        self._variable_stores = variable_stores or VariableStores()
        self._time_mode = time_mode
        self.clock = clock
        self._stores: dict[StoreName, _OpenStore] = {}
        for name, opened in {STATE_STORE: store, **(others or {})}.items():
            own = writer if name == STATE_STORE else ChangeWriter(opened)
            is_cache = name in self._variable_stores.caches
            _empty_of_other_session(opened, own, session.encode() if is_cache else None)
            self._stores[name] = _OpenStore(
                opened,
                own,
                VariableRegistry(opened, key_schema, own, operator),
                StateAccess(opened, cursor, own),
                is_cache,
            )
        self._registry = self._stores[STATE_STORE].registry
        self._variables: dict[str, LocalVariable] = {}
        self._expiring: dict[str, ExpiringEntries] = {}
        self._declared: set[str] = set()
        self._deleted: set[str] = set()
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
        among them: what is left of them would stay due.
        """
        for kept in self._stores.values():
            for name, variable in kept.registry.expiring.items():
                if name not in self._expiring:
                    self._expiring_entries(kept, name, variable, 0)
        return sum(entries.evict() for entries in self._expiring.values())

    def close(self) -> None:
        """Refuse everything from now on: the batch is over, or has failed."""
        self.seal()
        for variable in self._variables.values():
            variable.retire("state variable is of a batch that is over")

    @property
    def undeclared(self) -> frozenset[str]:
        """The variables that the stores hold and ``init`` has not declared."""
        held = (kept.registry.names for kept in self._stores.values())
        return frozenset[str]().union(*held) - self._declared

    @property
    def variables(self) -> frozenset[str]:
        """The variables that ``init`` has declared or deleted."""
        return frozenset(self._declared | self._deleted)

    @property
    def changed_keys(self) -> int:
        """How many entries of all stores were put or deleted."""
        return sum(kept.writer.changed_keys for kept in self._stores.values())

    @property
    def changes_digest(self) -> str:
        """The digest of all that was written; without caches, which a replay finds empty."""
        return combined_digest(kept.writer for kept in self._stores.values() if not kept.is_cache)

    def require_whole(self) -> None:
        """Raise the error of a failed write, which the caller may have caught."""
        for kept in self._stores.values():
            kept.writer.require_whole()

    @override
    def getValueState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ValueState:
        declared = self._codec(stateName, schema)
        kept, registered, codec = self._register(stateName, "value", declared, ttlDurationMs)
        access = self._access_past(kept, stateName, registered, ttlDurationMs)
        return self._kept(stateName, LocalValueState(stateName, registered.prefix, codec, access))

    @override
    def getListState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ListState:
        declared = self._codec(stateName, schema)
        kept, registered, codec = self._register(stateName, "list", declared, ttlDurationMs)
        make = LocalListState if ttlDurationMs is None else ExpiringListState
        access = self._access_past(kept, stateName, registered, ttlDurationMs)
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
        kept, registered, codec = self._register(stateName, "map", declared, ttlDurationMs, keys)
        access = self._access_past(kept, stateName, registered, ttlDurationMs)
        return self._kept(
            stateName, LocalMapState(stateName, registered.prefix, keys, codec, access)
        )

    def getArrowValueState(self, name: str, schema: StructType | str) -> ArrowValueState:  # noqa: N802 - as its like
        """Return a value state for many keys at once; it is stored as that of `getValueState`."""
        kept, registered, codec = self._register(name, "value", self._codec(name, schema), None)
        return self._kept(name, ArrowValueState(name, registered.prefix, codec, kept.access))

    @override
    def deleteIfExists(self, stateName: str) -> None:
        self._require_init(stateName)
        variable = self._variables.pop(stateName, None)
        if variable is not None:
            variable.delete()
        self._expiring.pop(stateName, None)
        self._deleted.add(stateName)
        for kept in self._stores.values():
            if kept.registry.remove(stateName):
                self.declared_counts["numDeletedStateVars"] += 1
            kept.registry.remove(expiry_index(stateName))

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
        access = self._stores[STATE_STORE].access
        return Timers(by_key.prefix, by_time.prefix, KeyCodec(key_schema), access)

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
            raise StateSchemaError(
                "[STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED] state variable is declared twice in"
                f" init(): variable={name}"
            )
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
    ) -> tuple[_OpenStore, RegisteredVariable, ValueCodec]:
        """Return the variable as its store has it now, and what reads and writes its values."""
        if ttl_ms is not None:
            _check_ttl(name, ttl_ms, self._time_mode)
        kept = self._stores[self._require_own_store(name)]
        key_schema = None if keys is None else keys.schema
        variable = kept.registry.register(
            name, kind, declared.schema, key_schema, expires=ttl_ms is not None
        )
        return kept, variable, value_codec(variable) if variable.others else declared

    def _require_own_store(self, name: str) -> StoreName:
        """Return the store of a variable; StateSchemaError if it has been put into another one."""
        own = self._variable_stores.store_of(name)
        for other, kept in self._stores.items():
            if other != own and name in kept.registry.names:
                raise _moved(name, other, own)
        return own

    def _expiring_entries(
        self, kept: _OpenStore, name: str, variable: RegisteredVariable, ttl_ms: int
    ) -> ExpiringEntries:
        """Return the entries of a variable with a time to live."""
        index = kept.registry.register(expiry_index(name), "by_time", _NO_SCHEMA)
        kind = ExpiringItems if variable.kind == "list" else ExpiringEntries
        prefixes = (variable.prefix, index.prefix)
        now_ms = 0 if self.clock is None else self.clock.processing_time_ms
        entries = kind(*prefixes, kept.store, kept.writer, now_ms=now_ms, ttl_ms=ttl_ms)
        self._expiring[name] = entries
        return entries

    def _access_past(
        self, kept: _OpenStore, name: str, variable: RegisteredVariable, ttl_ms: int | None
    ) -> StateAccess:
        """Return the access of a variable, to the entries that have not ended if these can."""
        if ttl_ms is None:
            return kept.access
        entries = self._expiring_entries(kept, name, variable, ttl_ms)
        return StateAccess(entries, kept.access.cursor, entries, is_refreshed=True)

    def _kept(self, name: str, variable: _V) -> _V:
        self._variables[name] = variable
        self._declared.add(name)
        self.declared_counts[variable.metric] += 1
        return variable

    def _require_init(self, name: str) -> None:
        if self._is_sealed:
            raise ConfigError(
                "[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE] state variables are"
                f" declared and deleted in init() only: variable={name}"
            )


def _empty_of_other_session(
    store: KeyValueStore, writer: ChangeWriter, session: bytes | None
) -> None:
    """Delete what a cache has from before this driver session; ``session`` is None for other stores.

    A start finds some tasks with their local files and restores others: a cache would be full in
    those, empty in these. So would be a store that was a cache before.
    """
    if store.get(_SESSION_KEY) == session:
        return
    writer.delete_prefix(b"")
    if session is not None:
        writer.announce(_SESSION_KEY, session)


def _moved(name: str, stored: StoreName, configured: StoreName) -> StateSchemaError:
    error = StateSchemaError(
        "the data of a state variable is in another store than the settings say: "
        f"variable={name} stored={stored} configured={configured}"
    )
    error.add_note(
        f"hint: set state.variables.{name}.store={stored} again, or declare a variable of another name"
        " for the new store"
    )
    return error


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
