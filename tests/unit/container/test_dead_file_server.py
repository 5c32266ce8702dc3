"""The container of a program ends within its time though a call to its store never returns."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from container_kit import INPUT
from file_server_kit import FileServer, config_of_job_on, file_server

from statekeep.commit import executor as executor_module
from statekeep.config.model import Config
from statekeep.container import container as container_module
from statekeep.container.container import Container
from statekeep.errors import CommitFailedError

TASK = "Partition 0"
GIVEN_UP = "a blocking call hangs and is given up: call=file_server_kit.FileServer.answer"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    with file_server(tmp_path / "remote") as server:
        yield server


@pytest.fixture(autouse=True)
def _short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that hang do so in real time, of which a test has little."""
    monkeypatch.setattr(executor_module, "_LONGEST_CALL_S", 0.1)
    monkeypatch.setattr(container_module, "_MARGIN_S", 0.1)


def config(root: Path, shutdown_ms: int) -> Config:
    return config_of_job_on(
        root / "remote",
        job__logged__store__base__dir=str(root / "local"),
        task__commit__ms="0",
        task__shutdown__ms=str(shutdown_ms),
    )


@pytest.mark.asyncio
async def test_a_container_whose_store_is_away_ends_and_names_what_hangs(
    tmp_path: Path, server: FileServer, caplog: pytest.LogCaptureFixture
) -> None:
    container = await Container(config(tmp_path, shutdown_ms=1)).__aenter__()
    task = await container.start_task(TASK, ["s"])
    task.store("s").put(b"k", b"1")
    await (await task.commit({INPUT: "1"})).wait()
    task.store("s").put(b"k", b"2")
    server.is_dead = True
    begun = await task.commit({INPUT: "2"})
    with pytest.raises(ExceptionGroup) as caught:
        await container.__aexit__(None, None, None)
    assert caught.group_contains(Exception, match="hangs|closed")
    with pytest.raises(CommitFailedError):
        await begun.wait()
    assert GIVEN_UP in [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]

    server.is_dead = False
    server.is_back.set()
    async with Container(config(tmp_path, shutdown_ms=30_000)) as container:
        task = await container.start_task(TASK, ["s"])
        assert (task.input_offsets, task.store("s").get(b"k")) == ({INPUT: "1"}, b"1")


@pytest.mark.asyncio
async def test_a_container_whose_store_answers_gives_nothing_up(
    tmp_path: Path, server: FileServer, caplog: pytest.LogCaptureFixture
) -> None:
    before = set(threading.enumerate())
    async with Container(config(tmp_path, shutdown_ms=30_000)) as container:
        task = await container.start_task(TASK, ["s"])
        task.store("s").put(b"k", b"1")
        await task.commit({INPUT: "1"})
    assert [r.getMessage() for r in caplog.records if r.levelname in {"WARNING", "ERROR"}] == []
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert {t for t in threading.enumerate() if t.name.startswith("statekeep")} <= before
