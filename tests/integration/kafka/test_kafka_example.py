"""The example program, killed many times."""

import shutil
import signal
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

from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.checkpoint.records import CommitRecord, decode_record
from statekeep.checkpoint.serde import decode_checkpoint_v2

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
WORDS = [b"w%d" % (n * n % 97) for n in range(90_000)]
PARTS = [WORDS[n::4] for n in range(4)]


def program(broker: KafkaBroker, topic: str, local: Path, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "examples.kafka_consumer", "--servers", broker.servers),
        *("--topic", topic, "--local-dir", str(local), "--commit-ms", "50ms", *more),
    ]


def committed_count(broker: KafkaBroker, topic: str) -> int:
    """Return how many words the program's newest commit has taken in."""
    names = AdminClient({"bootstrap.servers": broker.servers}).list_topics(timeout=10).topics
    logs = [name for name in names if topic in name and name.endswith("job-log")]
    last_offset = -1
    for record in (record for log in logs for record in read_partition(broker.servers, log, 0)):
        found = decode_record(record.value or b"", where=topic) if record.key.isdigit() else None
        if isinstance(found, CommitRecord) and found.checkpoints:
            (checkpoint,) = found.checkpoints.values()
            offsets = decode_checkpoint_v2(bytes(checkpoint), topic).input_offsets
            source = SystemStreamPartition("kafka", topic, 0)
            last_offset = int(offsets.get(source, last_offset))
    return last_offset + 1


def write(broker: KafkaBroker, topic: str, words: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": broker.servers})
    assert producer.produce_batch(topic, [{"value": word} for word in words], 0) == len(words)
    producer.flush()


def test_every_record_counts_once_however_often_the_program_is_killed(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    topic, local = f"words-{uuid.uuid4().hex}", tmp_path / "local"
    admin = AdminClient({"bootstrap.servers": broker.servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    write(broker, topic, PARTS[0])
    for round_number, more in enumerate(PARTS[1:], 1):
        before = committed_count(broker, topic)
        with subprocess.Popen(program(broker, topic, local), cwd=ROOT) as process:
            while committed_count(broker, topic) == before:
                assert process.poll() is None
            # It may have come to the end of its input; with this, some is left when it dies.
            process.send_signal(signal.SIGSTOP)
            write(broker, topic, more)
            process.kill()
        assert before < committed_count(broker, topic) <= round_number * len(more)
        if round_number == 2:
            shutil.rmtree(local)
    last = program(broker, topic, local, "--until-end")
    done = subprocess.run(last, cwd=ROOT, check=True, capture_output=True, timeout=120)
    counts = dict(line.split() for line in done.stdout.decode().splitlines())
    assert counts == {word.decode(): str(n) for word, n in Counter(WORDS).items()}
