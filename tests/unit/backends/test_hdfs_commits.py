"""Snapshots, fall-back and clean-up of the HDFS backend, on a directory."""

import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from hdfs_kit import header_of
from hdfs_task_kit import Task, damage, upload_of, with_old_marker

from statekeep.backends.hdfs import lineage, store_files
from statekeep.backends.hdfs.backup import HdfsBackupManager
from statekeep.backends.hdfs.factory import HdfsBackendFactory
from statekeep.backends.hdfs.lineage import LoadPlan
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.errors import BlobNotFoundError, CheckpointCorruptError, ConfigError
from statekeep.stores.delta import DeltaReader, DeltaWriter
from statekeep.testing.backend_harness import STORE, LogSnapshot
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.key_value_harness import KeyValueHarness


@pytest_asyncio.fixture
async def task(tmp_path: Path) -> AsyncIterator[Task]:
    made = Task(tmp_path / "place", tmp_path / "local")
    await made.start()
    yield made
    await made.close()


@pytest.mark.asyncio
async def test_a_commit_uploads_its_changes_and_the_first_one_everything(task: Task) -> None:
    commits = [await task.commit_next(a=bytes([n])) for n in range(3)]
    assert [path.name for path in task.files()] == [
        f"{upload_of(commits[0])}.snapshot",
        f"{upload_of(commits[1])}.delta",
        f"{upload_of(commits[2])}.delta",
    ]


@pytest.mark.asyncio
async def test_a_commit_counts_the_bytes_of_what_it_uploads_and_not_of_snapshots_beside_it(
    task: Task,
) -> None:
    commits = [await task.commit_next(a=bytes([n])) for n in range(4)]
    kinds = ["snapshot", "delta", "delta", "delta"]
    sizes = [task.file(c, k).stat().st_size for c, k in zip(commits, kinds, strict=True)]
    assert task.counted == sizes
    assert task.file(commits[3], "snapshot").exists()


@pytest.mark.asyncio
async def test_a_delta_names_its_version_its_base_and_the_uploads_back_to_the_snapshot(
    task: Task,
) -> None:
    commits = [await task.commit_next(a=bytes([n])) for n in range(3)]
    header = header_of(task.file(commits[2], "delta").read_bytes())
    context = commits[2].context
    assert header["version"] == str(context.version.id)
    assert header["parent"] == str(commits[1].context.version.id)
    assert header["lineage"] == [upload_of(commits[1]), upload_of(commits[0])]
    assert header["attributes"]["id"] == upload_of(commits[2])
    assert header["attributes"]["epoch"] == str(context.epoch)
    assert header["attributes"]["attempt"] == str(context.attempt)


@pytest.mark.asyncio
async def test_a_snapshot_follows_after_so_many_deltas_and_shortens_the_lineage(task: Task) -> None:
    commits = [await task.commit_next(a=bytes([n])) for n in range(5)]
    assert [path.name for path in task.files("*.snapshot")] == [
        f"{upload_of(commits[0])}.snapshot",
        f"{upload_of(commits[3])}.snapshot",
    ]
    header = header_of(task.file(commits[4], "delta").read_bytes())
    assert header["lineage"] == [upload_of(commits[3])]


@pytest.mark.asyncio
async def test_a_snapshot_follows_after_so_many_bytes_too(tmp_path: Path) -> None:
    task = Task(tmp_path / "p", tmp_path / "l", **{"max.delta.bytes": "1500"})
    await task.start()
    for number in range(3):
        await task.commit_next(**{f"key{number}": bytes(600)})
    assert len(task.files("*.snapshot")) == 2
    await task.close()


@pytest.mark.asyncio
async def test_every_commit_restores_whether_by_snapshot_or_by_deltas(task: Task) -> None:
    expected = []
    for number in range(9):
        commit = await task.commit_next(**{f"k{number % 4}": bytes([number]) * number})
        expected.append((commit, dict(task.content)))
    for commit, content in expected:
        assert (await task.restore(commit.checkpoint)).content == {STORE: content}


@pytest.mark.asyncio
async def test_without_an_older_snapshot_a_damaged_one_is_an_error(task: Task) -> None:
    commits = [await task.commit_next(a=bytes([n])) for n in range(2)]
    damage(task.file(commits[0], "snapshot"))
    with pytest.raises(CheckpointCorruptError):
        await task.restore(commits[1].checkpoint)


