"""State variables and timers that tell a trace what a processor does with them.

Each call goes on to the variable that the runtime has. What is shown before and after it is read so that the
changes that are written at the end, and their digest, are those of a run without a trace.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.streaming.stateful_processor import ListState, MapState, ValueState
from pyspark.sql.types import StructType
from typing_extensions import override

from statekeep.spark.batch_replay.trace import TIMERS, Step, Tracer, first_of, named, plain
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.handle import LocalHandle
from statekeep.spark.operator.variables import LocalListState, LocalMapState, LocalValueState
from statekeep.spark.tasks import STATE_STORE


class TracedHandle(LocalHandle):
    """The handle of the runtime, with all it holds, whose variables are traced."""

    def __init__(self, handle: LocalHandle, tracer: Tracer) -> None:
        # One handle in two classes: what either of them is told, both know.
        self.__dict__ = vars(handle)
        self._tracer = tracer

    @property
    def key_bytes(self) -> bytes:
        """The encoded key that is processed."""
        cursor = self._stores[STATE_STORE].access.cursor
        return cursor.key_bytes[cursor.index]

    @property
    def key(self) -> tuple[Any, ...]:
        """Its values."""
        return self._stores[STATE_STORE].access.cursor.key

    @override
    def getValueState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ValueState:
        found = super().getValueState(stateName, schema, ttlDurationMs)
        assert isinstance(found, LocalValueState)  # noqa: S101 - the handle makes no other
        return TracedValue(found, stateName, parse_schema(schema).names, self._tracer)

    @override
    def getListState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ListState:
        found = super().getListState(stateName, schema, ttlDurationMs)
        assert isinstance(found, LocalListState)  # noqa: S101 - as above
        return TracedList(found, stateName, parse_schema(schema).names, self._tracer)

    @override
    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        found = super().getMapState(stateName, userKeySchema, valueSchema, ttlDurationMs)
        assert isinstance(found, LocalMapState)  # noqa: S101 - as above
        names = parse_schema(userKeySchema).names, parse_schema(valueSchema).names
        return TracedMap(found, stateName, *names, self._tracer)

    @override
    def registerTimer(self, expiryTimestampMs: int) -> None:
        super().registerTimer(expiryTimestampMs)
        self._note("registerTimer", expiryTimestampMs)

    @override
    def deleteTimer(self, expiryTimestampMs: int) -> None:
        super().deleteTimer(expiryTimestampMs)
        self._note("deleteTimer", expiryTimestampMs)

    @override
    def listTimers(self) -> Iterator[int]:
        times = list(super().listTimers())
        self._note("listTimers", times)
        return iter(times)

    def _note(self, operation: str, time_ms: Any) -> None:  # noqa: ANN401 - one time or several
        self._tracer.add(Step(TIMERS, operation, None, plain(time_ms)))


class TracedValue(ValueState):
    """A value state that is traced."""

    def __init__(
        self, inner: LocalValueState, name: str, fields: Sequence[str], tracer: Tracer
    ) -> None:
        self._inner = inner
        self._name = name
        self._fields = fields
        self._tracer = tracer

    @override
    def exists(self) -> bool:
        found = self._inner.exists()
        self._note("exists", now := self._now(), now)
        return found

    @override
    def get(self) -> tuple[Any, ...] | None:
        found = self._inner.get()
        self._note("get", now := named(found, self._fields), now)
        return found

    @override
    def update(self, newValue: tuple[Any, ...]) -> None:
        before = self._now()
        self._inner.update(newValue)
        self._note("update", before, self._now())

    @override
    def clear(self) -> None:
        before = self._now()
        self._inner.clear()
        self._note("clear", before, self._now())

    def _now(self) -> Any:  # noqa: ANN401 - plain
        return named(self._inner.get(), self._fields)

    def _note(self, operation: str, before: Any, after: Any) -> None:  # noqa: ANN401 - plain
        self._tracer.add(Step(self._name, operation, before, after))


class TracedList(ListState):
    """A list state that is traced."""

    def __init__(
        self, inner: LocalListState, name: str, fields: Sequence[str], tracer: Tracer
    ) -> None:
        self._inner = inner
        self._name = name
        self._fields = fields
        self._tracer = tracer

    @override
    def exists(self) -> bool:
        now = self._now()
        found = self._inner.exists()
        self._note("exists", now)
        return found

    @override
    def get(self) -> Iterator[tuple[Any, ...]]:
        now = self._now()
        found = self._inner.get()
        self._note("get", now)
        return found

    @override
    def put(self, newState: list[tuple[Any, ...]]) -> None:
        before = self._now()
        self._inner.put(newState)
        self._note("put", before)

    @override
    def appendValue(self, newState: tuple[Any, ...]) -> None:
        before = self._now()
        self._inner.appendValue(newState)
        self._note("appendValue", before)

    @override
    def appendList(self, newState: list[tuple[Any, ...]]) -> None:
        before = self._now()
        self._inner.appendList(newState)
        self._note("appendList", before)

    @override
    def clear(self) -> None:
        before = self._now()
        self._inner.clear()
        self._note("clear", before)

    def _now(self) -> Any:  # noqa: ANN401 - plain
        items = self._inner.peek()
        return first_of(iter(items), lambda item: named(item, self._fields)) or None

    def _note(self, operation: str, before: Any) -> None:  # noqa: ANN401 - plain
        self._tracer.add(Step(self._name, operation, before, self._now()))


class TracedMap(MapState):
    """A map state that is traced: a step with a key of the map shows what that key has."""

    def __init__(
        self,
        inner: LocalMapState,
        name: str,
        key_fields: Sequence[str],
        fields: Sequence[str],
        tracer: Tracer,
    ) -> None:
        self._inner = inner
        self._name = name
        self._key_fields = key_fields
        self._fields = fields
        self._tracer = tracer

    @override
    def exists(self) -> bool:
        found = self._inner.exists()
        self._note_all("exists", self._all())
        return found

    @override
    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        found = self._inner.getValue(key)
        self._note("getValue", key, self._of(key))
        return found

    @override
    def containsKey(self, key: tuple[Any, ...]) -> bool:
        found = self._inner.containsKey(key)
        self._note("containsKey", key, self._of(key))
        return found

    @override
    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        before = self._of(key)
        self._inner.updateValue(key, value)
        self._note("updateValue", key, before)

    @override
    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        self._note_all("iterator", self._all())
        return self._inner.iterator()

    @override
    def keys(self) -> Iterator[tuple[Any, ...]]:
        self._note_all("keys", self._all())
        return self._inner.keys()

    @override
    def values(self) -> Iterator[tuple[Any, ...]]:
        self._note_all("values", self._all())
        return self._inner.values()

    @override
    def removeKey(self, key: tuple[Any, ...]) -> None:
        before = self._of(key)
        self._inner.removeKey(key)
        self._note("removeKey", key, before)

    @override
    def clear(self) -> None:
        before = self._all()
        self._inner.clear()
        self._note_all("clear", before)

    def _of(self, key: tuple[Any, ...]) -> Any:  # noqa: ANN401 - plain
        return named(self._inner.peek(key), self._fields)

    def _all(self) -> Any:  # noqa: ANN401 - plain
        def shown(entry: tuple[Sequence[Any], Sequence[Any]]) -> list[Any]:
            return [named(entry[0], self._key_fields), named(entry[1], self._fields)]

        return first_of(self._inner.iterator(), shown) or None

    def _note(self, operation: str, key: Any, before: Any) -> None:  # noqa: ANN401 - plain
        given: tuple[Any, ...] = (key,) if isinstance(key, str) else key
        shown = named(given, self._key_fields)
        self._tracer.add(Step(self._name, operation, before, self._of(given), shown))

    def _note_all(self, operation: str, before: Any) -> None:  # noqa: ANN401 - plain
        self._tracer.add(Step(self._name, operation, before, self._all()))
