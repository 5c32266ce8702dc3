"""The one changed call: ``grouped(df.groupBy("id"), settings).transformWithState(...)``."""

# The JVM's objects and pyarrow have no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false, reportOptionalCall=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false

import re
from collections.abc import Mapping
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import DataType, StructType

from statekeep.config.load import load_spark_conf
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.spark.batch_query import transform_batch
from statekeep.spark.context_conf import own_entries
from statekeep.spark.dataframe import StatefulDataFrame
from statekeep.spark.given_settings import Settings, read_settings
from statekeep.spark.initial_state import InitialState
from statekeep.spark.operator.clock import TimeMode
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.declarations import check_declarations
from statekeep.spark.operator.group_state import TIME_MODES, GroupStateProcessor, StateFunction
from statekeep.spark.operator.inputs import FrameLimits
from statekeep.spark.operator.runner import OperatorSpec
from statekeep.spark.redaction import check_redaction
from statekeep.spark.session import check_session

_WATERMARK = "spark.watermarkDelayMs"
"""In the metadata of the column that `withWatermark` names."""
_OUTPUT_MODES = ("append", "update")
_INT_TO_DECIMAL = "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"
_NO_LIMIT = (1 << 31) - 1
_STATEFUL = {
    "Aggregate": "an aggregation",
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Distinct": "distinct",
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "TransformWithState": "transformWithState",
    "TransformWithStateInPySpark": "transformWithState",
    "GlobalLimit": "limit",
}


def grouped(data: GroupedData, settings: Settings | None = None) -> "StatefulGroupedData":
    """Wrap a grouped frame so that its stateful operators run on statekeep.

    Args:
        data: ``df.groupBy(...)`` of a streaming frame; or of a batch frame, whose state is dropped
            at the end of the query, as in Spark.
        settings: Statekeep's keys, over those in the Spark conf (``spark.statekeep.*``). Over both
            goes the environment of the driver (``STATEKEEP__*``).

    Raises:
        ConfigError: A setting is unknown or wrong, the session cannot keep tasks at their state,
            Spark's UI shows a secret, or a stateful Spark operator is upstream.
    """
    frame: DataFrame = data._df  # noqa: SLF001 - GroupedData has no public way to its frame
    # The state of a batch frame begins and ends with a query: nothing has to stay in its place.
    check_session(frame.sparkSession, is_forced=not frame.isStreaming)
    _check_upstream(frame)
    conf = load_spark_conf(own_entries(frame.sparkSession))
    if frame.isStreaming:
        check_redaction(frame.sparkSession, conf)
    return StatefulGroupedData(frame, _keys(data, frame), read_settings(settings, conf))


