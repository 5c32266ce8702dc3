"""The store of the job log and of the state dies under a query that runs, and comes back."""

import gc
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import boto3
import kafka_processors
import pytest
from kafka_processors import OUTPUT, Count
from pyspark.sql import DataFrame, SparkSession
from servers.kafka import kafka_broker
from servers.process import required
from servers.seaweedfs import seaweedfs

import statekeep as sk

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(300)]

OUTAGE_S: Final = 22
AFTER_S: Final = 5
"""Within so many seconds of the end of an outage, a query delivers again."""
S3_ENVIRONMENT: Final = {
    "AWS_ACCESS_KEY_ID": "statekeep",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass(frozen=True, slots=True)
class Server:
    """A server that dies and comes back, and a job's settings for it."""

    settings: Mapping[str, str]
    kill: Callable[[], None]
    start: Callable[[], None]


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with required(seaweedfs()) as server:
        with closing(boto3.client("s3", endpoint_url=server.endpoint)) as api:
            api.create_bucket(Bucket="backup")
        settings = {"blob.store.uri": "s3://backup/job", "blob.store.s3.endpoint": server.endpoint}
        yield Server(settings, server.kill, server.restart)


@pytest.fixture
def kafka() -> Iterator[Server]:
    with required(kafka_broker()) as broker:
        settings = {"stores.backup.factories": "kafka", "kafka.bootstrap.servers": broker.servers}
        yield Server(settings, broker.kill, broker.start)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    modules = map(str, [Path(kafka_processors.__file__).parent, Path(sk.__file__).parents[1]])
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "4",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(modules),
        **{f"spark.executorEnv.{name}": value for name, value in S3_ENVIRONMENT.items()},
    }
    builder = sk.session_builder("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    gc.collect()


class Counts:
    """A query that counts the rows of a stream without end, and what it delivers, and when."""

    def __init__(self, spark: SparkSession, root: Path, settings: Mapping[str, str]) -> None:
        rows = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
        given = {
            "job.name": uuid.uuid4().hex,
            "job.logged.store.base.dir": str(root / "local"),
            "task.commit.ms": "1000",
            **settings,
        }
        grouped = sk.grouped(rows.selectExpr("cast(value % 7 as string) key").groupBy("key"), given)
        counted = grouped.transformWithState(Count(), OUTPUT, "Append", "None")
        self._changed = threading.Condition()
        self._delivered: list[tuple[float, int]] = []
        self._counts: dict[str, int] = {}
        self.query: sk.StatefulStreamingQuery = (
            counted.writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(root / "checkpoint"))
            .trigger(processingTime="200 milliseconds")
            .start()
        )

    @property
    def rows(self) -> int:
        """How many were counted, as the newest counts of all keys say."""
        return sum(self._counts.values())

    @property
    def batches(self) -> list[int]:
        return [batch for _, batch in self._delivered]

    def next_after(self, moment: float, count: int = 1) -> float:
        """Wait for some deliveries after a moment; return when the first of them came."""

        def found() -> list[float]:
            return [at for at, _ in self._delivered if at > moment]

        with self._changed:
            assert self._changed.wait_for(lambda: len(found()) >= count, timeout=120)
            return found()[0]

    def _take(self, frame: DataFrame, batch: int) -> None:
        counts = {row.key: row.n for row in frame.collect()}
        with self._changed:
            self._counts |= counts
            self._delivered.append((time.monotonic(), batch))
            self._changed.notify_all()


@pytest.mark.parametrize("store", ["s3", "kafka"])
def test_a_query_delivers_again_within_seconds_of_the_end_of_an_outage(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, store: str
) -> None:
    server: Server = request.getfixturevalue(store)
    counts = Counts(spark, tmp_path, server.settings)
    counts.next_after(0, count=8)
    assert counts.query.lastCommit is not None

    server.kill()
    killed = time.monotonic()
    threading.Event().wait(OUTAGE_S)
    during = [batch for at, batch in counts._delivered if at > killed + 1]
    assert during == []  # no batch is delivered before the log has it
    starting = time.monotonic()
    server.start()
    back = time.monotonic()
    gap_s = counts.next_after(starting) - back
    logger.info("%s: away_s=%.1f next_delivery_s=%.2f", store, back - killed, gap_s)

    counts.next_after(back, count=5)
    counts.query.stop()
    assert counts.query.exception() is None
    assert counts.batches == list(range(len(counts.batches)))
    # The stop may have broken a batch off that was delivered already.
    assert counts.query.lastCommit.batch >= counts.batches[-1] - 1
    assert gap_s < AFTER_S
