"""A streaming source without rows, whose offsets let Spark run a batch when only time has passed.

Spark runs a batch of a query like ours only if a source has a new offset. Timers must fire on an idle
stream too, and event-time timers once more after the newest rows have moved the watermark. So jobs with
a time mode read this source beside their input. Its offset, ``{"statekeepTick": n}``, is part of
``offsets/<batch>``: a replay runs the same batches, at the same times.

The source lives in the driver's Python process; the JVM calls it as it calls ``foreachBatch``. A
`TickRule` for each operator says when a batch is needed.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention

from statekeep.clock import Clock
from statekeep.errors import CheckpointLocationError
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.due import NextTimes

_FIELD: Final = "statekeepTick"
SOURCE_NAME: Final = "statekeep-ticks"
"""Of the source in plans and progress reports."""

_VERSION: Final = "v1\n"
"""What the files begin with that have one line for each source, in the order of the sources."""
_READ: Final = "org.apache.spark.sql.connector.read"


class WantsBatch(Protocol):
    """Says before each batch whether Spark should run one now, whatever its input has."""

    def __call__(self, *, is_available_now: bool) -> bool:
        """As `TickRule.wants_batch`."""
        ...


def _never(*, is_available_now: bool) -> bool:  # noqa: ARG001 - as `WantsBatch`
    return False


class Ticks:
    """The ticks of one query, over all its runs.

    A run that `follow`s is asked for a tick before each batch. There are no ticks while a recovery replays.
    """

    def __init__(self, spark: SparkSession) -> None:
        """Make the source; no batch is asked for yet."""
        self._spark = spark
        self._stream = _Stream(spark.sparkContext._jvm, spark.sparkContext._gateway)  # noqa: SLF001

    def beside(self, frame: DataFrame) -> DataFrame:
        """Return a stream of the rows of ``frame``, whose last source are the ticks."""
        ticks = self._frame()
        # They have no rows: the columns only have to be of the same types.
        columns = [
            F.lit(None).cast(field.dataType).alias(field.name) for field in frame.schema.fields
        ]
        return frame.union(ticks.select(*columns))

    def follow(self, wants_batch: WantsBatch) -> None:
        """Ask ``wants_batch`` from now on."""
        self._stream.begin(wants_batch)

    def leave(self, wants_batch: WantsBatch) -> None:
        """Give no more ticks, unless another run follows by now: the end of a run may come late."""
        if self._stream.wants_batch == wants_batch:
            self._stream.begin(_never)

    def _frame(self) -> DataFrame:
        context = self._spark.sparkContext
        ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call] # noqa: SLF001 - as foreachBatch does
        jvm: Any = context._jvm  # noqa: SLF001 - no public way to a source in Python's process
        # The relation of a source of Spark's own, with the table in the place of its table.
        model = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        java: Any = model._jdf  # noqa: SLF001 - the JVM's plan
        relation: Any = java.queryExecution().analyzed()
        parts = [relation.productElement(i) for i in range(relation.productArity())]
        for index in range(len(parts)):
            match relation.productElementName(index):
                case "source" | "v1Relation":
                    parts[index] = jvm.scala.Option.empty()
                case "sourceName":
                    parts[index] = SOURCE_NAME
                case "table":
                    parts[index] = _Table(self._stream, java.schema())
                case _:
                    pass
        plan = jvm.org.apache.spark.sql.catalyst.streaming.StreamingRelationV2(*parts)
        dataset = jvm.org.apache.spark.sql.classic.Dataset
        return DataFrame(dataset.ofRows(self._spark._jsparkSession, plan), self._spark)  # noqa: SLF001


def has_ticks(offsets: str) -> bool:
    """Return whether the text of an ``offsets/<batch>`` file is of a query with ticks."""
    return any(line.startswith(f'{{"{_FIELD}"') for line in offsets.split("\n"))


def with_ticks(offsets: str) -> str:
    """Return the text of an ``offsets/<batch>`` file as if its query had had ticks from its beginning.

    One that has them is left as it is: an interrupted first start may have added them to one file.

    Raises:
        CheckpointLocationError: The file is of a version that is not known.
    """
    if not offsets.startswith(_VERSION):
        version = offsets.partition("\n")[0]
        raise CheckpointLocationError(
            f"offsets of a version to which no source can be added: version={version}"
        )
    return offsets if has_ticks(offsets) else f"{offsets}\n{_offset(0)}"


def _offset(number: int) -> str:
    return json.dumps({_FIELD: number}, separators=(",", ":"))


class _JavaObject:
    """What the JVM asks of any object; py4j asks the Python object for all of it."""

    def toString(self) -> str:  # noqa: N802 - Java's name
        return SOURCE_NAME

    def hashCode(self) -> int:  # noqa: N802 - Java's name
        return id(self) & 0x7FFFFFFF

    def equals(self, other: object) -> bool:
        return self is other


class _Stream(_JavaObject):
    """``MicroBatchStream``: what a running query asks; on the query's thread."""

    def __init__(self, jvm: Any, gateway: Any) -> None:  # noqa: ANN401 - py4j's objects
        self.jvm = jvm
        self.gateway = gateway
        self.wants_batch: WantsBatch = _never
        self._is_available_now = False

    def begin(self, wants_batch: WantsBatch) -> None:
        self._is_available_now = False
        self.wants_batch = wants_batch

    def initialOffset(self) -> Any:  # noqa: ANN401, N802 - Java's names from here on
        return self._offset(0)

    def deserializeOffset(self, text: str) -> Any:  # noqa: ANN401, N802
        return self._offset(json.loads(text)[_FIELD])

    def latestOffset(self, start: Any, limit: Any) -> Any:  # noqa: ANN401, ARG002, N802
        if not self.wants_batch(is_available_now=self._is_available_now):
            return start
        return self._offset(json.loads(start.json())[_FIELD] + 1)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._is_available_now = True

    def getDefaultReadLimit(self) -> Any:  # noqa: ANN401, N802
        return self._class(f"{_READ}.streaming.ReadLimit").allAvailable()

    def reportLatestOffset(self) -> None:  # noqa: N802
        return None

    def planInputPartitions(self, start: Any, end: Any) -> Any:  # noqa: ANN401, ARG002, N802
        return self.empty_array(f"{_READ}.InputPartition")

    def createReaderFactory(self) -> None:  # noqa: N802
        return None  # there is no partition to read

    def commit(self, end: Any) -> None:  # noqa: ANN401
        pass

    def stop(self) -> None:
        pass

    def empty_array(self, name: str) -> Any:  # noqa: ANN401
        return self.gateway.new_array(self._class(name), 0)

    def _offset(self, number: int) -> Any:  # noqa: ANN401
        # The package of Spark 4.0, in which later releases keep a maker of it.
        maker = self._class("org.apache.spark.sql.execution.streaming.SerializedOffset")
        return maker.apply(_offset(number))

    def _class(self, name: str) -> Any:  # noqa: ANN401
        found = self.jvm
        for part in name.split("."):
            found = getattr(found, part)
        return found

    class Java:
        implements: ClassVar[Sequence[str]] = [
            f"{_READ}.streaming.MicroBatchStream",
            f"{_READ}.streaming.SupportsTriggerAvailableNow",
        ]