class StatefulGroupedData:
    """A grouped stream or batch: what Spark's `GroupedData` offers for state, with the same arguments."""

    def __init__(self, frame: DataFrame, keys: Mapping[str, Column | None], config: Config) -> None:
        self._frame = frame
        self._keys = keys
        self._config = config

    def transformWithState(  # noqa: N802, PLR0917 - Spark's signature
        self,
        statefulProcessor: StatefulProcessor,  # noqa: N803
        outputStructType: StructType | str,  # noqa: N803
        outputMode: str,  # noqa: N803
        timeMode: str,  # noqa: N803
        initialState: GroupedData | None = None,  # noqa: N803
        eventTimeColumnName: str = "",  # noqa: N803
    ) -> Any:  # noqa: ANN401 - see `_transform`
        """Run a processor on rows, as ``GroupedData.transformWithState`` does.

        Returns:
            A `StatefulDataFrame`; of a batch frame, a `DataFrame`.

        Raises:
            ConfigError: The processor cannot be sent to executors, or an argument, or ``init``, asks
                for what is not supported yet, such as ``eventTimeColumnName``.
            StateSchemaError: A state variable that ``init`` declares cannot be kept. As in Spark, it is
                called on the driver once, and `close` after it.
        """
        return self._transform(
            statefulProcessor,
            outputStructType,
            outputMode,
            timeMode,
            initialState,
            eventTimeColumnName,
            is_pandas=False,
        )

    def transformWithStateInPandas(  # noqa: N802, PLR0917 - Spark's signature
        self,
        statefulProcessor: StatefulProcessor,  # noqa: N803
        outputStructType: StructType | str,  # noqa: N803
        outputMode: str,  # noqa: N803
        timeMode: str,  # noqa: N803
        initialState: GroupedData | None = None,  # noqa: N803
        eventTimeColumnName: str = "",  # noqa: N803
    ) -> Any:  # noqa: ANN401 - see `_transform`
        """Run a processor on pandas frames, as ``GroupedData.transformWithStateInPandas`` does.

        Raises:
            ConfigError: As `transformWithState`.
        """
        return self._transform(
            statefulProcessor,
            outputStructType,
            outputMode,
            timeMode,
            initialState,
            eventTimeColumnName,
            is_pandas=True,
        )

    def applyInPandasWithState(  # noqa: N802 - Spark's name
        self,
        func: StateFunction,
        outputStructType: StructType | str,  # noqa: N803
        stateStructType: StructType | str,  # noqa: N803
        outputMode: str,  # noqa: N803
        timeoutConf: str,  # noqa: N803
    ) -> StatefulDataFrame:
        """Run a function on pandas frames, as ``GroupedData.applyInPandasWithState`` does.

        Raises:
            ConfigError: As `transformWithState`; or the frame is no stream, which Spark refuses too.
        """
        mode = TIME_MODES.get(timeoutConf)
        if mode is None:
            known = ", ".join(TIME_MODES)
            raise ConfigError(f"unknown timeout: timeoutConf={timeoutConf!r}", hint=f"use {known}")
        if not self._frame.isStreaming:
            raise ConfigError("applyInPandasWithState needs a stream")
        frame = _with_keys(self._frame, self._keys)
        processor = GroupStateProcessor(
            func,
            parse_schema(stateStructType),
            timeoutConf,
            StructType([frame.schema[name] for name in self._keys]),
            frame.columns,
            has_watermark=_event_time_column(frame.schema) is not None,
            time_zone=str(frame.sparkSession.conf.get("spark.sql.session.timeZone")),
        )
        stateful: StatefulDataFrame = self._transform(
            processor, outputStructType, outputMode, mode.value, None, "", is_pandas=True
        )
        return stateful

    def _transform(  # noqa: PLR0917 - Spark's arguments, in Spark's order
        self,
        processor: StatefulProcessor,
        output: StructType | str,
        output_mode: str,
        time_mode: str,
        initial_data: GroupedData | None,
        event_time_column: str,
        *,
        is_pandas: bool,
    ) -> Any:  # noqa: ANN401 - a StatefulDataFrame, or a DataFrame of a batch
        mode = _check_modes(output_mode, time_mode, event_time_column)
        if mode is not TimeMode.NONE and not self._frame.isStreaming:
            msg = f"timers and TTL are not supported yet on a batch frame: timeMode={time_mode!r}"
            raise ConfigError(msg, hint='use timeMode="None", or a stream with availableNow')
        pickled = _pickled(processor)
        schema = output if isinstance(output, StructType) else _parse_schema(output)
        frame = _with_keys(self._frame, self._keys)
        key_schema = StructType([frame.schema[name] for name in self._keys])
        if mode is TimeMode.EVENT and not _has_watermark(frame):
            raise ConfigError(
                "timers in event time need a watermark: timeMode=EventTime",
                hint='call withWatermark("<column>", "<delay>") before groupBy',
            )
        declared = check_declarations(cloudpickle.loads(pickled), key_schema, mode)
        conf = frame.sparkSession.conf
        initial = None if initial_data is None else _initial_state(initial_data, key_schema)
        operator = OperatorSpec(
            processor=processor,
            key_columns=tuple(self._keys),
            key_schema=key_schema,
            row_schema=frame.schema,
            output_schema=schema,
            is_pandas=is_pandas,
            grouping_max_bytes=self._config.task.grouping_max_bytes,
            is_widened=not isinstance(processor, GroupStateProcessor),
            time_mode=mode,
            event_time_column=_event_time_column(frame.schema),
            time_zone=str(conf.get("spark.sql.session.timeZone")),
            declared=declared,
            frame_limits=FrameLimits(
                _limit(conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")),
                _limit(conf.get("spark.sql.execution.arrow.maxBytesPerBatch", "64m")),
            ),
            initial_state=None if initial is None else initial.spec,
            is_int_taken_for_decimal=conf.get(_INT_TO_DECIMAL, "false") == "true",
        )
        if not frame.isStreaming:
            return transform_batch(frame, operator, pickled, initial)
        return StatefulDataFrame(frame, operator, self._config, initial=initial)


def _limit(text: str | None) -> int:
    """Read a limit of Spark's Arrow batches: a number of rows, or of bytes with a unit or without."""
    match = re.fullmatch(r"(-?\d+)([kmg]?)b?", (text or "-1").lower())
    if match is None or int(match[1]) <= 0:
        return _NO_LIMIT
    return min(int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]], _NO_LIMIT)


