"""Opens all state of a checkpoint location with Spark's own reader, to see that Spark can."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from statekeep.config.redact import redact_text
from statekeep.errors import CheckpointCorruptError
from statekeep.guarding.verifying import LoadedStore
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.failures import first_line
from statekeep.spark.native_state import NativeSource
from statekeep.spark.session import session_of_command

_PROCESSOR: Final = "transformWithState"
_TIMERS: Final = "TimerState"


def load_stores(spark: SparkSession, uri: str, batch: int) -> list[LoadedStore]:
    """Read every state store of a location at one batch, by Spark's ``statestore`` source. Blocking.

    All rows are read by executors, and counted. Nothing in the location is changed.

    Args:
        spark: The session; its executors reach the location.
        uri: The location, as Spark names it.
        batch: After which the state is read.

    Raises:
        CheckpointCorruptError: Spark cannot read a store.
        CheckpointLocationError: Spark cannot read what describes the state.
    """
    source = NativeSource(spark, CheckpointLocation(spark, uri), batch)
    return [
        LoadedStore(
            row.operatorId,
            row.operatorName,
            row.stateStoreName,
            variable,
            _count(source, row, variable, options),
        )
        for row in sorted(source.stores(), key=lambda r: (r.operatorId, r.stateStoreName))
        for variable, options in _parts(row)
    ]


def load_by_command(uri: str, batch: int, session_settings: Mapping[str, str]) -> list[LoadedStore]:
    """Do so in a session on this machine, which has the files; or in the one that there is already."""
    with session_of_command("local[*]", session_settings) as spark:
        return load_stores(spark, uri, batch)


def _parts(row: Row) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield what is read of a store: the name of a variable, and the options that select it."""
    if not row.operatorName.startswith(_PROCESSOR):
        yield "", {"storeName": row.stateStoreName}
        return
    variables: Sequence[Mapping[str, str]] = json.loads(row.operatorProperties)["stateVariables"]
    for declared in variables:
        name = declared["stateName"]
        if declared["stateVariableType"] == _TIMERS:
            yield name, {"readRegisteredTimers": "true"}
        else:
            yield name, {"stateVarName": name}


def _count(source: NativeSource, row: Row, variable: str, options: Mapping[str, str]) -> int:
    try:
        return source.read(operatorId=str(row.operatorId), **options).count()
    except (PySparkException, Py4JError) as exc:
        causes = re.findall(r"^\s*Caused by: (.*)$", str(exc), re.MULTILINE)
        raise CheckpointCorruptError(
            f"Spark cannot open the state: operator={row.operatorId} store={row.stateStoreName}"
            f" variable={variable} error={redact_text((causes or [first_line(exc)])[-1])}"
        ) from exc
