"""The example program, killed again and again."""

import shutil
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_kit import read_partition
from servers.kafka import KafkaBroker

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[3]
WORDS = [b"w%d" % (n * n % 97) for n in range(90_000)]


def program(broker: KafkaBroker, topic: str, local: Path, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "examples.kafka_consumer", "--servers", broker.servers),
        *("--topic", topic, "--local-dir", str(local), "--commit-ms", "50ms", *more),
    ]


def commit_count(broker: KafkaBroker, topic: str) -> int:
    """Return how many records the program's job log has."""
    names = AdminClient({"bootstrap.servers": broker.servers}).list_topics(timeout=10).topics
    logs = [name for name in names if topic in name and name.endswith("job-log")]
    return sum(len(list(read_partition(broker.servers, log, 0))) for log in logs)


def test_every_record_counts_once_however_often_the_program_is_killed(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    topic, local = f"words-{uuid.uuid4().hex}", tmp_path / "local"
    admin = AdminClient({"bootstrap.servers": broker.servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    producer = Producer({"bootstrap.servers": broker.servers})
    assert producer.produce_batch(topic, [{"value": word} for word in WORDS], 0) == len(WORDS)
    producer.flush()
    for round_number in range(3):
        before = commit_count(broker, topic)
        with subprocess.Popen(program(broker, topic, local), cwd=ROOT) as process:
            while commit_count(broker, topic) < before + 5:
                assert process.poll() is None
            process.kill()
        if round_number == 1:
            shutil.rmtree(local)
    last = program(broker, topic, local, "--until-end")
    done = subprocess.run(last, cwd=ROOT, check=True, capture_output=True, timeout=120)
    counts = dict(line.split() for line in done.stdout.decode().splitlines())
    assert counts == {word.decode(): str(n) for word, n in Counter(WORDS).items()}
