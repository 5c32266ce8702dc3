"""What makes the golden topics, and the broker in memory that reads them, beside a real one."""

import json
from functools import partial
from pathlib import Path

import pytest
from broker_kit import SERVERS, FakeBroker
from golden_topics_kit import TopicFile
from golden_topics_maker import (
    COMMITS,
    INPUT,
    STORES,
    TASK,
    config_of,
    drop_before,
    make_topics,
    record,
)
from servers.kafka import KafkaBroker

from statekeep.container.container import Container

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.mark.asyncio
async def test_jobs_on_a_broker_go_on_from_files_of_its_topics(
    broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop = partial(drop_before, broker.servers)
    for topic in await make_topics(broker.servers, tmp_path, drop):
        record(broker.servers, topic).write(tmp_path / f"{topic}.jsonl")
    files = [TopicFile.read(path) for path in tmp_path.glob("*.jsonl")]
    assert {file.topic for file in files if not file.records} == {
        "kafka.ended.main.unused.changelog",
        "kafka.orders.main.unused.changelog",
        "plain-unused",
    }
    FakeBroker(files).install(monkeypatch)
    for job in ("orders", "plain"):
        async with Container(config_of(job, SERVERS, tmp_path / "other-disk")) as container:
            task = await container.start_task(TASK, STORES)
            content = {key.decode(): value.decode() for key, value in task.store(STORES[0]).scan()}
            assert content == json.loads((tmp_path / f"{job}.json").read_bytes())
            assert task.input_offsets[INPUT] == str(COMMITS[job])
            assert task.restored.failures == ()
