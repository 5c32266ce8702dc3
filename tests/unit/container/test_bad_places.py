"""Places that are full or closed: a clear error, and the last commit is still there afterwards."""

import asyncio
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from container_kit import INPUT

from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.container.task import Task
from statekeep.errors import CommitFailedError, ConfigError

TASK = "Partition 0"
LOCAL_DIR = "job.logged.store.base.dir"

MountDisk = Callable[[str], Path]


@pytest.fixture
def mount_disk(tmp_path: Path) -> Iterator[MountDisk]:
    """Mount file systems in memory, with the given options; undone after the test."""
    with ExitStack() as mounted:

        def mount(options: str) -> Path:
            place = tmp_path / f"disk-{options}"
            place.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
            if os.getuid() != 0 or shutil.which("mount") is None:
                pytest.skip("only root can mount a small disk")
            if subprocess.run(command, check=False, capture_output=True).returncode != 0:
                pytest.skip("this machine does not allow to mount a disk")
            mounted.callback(subprocess.run, ["umount", "--lazy", str(place)], check=True)
            return place

        yield mount


def config(root: Path, **settings: Any) -> Config:
    base: dict[str, Any] = {
        "job.name": "j",
        LOCAL_DIR: str(root / "local"),
        "stores.backup.factories": "blob",
        "blob.store.uri": str(root / "backup"),
        "task.commit.ms": 0,
        "checkpoint.clean.up.ms": 0,
    }
    return load_dict(base | {key.replace("__", "."): value for key, value in settings.items()})


def fill(task: Task, megabytes: int) -> None:
    """Write bytes that do not compress."""
    store = task.store("s")
    for number in range(megabytes * 16):
        store.put(f"filler-{number}".encode(), os.urandom(65536))


async def commit(task: Task, offset: int) -> None:
    await (await task.commit({INPUT: str(offset)}, force=True)).wait()


async def run_over(config: Config) -> None:
    """Write more than a small disk or file holds, and commit it."""
    async with Container(config) as container:
        task = await container.start_task(TASK, ["s"])
        task.store("s").put(b"k", b"not committed")
        fill(task, 16)
        await commit(task, 8)


async def start(config: Config) -> None:
    async with Container(config) as container:
        await container.start_task(TASK, ["s"])


async def make_commit(root: Path, **settings: Any) -> None:
    async with Container(config(root, **settings)) as container:
        task = await container.start_task(TASK, ["s"])
        task.store("s").put(b"k", b"committed")
        await commit(task, 7)


async def assert_nothing_is_lost(root: Path, **settings: Any) -> None:
    settings |= {LOCAL_DIR: str(root / "elsewhere")}
    async with Container(config(root, **settings)) as container:
        task = await container.start_task(TASK, ["s"])
        assert dict(task.store("s").scan()) == {b"k": b"committed"}
        assert task.input_offsets == {INPUT: "7"}


def messages_of(error: BaseException) -> str:
    """Return the text of an error, of what it groups and of what caused it."""
    parts = [str(error), *getattr(error, "__notes__", [])]
    if isinstance(error, BaseExceptionGroup):
        parts += [messages_of(inner) for inner in error.exceptions]
    if error.__cause__ is not None:
        parts.append(messages_of(error.__cause__))
    return "; ".join(parts)


@pytest.mark.asyncio
async def test_a_full_local_disk_is_reported_with_its_setting_and_loses_nothing(
    tmp_path: Path, mount_disk: MountDisk
) -> None:
    await make_commit(tmp_path)
    disk = mount_disk("size=8m")
    with pytest.raises((ConfigError, ExceptionGroup)) as caught:
        await run_over(config(tmp_path, **{LOCAL_DIR: str(disk)}))
    text = messages_of(caught.value)
    assert "the local disk is full" in text
    assert LOCAL_DIR in text
    await assert_nothing_is_lost(tmp_path)


@pytest.mark.asyncio
async def test_a_local_disk_that_cannot_be_written_is_reported_with_its_setting(
    tmp_path: Path, mount_disk: MountDisk
) -> None:
    await make_commit(tmp_path)
    disk = mount_disk("ro")
    with pytest.raises(ConfigError, match="read-only file system") as caught:
        await start(config(tmp_path, **{LOCAL_DIR: str(disk)}))
    assert LOCAL_DIR in messages_of(caught.value)
    await assert_nothing_is_lost(tmp_path)


@pytest.mark.asyncio
async def test_a_backup_location_that_cannot_be_written_is_refused_at_start(
    tmp_path: Path, mount_disk: MountDisk
) -> None:
    disk = mount_disk("ro")
    with pytest.raises(ConfigError) as caught:
        await start(config(tmp_path, blob__store__uri=str(disk / "backup")))
    assert str(disk) in messages_of(caught.value)


@pytest.mark.asyncio
async def test_a_backup_location_that_fills_up_fails_the_commit_and_keeps_the_one_before(
    tmp_path: Path, mount_disk: MountDisk
) -> None:
    disk = mount_disk("size=2m")
    settings: dict[str, Any] = {"blob__store__uri": str(disk / "backup")}
    await make_commit(tmp_path, **settings)
    with pytest.raises((CommitFailedError, ConfigError, ExceptionGroup)) as caught:
        await run_over(config(tmp_path, **settings))
    assert "space" in messages_of(caught.value) or "full" in messages_of(caught.value)
    await assert_nothing_is_lost(tmp_path, **settings)


def _run_under_a_file_size_limit(root: Path) -> None:
    """Runs in a child process: fills a store until a file may not grow any more."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))
    try:
        asyncio.run(run_over(config(root)))
    except (ConfigError, ExceptionGroup) as exc:
        sys.stdout.write(messages_of(exc))


@pytest.mark.asyncio
async def test_a_limit_on_the_size_of_files_is_reported_and_loses_nothing(tmp_path: Path) -> None:
    await make_commit(tmp_path)
    program = (
        "import pathlib, sys; import test_bad_places as t;"
        " t._run_under_a_file_size_limit(pathlib.Path(sys.argv[1]))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=environment,
        capture_output=True,
        check=False,
        text=True,
        timeout=25,
    )
    assert done.returncode == 0, done.stderr
    assert "may not grow" in done.stdout
    assert LOCAL_DIR in done.stdout
    await assert_nothing_is_lost(tmp_path)
