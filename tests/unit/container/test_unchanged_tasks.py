"""Stores that have not changed since the last commit are not uploaded again, unless a backup is lacking."""

import base64
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from encoded_kit import KEY_LINE

from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointV2,
    Marker,
    StoreName,
    SystemStreamPartition,
)
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.container.task import Task
from statekeep.inspection.job import open_job
from statekeep.testing.clock import FakeClock

INPUT = SystemStreamPartition("gen", "numbers", 0)
TASK = "Partition 0"
NEAR, FAR = BackendName("near"), BackendName("far")
NEW_LINE = f"2026-12 {base64.b64encode(b'n' * 32).decode()}"


def job(directory: Path, *backends: str, **settings: str) -> Config:
    """Return settings of a job with some backends; the first one holds the log."""
    names = backends or (NEAR,)
    places = {
        f"backends.{name}.{key}": value
        for name in names
        for key, value in (("factory", "blob"), ("uri", (directory / name).as_uri()))
    }
    return load_dict(
        {
            "job.name": "job",
            "job.logged.store.base.dir": directory / "local",
            "job.log.backend": names[0],
            "stores.backup.factories": ",".join(names),
            "task.commit.ms": "0",
            **places,
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
    )


async def commit(task: Task, offset: str, *, is_forced: bool = False) -> CheckpointV2:
    checkpoint = await (await task.commit({INPUT: offset}, force=is_forced)).wait()
    assert checkpoint is not None
    return checkpoint


async def put_and_commit(task: Task, text: bytes, offset: str) -> CheckpointV2:
    task.store("s").put(b"k", text)
    return await commit(task, offset)


def markers(checkpoint: CheckpointV2) -> Mapping[BackendName, Mapping[StoreName, Marker]]:
    return checkpoint.state_markers


async def read_commits(config: Config) -> list[tuple[int, str]]:
    """Return batch and version of every retained commit."""
    async with open_job(config, SystemClock(), task=TASK) as opened:
        commits = (await opened.read_commits(opened.view.commits)).values()
        return [(found.batch, found.versions.get(TASK, "")) for found in commits]


@pytest.mark.asyncio
async def test_a_commit_without_changes_names_what_is_backed_up_already(tmp_path: Path) -> None:
    async with Container(job(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        first = await put_and_commit(task, b"one", "1")
        held = {path for path in (tmp_path / "near").rglob("*") if "state-" in str(path)}
        second = await commit(task, "2")
        assert markers(second) == markers(first)
        assert second.checkpoint_id > first.checkpoint_id
        assert {p for p in (tmp_path / "near").rglob("*") if "state-" in str(p)} == held
        third = await put_and_commit(task, b"three", "3")
        assert markers(third) != markers(second)
        assert markers(await commit(task, "4")) == markers(third)
    shutil.rmtree(tmp_path / "local")
    async with Container(job(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        assert (task.store("s").get(b"k"), task.input_offsets[INPUT]) == (b"three", "4")
        fifth = await commit(task, "5")
        assert markers(await commit(task, "6")) == markers(fifth)
        assert markers(await put_and_commit(task, b"six", "7")) != markers(fifth)
    async with Container(job(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        assert (task.store("s").get(b"k"), task.input_offsets[INPUT]) == (b"six", "7")


@pytest.mark.asyncio
async def test_commits_are_numbered_on_over_versions_that_stay(tmp_path: Path) -> None:
    async with Container(job(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        await put_and_commit(task, b"one", "1")
        await commit(task, "2")
    (first, version), (second, same) = (await read_commits(job(tmp_path)))[-2:]
    assert second == first + 1
    assert same == version != ""


@pytest.mark.asyncio
async def test_where_the_input_stands_still_too_the_last_commit_stands_for_the_next(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    async with Container(job(tmp_path, task__commit__ms="1000"), clock=clock) as container:
        task = await container.start_task(TASK, ["s"])
        first = await put_and_commit(task, b"one", "1")
        clock.advance(2)
        assert task.is_commit_due()
        made = await task.commit({INPUT: "1"})
        assert made.done()
        assert made.is_started
        assert await made.wait() == first
        assert not task.is_commit_due()
        forced = await commit(task, "1", is_forced=True)
        assert forced.checkpoint_id > first.checkpoint_id


@pytest.mark.asyncio
async def test_a_backend_that_is_new_gets_the_stores_though_they_have_not_changed(
    tmp_path: Path,
) -> None:
    async with Container(job(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        await put_and_commit(task, b"one", "1")
    both = job(tmp_path, NEAR, FAR)
    async with Container(both) as container:
        task = await container.start_task(TASK, ["s"])
        assert FAR in markers(await commit(task, "1"))
    shutil.rmtree(tmp_path / "local")
    async with Container(job(tmp_path, NEAR, FAR, stores__restore__factories="far")) as container:
        task = await container.start_task(TASK, ["s"])
        assert task.restored.sources == {"s": "far"}
        assert task.store("s").get(b"k") == b"one"


@pytest.mark.asyncio
async def test_a_new_key_is_used_though_the_stores_have_not_changed(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(KEY_LINE)
    encrypted = job(
        tmp_path,
        backends__near__encryption="aes-256-gcm",
        backends__near__encryption__keys=f"file:{keys}",
    )
    async with Container(encrypted) as container:
        task = await container.start_task(TASK, ["s"])
        old = await put_and_commit(task, b"one", "1")
        assert markers(await commit(task, "2")) == markers(old)
    keys.write_text(f"{NEW_LINE}\n{KEY_LINE}")
    async with Container(encrypted) as container:
        task = await container.start_task(TASK, ["s"])
        assert markers(await commit(task, "2")) != markers(old)


@pytest.mark.asyncio
async def test_the_first_commit_after_a_start_finds_that_the_backup_is_gone(
    tmp_path: Path,
) -> None:
    settings = job(tmp_path, NEAR, FAR, stores__backup__factories="far")
    async with Container(settings) as container:
        task = await container.start_task(TASK, ["s"])
        await put_and_commit(task, b"one", "1")
    shutil.rmtree(tmp_path / "far")
    async with Container(settings) as container:
        task = await container.start_task(TASK, ["s"])
        await commit(task, "1")
    shutil.rmtree(tmp_path / "local")
    async with Container(settings) as container:
        task = await container.start_task(TASK, ["s"])
        assert task.restored.sources == {"s": "far"}
        assert task.store("s").get(b"k") == b"one"


@pytest.mark.asyncio
async def test_a_marker_that_was_found_bad_is_not_carried_over(tmp_path: Path) -> None:
    both = job(tmp_path, FAR, NEAR, stores__restore__factories="near,far")
    async with Container(both) as container:
        task = await container.start_task(TASK, ["s"])
        bad = await put_and_commit(task, b"one", "1")
    shutil.rmtree(tmp_path / "near")
    shutil.rmtree(tmp_path / "local")
    async with Container(both) as container:
        task = await container.start_task(TASK, ["s"])
        assert task.restored.sources == {"s": "far"}
        assert markers(await commit(task, "1"))[NEAR] != markers(bad)[NEAR]


@pytest.mark.asyncio
async def test_a_store_that_begins_empty_has_changed(tmp_path: Path) -> None:
    """It is backed up but not restored: what the next start gets elsewhere is not what it had."""
    async with Container(job(tmp_path)) as container:
        task = await container.start_task(TASK, ["s", "t"])
        task.store("t").put(b"k", b"old")
        first = await put_and_commit(task, b"one", "1")
    async with Container(job(tmp_path, stores__t__restore__factories="")) as container:
        task = await container.start_task(TASK, ["s", "t"])
        assert task.store("t").get(b"k") is None
        second = await commit(task, "1")
        assert markers(second) != markers(first)


@pytest.mark.asyncio
async def test_a_store_that_is_new_or_gone_changes_the_task(tmp_path: Path) -> None:
    async with Container(job(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        await put_and_commit(task, b"one", "1")
    for stores in (["s", "t"], ["s"]):
        async with Container(job(tmp_path)) as container:
            task = await container.start_task(TASK, stores)
            assert list(markers(await commit(task, "1"))[NEAR]) == stores
        shutil.rmtree(tmp_path / "local")
        async with Container(job(tmp_path)) as container:
            task = await container.start_task(TASK, stores)
            assert task.restored.failures == ()


@pytest.mark.asyncio
@pytest.mark.parametrize("disk", ["local", "other", "new"])
async def test_a_store_that_a_commit_does_not_list_begins_empty_on_every_disk(
    tmp_path: Path, disk: str
) -> None:
    """The commit keeps the version of one before that had the store."""

    def on_disk(name: str) -> Config:
        return job(tmp_path, job__logged__store__base__dir=str(tmp_path / name))

    async with Container(on_disk("local")) as container:
        task = await container.start_task(TASK, ["s", "t"])
        task.store("t").put(b"k", b"old")
        await put_and_commit(task, b"one", "1")
    async with Container(on_disk("local" if disk == "local" else "other")) as container:
        task = await container.start_task(TASK, ["s"])
        await commit(task, "2")
    async with Container(on_disk("local" if disk == "other" else disk)) as container:
        task = await container.start_task(TASK, ["s", "t"])
        assert (task.store("s").get(b"k"), task.store("t").get(b"k")) == (b"one", None)
        assert markers(await put_and_commit(task, b"three", "3"))[NEAR].keys() == {"s", "t"}
