"""Anchored tasks: Spark jobs whose partition p runs where p's last version lies.

An N-row anchor, hash-partitioned by a bucket column and cached, is joined to the data before the
Python stage; the scheduler then prefers the executor that caches the anchor's partition. The
bucket value of partition p is an integer whose Spark hash falls into p, so bucket and partition are
one to one. Partitions without data still call the Python function.
"""

# The JVM's objects and pyarrow have no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false, reportOptionalCall=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from pyspark.sql.types import DataType, DoubleType, FloatType, MapType, StructType

from statekeep.errors import ConfigError, StateBackupError

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

BUCKET_COLUMN = "_statekeep_bucket"
DIGEST_COLUMN = "_statekeep_digest"
ANSWER_COLUMN = "answer"
ROUTER = "spark-murmur3-pmod-1"
"""Id of the function from grouping key to task; kept in the commit record."""

_POLL_S = 0.1
_MAX_TRIES = 5
"""A cluster that loses executors in each of so many runs of one job is failing."""

BatchFunction = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]
"""From the rows of a partition to what its task yields."""
TaskFunction = Callable[[int], Iterator["pa.RecordBatch"]]
"""From the number of a partition to what its task yields that has no rows."""


class Anchor:
    """The cached anchor of one job; used on the driver, by one thread at a time per Spark job."""

    def __init__(self, spark: SparkSession, partitions: int, tag: str) -> None:
        """Choose the bucket values and cache the anchor.

        Args:
            spark: The session.
            partitions: N.
            tag: Put on every Spark job; one that is cancelled by it runs again.
        """
        self._spark = spark
        self.partitions = partitions
        self.tag = tag
        self._is_given_up = False
        self._buckets = _bucket_values(spark, partitions)
        with fixed_partitioning(spark):
            self._frame = self._cache()

    def place(self, locate: TaskFunction) -> Mapping[int, str]:
        """Cache the anchor, run ``locate`` on it, and return where each partition is.

        Args:
            locate: Answers ``{"partition": p, "executor": id}`` for its partition.
        """
        places = {int(answer["partition"]): str(answer["executor"]) for answer in self.run(locate)}
        load = Counter(places.values())
        logger.info("anchor placed: partitions=%d executors=%s", self.partitions, dict(load))
        return places

    def run(self, function: TaskFunction) -> list[dict[str, Any]]:
        """Run ``function`` once per partition, without data, and return its JSON answers."""
        return self._answers(self._spark, self.frame(function, f"{ANSWER_COLUMN} string"))

    def frame(self, function: TaskFunction, schema: StructType | str) -> DataFrame:
        """Return the frame of what ``function`` yields for each partition; runs when used."""
        partition_of = {bucket: number for number, bucket in enumerate(self._buckets)}

        def run(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
            # The partition is the anchor row's, not the running task's: a sink may coalesce, and
            # then one task has several. The input is read to its end before anything else, as
            # Spark throws a Python worker away that left some of it.
            rows = [row for batch in batches for row in batch.column(BUCKET_COLUMN).to_pylist()]
            for bucket in rows:
                yield from function(partition_of[bucket])

        return self._frame.mapInArrow(run, schema)

    def process(
        self,
        data: DataFrame,
        function: BatchFunction,
        *,
        key_columns: Sequence[str],
        row_columns: Sequence[str],
        only: Collection[int] | None,
        is_sorted: bool,
    ) -> list[dict[str, Any]]:
        """Route the rows of ``data`` to their partitions, run ``function``, return its answers.

        Args:
            data: The rows of one batch.
            function: Gets ``row_columns`` and `DIGEST_COLUMN`, an order-free hash of each row.
            key_columns: Route rows; rows of one key go to one partition.
            row_columns: What is sent to Python.
            only: Drop the rows of other partitions before the shuffle; None keeps all.
            is_sorted: Let Spark sort each partition by key, spilling to disk where it must.
        """
        taken = {BUCKET_COLUMN, DIGEST_COLUMN} & set(data.columns)
        if taken:
            raise ConfigError(f"column names are reserved: columns={','.join(sorted(taken))}")
        partition = F.pmod(F.hash(*_routed(data, key_columns)), F.lit(self.partitions)).cast("int")
        if only is not None:
            data = data.where(partition.isin(sorted(only)))
        buckets = F.array(*[F.lit(bucket).cast("long") for bucket in self._buckets])
        routed = data.withColumn(BUCKET_COLUMN, F.element_at(buckets, partition + 1))
        if self.partitions == 1:
            # By a single partition Spark cannot partition the other side: it would take both apart.
            routed = routed.repartition(1)
        joined = routed.join(self._frame.hint("shuffle_hash"), BUCKET_COLUMN)
        rows = joined.select(*map(column, row_columns), _row_digest(data.schema, row_columns))
        if is_sorted:
            rows = rows.sortWithinPartitions(*map(column, key_columns))
        frame = rows.mapInArrow(function, f"{ANSWER_COLUMN} string")
        return self._answers(data.sparkSession, frame)

    def give_up(self) -> None:
        """Cancel what runs, for good: nobody is left to run it, or to wait for it.

        What begins only afterwards is not cancelled.
        """
        self._is_given_up = True
        try:
            self._spark.sparkContext.cancelJobsWithTag(self.tag)
        except (PySparkException, Py4JError, OSError) as exc:
            logger.info("jobs go with their session: error=%s", exc)

    @contextmanager
    def tagged(self) -> Generator[None]:
        """Let the Spark jobs that this thread starts inside be found by the tag.

        Only inside: a thread's tags go on to what it starts later, other queries among it.
        """
        context = self._spark.sparkContext
        is_outermost = self.tag not in context.getJobTags()
        if is_outermost:
            context.addJobTag(self.tag)
        try:
            yield
        finally:
            if is_outermost:
                with suppress(Py4JError, OSError):  # the context is gone, and the tag with it
                    context.removeJobTag(self.tag)

    def close(self) -> None:
        """Release the cached anchor. Idempotent; what its session has taken along is no error."""
        try:
            self._frame.unpersist()
        except (PySparkException, Py4JError, OSError) as exc:
            logger.info("the anchor goes with its session: error=%s", exc)

    def _answers(self, spark: SparkSession, frame: DataFrame) -> list[dict[str, Any]]:
        """Run a job and read its answers; once more if it was cancelled as stalled."""
        with self.tagged(), fixed_partitioning(spark):
            for _ in range(_MAX_TRIES - 1):
                try:
                    return _read(frame)
                except Exception as exc:
                    if self._is_given_up or not self.was_stalled(exc):
                        raise
                    logger.warning("a stalled job runs again: tag=%s", self.tag)
            return _read(frame)

    def run_everywhere(self, function: TaskFunction) -> list[dict[str, Any]]:
        """As `run`, where every partition must answer.

        Raises:
            StateBackupError: One did not.
        """
        answers = self.run(function)
        if {answer["partition"] for answer in answers} != set(range(self.partitions)):
            msg = f"tasks did not answer: expected={self.partitions} answers={len(answers)}"
            raise StateBackupError(msg)
        return answers

    def was_stalled(self, error: Exception) -> bool:
        """Tell whether a job failed because `StallGuard` cancelled it."""
        return self.tag in str(error)

    def _cache(self) -> DataFrame:
        rows = [(bucket,) for bucket in self._buckets]
        frame = self._spark.createDataFrame(rows, f"{BUCKET_COLUMN} long")
        frame = frame.repartition(self.partitions, BUCKET_COLUMN).cache()
        frame.count()
        return frame


class _AdaptiveSwitch:
    """Switches adaptive execution off in a session while anyone needs that, then back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[str, int] = {}
        self._before: dict[str, str] = {}

    @contextmanager
    def off(self, spark: SparkSession) -> Generator[None]:
        session = str(spark._jsparkSession.sessionUUID())  # noqa: SLF001 - names it; no public id
        with self._lock:
            self._users[session] = self._users.get(session, 0) + 1
            if self._users[session] == 1:
                self._before[session] = str(spark.conf.get(_ADAPTIVE))
                spark.conf.set(_ADAPTIVE, "false")
        try:
            yield
        finally:
            with self._lock:
                self._users[session] -= 1
                if not self._users[session]:
                    spark.conf.set(_ADAPTIVE, self._before.pop(session))
                    del self._users[session]


_ADAPTIVE = "spark.sql.adaptive.enabled"
_switch = _AdaptiveSwitch()
"""One per process, as sessions are shared: two queries may need it off at the same time."""


def fixed_partitioning(spark: SparkSession) -> AbstractContextManager[None]:
    """Keep Spark from re-partitioning the plans that are made and run inside."""
    return _switch.off(spark)


def wait_for_executors(spark: SparkSession, expected: int, *, deadline_s: float = 60) -> int:
    """Wait until ``expected`` executors have registered; return how many there are.

    An anchor that is cached while executors still come up would crowd on the first of them.
    """
    status = spark.sparkContext._jsc.sc()  # noqa: SLF001 - no public count of executors in Python
    pause = threading.Event()  # never set: Spark tells Python nothing of new executors
    waited = 0.0
    while (count := status.getExecutorMemoryStatus().size() - 1) < expected and waited < deadline_s:
        pause.wait(_POLL_S)
        waited += _POLL_S
    if count < expected:
        logger.warning("fewer executors than expected: expected=%d count=%d", expected, count)
    return int(count)


def expected_executors(spark: SparkSession) -> int:
    """Return how many executors will come, as far as the session's settings tell; at least 0.

    Of dynamic allocation that is the least number: of those beyond, such as the initial ones, it may
    have given some away already.
    """
    context = spark.sparkContext
    master = context.master or ""
    if master.startswith("local") and not master.startswith("local-cluster["):
        return 0
    conf = context.getConf()
    if str(conf.get("spark.dynamicAllocation.enabled", "false")).lower() == "true":
        least = int(str(conf.get("spark.dynamicAllocation.minExecutors", "0")))
        if least == 0:
            logger.warning(
                "tasks may crowd on the first executor that comes, until the query starts again: "
                "set spark.dynamicAllocation.minExecutors to what the query needs"
            )
        return least
    if master.startswith("local-cluster["):
        return int(master.removeprefix("local-cluster[").split(",")[0])
    return int(str(conf.get("spark.executor.instances", "1")))


def column(name: str) -> Column:
    """Return a column by its plain name, whatever characters are in it."""
    return F.col("`" + name.replace("`", "``") + "`")


def _read(frame: DataFrame) -> list[dict[str, Any]]:
    return [json.loads(row[0]) for row in frame.collect()]


def _bucket_values(spark: SparkSession, partitions: int) -> list[int]:
    """Return for each partition the least long whose Spark hash falls into it."""
    found: dict[int, int] = {}
    span = partitions * 16
    while len(found) < partitions:
        rows = (
            spark.range(span)
            .select("id", F.pmod(F.hash("id"), F.lit(partitions)).alias("partition"))
            .groupBy("partition")
            .agg(F.min("id").alias("bucket"))
            .collect()
        )
        found = {row.partition: row.bucket for row in rows}
        span *= 4
    return [found[partition] for partition in range(partitions)]


def _routed(data: DataFrame, key_columns: Sequence[str]) -> list[Column]:
    """Return the key columns as they are hashed: -0.0 becomes 0.0, as groupBy has it."""
    return [
        column(name) + F.lit(0.0).cast(data.schema[name].dataType)
        if isinstance(data.schema[name].dataType, FloatType | DoubleType)
        else column(name)
        for name in key_columns
    ]


def _row_digest(schema: StructType, columns: Sequence[str]) -> Column:
    hashed = [
        column(name).cast("string") if _holds_map(schema[name].dataType) else column(name)
        for name in columns
    ]
    return F.xxhash64(*hashed).alias(DIGEST_COLUMN)


def _holds_map(data_type: DataType) -> bool:
    """Spark refuses to hash a map, at any depth."""
    if isinstance(data_type, MapType):
        return True
    if isinstance(data_type, StructType):
        return any(_holds_map(field.dataType) for field in data_type.fields)
    element = getattr(data_type, "elementType", None)
    return element is not None and _holds_map(element)