class _Scan(_JavaObject):
    """``ScanBuilder`` and ``Scan`` in one."""

    def __init__(self, stream: _Stream, schema: Any) -> None:  # noqa: ANN401
        self._stream = stream
        self._schema = schema

    def build(self) -> "_Scan":
        return self

    def readSchema(self) -> Any:  # noqa: ANN401, N802
        return self._schema

    def description(self) -> str:
        return SOURCE_NAME

    def toMicroBatchStream(self, location: str) -> _Stream:  # noqa: ARG002, N802
        return self._stream

    def columnarSupportMode(self) -> Any:  # noqa: ANN401, N802
        scan = self._stream.jvm.org.apache.spark.sql.connector.read.Scan
        return scan.ColumnarSupportMode.UNSUPPORTED

    def supportedCustomMetrics(self) -> Any:  # noqa: ANN401, N802
        return self._stream.empty_array("org.apache.spark.sql.connector.metric.CustomMetric")

    def reportDriverMetrics(self) -> Any:  # noqa: ANN401, N802
        return self._stream.empty_array("org.apache.spark.sql.connector.metric.CustomTaskMetric")

    class Java:
        implements: ClassVar[Sequence[str]] = [f"{_READ}.ScanBuilder", f"{_READ}.Scan"]


class _Table(_JavaObject):
    """``Table`` of Spark's second API for sources."""

    def __init__(self, stream: _Stream, schema: Any) -> None:  # noqa: ANN401
        self._stream = stream
        self._schema = schema

    def name(self) -> str:
        return SOURCE_NAME

    def schema(self) -> Any:  # noqa: ANN401
        return self._schema

    def capabilities(self) -> Any:  # noqa: ANN401
        jvm = self._stream.jvm
        read = jvm.org.apache.spark.sql.connector.catalog.TableCapability.MICRO_BATCH_READ
        return jvm.java.util.Collections.singleton(read)

    def properties(self) -> Any:  # noqa: ANN401
        return self._stream.jvm.java.util.Collections.emptyMap()

    def newScanBuilder(self, options: Any) -> _Scan:  # noqa: ANN401, ARG002, N802
        return _Scan(self._stream, self._schema)

    class Java:
        implements: ClassVar[Sequence[str]] = [
            "org.apache.spark.sql.connector.catalog.SupportsRead"
        ]


