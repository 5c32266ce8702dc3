"""What a sidecar has seen goes to the driver with the entry of its task, and can do no harm there."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest
from sidecar_process_kit import VERSION, spec_in, submit_versions

from statekeep.checkpoint.serde import (
    NO_EVENTS,
    FailedTask,
    FinishedTask,
    decode_attempt_entry,
    decode_events,
    encode_events,
)
from statekeep.events import (
    BackendUploaded,
    CommitSkipped,
    RequestDone,
    SnapshotTaken,
    StoreFetched,
)
from statekeep.spark.sidecar.collector import EventCollector
from statekeep.spark.sidecar.work import SidecarWork
from statekeep.spark.tasks import local_directory, task_name
from statekeep.testing.clock import FakeClock
from statekeep.testing.versions import seal_version

REQUEST = RequestDone("blob", "put", "done", 7, 2, "upload", "Partition 0")
SNAPSHOT = SnapshotTaken("Partition 0", "1-0", 5, {"blob": 9})
UPLOAD = BackendUploaded("Partition 0", "blob", "1-0", "done", 8, 4, bytes=9, bytes_sent=3)
FETCH = StoreFetched("Partition 0", "state", "blob", "damaged", 8, 4)


def test_events_come_out_as_they_went_in_and_others_stay_behind() -> None:
    carried = encode_events([UPLOAD, REQUEST, CommitSkipped(), FETCH, SNAPSHOT])
    assert list(decode_events(carried)) == [SNAPSHOT, REQUEST, FETCH, UPLOAD]


@pytest.mark.parametrize(
    "carried", [NO_EVENTS, b"{}", b"{", b'{"requests":[["blob"]]}', b'{"uploads":[{"task":1}]}']
)
def test_what_cannot_be_read_is_left_out(carried: bytes) -> None:
    assert list(decode_events(carried)) == []


def test_many_requests_are_carried_as_counts() -> None:
    seen = EventCollector()
    seen.begin("Partition 0")
    for _ in range(100):
        seen.report(REQUEST)
    found = list(decode_events(seen.take("Partition 0")))
    alone = [event for event in found if event == REQUEST]
    (counted,) = [event for event in found if event != REQUEST]
    assert isinstance(counted, RequestDone)
    assert (len(alone), counted.count, counted.elapsed_ns) == (32, 68, 136)
    assert list(decode_events(seen.take("Partition 0"))) == []


def test_requests_of_no_task_go_with_the_next_one_and_what_no_task_takes_is_dropped() -> None:
    seen = EventCollector()
    seen.begin("Partition 0")
    for _ in range(2):
        seen.report(RequestDone("blob", "put", "done", 7, 2))
        seen.report(UPLOAD)
    seen.begin("Partition 0")
    (counted,) = decode_events(seen.take("Partition 1"))
    assert isinstance(counted, RequestDone)
    assert (counted.count, counted.task) == (2, "")
    assert list(decode_events(seen.take("Partition 0"))) == []


async def entry_of(root: Path, *, is_observed: bool, is_sealed: bool) -> FinishedTask | FailedTask:
    if is_sealed:
        seal_version(local_directory(root / "local", "j-u", 0), VERSION, None, {b"k": b"v"})
    work = SidecarWork(spec_in(root), FakeClock())
    try:
        await work.upload(msgspec.structs.replace(submit_versions(), is_observed=is_observed))
        data = (await work._checkpoints.read("1-1"))[task_name(0)]
    finally:
        await work.close()
    return decode_attempt_entry(data, where="test")


@pytest.mark.asyncio
async def test_an_entry_has_events_where_the_driver_has_listeners(tmp_path: Path) -> None:
    entry = await entry_of(tmp_path, is_observed=True, is_sealed=True)
    found = list(decode_events(entry.events))
    assert [type(event) for event in found if not isinstance(event, RequestDone)] == [
        SnapshotTaken,
        BackendUploaded,
    ]
    puts = [e for e in found if isinstance(e, RequestDone) and e.operation == "put"]
    assert puts
    assert {(put.purpose, put.task, put.outcome) for put in puts} == {
        ("upload", task_name(0), "done")
    }


@pytest.mark.asyncio
async def test_an_entry_has_only_counts_of_requests_where_the_driver_has_no_listeners(
    tmp_path: Path,
) -> None:
    observed = await entry_of(tmp_path / "observed", is_observed=True, is_sealed=True)
    wanted = Counter(
        e.operation for e in decode_events(observed.events) if isinstance(e, RequestDone)
    )
    entry = await entry_of(tmp_path / "not", is_observed=False, is_sealed=True)
    found = list(decode_events(entry.events))
    assert all(isinstance(event, RequestDone) for event in found)
    counts = Counter[str]()
    for event in found:
        assert isinstance(event, RequestDone)
        assert not event.task
        counts[event.operation] += event.count
    assert counts == wanted
    assert len(found) < sum(counts.values())


@pytest.mark.asyncio
async def test_the_entry_of_a_failed_task_has_them_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr("statekeep.backends.blob.backup.BlobBackupManager.upload", refuse)
    entry = await entry_of(tmp_path, is_observed=True, is_sealed=True)
    assert isinstance(entry, FailedTask)
    (upload,) = [e for e in decode_events(entry.events) if isinstance(e, BackendUploaded)]
    assert (upload.outcome, upload.backend) == ("failed", "blob")
