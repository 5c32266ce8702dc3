"""Entries of attempts in a compacted topic, with a list in its place."""

from collections.abc import Sequence
from typing import cast

import pytest
from fake_topic_kit import FakeTopic
from typing_extensions import override

from statekeep.backends.kafka.checkpoint_store import KafkaCheckpointStore
from statekeep.backends.kafka.compacted_topic import CompactedTopic
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.checkpoint.checkpoints import TaskName
from statekeep.stores.delta import Change
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

SETTINGS = KafkaSettings(servers="127.0.0.1:1", topic_prefix="kafka")
TASKS = [TaskName("Partition 0"), TaskName("Partition 1")]


@pytest.mark.asyncio
async def test_an_entry_that_came_after_its_attempt_was_deleted_is_found() -> None:
    store = KafkaCheckpointStore(SETTINGS, "topic", executor=SerialExecutor(), clock=FakeClock())
    store._topic = cast("CompactedTopic", FakeTopic("topic", []))
    for attempt in ("1-2", "1-3"):
        await store.write(attempt, TASKS[0], b"in time")
    await store.delete("1-2")
    assert await store.attempts() == {(1, 3)}
    await store.write("1-2", TASKS[1], b"late")
    await store.write("notes", TASKS[0], b"of no attempt")
    assert await store.attempts() == {(1, 2), (1, 3)}
    await store.delete("1-2")
    assert await store.attempts() == {(1, 3)}
    assert await store.read("1-3") == {TASKS[0]: b"in time"}


@pytest.mark.asyncio
async def test_entries_of_several_tasks_are_sent_together() -> None:
    sent: list[Sequence[Change]] = []

    class Topic(FakeTopic):
        @override
        async def send(self, entries: Sequence[Change]) -> None:
            sent.append(entries)
            await super().send(entries)

    store = KafkaCheckpointStore(SETTINGS, "topic", executor=SerialExecutor(), clock=FakeClock())
    store._topic = cast("CompactedTopic", Topic("topic", []))
    entries = {TASKS[0]: b"a", TASKS[1]: b"b"}
    await store.write_all("1-2", entries)
    assert await store.read("1-2") == entries
    assert len(sent) == 1