def _parse_schema(ddl: str) -> StructType:
    schema = DataType.fromDDL(ddl)
    if not isinstance(schema, StructType):
        msg = f"not a schema of columns: outputStructType={ddl!r}"
        raise ConfigError(msg)
    return schema


def _initial_state(data: GroupedData, key_schema: StructType) -> InitialState:
    frame: DataFrame = data._df  # noqa: SLF001 - GroupedData has no public way to its frame
    keys = _keys(data, frame)
    initial = InitialState(_with_keys(frame, keys), tuple(keys))
    initial.check(key_schema)
    return initial


def _with_keys(frame: DataFrame, keys: Mapping[str, Column | None]) -> DataFrame:
    for name, expression in keys.items():
        if expression is not None:
            frame = frame.withColumn(name, expression)
    return frame


def _keys(data: GroupedData, frame: DataFrame) -> dict[str, Column | None]:
    """Return the grouping columns: name to expression, None for a plain column of the frame."""
    expressions = data._jgd.groupingExprs()  # noqa: SLF001 - nothing public names them
    names = [field.name for field in data.agg(F.lit(1)).schema.fields][: expressions.size()]
    if not names:
        msg = "the stream is grouped by nothing"
        raise ConfigError(msg, hint="name the key: df.groupBy(...)")
    jvm: Any = frame.sparkSession.sparkContext._jvm  # noqa: SLF001
    to_column = jvm.org.apache.spark.sql.classic.ExpressionUtils.column
    keys: dict[str, Column | None] = {}
    for index, name in enumerate(names):
        expression = expressions.apply(index)
        is_plain = "Attribute" in expression.getClass().getSimpleName() and name in frame.columns
        keys[name] = None if is_plain else _column(to_column(expression))
    return keys


def _column(expression: Any) -> Column:  # noqa: ANN401 - a Java object
    from pyspark.sql.classic.column import Column as ClassicColumn  # noqa: PLC0415 - classic only

    return ClassicColumn(expression)


def _check_upstream(frame: DataFrame) -> None:
    """Refuse a stateful operator of Spark's upstream: it could not follow a replay."""
    pending = [frame._jdf.queryExecution().analyzed()]  # noqa: SLF001 - plans are the JVM's
    while pending:
        node = pending.pop()
        name = node.nodeName()
        children = node.children()
        below = [children.apply(index) for index in range(children.size())]
        streams = sum(child.isStreaming() for child in below)
        found = _STATEFUL.get(name) or ("a stream-stream join" if name == "Join" else None)
        if found is not None and streams > (1 if name == "Join" else 0):
            raise ConfigError(
                f"a stateful Spark operator is upstream: operator={found}",
                hint="do it inside the processor, or write it to a stream of its own first",
            )
        pending += below


def _has_watermark(frame: DataFrame) -> bool:
    pending: list[Any] = [frame._jdf.queryExecution().analyzed()]  # noqa: SLF001 - the JVM's plan
    while pending:
        node = pending.pop()
        if node.nodeName() == "EventTimeWatermark":
            return True
        children = node.children()
        pending += [children.apply(index) for index in range(children.size())]
    return False


def _event_time_column(schema: StructType) -> str | None:
    """Return the column that has a watermark; None if there is none, or it was dropped.

    Raises:
        ConfigError: There are several: rows that are late in one need not be in another.
    """
    found = [field.name for field in schema.fields if _WATERMARK in field.metadata]
    if len(found) > 1:
        raise ConfigError(
            f"several columns have a watermark: columns={','.join(found)}",
            hint="drop all but one before groupBy",
        )
    return found[0] if found else None


def _check_modes(output_mode: str, time_mode: str, event_time_column: str) -> TimeMode:
    if output_mode.lower() not in _OUTPUT_MODES:
        msg = f"output mode is not supported: outputMode={output_mode!r}"
        raise ConfigError(msg, hint="use Update or Append")
    if event_time_column:
        msg = f"eventTimeColumnName is not supported yet: eventTimeColumnName={event_time_column}"
        raise ConfigError(msg)
    return TimeMode.parse(time_mode)


def _pickled(processor: StatefulProcessor) -> bytes:
    try:
        return cloudpickle.dumps(processor)  # type: ignore[no-untyped-call, no-any-return] # vendored
    except Exception as exc:
        raise ConfigError(
            f"the processor cannot be sent to executors: class={type(processor).__name__}",
            hint="make clients, locks and open files in init(), not in the constructor",
        ) from exc
