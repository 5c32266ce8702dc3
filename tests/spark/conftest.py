"""One Spark session with two executors for all tests here, and streams of files to run on it."""

import gc
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processors import OUTPUT, Count
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import statekeep as sk
from chaos.spark.class_archive import java_options
from statekeep.fault_points import HANDLER_VARIABLE
from statekeep.spark.releases import RELEASE
from statekeep.testing.faults import HANDLER, PLAN_VARIABLE, ArmedFault, ProcessPlan

Rows = dict[str, tuple[int, int]]

PARTITIONS = 4

needs_structs_in_structs_on_spark = pytest.mark.skipif(
    RELEASE < (4, 2), reason="Spark's operator of that release cannot pickle a struct in a struct"
)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Set the options of this driver's JVM and of those that tests start.

    None lives long enough for the better compiler, which takes half of their processor time, or for
    classes read anew.
    """
    is_wanted = "SPARK_SUBMIT_OPTS" not in os.environ and not session.config.option.collectonly
    if is_wanted and any(item.get_closest_marker("spark") for item in session.items):
        os.environ["SPARK_SUBMIT_OPTS"] = java_options()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """End the run at a test that timed out, and show where the JVM was.

    The call that was broken off still occupies the thread's connection to the JVM: each later test
    would wait behind it for its own time limit.
    """
    report = yield
    gateway = SparkContext._gateway
    is_timeout = call.excinfo is not None and "from pytest-timeout" in str(call.excinfo.value)
    if is_timeout and gateway is not None:
        report.sections.append(("threads of the driver's JVM", threads_of(gateway.proc.pid)))
        item.session.shouldfail = f"a call to the shared Spark session hangs: {item.nodeid}"
    return report


def threads_of(jvm: int) -> str:
    """Return the stacks of a JVM's threads, as the tool of its JDK tells them."""
    tool = shutil.which(
        "jstack", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ['PATH']}"
    )
    if tool is None:
        return "a Java without jstack"
    result = subprocess.run(
        [tool, str(jvm)], capture_output=True, text=True, timeout=20, check=False
    )
    return result.stdout + result.stderr


@pytest.fixture(scope="session")
def fault_plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that each sidecar reads when it starts: the faults that strike there."""
    path = tmp_path_factory.mktemp("faults") / "plan.json"
    ProcessPlan([], path.parent / "claims").write(path)
    return path


@pytest.fixture(scope="session")
def spark(fault_plan: Path) -> Iterator[SparkSession]:
    builder = sk.session_builder("local-cluster[2,1,1024]")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.decommission.enabled": "true",
        # Compiling costs a seventh of the processor time of these tests: their batches are small. Spark's own
        # suite and whatever starts a session of its own run with it.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.streaming.stopTimeout": "60s",  # a stop that hangs says where
        # Executors import what the tests import, wherever another copy may be installed.
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(
            map(str, [Path(__file__).parent, Path(sk.__file__).parents[1]])
        ),
        f"spark.executorEnv.{HANDLER_VARIABLE}": HANDLER,
        f"spark.executorEnv.{PLAN_VARIABLE}": str(fault_plan),
    }
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    gc.collect()


@contextmanager
def conf(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Set settings of a session inside the block."""
    before: dict[str, Any] = {key: spark.conf.get(key, None) for key in values}
    for key, value in values.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, value)


