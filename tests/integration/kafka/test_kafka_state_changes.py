"""The state of a stopped job that is backed up in Kafka too: changed, taken back and erased."""

import asyncio
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from servers.kafka import KafkaBroker
from spark_job_kit import CONTENT, ONE_STORE, make_job, settings

import statekeep as sk
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.inspection.job import open_job
from statekeep.inspection.state_change import Changing, undo_change
from statekeep.spark.state.erasing import EraseRequest, erase_keys

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def test_a_changelog_has_what_was_written_taken_back_and_erased(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    others = {
        "stores.backup.factories": "blob,kafka",
        "kafka.bootstrap.servers": broker.servers,
        "kafka.topic.prefix": f"changes-{uuid.uuid4().hex}",
    }
    asyncio.run(make_job(tmp_path, ONE_STORE, **others))
    job = settings(tmp_path) | others

    def check(expected: dict[str, int]) -> None:
        for backend in ("blob", "kafka"):
            rows = sk.read_state(job, "count", backend=backend).to_pylist()
            assert {row["key"]["user"]: row["value"]["n"] for row in rows} == expected, backend

    async def undo() -> None:
        async with open_job(load_dict(job), SystemClock()) as opened:
            await undo_change(opened, "test", Changing(tmp_path / "undo", "test"))

    check(CONTENT)
    table = pa.table({"key": ["user-7", "newcomer"], "value": [70, 1]})
    sk.write_state(job, "count", table, reason="test")
    check(CONTENT | {"user-7": 70, "newcomer": 1})
    asyncio.run(undo())
    check(CONTENT)
    request = EraseRequest(load_dict(job), ["user-7"], "test")
    asyncio.run(erase_keys(request, Changing(tmp_path / "erase", "test")))
    check({user: n for user, n in CONTENT.items() if user != "user-7"})
