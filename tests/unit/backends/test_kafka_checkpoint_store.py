"""Entries of attempts in a compacted topic, with a list in its place."""

from typing import cast

import pytest
from fake_topic_kit import FakeTopic

from statekeep.backends.kafka.checkpoint_store import KafkaCheckpointStore
from statekeep.backends.kafka.compacted_topic import CompactedTopic
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.checkpoint.checkpoints import TaskName
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
