"""The state of a query on Spark's own stateful operator, read by the sources that Spark has for it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from pyspark.sql.types import ArrayType, DataType, StructType

from statekeep.errors import CheckpointLocationError, ConfigError
from statekeep.spark.driver.first_start import operators_of_spark
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.operator.clock import TimeMode
from statekeep.spark.operator.group_state import STATE_VARIABLE, TIME_MODES
from statekeep.spark.operator.registry import VariableKind
from statekeep.spark.session import active

_PROCESSOR: Final = "transformWithState"
"""What the names of its operators begin with, by language and version of Spark."""
_FUNCTION: Final = "applyInPandasWithState"
_KINDS: Final[Mapping[str, VariableKind]] = {
    "ValueState": "value",
    "ListState": "list",
    "MapState": "map",
}
_TIME_MODES: Final = {
    "NoTime": TimeMode.NONE,
    "ProcessingTime": TimeMode.PROCESSING,
    "EventTime": TimeMode.EVENT,
}
_FORMAT: Final = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_IDS: Final = '"stateUniqueIds"'
"""In the commits of format 2."""
_NO_TIMEOUT: Final = -1
_END: Final = "ttlExpirationMs"


@dataclass(frozen=True, slots=True)
class NativeVariable:
    """One state variable. Its rows begin with ``key``, a struct of the grouping key.

    Then come ``value`` and ``end_ms``; of a map ``user_map_key`` before them; of a list
    ``items``, each with ``value`` and ``end_ms``. The end is null where it has no time to live.
    """

    name: str
    kind: VariableKind
    schema: StructType
    map_key_schema: StructType | None
    expires: bool
    rows: DataFrame


@dataclass(frozen=True, slots=True)
class NativeState:
    """What an operator held after a batch."""

    time_mode: TimeMode
    key_schema: StructType
    variables: Sequence[NativeVariable]
    timers: DataFrame | None
    """``key`` and ``time_ms``; None without timers."""


def read_native_state(
    spark: SparkSession, location: CheckpointLocation, batch: int, timeout: str | None
) -> NativeState:
    """Return the state of the one stateful operator of a query, as it was after a batch.

    Nothing is read of the state yet but its schemas.

    Args:
        spark: The session.
        location: The query's.
        batch: The batch.
        timeout: The ``timeoutConf`` of ``applyInPandasWithState``, which Spark stores nowhere.

    Raises:
        ConfigError: The query has several stateful operators or another one; or ``timeout`` is not
            given where it is needed, or is wrong.
        CheckpointLocationError: The location has no state, or it cannot be read.
    """
    source = NativeSource(spark, location, batch)
    name, properties = source.operator()
    if name == _FUNCTION:
        return _of_function(source, timeout)
    if not name.startswith(_PROCESSOR):
        raise ConfigError(
            f"the state of this operator is not imported: operator={name} location={location.uri}",
            hint=f"only that of {_PROCESSOR} and {_FUNCTION} is",
        )
    if timeout is not None:
        raise ConfigError(
            f"only {_FUNCTION} has a timeout: timeoutConf={timeout} operator={name}",
            hint="leave timeoutConf out",
        )
    return _of_processor(source, properties)


class NativeSource:
    """Spark's own readers of one location at one batch."""

    def __init__(self, spark: SparkSession, location: CheckpointLocation, batch: int) -> None:
        java: Any = spark._jsparkSession  # noqa: SLF001 - Python has no copy of a session
        self._spark = SparkSession(spark.sparkContext, java.cloneSession())
        self._location = location
        self._batch = batch
        # What else it needs to know, Spark stores with the offsets.
        has_ids = _IDS in location.require(f"commits/{batch}")
        self._spark.conf.set(_FORMAT, "2" if has_ids else "1")

    def stores(self) -> Sequence[Row]:
        """Return a row of Spark's ``state-metadata`` source for each store of each operator.

        Raises:
            CheckpointLocationError: Spark cannot read them.
        """
        try:
            return self._spark.read.format("state-metadata").load(self._location.uri).collect()
        except PySparkException as exc:
            raise self._unreadable() from exc

    def operator(self) -> tuple[str, Mapping[str, Any]]:
        """Return the name of the one operator, and its properties."""
        if not operators_of_spark(self._location):
            raise CheckpointLocationError(
                "no stateful operator of Spark has run here, or its query runs on Statekeep already: "
                f"location={self._location.uri}"
            )
        found = self.stores()
        named = sorted({(row.operatorId, row.operatorName) for row in found})
        if len(named) != 1:
            raise ConfigError(
                "the query has several stateful operators, and only one can be imported: "
                f"operators={','.join(f'{number}:{name}' for number, name in named)} "
                f"location={self._location.uri}"
            )
        return named[0][1], json.loads(found[0].operatorProperties or "{}")

    def read(self, **options: str) -> DataFrame:
        """Return rows of Spark's ``statestore`` source, which are not read yet.

        Raises:
            CheckpointLocationError: Spark cannot read their schema.
        """
        reader = self._spark.read.format("statestore").option("batchId", str(self._batch))
        try:
            with active(self._spark):
                return reader.options(**options).load(self._location.uri)
        except PySparkException as exc:
            raise self._unreadable() from exc

    def _unreadable(self) -> CheckpointLocationError:
        return CheckpointLocationError(
            f"Spark cannot read its own state: location={self._location.uri} batch={self._batch}"
        )


