"""Placement: Spark jobs in which each task runs where its last version lies.

The N tasks of a job are spread over S slots, one for each core of the executors; a Spark partition
runs the tasks of its slot one after the other. A placement table of S rows, hash-partitioned by a
bucket column and cached, is joined to the data before the Python stage; the scheduler then prefers the
executor that caches the table's partition. The bucket value of slot s is an integer whose Spark
hash falls into s, so bucket and slot are one to one. Slots without data still call the Python
function.

Which task is in which slot is a table of the driver's. It may take another one between two batches.
"""

import copy
import itertools
import json
import logging
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
)

from statekeep.errors import ConfigError, StateBackupError
from statekeep.spark.context_conf import context_conf
from statekeep.spark.operator.key_hash import SPARK_SEED, hash_long, partition_of_hash

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

BUCKET_COLUMN = "_statekeep_bucket"
DIGEST_COLUMN = "_statekeep_digest"
TASK_COLUMN = "_statekeep_task"
ANSWER_COLUMN = "answer"
OUTPUT_COLUMN = "output"
ROUTER = "spark-murmur3-pmod-1"
"""Id of the function from grouping key to task, of a query with one operator."""
_ROUTER_OF_SEVERAL = f"{ROUTER}-by-operator-"

_PROCESSED = (
    StructType().add(ANSWER_COLUMN, StringType()).add(OUTPUT_COLUMN, ArrayType(BinaryType()))
)
_POLL_S = 0.1
_LEAST_SLOTS = 2
"""Spark does not partition one side of a join as the other one is if that has a single partition, but
both anew."""
_MAX_TRIES = 5
"""A cluster that loses executors in each of so many runs of one job is failing."""

_numbers = itertools.count()
"""Of the tables of this process."""

BatchFunction = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]
"""From the rows of a slot to what its tasks yield."""
SlotFunction = Callable[[tuple[int, ...]], Iterator["pa.RecordBatch"]]
"""From the tasks of a slot to what they yield without rows."""