_EVICTION_MS: Final = 60_000
"""What has outlived its time is invisible already: a batch of its own removes it only so long after
the batch before."""


class TickRule:
    """Decides for one run of a query what one of its operators needs.

    In event time it is Spark's rule: another batch once the newest one has moved the watermark. In
    processing time Spark runs batch after batch; here a batch comes when a timer is due, or while
    it is not known yet what is due. An availableNow run gets one such batch, with its first rows: as timers may
    register timers, it would not end otherwise.

    Used by the threads on which Spark runs the query, one at a time.
    """

    def __init__(
        self,
        mode: TimeMode,
        tasks: Collection[int],
        clock: Clock,
        read_watermark_ms: Callable[[], int],
    ) -> None:
        """Know nothing yet.

        Args:
            mode: Of the timers.
            tasks: Those of the operator.
            clock: Tells the time.
            read_watermark_ms: Returns the watermark that the next batch will have.
        """
        self._mode = mode
        self._tasks = tasks
        self._clock = clock
        self._read_watermark_ms = read_watermark_ms
        self._last: BatchClock | None = None
        self._next_watermark_ms: int | None = None
        self._times: dict[int, NextTimes] = {}
        self._next_batch_ms: int | None = None
        """When a batch is needed next; None: never, as far as is known."""
        self._has_ticked = False

    def note_batch(self, clock: BatchClock, times: Mapping[int, NextTimes]) -> None:
        """Record a batch that has run, and what tasks of any operator wait for."""
        self._last = clock
        self._next_watermark_ms = None
        self._times |= {task: known for task, known in times.items() if task in self._tasks}
        timers = [known.timer_ms for known in self._times.values() if known.timer_ms is not None]
        ends = [known.expiry_ms for known in self._times.values() if known.expiry_ms is not None]
        if ends:
            timers.append(max(min(ends), clock.processing_time_ms + _EVICTION_MS))
        self._next_batch_ms = min(timers, default=None)

    def forget(self) -> None:
        """Know no more what tasks wait for: a replay has given them another state than they had.

        May run beside `wants_batch`, where an idle query is healed.
        """
        self._times = {}

    def waiting(self, clock: BatchClock) -> frozenset[int]:
        """Return the tasks that may have something to do in a batch, rows or not."""
        return frozenset(
            task
            for task in self._tasks
            if (known := self._times.get(task)) is None or known.are_due(clock, self._mode)
        )

    def wants_batch(self, *, is_available_now: bool) -> bool:
        """Return whether Spark should run a batch now."""
        if self._mode is TimeMode.EVENT:
            return self._has_watermark_moved()
        if is_available_now and self._has_ticked:
            return False
        # By the wall clock, as Spark's time of the batch will be: this only says when to ask for it.
        is_known = len(self._times) == len(self._tasks)
        is_due = self._next_batch_ms is not None and (
            self._next_batch_ms <= self._clock.time_ns() // 1_000_000
        )
        is_wanted = is_due or not is_known
        self._has_ticked |= is_wanted
        return is_wanted

    def _has_watermark_moved(self) -> bool:
        if self._last is None:
            return False
        if self._next_watermark_ms is None:
            self._next_watermark_ms = self._read_watermark_ms()
        return self._next_watermark_ms > self._last.watermark_ms
