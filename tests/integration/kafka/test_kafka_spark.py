"""Queries from Spark's Kafka source whose state, log and checkpoints are in Kafka alone."""

import gc
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import kafka_processors
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_processors import OUTPUT, Count
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from servers.kafka import KafkaBroker, spark_source_jars
from typer.testing import CliRunner

import statekeep as sk
from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.cli.app import app
from statekeep.errors import CheckpointLocationError, ConfigError

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(300)]

PARTITIONS = 3
PER_BATCH = 60
NEVER = {"task__commit__ms": "3600000"}
"""No commit but the last one."""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = sk.session_builder("local-cluster[2,1,1024]")
    settings = {
        "spark.jars": ",".join(map(str, spark_source_jars())),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "4",
        # Executors import what the tests import, wherever another copy may be installed.
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(
            map(str, [Path(kafka_processors.__file__).parent, Path(sk.__file__).parents[1]])
        ),
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    gc.collect()


class KafkaStream:
    """Two topics, a query that counts their keys, and what should come out of it."""

    def __init__(self, spark: SparkSession, servers: str, root: Path) -> None:
        self.spark = spark
        self.servers = servers
        self.root = root
        number = uuid.uuid4().hex
        self.topics = (f"page.clicks.{number}", f"page-views_{number}")
        self.job_name = uuid.uuid4().hex
        self.location = root / "checkpoint"
        self.produced: Counter[str] = Counter()
        self.ends: Counter[tuple[str, int]] = Counter()
        self.received: dict[str, int] = {}
        self.deliveries: list[int] = []
        self.on_batch: Callable[[int], None] = lambda batch: None
        """Called by the sink before it takes a batch."""
        self._admin = AdminClient({"bootstrap.servers": servers})
        self.create_topics(*self.topics)

    def create_topics(self, *topics: str) -> None:
        made = self._admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics])
        for future in made.values():
            future.result()

    def produce(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for number in range(count):
            key, partition = f"key-{number % 17}", number % PARTITIONS
            topic = self.topics[number % 5 == 0]
            producer.produce(topic, b"", key, partition)
            self.produced[key] += 1
            self.ends[topic, partition] += 1
        producer.flush()

    def lose_records(self) -> None:
        """Let all records of a partition go, as a limit of age does."""
        topic, partition = self.topics[0], 1
        before = TopicPartition(topic, partition, self.ends[topic, partition])
        for future in self._admin.delete_records([before]).values():
            future.result()

    def settings(self, **more: str) -> Mapping[str, Any]:
        return {
            "job.name": self.job_name,
            "job.logged.store.base.dir": str(self.root / "local"),
            "stores.backup.factories": "kafka",
            "kafka.bootstrap.servers": self.servers,
            **{key.replace("__", "."): value for key, value in more.items()},
        }

    def run(self, starting_offsets: str = "earliest", **settings: str) -> sk.StatefulStreamingQuery:
        """Process what the topics hold, in batches of some records, and commit."""
        rows = (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.servers)
            .option("subscribe", ",".join(self.topics))
            .option("startingOffsets", starting_offsets)
            .option("maxOffsetsPerTrigger", PER_BATCH)
            .load()
            .selectExpr("cast(key as string) key", "offset")
        )
        grouped = sk.grouped(rows.groupBy("key"), self.settings(**settings))
        counts = grouped.transformWithState(Count(), OUTPUT, "Append", "None")
        query: sk.StatefulStreamingQuery = (
            counts.writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self.location))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    def go_on(self, start: sk.StartingPoint, **settings: str) -> sk.StatefulStreamingQuery:
        named = {"job__start__from__checkpoint": start.checkpoint_id}
        return self.run(start.kafka_offsets(), **named, **settings)

    def lose_disks(self) -> None:
        shutil.rmtree(self.root / "local")

    def lose_everything_local(self) -> None:
        self.lose_disks()
        shutil.rmtree(self.location)

    def _take(self, frame: DataFrame, batch: int) -> None:
        self.on_batch(batch)
        self.deliveries.append(batch)
        for row in frame.collect():
            self.received[row.key] = row.n


@pytest.fixture
def stream(spark: SparkSession, broker: KafkaBroker, tmp_path: Path) -> KafkaStream:
    return KafkaStream(spark, broker.servers, tmp_path)


