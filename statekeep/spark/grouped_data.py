"""The one changed call: ``grouped(df.groupBy("id"), settings).transformWithState(...)``."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import DataType, StructField, StructType, TimestampType

from statekeep.clock import SystemClock
from statekeep.config.load import load_spark_conf
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.spark.batch_query import transform_batch
from statekeep.spark.context_conf import own_entries
from statekeep.spark.dataframe import GroupsBehindOperator, StatefulDataFrame, Upstream
from statekeep.spark.given_settings import Settings, read_settings
from statekeep.spark.initial_state import InitialState
from statekeep.spark.operator.arrow_function import ArrowFunction, ArrowProcessor
from statekeep.spark.operator.clock import TimeMode
from statekeep.spark.operator.combiner import Combiner
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.declarations import check_declarations
from statekeep.spark.operator.group_state import TIME_MODES, GroupStateProcessor, StateFunction
from statekeep.spark.operator.inputs import FrameLimits
from statekeep.spark.operator.runner import OperatorSpec
from statekeep.spark.plan import check_repeatable, plan_nodes, stateful_upstream
from statekeep.spark.redaction import check_redaction
from statekeep.spark.session import check_classic, check_session
from statekeep.spark.stage import Stage
from statekeep.spark.tasks import operator_name

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
    "Except": "subtract",  # a distinct and a join
    "Except All": "exceptAll",
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "TransformWithState": "transformWithState",
    "TransformWithStateInPandas": "transformWithState",  # of Spark 4.0
    "TransformWithStateInPySpark": "transformWithState",
    "GlobalLimit": "limit",
}


def grouped(
    data: GroupedData | GroupsBehindOperator, settings: Settings | None = None
) -> "StatefulGroupedData":
    """Wrap a grouped frame so that its stateful operators run on statekeep.

    Args:
        data: ``df.groupBy(...)`` of a streaming frame, which may come from such an operator; or of a
            batch frame, whose state is dropped at the end of the query, as in Spark.
        settings: Statekeep's keys, or a ``.toml`` or ``.properties`` file of them, over those in the
            Spark conf (``spark.statekeep.*``). Over both goes the environment of the driver
            (``STATEKEEP__*``). They are those of the query: a second operator takes them over if it
            is given none.

    Raises:
        ConfigError: A setting is unknown or wrong, the session cannot keep tasks at their state or is one
            of Spark Connect, Spark's UI shows a secret, a stateful Spark operator is upstream, ``data`` is
            not grouped, or a second operator has other settings than the first one.
    """
    if isinstance(data, GroupsBehindOperator):
        return _grouped_again(data, settings)
    check_classic(data)
    if not isinstance(data, GroupedData):  # pyright: ignore[reportUnnecessaryIsInstance] - seldom checked
        raise ConfigError(
            f"only a grouped frame has a stateful operator: given={type(data).__name__}",
            hint="give df.groupBy(...)",
        )
    frame: DataFrame = data._df  # noqa: SLF001 - GroupedData has no public way to its frame
    # The state of a batch frame begins and ends with a query: nothing has to stay in its place.
    check_session(frame.sparkSession, is_forced=not frame.isStreaming)
    _check_upstream(frame)
    conf = load_spark_conf(own_entries(frame.sparkSession))
    if frame.isStreaming:
        check_redaction(frame.sparkSession, conf)
    return StatefulGroupedData(frame, _keys(data, frame), read_settings(settings, conf))


def _grouped_again(data: GroupsBehindOperator, settings: Settings | None) -> "StatefulGroupedData":
    upstream = data.upstream
    frame: DataFrame = data.groups._df  # noqa: SLF001 - GroupedData has no public way to its frame
    if settings is not None:
        given = read_settings(settings, load_spark_conf(own_entries(frame.sparkSession)))
        if given.as_dict() != upstream.config.as_dict():
            raise ConfigError(
                "the settings differ from those of the operator before",
                hint="give them only to the first operator of the query",
            )
    return StatefulGroupedData(frame, _keys(data.groups, frame), upstream.config, upstream)


class StatefulGroupedData:
    """A grouped stream or batch: what Spark's `GroupedData` offers for state, with the same arguments."""

    def __init__(
        self,
        frame: DataFrame,
        keys: Mapping[str, Column | None],
        config: Config,
        upstream: Upstream | None = None,
    ) -> None:
        """Take what is grouped.

        Args:
            frame: The rows; behind an operator, an empty frame with their schema.
            keys: The grouping columns.
            config: The settings of the query.
            upstream: What is before, if that has an operator.
        """
        self._frame = frame
        self._keys = keys
        self._config = config
        self._upstream = upstream
        self._source = frame if upstream is None else upstream.source
        """The streaming input of the query, or the batch frame."""

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
                for what is not possible here.
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

    def transformWithStateInArrow(  # noqa: N802 - as its like
        self,
        func: ArrowFunction,
        outputStructType: StructType | str,  # noqa: N803 - as its like
        outputMode: str,  # noqa: N803 - as its like
        state: Mapping[str, StructType | str],
        combiner: Mapping[str, tuple[str, str]] | None = None,
    ) -> Any:  # noqa: ANN401 - see `_transform`
        """Run a function on record batches of Arrow, with state that it reads and writes in bulk.

        ``func(rows, state)`` is called with the rows of many keys, sorted by key: with all rows that
        a key has in the batch. It yields record batches or tables with the columns of the output. It
        must give the same for a key whatever keys come along with it, and give it in the order of keys.

        The state is what ``getValueState`` keeps: a query may change between this and
        ``transformWithState``. It has neither timers nor a time to live.

        Args:
            func: Gets a ``pyarrow.RecordBatch`` and each `ArrowValueState` by its name.
            outputStructType: Of the output.
            outputMode: ``Update`` or ``Append``.
            state: The schema of each state variable.
            combiner: Puts rows together before the shuffle: ``{name: (column, how)}``, where ``how``
                is ``sum``, ``min``, ``max`` or ``count``; ``("*", "count")`` counts rows. The rows
                that ``func`` gets have the grouping columns and these. A key may have several.

        Returns:
            A `StatefulDataFrame`; of a batch frame, a `DataFrame`.

        Raises:
            ConfigError: As `transformWithState`.
            StateSchemaError: A state variable cannot be kept as it is declared.
        """
        processor = ArrowProcessor(func, state)
        return self._transform(
            processor, outputStructType, outputMode, "None", None, "", combiner, is_pandas=False
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
        if not self._source.isStreaming:
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
        combined: Mapping[str, tuple[str, str]] | None = None,
        *,
        is_pandas: bool,
    ) -> Any:  # noqa: ANN401 - a StatefulDataFrame, or a DataFrame of a batch
        mode = _check_modes(output_mode, time_mode)
        pickled = _pickled(processor)
        schema = output if isinstance(output, StructType) else _parse_schema(output)
        output_time_column = None
        if event_time_column:
            schema, output_time_column = _with_event_time(schema, event_time_column, self._source)
        frame = _with_keys(self._frame, self._keys)
        key_schema = StructType([frame.schema[name] for name in self._keys])
        is_stream = self._source.isStreaming
        if mode is TimeMode.EVENT and is_stream and not _watermarks(self._source):
            raise ConfigError(
                "timers in event time need a watermark: timeMode=EventTime",
                hint='call withWatermark("<column>", "<delay>") before groupBy',
            )
        combiner = (
            None if combined is None else Combiner.of(combined, frame.schema, tuple(self._keys))
        )
        declared = check_declarations(cloudpickle.loads(pickled), key_schema, mode)
        conf = frame.sparkSession.conf
        initial = None if initial_data is None else _initial_state(initial_data, key_schema)
        operator = OperatorSpec(
            processor=processor,
            key_columns=tuple(self._keys),
            key_schema=key_schema,
            row_schema=frame.schema if combiner is None else combiner.schema,
            output_schema=schema,
            is_pandas=is_pandas,
            grouping_max_bytes=self._config.task.grouping_max_bytes,
            is_widened=not isinstance(processor, GroupStateProcessor),
            name=operator_name(0 if self._upstream is None else len(self._upstream.stages)),
            time_mode=mode,
            # A batch has no watermark, even where the metadata of a column still names one.
            event_time_column=_event_time_column(frame.schema) if is_stream else None,
            output_time_column=output_time_column,
            time_zone=str(conf.get("spark.sql.session.timeZone")),
            declared=declared,
            frame_limits=FrameLimits(
                _limit(conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")),
                _limit(conf.get("spark.sql.execution.arrow.maxBytesPerBatch", "64m")),
            ),
            initial_state=None if initial is None else initial.spec,
            combiner=combiner,
            is_int_taken_for_decimal=conf.get(_INT_TO_DECIMAL, "false") == "true",
        )
        if not is_stream:
            now_ms = SystemClock().time_ns() // 1_000_000
            return transform_batch(frame, operator, pickled, initial, now_ms)
        if self._upstream is None:
            return StatefulDataFrame(frame, (Stage(operator, initial),), self._config)
        check_repeatable(frame)
        before = self._upstream.transformations
        stage = Stage(operator, initial, (*before, partial(_with_keys, keys=self._keys)))
        stages = (*self._upstream.stages, stage)
        return StatefulDataFrame(self._source, stages, self._config)


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
    java: Any = data._jgd  # noqa: SLF001 - nothing public names them
    expressions = java.groupingExprs()
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
    for node, below in plan_nodes(frame):
        name = node.nodeName()
        streams = sum(child.isStreaming() for child in below)
        found = _STATEFUL.get(name) or ("a stream-stream join" if name == "Join" else None)
        if found is not None and streams > (1 if name == "Join" else 0):
            raise stateful_upstream(found)


def _watermarks(frame: DataFrame) -> list[Any]:
    """Return the watermarks in the plan of a frame, as the JVM has them, from right to left."""
    return [node for node, _ in plan_nodes(frame) if node.nodeName() == "EventTimeWatermark"]


def _with_event_time(schema: StructType, name: str, frame: DataFrame) -> tuple[StructType, str]:
    """Return the output schema with the watermark on the column that has the event time, and its name.

    Raises:
        ConfigError: There is no such column, it has no times, or the input has no watermark.
    """
    watermarks = _watermarks(frame)
    if not watermarks:
        raise ConfigError(
            "[CANNOT_ASSIGN_EVENT_TIME_COLUMN_WITHOUT_WATERMARK] the input has no watermark that a column"
            f" of the output could take over: eventTimeColumnName={name}",
            hint='call withWatermark("<column>", "<delay>") before groupBy',
        )
    is_exact = str(frame.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true"
    found = [
        field
        for field in schema.fields
        if field.name == name or (not is_exact and field.name.lower() == name.lower())
    ]
    if len(found) != 1:
        raise ConfigError(
            f"the output has no such column: eventTimeColumnName={name} columns={','.join(schema.names)}",
            hint="name one column of outputStructType",
        )
    column = found[0]
    kind = column.dataType
    if not isinstance(kind, TimestampType) and not (
        isinstance(kind, StructType) and kind.names == ["start", "end"]
    ):
        raise ConfigError(
            "[EVENT_TIME_IS_NOT_ON_TIMESTAMP_TYPE] the event time must be a timestamp, or a window:"
            f" eventTimeColumnName={name} type={kind.simpleString()}"
        )
    jvm: Any = frame.sparkSession.sparkContext._jvm  # noqa: SLF001
    plans = jvm.org.apache.spark.sql.catalyst.plans.logical
    delay_ms = int(plans.EventTimeWatermark.getDelayMs(watermarks[-1].delay()))
    marked = StructField(
        column.name, kind, column.nullable, {**column.metadata, _WATERMARK: delay_ms}
    )
    fields = [marked if field is column else field for field in schema.fields]
    return StructType(fields), column.name


def _event_time_column(schema: StructType) -> str | None:
    """Return the column that has a watermark; None if there is none, or it was dropped.

    Raises:
        ConfigError: There are several: rows that are late in one need not be in another.
    """
    found = [field.name for field in schema.fields if _WATERMARK in field.metadata]
    if len(found) > 1:
        raise ConfigError(
            f"[MULTIPLE_EVENT_TIME_COLUMNS] several columns have a watermark: columns={','.join(found)}",
            hint="drop all but one before groupBy",
        )
    return found[0] if found else None


def _check_modes(output_mode: str, time_mode: str) -> TimeMode:
    if output_mode.lower() not in _OUTPUT_MODES:
        msg = f"output mode is not supported: outputMode={output_mode!r}"
        raise ConfigError(msg, hint="use Update or Append")
    return TimeMode.parse(time_mode)


def _pickled(processor: StatefulProcessor) -> bytes:
    if isinstance(processor, type):
        raise ConfigError(
            f"the processor is a class: class={processor.__name__}",
            hint=f"give an object of it: {processor.__name__}()",
        )
    try:
        return cloudpickle.dumps(processor)  # type: ignore[no-untyped-call, no-any-return] # vendored
    except Exception as exc:
        raise ConfigError(
            f"the processor cannot be sent to executors: class={type(processor).__name__}",
            hint="make clients, locks and open files in init(), not in the constructor",
        ) from exc