def _of_processor(source: NativeSource, properties: Mapping[str, Any]) -> NativeState:
    variables: list[NativeVariable] = []
    timers: DataFrame | None = None
    key_schema = StructType()
    for declared in properties["stateVariables"]:
        kind = _KINDS.get(declared["stateVariableType"])
        if kind is None:
            rows = source.read(readRegisteredTimers="true")
            timers = rows.select("key", F.col("expiration_timestamp_ms").alias("time_ms"))
        else:
            flat = "false" if kind == "list" else "true"
            rows = source.read(stateVarName=declared["stateName"], flattenCollectionTypes=flat)
            expires = bool(declared["ttlEnabled"])
            variables.append(_variable(declared["stateName"], kind, rows, expires=expires))
        key_schema = _struct(rows.schema["key"].dataType)
    if not key_schema.fields:
        raise ConfigError(
            "the processor has no state to import",
            hint="start the query here with a fresh checkpoint location",
        )
    mode = _TIME_MODES[properties["timeMode"]]
    return NativeState(mode, key_schema, sorted(variables, key=lambda v: v.name), timers)


def _variable(name: str, kind: VariableKind, rows: DataFrame, *, expires: bool) -> NativeVariable:
    if kind == "list":
        element = rows.schema["list_value"].dataType
        assert isinstance(element, ArrayType)  # noqa: S101 - Spark's own schema
        schema = _value_schema(element.elementType, expires=expires)
        items = F.transform("list_value", lambda item: F.struct(*_parts(item, expires=expires)))
        return NativeVariable(
            name, kind, schema, None, expires, rows.select("key", items.alias("items"))
        )
    column, own = ("user_map_value", ["user_map_key"]) if kind == "map" else ("value", [])
    schema = _value_schema(rows.schema[column].dataType, expires=expires)
    map_keys = _struct(rows.schema["user_map_key"].dataType) if own else None
    taken = rows.select("key", *own, *_parts(F.col(column), expires=expires))
    return NativeVariable(name, kind, schema, map_keys, expires, taken)


def _of_function(source: NativeSource, timeout: str | None) -> NativeState:
    rows = source.read()
    stored = _struct(rows.schema["value"].dataType)
    has_timeouts = "timeoutTimestamp" in stored.names
    allowed = [
        name for name, mode in TIME_MODES.items() if (mode is not TimeMode.NONE) == has_timeouts
    ]
    given = allowed[0] if timeout is None and not has_timeouts else timeout
    if given is None or given not in allowed:
        what = (
            "no timeouts" if not has_timeouts else "timeouts, and Spark does not store their clock"
        )
        raise ConfigError(
            f"the query had {what}: timeoutConf={timeout}",
            hint=f"give timeoutConf, as the query has it: {' or '.join(allowed)}",
        )
    value = F.col("value")
    values = rows.where(value["groupState"].isNotNull()).select(
        "key", *_parts(value["groupState"], expires=False)
    )
    schema = _struct(stored["groupState"].dataType)
    timers = None
    if has_timeouts:
        at = value["timeoutTimestamp"]
        # Timers fire at their time, timeouts once it has passed.
        timers = rows.where(at != _NO_TIMEOUT).select("key", (at + 1).alias("time_ms"))
    return NativeState(
        TIME_MODES[given],
        _struct(rows.schema["key"].dataType),
        [NativeVariable(STATE_VARIABLE, "value", schema, None, expires=False, rows=values)],
        timers,
    )


def _parts(stored: Any, *, expires: bool) -> Sequence[Any]:  # noqa: ANN401 - a column
    """Return the columns ``value`` and ``end_ms`` of a stored value."""
    if expires:
        return stored["value"].alias("value"), stored[_END].alias("end_ms")
    return stored.alias("value"), F.lit(None).cast("long").alias("end_ms")


def _value_schema(stored: DataType, *, expires: bool) -> StructType:
    return _struct(_struct(stored)["value"].dataType if expires else stored)


def _struct(data_type: DataType) -> StructType:
    assert isinstance(data_type, StructType)  # noqa: S101 - Spark's own schema
    return data_type