def replayed(query: sk.StatefulStreamingQuery) -> list[list[int]]:
    """Return the batches that each recovery of the query ran again."""
    return [event.details["replayed"] for event in query.events if event.kind == "recovery"]


def test_a_job_goes_on_from_kafka_alone_after_its_disks_are_lost(stream: KafkaStream) -> None:
    stream.produce(150)
    stream.run()
    stream.lose_disks()
    stream.produce(90)
    stream.run()
    assert stream.received == dict(stream.produced)
    assert stream.deliveries == sorted(set(stream.deliveries))
    files = [path for path in stream.root.rglob("*") if path.is_file()]
    kept = {path.relative_to(stream.root).parts[0] for path in files}
    assert kept <= {"local", "checkpoint"}


def test_output_goes_to_a_topic(stream: KafkaStream) -> None:
    stream.produce(150)
    topic = f"counts-{uuid.uuid4().hex}"
    stream.create_topics(topic)
    rows = (
        stream.spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", stream.servers)
        .option("subscribe", ",".join(stream.topics))
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("cast(key as string) key", "offset")
    )
    counts = sk.grouped(rows.groupBy("key"), stream.settings()).transformWithState(
        Count(), OUTPUT, "Append", "None"
    )
    writer = counts.selectExpr("key", "cast(n as string) value").writeStream.format("kafka")
    writer = writer.option("kafka.bootstrap.servers", stream.servers).option("topic", topic)
    writer = writer.option("checkpointLocation", str(stream.location)).trigger(availableNow=True)
    writer.start().awaitTermination()
    written = stream.spark.read.format("kafka").option("subscribe", topic)
    found = written.option("kafka.bootstrap.servers", stream.servers).load()
    rows_found = found.selectExpr("cast(key as string) key", "cast(value as string) value")
    assert {row.key: int(row.value) for row in rows_found.collect()} == dict(stream.produced)


def test_a_query_on_sparks_own_state_goes_on_from_a_copy_with_its_offsets(
    stream: KafkaStream,
) -> None:
    """The guard's copy has what the source needs: nothing is read twice, and nothing is left out."""
    copies = (stream.root / "copies").as_uri()

    def run(location: Path) -> None:
        rows = (
            stream.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", stream.servers)
            .option("subscribe", ",".join(stream.topics))
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", PER_BATCH)
            .load()
            .selectExpr("cast(key as string) key")
        )
        counts = rows.groupBy("key").agg(F.count("*").alias("n"))
        writer = counts.writeStream.outputMode("update").foreachBatch(stream._take)
        writer = writer.option("checkpointLocation", str(location))
        writer.trigger(availableNow=True).start().awaitTermination()

    def guard(line: str) -> None:
        assert CliRunner().invoke(app, f"guard {line}", catch_exceptions=False).exit_code == 0

    stream.produce(150)
    run(stream.location)
    guard(f"run {stream.location} --once --to {copies}")
    copied = max(stream.deliveries)
    stream.produce(90)
    run(stream.location)
    shutil.rmtree(stream.location)
    restored = stream.root / "restored"
    guard(f"restore {stream.location} --from {copies} --to {restored}")
    expected, stream.received = dict(stream.received), {}
    stream.deliveries.clear()
    run(restored)
    assert min(stream.deliveries) == copied + 1
    assert expected == dict(stream.produced)
    assert stream.received == {key: expected[key] for key in stream.received}
    assert len(stream.received) == 17


def test_a_commit_has_the_last_offset_of_every_partition_once(stream: KafkaStream) -> None:
    stream.produce(150)
    stream.run()
    start = sk.find_starting_point(stream.settings())
    assert start.input_offsets == {
        SystemStreamPartition("kafka", topic, partition): str(stream.ends[topic, partition] - 1)
        for topic in stream.topics
        for partition in range(PARTITIONS)
    }


def test_a_fresh_checkpoint_location_goes_on_from_a_commit(stream: KafkaStream) -> None:
    stream.produce(150)
    first = stream.run()
    start = sk.find_starting_point(stream.settings())
    stream.lose_everything_local()
    stream.produce(90)
    second = stream.go_on(start)
    assert second.id != first.id
    assert stream.received == dict(stream.produced)
    stream.lose_disks()
    stream.produce(30)
    third = stream.go_on(start)
    assert third.id == second.id
    assert stream.received == dict(stream.produced)