@pytest.mark.asyncio
async def test_a_lost_snapshot_is_traced_further_back(task: Task) -> None:
    commits = [await task.commit_next(a=bytes([n])) for n in range(5)]
    task.file(commits[3], "snapshot").unlink()
    assert (await task.restore(commits[4].checkpoint)).content == {STORE: task.content}


@pytest.mark.asyncio
async def test_a_lost_delta_is_named(task: Task) -> None:
    commits = [await task.commit_next(a=bytes([n])) for n in range(3)]
    task.file(commits[1], "delta").unlink()
    with pytest.raises(BlobNotFoundError, match=f"/{STORE}/{upload_of(commits[1])}.delta") as lost:
        await task.restore(commits[2].checkpoint)
    assert lost.value.__notes__ == [
        f"a file that upload={upload_of(commits[2])} needs: store={STORE}"
    ]


@pytest.mark.asyncio
async def test_a_delta_that_another_one_has_replaced_is_not_used(task: Task) -> None:
    commits = [await task.commit_next(a=bytes([n])) for n in range(3)]
    other = task.file(commits[1], "delta").read_bytes()
    task.file(commits[2], "delta").write_bytes(other)
    with pytest.raises(CheckpointCorruptError, match="another one than its name says"):
        await task.restore(commits[2].checkpoint)


@pytest.mark.asyncio
async def test_a_delta_that_leads_on_from_another_version_is_not_applied(task: Task) -> None:
    commits = [await task.commit_next(a=bytes([n])) for n in range(3)]
    path = task.file(commits[2], "delta")
    with path.open("rb") as file:
        header = DeltaReader(file, where="").header
    with path.open("wb") as file:
        DeltaWriter(file, msgspec.structs.replace(header, parent="1_0badbad0")).finish()
    with pytest.raises(CheckpointCorruptError, match="does not lead on"):
        await task.restore(commits[2].checkpoint)


def put_in_place_of_another(path: Path) -> None:
    (older,) = (other for other in path.parent.glob("*.snapshot") if other != path)
    path.write_bytes(older.read_bytes())


def make_delete(path: Path) -> None:
    with path.open("rb") as file:
        header = DeltaReader(file, where="").header
    with path.open("wb") as file:
        writer = DeltaWriter(file, header)
        writer.write({b"a": b"3", b"b": None})
        writer.finish()


def make_key_size_too_low(path: Path) -> None:
    put_record(path, struct.pack("<i1si", -1, b"a", 1))


def make_size_too_low(path: Path) -> None:
    put_record(path, struct.pack("<I1si", 1, b"a", -2))


def put_record(path: Path, record: bytes) -> None:
    with path.open("rb") as file:
        header = DeltaReader(file, where="").header
    with path.open("wb") as file:
        writer = DeltaWriter(file, header)
        writer._parts.append(record)
        writer.finish()


DAMAGES = {
    damage: "damaged",
    put_in_place_of_another: "another",
    make_delete: "a snapshot has a value size below 0",
    make_size_too_low: "value size below -1: key=0 size=-2",
    make_key_size_too_low: "key size below 0: key=0 size=-1",
}


@pytest.mark.asyncio
@pytest.mark.parametrize(("spoil", "error"), DAMAGES.items())
async def test_whatever_is_wrong_with_a_snapshot_an_older_one_is_restored(
    task: Task, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None], error: str
) -> None:
    commits = [await task.commit_next(a=bytes([n])) for n in range(5)]
    spoil(task.file(commits[3], "snapshot"))
    assert (await task.restore(commits[4].checkpoint)).content == {STORE: task.content}
    (told,) = [r for r in caplog.messages if "snapshot is damaged, an older one is used" in r]
    assert error in told.partition("error=")[2]


@pytest.mark.asyncio
@pytest.mark.parametrize("spoil", DAMAGES)
async def test_clean_up_keeps_what_lies_behind_a_damaged_snapshot(
    task: Task, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None]
) -> None:
    commits = [await task.commit_next(a=bytes([n])) for n in range(6)]
    spoil(task.file(commits[3], "snapshot"))
    for commit in commits[:5]:
        task.release(commit)
    await task.clean_up()
    assert "what lies behind it is kept" in caplog.text
    assert (await task.restore(commits[5].checkpoint)).content == {STORE: task.content}


