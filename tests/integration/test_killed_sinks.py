"""Databases and topics that a killed driver has left, and what the next one makes of them."""

import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pages_kit import block
from servers.java_artefacts import fetched
from servers.kafka import kafka_broker, spark_source_jars
from servers.postgres import postgres
from servers.process import required
from sink_kit import (
    AFTER_THE_WRITE,
    AT_THE_COMMIT,
    IN_THE_WRITE,
    MOMENTS,
    Deliveries,
    KilledStream,
    batch_of,
)

import statekeep as sk
from statekeep.spark.batch_token import delivering
from statekeep.spark.fenced_sinks import FENCE_TABLE

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(500)]

_JDBC = ("org.postgresql", "postgresql", "42.7.4")


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with required(postgres()) as uri:
        yield uri


@pytest.fixture
def uri(database: str) -> str:
    with psycopg.connect(database) as connection:
        connection.execute("DROP TABLE IF EXISTS statekeep_fence, totals")
        connection.execute(FENCE_TABLE)
        connection.execute("CREATE TABLE totals (id BIGINT PRIMARY KEY, total BIGINT)")
    return database


def table(uri: str, name: str = "totals") -> dict[int, int]:
    with psycopg.connect(uri) as connection:
        return dict(connection.execute(f"TABLE {name}").fetchall())


def newest(rows: Deliveries) -> dict[int, int]:
    """Return what a table holds that takes each row as it comes."""
    return dict(rows)


@pytest.mark.parametrize(
    ("moment", "batches"), [(AT_THE_COMMIT, 1), (AFTER_THE_WRITE, 2)], ids=["commit", "after"]
)
def test_an_upserted_table_has_each_batch_whole(
    tmp_path: Path, uri: str, moment: str, batches: int
) -> None:
    options = "\"host=db dbname=shop options='-c idle_in_transaction_session_timeout=60s'\""
    stream = KilledStream(tmp_path, heading="Upsert into a database", replaced={options: repr(uri)})
    stream.kill(moment)
    assert table(uri) == newest(stream.expected(batches))
    stream.recover()
    assert table(uri) == newest(stream.expected(3))


@pytest.mark.parametrize(
    ("moment", "batches"),
    [(IN_THE_WRITE, 1), (AT_THE_COMMIT, 1), (AFTER_THE_WRITE, 2)],
    ids=["staging", "commit", "after"],
)
def test_a_table_merged_from_a_staging_table_has_each_batch_whole(
    tmp_path: Path, uri: str, moment: str, batches: int
) -> None:
    (jar,) = fetched(f"postgresql-{_JDBC[2]}", [_JDBC], "-notransitive").iterdir()
    jdbc = f"jdbc:{uri.replace('postgres@', '')}?user=postgres"
    stream = KilledStream(
        tmp_path,
        heading="Large batches",
        replaced={
            "jdbc:postgresql://db/shop?user=shop": jdbc,
            "host=db dbname=shop user=shop": uri,
        },
        conf={"spark.jars": str(jar)},
    )
    stream.kill(moment)
    assert table(uri) == newest(stream.expected(batches))
    if moment == IN_THE_WRITE:
        assert 0 < len(table(uri, "totals_1")) < len(table(uri))
    stream.recover()
    assert table(uri) == newest(stream.expected(3))


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with required(kafka_broker()) as broker:
        yield broker.servers


@pytest.fixture
def topic(servers: str) -> str:
    name = f"totals-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result()
    return name


def records(servers: str, topic: str, isolation: str = "read_committed") -> Deliveries:
    """Return what a reader gets of a topic with one partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": uuid.uuid4().hex,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: Deliveries = []
    while True:
        message = consumer.poll(60)
        assert message is not None
        if message.error() is not None:  # the end
            consumer.close()
            return found
        key, value = message.key(), message.value()
        assert key is not None
        assert value is not None
        found.append((int(key), int(value)))


@pytest.mark.parametrize("moment", [IN_THE_WRITE, AT_THE_COMMIT, AFTER_THE_WRITE])
def test_a_topic_written_in_transactions_has_each_row_once(
    tmp_path: Path, servers: str, topic: str, moment: str
) -> None:
    stream = KilledStream(
        tmp_path,
        heading="Kafka",
        replaced={"broker-1:9092": servers, '"totals"': repr(topic)},
    )
    stream.kill(moment)
    if moment == AT_THE_COMMIT:
        sent = records(servers, topic, "read_uncommitted")
        assert sorted(sent) == sorted(stream.expected(2))
    stream.recover()
    assert sorted(records(servers, topic)) == sorted(stream.expected(3))


def test_a_late_driver_adds_nothing_to_a_topic(servers: str, topic: str) -> None:
    program = block("docs/how-to/sinks.md", "Kafka", "python")
    names: dict[str, Any] = {}
    exec(program.replace("broker-1:9092", servers).replace('"totals"', repr(topic)), names)  # noqa: S102

    def deliver(epoch: int, batch: int, total: int) -> None:
        row = SimpleNamespace(id=1, total=total)
        with delivering(sk.BatchToken("job", topic, epoch, batch)):
            names["write"](SimpleNamespace(toLocalIterator=lambda: iter([row])), batch)

    deliver(1, 0, 10)
    deliver(2, 1, 20)
    deliver(2, 2, 30)
    deliver(1, 1, 20)  # stopped before its sink, and continued now
    deliver(2, 3, 40)
    assert records(servers, topic) == [(1, 10), (1, 20), (1, 30), (1, 40)]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_topic_of_sparks_sink_has_each_row_at_least_once(
    tmp_path: Path, servers: str, topic: str, moment: str
) -> None:
    stream = KilledStream(
        tmp_path,
        format="kafka",
        columns=["cast(id as string) key", "cast(total as string) value"],
        options={"kafka.bootstrap.servers": servers, "topic": topic},
        conf={"spark.jars": ",".join(map(str, spark_source_jars()))},
    )
    stream.kill(moment)
    stream.recover()
    found = Counter(records(servers, topic))
    assert sorted(found) == sorted(stream.expected(3))
    twice = [row for row, count in found.items() if count == 2]
    assert found.total() == len(found) + len(twice)
    assert {batch_of(row) for row in twice} == {1}
    of_batch = len(stream.expected(1))
    assert (len(twice) == of_batch) if moment == AFTER_THE_WRITE else (0 < len(twice) < of_batch)
    assert newest(records(servers, topic)) == newest(stream.expected(3))