def test_a_new_query_replays_from_the_commit_of_the_old_one(stream: KafkaStream) -> None:
    stream.produce(3 * PER_BATCH)
    stream.run()
    start = sk.find_starting_point(stream.settings())
    stream.lose_everything_local()
    stream.deliveries.clear()
    stream.produce(3 * PER_BATCH)

    def fail_in_batch_1(batch: int) -> None:
        if batch == 1:
            raise OSError("the sink is down")

    stream.on_batch = fail_in_batch_1
    with pytest.raises(StreamingQueryException):
        stream.go_on(start, **NEVER)
    stream.on_batch = lambda batch: None
    stream.lose_disks()
    query = stream.go_on(start, **NEVER)
    assert replayed(query) == [[0]]
    assert stream.received == dict(stream.produced)
    assert stream.deliveries == sorted(set(stream.deliveries))


def test_the_location_of_the_old_query_is_refused_with_a_named_checkpoint(
    stream: KafkaStream,
) -> None:
    stream.produce(PER_BATCH)
    stream.run()
    start = sk.find_starting_point(stream.settings())
    with pytest.raises(ConfigError, match="in use"):
        stream.go_on(start)
    stream.produce(PER_BATCH)
    stream.run()
    assert stream.received == dict(stream.produced)


def test_a_fresh_location_without_a_named_checkpoint_is_refused(stream: KafkaStream) -> None:
    stream.produce(PER_BATCH)
    stream.run()
    stream.lose_everything_local()
    with pytest.raises(CheckpointLocationError, match="is empty"):
        stream.run()


def test_a_query_that_begins_elsewhere_than_its_commit_ends_processes_nothing(
    stream: KafkaStream,
) -> None:
    stream.produce(PER_BATCH)
    stream.run()
    start = sk.find_starting_point(stream.settings())
    stream.lose_everything_local()
    stream.deliveries.clear()
    stream.produce(PER_BATCH)
    with pytest.raises(StreamingQueryException) as caught:
        stream.run("earliest", job__start__from__checkpoint=start.checkpoint_id)
    assert isinstance(caught.value.__cause__, ConfigError)
    assert "would not go on reading where the commit ends" in str(caught.value.__cause__)
    assert stream.deliveries == []
    stream.location = stream.root / "another checkpoint"
    stream.go_on(start)
    assert stream.received == dict(stream.produced)


def test_records_that_a_topic_has_lost_meanwhile_end_the_query_with_the_ways_out(
    stream: KafkaStream,
) -> None:
    stream.produce(PER_BATCH)
    stream.run()
    start = sk.find_starting_point(stream.settings())
    stream.lose_everything_local()
    stream.deliveries.clear()
    stream.produce(PER_BATCH)
    stream.lose_records()
    with pytest.raises(StreamingQueryException) as caught:
        stream.go_on(start)
    assert any("retention.ms of the topic" in note for note in caught.value.__notes__)
    assert stream.deliveries == []


def test_a_query_moves_from_kafka_to_a_blob_store_and_back_step_by_step(
    stream: KafkaStream,
) -> None:
    new = {
        "backends__new__factory": "blob",
        "backends__new__uri": (stream.root / "new").as_uri(),
    }

    def step(backup: str, restore: str, log: str = "kafka", **places: str) -> None:
        stream.produce(PER_BATCH)
        stream.lose_disks()
        stream.run(
            stores__backup__factories=backup,
            stores__restore__factories=restore,
            job__log__backend=log,
            **places,
        )
        assert stream.received == dict(stream.produced)
        assert stream.deliveries == sorted(set(stream.deliveries))

    stream.produce(PER_BATCH)
    stream.run()
    step("kafka,new", "kafka,new", **new)
    step("kafka,new", "new,kafka", **new)
    step("new", "new", **new)
    options = stream.settings(stores__backup__factories="new", job__log__backend="kafka", **new)
    given = [part for key, value in options.items() for part in ("--set", f"{key}={value}")]
    moved = CliRunner().invoke(app, ["migrate-log", "--to", "new", "--yes", *given])
    assert moved.exit_code == 0, moved.output
    step("new", "new", "new", **new)
    step("new,kafka", "new,kafka", "new", **new)
    step("new,kafka", "kafka,new", "new", **new)
    step("kafka", "kafka", "new", **new)
