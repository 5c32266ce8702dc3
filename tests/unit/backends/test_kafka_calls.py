"""What is asked of Kafka's client is counted, by operation, outcome and purpose."""

import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from broker_kit import SERVERS, FakeBroker
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from typing_extensions import override

from statekeep.backends.kafka.calls import ClientCalls
from statekeep.backends.kafka.cluster import Cluster
from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.config.load import load_dict
from statekeep.container.container import Container
from statekeep.errors import StateBackupError
from statekeep.events import Event, EventSource, Listener, RequestDone
from statekeep.testing.clock import FakeClock

INPUT = SystemStreamPartition("kafka", "orders", 0)


class Counting(Listener):
    """Adds requests up."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, str]] = Counter()

    @override
    def on_event(self, event: Event, source: EventSource, /) -> None:
        if isinstance(event, RequestDone):
            assert event.backend == "kafka"
            assert event.elapsed_ns >= 0
            self.counts[event.operation, event.outcome, event.purpose] += event.count

    @override
    def close(self) -> None:
        """The counts stay."""


async def run(directory: Path, *numbers: int) -> Counter[tuple[str, str, str]]:
    """Let a job with its log in Kafka commit some numbers; return what was counted."""
    listener = Counting()
    config = load_dict(
        {
            "job.name": "orders",
            "job.logged.store.base.dir": str(directory / "local"),
            "stores.default.factory": "memory",
            "stores.backup.factories": "kafka",
            "kafka.bootstrap.servers": SERVERS,
            "task.commit.ms": "0",
        }
    )
    async with Container(config, listeners=[listener]) as container:
        task = await container.start_task("Partition 0", ["counts"])
        for number in numbers:
            task.store("counts").put(b"key", b"%d" % number)
            await (await task.commit({INPUT: str(number)}, force=True)).wait()
    return listener.counts


@pytest.mark.asyncio
async def test_a_job_counts_its_uploads_restores_and_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    FakeBroker().install(monkeypatch)
    one = await run(tmp_path, 1)
    assert one["produce", "done", "upload"] == 1
    assert one["init-transactions", "done", "upload"] == 1
    assert one["commit-transaction", "done", "upload"] == 1
    assert one["init-transactions", "done", ""] == 1  # of the job log
    again = await run(tmp_path, 2, 3)
    assert again["produce", "done", "upload"] == 2
    # The log: an attempt and a commit more.
    in_log = ("commit-transaction", "done", "")
    assert again[in_log] - one[in_log] == 2
    shutil.rmtree(tmp_path / "local")
    assert (await run(tmp_path))["fetch", "done", "restore"] == 1


class Admin:
    """A client that answers with an offset, or fails."""

    def __init__(self, answer: int | KafkaError) -> None:
        self._answer = answer

    def list_offsets(self, asked: dict[Any, Any], **_: object) -> dict[Any, Any]:
        def result(_timeout_s: float) -> SimpleNamespace:
            if isinstance(self._answer, int):
                return SimpleNamespace(offset=self._answer)
            raise KafkaException(self._answer)

        return {place: SimpleNamespace(result=result) for place in asked}

    def list_topics(self, **_: object) -> SimpleNamespace:
        if isinstance(self._answer, int):
            return SimpleNamespace(topics={"a": None})
        raise KafkaException(self._answer)


def asked(answer: int | KafkaError) -> tuple[Cluster, list[RequestDone]]:
    """Return a cluster that answers so, and what is reported of it."""
    reported: list[RequestDone] = []
    calls = ClientCalls("kafka", FakeClock())
    calls.report = lambda event: reported.append(cast("RequestDone", event))
    made = Cluster(KafkaSettings(servers=SERVERS, topic_prefix="kafka"), calls)
    made._held = [cast("AdminClient", Admin(answer))]
    return made, reported


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (7, "done"),
        (-1, "unavailable"),
        (KafkaError(KafkaError._TIMED_OUT), "unavailable"),
        (KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "failed"),
    ],
    ids=["offset", "none", "late", "refused"],
)
def test_a_question_is_counted_by_its_outcome(answer: int | KafkaError, outcome: str) -> None:
    cluster, reported = asked(answer)
    try:
        cluster.end_offsets([ChangelogPartition("topic", 0)])
    except StateBackupError:
        assert outcome != "done"
    assert [(each.operation, each.outcome) for each in reported] == [("offsets", outcome)]


def test_nothing_is_asked_where_there_is_nothing_to_ask() -> None:
    cluster, reported = asked(7)
    assert cluster.end_offsets([]) == {}
    assert cluster.topics() == ["a"]
    assert [each.operation for each in reported] == ["metadata"]
