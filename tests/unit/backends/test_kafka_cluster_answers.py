"""What the cluster's answers are taken for, without a cluster."""

from collections.abc import Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from statekeep.backends.kafka.admin import KafkaAdmin
from statekeep.backends.kafka.cluster import Cluster
from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.errors import RetriableError
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

PLACE = ChangelogPartition("topic", 0)


class FakeAdmin:
    """Gives one answer to every question for offsets."""

    def __init__(self, answer: int | KafkaError) -> None:
        self._answer = answer

    def list_offsets(self, asked: Iterable[Any], **options: Any) -> dict[Any, Future[Any]]:
        futures: dict[Any, Future[Any]] = {}
        for place in asked:
            futures[place] = Future()
            if isinstance(self._answer, int):
                futures[place].set_result(SimpleNamespace(offset=self._answer))
            else:
                futures[place].set_exception(KafkaException(self._answer))
        return futures


class SilentCluster:
    """Answers nothing."""

    def node_count(self) -> int:
        raise RetriableError("no answer")


def cluster(answer: int | KafkaError) -> Cluster:
    made = Cluster(KafkaSettings(servers="127.0.0.1:1", topic_prefix="kafka"))
    made._held = [cast("AdminClient", FakeAdmin(answer))]
    return made


def test_an_offset_is_what_the_cluster_says() -> None:
    assert cluster(7).end_offsets([PLACE]) == {PLACE: 7}
    assert cluster(0).start_offsets([PLACE]) == {PLACE: 0}


@pytest.mark.parametrize("is_committed_only", [True, False])
def test_an_offset_that_no_node_told_is_no_offset(is_committed_only: bool) -> None:  # noqa: FBT001 - a case
    with pytest.raises(RetriableError, match="offsets cannot be read"):
        cluster(-1).end_offsets([PLACE], is_committed_only=is_committed_only)


def test_a_topic_that_a_node_does_not_know_yet_is_asked_for_again() -> None:
    unknown = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    with pytest.raises(RetriableError):
        cluster(unknown).start_offsets([PLACE])


@pytest.mark.asyncio
async def test_a_cluster_that_does_not_answer_is_away_and_not_set_up_wrongly() -> None:
    settings = KafkaSettings(servers="127.0.0.1:1", topic_prefix="kafka")
    admin = KafkaAdmin(BackendName("far"), settings, None, SerialExecutor(), FakeClock())
    admin._cluster = cast("Cluster", SilentCluster())
    with pytest.raises(RetriableError, match="backend=far") as caught:
        await admin.validate_resources()
    assert "backends.far.bootstrap.servers" in caught.value.__notes__[0]