@pytest.mark.asyncio
async def test_a_damaged_snapshot_of_a_kept_commit_keeps_no_other_file_from_clean_up(
    task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    kept = [await task.commit_next(a=bytes([n])) for n in range(5)][-1]
    await task.clean_up()
    content = dict(task.content)
    damage(task.file(task.commits[3], "snapshot"))
    counts: list[int] = []
    for number in range(5, 35):
        commit = await task.commit_next(a=bytes([number]))
        for older in task.commits[task.commits.index(kept) + 1 : task.commits.index(commit)]:
            task.release(older)
        await task.clean_up()
        counts.append(len(task.files()))
    assert max(counts[6:]) <= max(counts[:6]) + 1
    assert (await task.restore(kept.checkpoint)).content == {STORE: content}
    assert caplog.text.count("snapshot is damaged, what lies behind it is kept") == 1


@pytest.mark.asyncio
async def test_a_base_that_clean_up_has_found_damaged_is_none_any_more(
    task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    commits = [await task.commit_next(a=bytes([n])) for n in range(2)]
    damage(task.file(commits[0], "snapshot"))
    aborted = task.open_attempt(task.seal({"a": b"aborted"}))
    await task.upload(aborted)
    task.abort(aborted)
    await task.clean_up()
    assert "no whole snapshot is left of a retained commit" in caplog.text
    commit = await task.commit_next(a=b"2")
    assert task.file(commit, "snapshot").exists()
    assert (await task.restore(commit.checkpoint)).content == {STORE: {"a": b"2"}}


@pytest.mark.asyncio
async def test_snapshots_of_two_open_attempts_stay_until_it_is_known_which_is_committed(
    task: Task,
) -> None:
    for number in range(3):
        await task.commit_next(a=bytes([number]))
    task.content = {"a": b"3"}
    version = task.seal(task.content)
    first, second = task.open_attempt(version), task.open_attempt(version)
    markers = [await task.upload(attempt) for attempt in (first, second)]
    await task.finish_snapshots()
    made = {path.name for path in task.files("*.snapshot")}
    await task.clean_up()
    assert {path.name for path in task.files("*.snapshot")} == made
    assert len(made) == 3
    task.abort(first)
    commit = task.record(second, markers[1])
    await task.clean_up()
    assert {path.name for path in task.files("*.snapshot")} < made
    assert task.file(commit, "snapshot").exists()
    assert (await task.restore(commit.checkpoint)).content == {STORE: {"a": b"3"}}


@pytest.mark.asyncio
async def test_clean_up_goes_as_far_as_the_last_snapshot(task: Task) -> None:
    commits = [await task.commit_next(a=bytes([n])) for n in range(6)]
    for commit in commits[:5]:
        task.release(commit)
    await task.clean_up()
    assert [path.name for path in task.files()] == [
        f"{upload_of(commits[3])}.snapshot",
        f"{upload_of(commits[4])}.delta",
        f"{upload_of(commits[5])}.delta",
    ]


@pytest.mark.asyncio
async def test_clean_up_finds_what_an_older_attempt_left_though_no_record_names_it(
    task: Task,
) -> None:
    await task.commit_next(a=b"0")
    late = task.open_attempt(task.seal({"a": b"late"}))
    await task.upload(late)
    aborted = task.open_attempt(task.seal({"a": b"aborted"}))
    task.abort(aborted)
    commit = await task.commit_next(a=b"1")
    await task.clean_up()
    assert (await task.restore(commit.checkpoint)).content == {STORE: {"a": b"1"}}
    assert len(task.files()) == 2


@pytest.mark.asyncio
async def test_a_restore_by_an_old_marker_survives_a_clean_up_behind_a_new_snapshot(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = [await task.commit_next(a=bytes([n])) for n in range(4)]
    snapshot = task.file(commits[3], "snapshot")
    hidden = snapshot.rename(snapshot.with_name("hidden"))
    plan_load = lineage.plan_load

    async def plan_then_clean_up(*arguments: Any) -> LoadPlan:
        plan = await plan_load(*arguments)
        if hidden.exists():
            hidden.rename(snapshot)
            task.file(commits[1], "delta").unlink()
        return plan

    monkeypatch.setattr(store_files, "plan_load", plan_then_clean_up)
    restored = await task.restore(with_old_marker(commits[3]))
    assert restored.content == {STORE: task.content}


@pytest.mark.asyncio
async def test_clean_up_keeps_what_a_commit_reads_that_is_older_than_the_snapshot_behind_it(
    task: Task,
) -> None:
    commits = [await task.commit_next(a=bytes([n])) for n in range(4)]
    assert task.file(commits[3], "snapshot").exists()
    for commit in commits[:3]:
        task.release(commit)
    await task.clean_up()
    assert (await task.restore(commits[3].checkpoint)).content == {STORE: task.content}
    last = await task.commit_next(a=b"4")
    task.release(commits[3])
    await task.clean_up()
    assert [path.suffix for path in task.files()] == [".snapshot", ".delta"]
    assert (await task.restore(last.checkpoint)).content == {STORE: task.content}


@pytest.mark.asyncio
async def test_a_snapshot_that_fails_is_a_warning_and_made_by_the_next_commit(
    task: Task, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        await task.commit_next(a=bytes([number]))

    async def fail(*_: object) -> None:
        raise ConfigError("the disk quota is used up")

    with monkeypatch.context() as patch:
        patch.setattr(HdfsBackupManager, "_upload_snapshot", fail)
        failed = await task.commit_next(a=b"3")
    assert "snapshot failed" in caplog.text
    assert f"store={STORE}" in caplog.text
    assert len(task.files("*.snapshot")) == 1
    made = await task.commit_next(a=b"4")
    assert task.file(made, "snapshot").exists()
    assert not list(task.place.rglob(f"{upload_of(failed)}.snapshot"))


@pytest.mark.asyncio
async def test_a_file_that_is_none_of_ours_is_left_alone_with_one_warning(
    task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    first = await task.commit_next(a=b"0")
    foreign = task.file(first, "snapshot").with_name("notes.txt")
    foreign.write_text("mine")
    for number in range(3):
        await task.commit_next(a=bytes([number]))
    for commit in task.commits[:-1]:
        task.release(commit)
    await task.clean_up()
    assert foreign.read_text() == "mine"
    assert caplog.text.count("file was not written by Statekeep") == 1


@pytest.mark.asyncio
async def test_two_attempts_of_one_version_are_two_complete_sets_of_files(task: Task) -> None:
    await task.commit_next(a=b"0")
    version = task.seal({"a": b"1"})
    one, two = task.open_attempt(version), task.open_attempt(version)
    markers = [await task.upload(one), await task.upload(two)]
    assert markers[0] != markers[1]
    for context, uploaded in zip((one, two), markers, strict=True):
        checkpoint = task.record(context, uploaded).checkpoint
        assert (await task.restore(checkpoint)).content == {STORE: {"a": b"1"}}


@pytest.mark.asyncio
async def test_a_job_may_start_from_another_ones_backup_and_builds_nothing_on_it(
    task: Task, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = await task.commit_next(a=b"0")
    await task.commit_next(b=b"1")
    factory = HdfsBackendFactory(BackendName("hdfs"), {"uri": f"file://{task.place}"})
    other = KeyValueHarness(factory, SerialExecutor(), FakeClock(), tmp_path / "o", job_uid="99bb")
    await other.start()
    restored = await other.restore(first.checkpoint)
    assert restored.content == {STORE: {"a": b"0"}}
    base = other.seal({"a": b"0"})
    context = other.open_attempt(base)
    other.record(context, first.markers)
    commit = await other.commit(other.seal({"a": b"1"}))
    assert list(task.place.rglob(f"{upload_of(commit)}.snapshot"))
    assert "base is unusable" not in caplog.text
    await other.clean_up(LogSnapshot([commit.markers], [first.attempt]))
    assert (await task.restore(first.checkpoint)).content == {STORE: {"a": b"0"}}
    await other.close()


@pytest.mark.asyncio
async def test_nothing_is_left_beside_the_versions(task: Task) -> None:
    for number in range(4):
        await task.commit_next(a=bytes([number]))
    assert [path for path in task.versions.iterdir() if path.name.startswith("work-")] == []


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({}, "backends.hdfs.uri"),
        ({"uri": "x", "compression": "gzip"}, "backends.hdfs.compression"),
        ({"uri": "x", "min.deltas.for.snapshot": "0"}, "backends.hdfs.min.deltas.for.snapshot"),
        ({"uri": "x", "min.deltas": "1"}, "backends.hdfs.min.deltas"),
        ({"uri": "x", "encryption": "aes-256-gcm"}, "backends.hdfs.encryption"),
    ],
    ids=["no place", "unknown codec", "too few", "unknown key", "encryption"],
)
def test_settings_that_are_wrong_are_refused_by_name(settings: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as raised:
        HdfsBackendFactory(BackendName("hdfs"), settings)
    assert raised.value.key == key