@dataclass
class Stream:
    """A stream of parquet files, one a batch, and what should come out of it."""

    spark: SparkSession
    root: Path
    settings: dict[str, Any] = field(default_factory=dict)
    delivered: list[tuple[int, dict[str, tuple[int, int]]]] = field(default_factory=list)
    key: Any = "key"
    """What the stream is grouped by."""
    output: str = OUTPUT
    """The columns that the processor yields."""
    on_batch: Callable[[int], None] = lambda batch: None
    """Called by the sink before it takes a batch."""

    @property
    def location(self) -> Path:
        return self.root / "checkpoint"

    @property
    def local_dir(self) -> Path:
        return self.root / "local"

    def add_batches(self, count: int, rows: int = 200, keys: int = 40) -> None:
        """Add ``count`` files, to be read one a batch."""
        directory = self.root / "in"
        directory.mkdir(exist_ok=True)
        start = len(list(directory.iterdir()))
        for number in range(start, start + count):
            ids = range(number * rows, (number + 1) * rows)
            table = pa.table(
                {
                    "key": [f"key-{i * 7919 % keys}" for i in ids],
                    "v": pa.array(ids, pa.int64()),
                }
            )
            path = directory / f".{number:03d}.parquet"  # not seen by a query that runs
            pq.write_table(table, path)
            os.utime(path, (1_700_000_000 + number,) * 2)
            path.rename(directory / path.name[1:])

    def expected(self, batches: int) -> Rows:
        """What the state is after so many batches, by a plain fold over the input."""
        state: Rows = {}
        for number in range(batches):
            table = pq.read_table(self.root / "in" / f"{number:03d}.parquet")
            for key, value in zip(*table.to_pydict().values(), strict=True):
                n, s = state.get(key, (0, 0))
                state[key] = (n + 1, s + value)
        return state

    def received(self) -> Rows:
        """The newest row of each key that the sink got."""
        state: Rows = {}
        for _, rows in self.delivered:
            state |= rows
        return state

    def sink(self, frame: DataFrame, batch: int) -> None:
        self.on_batch(batch)
        self.delivered.append((batch, {row.key: (row.n, row.s) for row in frame.collect()}))

    def frame(self) -> DataFrame:
        reader = self.spark.readStream.schema("key string, v long")
        return reader.option("maxFilesPerTrigger", 1).parquet(str(self.root / "in"))

    def stateful(
        self, processor: StatefulProcessor | None = None, settings: Mapping[str, Any] | None = None
    ) -> Any:
        base = {"job.name": "counts", "job.logged.store.base.dir": str(self.local_dir)}
        merged = base | self.settings | dict(settings or {})
        grouped = sk.grouped(self.frame().groupBy(self.key), merged)
        return grouped.transformWithState(processor or Count(), self.output, "Append", "None")

    def start(
        self, processor: StatefulProcessor | None = None, settings: Mapping[str, Any] | None = None
    ) -> sk.StatefulStreamingQuery:
        """Start the query over all files there are, one a batch."""
        writer = self.stateful(processor, settings).writeStream.foreachBatch(self.sink)
        writer = writer.option("checkpointLocation", str(self.location))
        query: sk.StatefulStreamingQuery = writer.trigger(availableNow=True).start()
        return query

    def run(self, **settings: Any) -> sk.StatefulStreamingQuery:
        query = self.start(settings={k.replace("__", "."): v for k, v in settings.items()})
        query.awaitTermination()
        return query


@pytest.fixture(autouse=True)
def _threads_end() -> Iterator[None]:
    """After every test: no thread of a query is left, as a job that starts often would collect.

    The pool for calls of HDFS is the process's own, and stays.
    """
    yield
    named = [t for t in threading.enumerate() if t.name.startswith("statekeep")]
    ours = [thread for thread in named if not thread.name.startswith("statekeep-hdfs")]
    for thread in ours:
        thread.join(10)
    assert not [thread for thread in ours if thread.is_alive()]


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Iterator[Stream]:
    yield Stream(spark, tmp_path)
    for query in spark.streams.active:  # left by a test that failed
        query.stop()


@pytest.fixture
def arm(fault_plan: Path, tmp_path: Path) -> Iterator[Callable[..., ProcessPlan]]:
    """Arm the sidecars that start from now on, by a call with the faults; disarmed at the end."""
    claims = tmp_path / "claims"

    def write(*faults: ArmedFault) -> ProcessPlan:
        plan = ProcessPlan(faults, claims)
        plan.write(fault_plan)
        return plan

    yield write
    write()


def lose_directory(directory: Path) -> None:
    """Delete a directory as a lost disk would, though a query may be writing there."""
    while directory.exists():
        shutil.rmtree(directory, ignore_errors=True)


def state_of(settings: Mapping[str, Any], variable: str = "count") -> dict[Any, Any]:
    """Return the committed values of a job; each key stands in one task only."""
    rows = sk.read_state({"job.name": "counts", **settings}, variable).to_pylist()
    found = {next(iter(row["key"].values())): tuple(row["value"].values()) for row in rows}
    assert len(found) == len(rows)
    return found


def events_of(query: sk.StatefulStreamingQuery, kind: str) -> list[dict[str, Any]]:
    """Return the details of the query's events of one kind."""
    return [event.details for event in query.events if event.kind == kind]
