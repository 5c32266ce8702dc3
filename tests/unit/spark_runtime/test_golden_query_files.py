"""The log and the backups of a query on Spark that an earlier release wrote."""

import asyncio
from pathlib import Path

import pytest
from golden_kit import unpack

import statekeep as sk
from statekeep.checkpoint.framing import unframe
from statekeep.checkpoint.records import (
    AttemptRecord,
    BaseRecord,
    BatchRecord,
    CommitRecord,
    EpochRecord,
    Record,
    ReleaseRecord,
    decode_record,
    encode_record,
)
from statekeep.checkpoint.serde import decode_attempt_entry, encode_attempt_entry

ROWS = 100
"""Of each batch; ``tests/spark/test_golden_query.py`` goes on with the query."""
BATCHES = 3


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    unpack("queries/query-1.tar.gz", tmp_path)
    return tmp_path / "backups"


def records(backups: Path) -> list[tuple[bytes, Record]]:
    paths = sorted((backups / "counts" / "log").iterdir())
    data = [path.read_bytes() for path in paths]
    return [(one, decode_record(one, where="golden")) for one in data]


def test_its_state_is_read_without_spark(backups: Path) -> None:
    settings = {
        "job.name": "counts",
        "stores.backup.factories": "blob",
        "blob.store.uri": backups.as_uri(),
    }
    rows = sk.read_state(settings, "count").to_pylist()
    assert {row["partition_id"] for row in rows} == {0, 1}
    numbers = range(ROWS * BATCHES)
    assert {row["key"]["key"]: row["value"] for row in rows} == {
        f"key-{rest}": {"n": len(part), "s": sum(part)}
        for rest in range(7)
        for part in [[n for n in numbers if n % 7 == rest]]
    }


def test_its_state_is_read_in_a_notebook(backups: Path) -> None:
    settings = {
        "job.name": "counts",
        "stores.backup.factories": "blob",
        "blob.store.uri": backups.as_uri(),
    }

    async def cell() -> int:  # a notebook runs each cell in its event loop
        return int(sk.read_state(settings, "count").num_rows)

    assert asyncio.run(cell()) == 7


def test_every_record_of_its_log_is_written_as_it_was(backups: Path) -> None:
    read = records(backups)
    assert [encode_record(record) for _, record in read] == [data for data, _ in read]
    assert {type(record) for _, record in read} == {
        AttemptRecord,
        BaseRecord,
        BatchRecord,
        CommitRecord,
        EpochRecord,
        ReleaseRecord,
    }


def test_every_entry_of_its_checkpoint_store_is_written_as_it_was(backups: Path) -> None:
    paths = sorted((backups / "counts" / "checkpoints").glob("*/Partition_*/*"))
    assert paths
    for path in paths:
        data = path.read_bytes()
        assert unframe(data, where=path.name).kind == "finished-task"
        assert encode_attempt_entry(decode_attempt_entry(data, path.name)) == data
