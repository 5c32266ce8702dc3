"""What a query tells of itself outlives it, beside the checkpoints."""

import asyncio
from typing import Any

import pytest
from conftest import PARTITIONS, Stream

from statekeep.checkpoint.event_log import Event
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.inspection.job import open_job

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


def written_events(stream: Stream) -> list[Event]:
    settings: dict[str, Any] = {
        "job.name": "counts",
        "stores.backup.factories": "blob",
        "blob.store.uri": f"{stream.location}-statekeep",
    }

    async def read() -> list[Event]:
        async with open_job(load_dict(settings), SystemClock()) as job:
            return list(await job.progress())

    return asyncio.run(read())


def test_the_events_of_each_reign_are_written_beside_the_checkpoints(stream: Stream) -> None:
    stream.add_batches(3)
    stream.run(task__commit__every__batch=True)
    stream.add_batches(1)
    stream.run()
    events = written_events(stream)
    assert {event.epoch for event in events} == {1, 2}
    first = [event for event in events if event.epoch == 1]
    assert [event.sequence for event in first] == list(range(len(first)))
    assert first[0].kind == "job-initialised"
    assert first[0].details["partitions"] == PARTITIONS
    assert first[0].details["backends"] == ["blob"]
    uploads = [event.details for event in first if event.kind == "task-uploaded"]
    assert len(uploads) == 3 * PARTITIONS
    assert all(upload["bytes"] > 0 and upload["elapsed_ms"] >= 0 for upload in uploads)
    kinds = [event.kind for event in first if event.kind in {"batch", "commit", "stopped"}]
    assert kinds.count("batch") == kinds.count("commit") == 3
    assert kinds[-1] == "stopped"
    second = [event for event in events if event.epoch == 2]
    assert (second[0].kind, second[0].details["committed"]) == ("job-initialised", 2)
    assert [event.kind for event in second].count("recovery") == 1
    assert second[-1].details == {"committed": 3, "head": 3, "error": None}