class Placement:
    """The cached placement table of one job; used on the driver, by one thread at a time per Spark job."""

    def __init__(self, spark: SparkSession, slots: Sequence[tuple[int, ...]], tag: str) -> None:
        """Choose the bucket values. The table is cached by the first job that runs on it.

        Args:
            spark: The session.
            slots: The tasks of each slot; each task is in one slot.
            tag: Put on every Spark job; one that is cancelled by it runs again.
        """
        self._spark = spark
        self.slots = tuple(slots)
        self.tasks = sum(map(len, slots))
        self.tag = tag
        self._given_up = threading.Event()
        self._buckets = bucket_values(len(self.slots))
        self._columns: dict[range, tuple[StructType, tuple[Column, ...]]] = {}
        with fixed_partitioning(spark):
            self._frame = self._cache()
            self._hinted = self._frame.hint("shuffle_hash")

    def anew(self, slots: int, tag: str | None = None) -> "Placement":
        """Return a table that is cached anew, on the executors that there are by then.

        Each slot has one task, of the slot's own number: `with_slots` says which it is to have.

        Args:
            slots: How many.
            tag: Of its own, for one that is given up by itself; else it is with this one.
        """
        numbered = [(slot,) for slot in range(max(_LEAST_SLOTS, slots))]
        placement = Placement(self._spark, numbered, tag or self.tag)
        if tag is None:
            placement._given_up = self._given_up
        return placement

    def with_slots(self, slots: Sequence[tuple[int, ...]]) -> "Placement":
        """Return this table, which stays where it is cached, with other tasks in its slots."""
        placement = copy.copy(self)
        placement.slots = tuple(slots)
        placement.tasks = sum(map(len, slots))
        placement._columns = {}  # noqa: SLF001 - one of our own
        return placement

    def apart(self, tag: str) -> "Placement":
        """Return this table for jobs beside the batches, which are given up by themselves."""
        placement = copy.copy(self)
        placement.tag = tag
        placement._given_up = threading.Event()  # noqa: SLF001 - one of our own
        return placement

    def run(self, function: SlotFunction) -> list[dict[str, Any]]:
        """Run ``function`` once per slot, without data, and return its JSON answers."""
        rows = self._collect(self._spark, self.frame(function, f"{ANSWER_COLUMN} string"))
        return [json.loads(row[0]) for row in rows]

    def frame(self, function: SlotFunction, schema: StructType | str) -> DataFrame:
        """Return the frame of what ``function`` yields for each slot; runs when used."""
        tasks_of = dict(zip(self._buckets, self.slots, strict=True))

        def run(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
            # The slot is that of the table's row, not the running task's: a sink may coalesce, and
            # then one task has several. The input is read to its end before anything else, as
            # Spark throws a Python worker away that left some of it.
            rows = [row for batch in batches for row in batch.column(BUCKET_COLUMN).to_pylist()]
            for bucket in rows:
                yield from function(tasks_of[bucket])

        return self._frame.mapInArrow(run, schema)

    def process(
        self,
        data: DataFrame,
        function: BatchFunction,
        *,
        schema: StructType,
        key_columns: Sequence[str],
        tasks: range,
        only: Collection[int] | None,
        is_sorted: bool,
        first: Column | None = None,
    ) -> list[Row]:
        """Route the rows of ``data`` to their slots, run ``function``, return what it yields.

        Args:
            data: The rows of one batch, maybe with their `DIGEST_COLUMN`.
            function: Gets the columns of ``schema``, `DIGEST_COLUMN`, an order-free hash of each
                row, and `TASK_COLUMN`; yields rows of `ANSWER_COLUMN`, a text, and `OUTPUT_COLUMN`,
                a list of bytes.
            schema: What is sent to Python.
            key_columns: Route rows; rows of one key go to one task.
            tasks: Those of the operator, to which the rows go.
            only: Drop the rows of other tasks before the shuffle; None keeps all.
            is_sorted: Let Spark sort each slot by task and key, spilling to disk where it must.
            first: True for rows that come before all others of their task, if sorted.
        """
        known = self._columns.get(tasks)
        if known is None or known[0] != schema:
            digest = DIGEST_COLUMN if DIGEST_COLUMN in data.columns else None
            routed_columns = self._routed_columns(schema, key_columns, tasks, digest)
            known = self._columns[tasks] = schema, routed_columns
        sent = data.select(*known[1])
        if only is not None:
            sent = sent.where(column(TASK_COLUMN).isin(sorted(only)))
        rows = sent.join(self._hinted, BUCKET_COLUMN)
        if is_sorted:
            order = [] if first is None else [first.desc()]
            rows = rows.sortWithinPartitions(TASK_COLUMN, *order, *map(column, key_columns))
        frame = rows.mapInArrow(function, _PROCESSED)
        return self._collect(data.sparkSession, frame)

    @property
    def is_given_up(self) -> bool:
        """Whether nothing waits for its jobs any more."""
        return self._given_up.is_set()

    def give_up(self) -> None:
        """Cancel what runs, and run nothing any more: nothing waits for it.

        What is just about to begin may not be cancelled.
        """
        self._given_up.set()
        try:
            self._spark.sparkContext.cancelJobsWithTag(self.tag)
        except (PySparkException, Py4JError, OSError) as exc:
            logger.info("jobs could not be cancelled and end with their session: error=%s", exc)

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
        """Release the cached table. Idempotent; a table that ended with its session is no error."""
        try:
            self._frame.unpersist()
        except (PySparkException, Py4JError, OSError) as exc:
            logger.info(
                "the placement table could not be dropped and ends with its session: error=%s", exc
            )

    def _collect(self, spark: SparkSession, frame: DataFrame) -> list[Row]:
        """Run a job and return its rows; once more if it was cancelled as stalled."""
        if self.is_given_up:
            raise StateBackupError(f"this Spark job is no longer waited for: tag={self.tag}")
        with self.tagged(), fixed_partitioning(spark):
            for _ in range(_MAX_TRIES - 1):
                try:
                    return frame.collect()
                except Exception as exc:
                    if self._given_up.is_set() or not self.was_stalled(exc):
                        raise
                    logger.warning("a stalled job runs again: tag=%s", self.tag)
            return frame.collect()

    def _routed_columns(
        self, schema: StructType, key_columns: Sequence[str], tasks: range, digest: str | None
    ) -> tuple[Column, ...]:
        """Return the columns that are sent: made once for a schema, as each costs calls into the JVM."""
        taken = {BUCKET_COLUMN, DIGEST_COLUMN, TASK_COLUMN} & set(schema.names)
        if taken:
            raise ConfigError(f"column names are reserved: columns={','.join(sorted(taken))}")
        nth = nth_task(schema, key_columns, len(tasks))
        bucket_of = {
            number: bucket
            for slot, bucket in zip(self.slots, self._buckets, strict=True)
            for number in slot
        }
        buckets = F.array(*[F.lit(bucket_of[number]).cast("long") for number in tasks])
        return (
            *map(column, schema.names),
            row_digest(schema, schema.names) if digest is None else column(digest),
            (nth + tasks.start).alias(TASK_COLUMN),
            F.element_at(buckets, nth + 1).alias(BUCKET_COLUMN),
        )

    def run_everywhere(self, function: SlotFunction) -> list[dict[str, Any]]:
        """As `run`, where every task must answer.

        Raises:
            StateBackupError: One did not.
        """
        answers = self.run(function)
        if {answer["partition"] for answer in answers} != set(range(self.tasks)):
            msg = f"tasks did not answer: expected={self.tasks} answers={len(answers)}"
            raise StateBackupError(msg)
        return answers

    def was_stalled(self, error: Exception) -> bool:
        """Return whether a job failed because `StallGuard` cancelled it."""
        return self.tag in str(error)

    def _cache(self) -> DataFrame:
        # Not `createDataFrame` of a list: Spark sends that through Python workers of another kind,
        # which each executor then has to start before it can start those that run the tasks.
        buckets = F.array(*[F.lit(bucket).cast("long") for bucket in self._buckets])
        # Spark caches equal plans once: a table that was cached anew would lie where the old one does,
        # and the end of one query would drop the table of another.
        number = next(_numbers)
        one_row = self._spark.range(number, number + 1, 1, 1)
        frame = one_row.select(F.explode(buckets).alias(BUCKET_COLUMN))
        return frame.repartition(len(self.slots), BUCKET_COLUMN).cache()


class _AdaptiveSwitch:
    """Switches adaptive execution off in a session while anyone needs that, then back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[str, int] = {}
        self._before: dict[str, str] = {}

    @contextmanager
    def off(self, spark: SparkSession) -> Generator[None]:
        java: Any = spark._jsparkSession  # noqa: SLF001 - names it; no public id
        session = str(java.sessionUUID())
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

    A table that is cached while executors still come up would crowd on the first of them.
    """
    context: Any = spark.sparkContext._jsc  # noqa: SLF001 - no public count of executors in Python
    status = context.sc()
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
    conf = context_conf(spark)
    if str(conf.get("spark.dynamicAllocation.enabled", "false")).lower() == "true":
        least = int(str(conf.get("spark.dynamicAllocation.minExecutors", "0")))
        if least == 0:
            logger.warning(
                "all tasks may run on the first executor until the next commit: set "
                "spark.dynamicAllocation.minExecutors to what the query needs"
            )
        return least
    if master.startswith("local-cluster["):
        return int(master.removeprefix("local-cluster[").split(",")[0])
    return int(str(conf.get("spark.executor.instances", "1")))


def slot_count(spark: SparkSession, tasks: int) -> int:
    """Return how many tasks of Spark run at a time; ``tasks`` where that is not known yet.

    That is so with dynamic allocation: it gives executors for the tasks that wait.
    """
    context = spark.sparkContext
    conf = context_conf(spark)
    if str(conf.get("spark.dynamicAllocation.enabled", "false")).lower() == "true":
        return tasks
    cores_per_task = int(str(conf.get("spark.task.cpus", "1")))
    return max(1, context.defaultParallelism // cores_per_task)


def router_of(operators: int) -> str:
    """Return the id of the function from grouping key to task, which a commit record holds."""
    return ROUTER if operators == 1 else f"{_ROUTER_OF_SEVERAL}{operators}"


def operators_of(router: str) -> int | None:
    """Return how many operators the query has whose keys a router routes; None: it is not one of ours."""
    if router == ROUTER:
        return 1
    count = router.removeprefix(_ROUTER_OF_SEVERAL)
    return int(count) if count != router and count.isdecimal() else None


def spread(tasks: int, slots: int) -> list[tuple[int, ...]]:
    """Return the tasks of each slot, as evenly as they go; a second slot may be empty."""
    count = max(_LEAST_SLOTS, min(tasks, slots))
    return [tuple(range(slot, tasks, count)) for slot in range(count)]


def column(name: str) -> Column:
    """Return a column by its plain name, whatever characters are in it."""
    return F.col("`" + name.replace("`", "``") + "`")


def bucket_values(count: int) -> list[int]:
    """Return for each of ``count`` partitions the least long whose Spark hash falls into it."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < count:
        found.setdefault(partition_of_hash(hash_long(number, SPARK_SEED), count), number)
        number += 1
    return [found[partition] for partition in range(count)]


def routed(schema: StructType, key_columns: Sequence[str]) -> list[Column]:
    """Return the key columns as they are hashed: -0.0 becomes 0.0, as groupBy has it."""
    return [
        column(name) + F.lit(0.0).cast(schema[name].dataType)
        if isinstance(schema[name].dataType, FloatType | DoubleType)
        else column(name)
        for name in key_columns
    ]


def nth_task(schema: StructType, key_columns: Sequence[str], count: int) -> Column:
    """Return which of an operator's tasks a row goes to, from 0."""
    return F.pmod(F.hash(*routed(schema, key_columns)), F.lit(count)).cast("int")


def row_digest(schema: StructType, columns: Sequence[str]) -> Column:
    """Return `DIGEST_COLUMN`: a hash of these columns."""
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
