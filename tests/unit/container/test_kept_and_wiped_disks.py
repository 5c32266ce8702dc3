"""What lies on the local disk never changes what a task starts with, only how long that takes."""

import shutil
import time
from pathlib import Path

import pytest

from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.errors import RestoreFailedError
from statekeep.testing.clock import FakeClock

INPUT = SystemStreamPartition("gen", "numbers", 0)
TASK = "Partition 0"
STORES = ["durable", "volatile"]

Content = dict[str, dict[bytes, bytes]]


def config(directory: Path, **settings: str) -> Config:
    return load_dict(
        {
            "job.name": "job",
            "job.log.backend": "blob",
            "job.logged.store.base.dir": str(directory / "local"),
            "stores.durable.backup.factories": "blob",
            "stores.volatile.backup.factories": "",
            "blob.store.uri": (directory / "place").as_uri(),
            "task.commit.ms": "0",
            "checkpoint.clean.up.ms": "0",
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
    )


async def start(directory: Path, *, is_writing: bool = False, **settings: str) -> Content:
    """Start the task, return what it starts with, and write and commit if asked to."""
    async with Container(config(directory, **settings)) as container:
        task = await container.start_task(TASK, STORES)
        content = {name: dict(task.store(name).scan()) for name in STORES}
        if is_writing:
            for name in STORES:
                task.store(name).put(b"key", b"committed")
            await (await task.commit({INPUT: "1"}, force=True)).wait()
            for name in STORES:
                task.store(name).put(b"key", b"not committed")
    return content


@pytest.mark.asyncio
async def test_what_a_job_has_left_goes_after_a_month_and_the_job_may_come_back(
    tmp_path: Path,
) -> None:
    await start(tmp_path, is_writing=True)
    clock, versions = FakeClock(time.time_ns()), tmp_path / "local" / "job" / "main"
    for days, is_there in ((29, True), (2, False)):
        clock.advance(days * 24 * 3600)
        async with Container(config(tmp_path, job__name="other"), clock=clock):
            assert bool(list(versions.glob("*/[0-9]*"))) == is_there
    assert await start(tmp_path) == {"durable": {b"key": b"committed"}, "volatile": {}}


@pytest.mark.asyncio
@pytest.mark.parametrize("is_wiped", [False, True], ids=["kept disk", "wiped disk"])
async def test_a_store_that_is_backed_up_nowhere_begins_empty(
    tmp_path: Path, *, is_wiped: bool
) -> None:
    await start(tmp_path, is_writing=True)
    if is_wiped:
        shutil.rmtree(tmp_path / "local")
    assert await start(tmp_path) == {"durable": {b"key": b"committed"}, "volatile": {}}


@pytest.mark.asyncio
async def test_what_a_job_left_on_the_disk_is_not_used_once_its_log_is_gone(
    tmp_path: Path,
) -> None:
    await start(tmp_path, is_writing=True)
    shutil.rmtree(tmp_path / "place")
    assert await start(tmp_path) == {"durable": {}, "volatile": {}}


@pytest.mark.asyncio
@pytest.mark.parametrize("is_wiped", [False, True], ids=["kept disk", "wiped disk"])
async def test_settings_that_forget_a_backend_begin_nothing_empty(
    tmp_path: Path, *, is_wiped: bool
) -> None:
    await start(tmp_path, is_writing=True)
    if is_wiped:
        shutil.rmtree(tmp_path / "local")
    with pytest.raises(RestoreFailedError) as caught:
        await start(tmp_path, stores__durable__backup__factories="")
    assert "set stores.durable.restore.factories to an empty value" in "".join(
        caught.value.__notes__
    )
    assert (await start(tmp_path))["durable"] == {b"key": b"committed"}
    given_up = await start(
        tmp_path, stores__durable__backup__factories="", stores__durable__restore__factories=""
    )
    assert given_up["durable"] == {}


@pytest.mark.asyncio
async def test_a_store_that_is_backed_up_nowhere_is_said_to_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await start(tmp_path)
    told = [r.getMessage() for r in caplog.records if "backed up nowhere" in r.getMessage()]
    assert ["volatile" in line for line in told] == [True]


@pytest.mark.asyncio
async def test_a_store_that_gets_a_backend_takes_no_other_to_an_older_commit(
    tmp_path: Path,
) -> None:
    await start(tmp_path, is_writing=True)
    shutil.rmtree(tmp_path / "local")
    await start(tmp_path)  # what is adopted here has nothing of the other store
    content = await start(tmp_path, stores__volatile__backup__factories="blob")
    assert content == {"durable": {b"key": b"committed"}, "volatile": {}}

    shutil.rmtree(tmp_path / "local")
    with pytest.raises(RestoreFailedError) as caught:
        await start(tmp_path, stores__volatile__backup__factories="blob")
    assert not caught.value.is_for_good
    assert "set stores.volatile.restore.factories to an empty value" in "".join(
        caught.value.__notes__
    )


@pytest.mark.asyncio
@pytest.mark.parametrize("is_wiped", [False, True], ids=["kept disk", "wiped disk"])
async def test_a_store_begins_empty_that_is_said_to_though_it_is_backed_up(
    tmp_path: Path, *, is_wiped: bool
) -> None:
    await start(tmp_path, is_writing=True)
    if is_wiped:
        shutil.rmtree(tmp_path / "local")
    given_up = await start(tmp_path, stores__durable__restore__factories="")
    assert given_up["durable"] == {}
