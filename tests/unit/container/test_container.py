"""The plain-Python container: commits, restarts, moves, fences, and an end without leftovers."""

import asyncio
import shutil
import threading
from pathlib import Path

import pytest
from container_kit import INPUT, Controls, config, controls
from typing_extensions import override

from statekeep.backends.memory import MemoryBackendFactory, memory_place
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.clock import SystemClock
from statekeep.commit.executor import BoundedExecutor
from statekeep.config.load import load_dict
from statekeep.container.container import Container
from statekeep.container.task import Task
from statekeep.errors import (
    BackendClosedError,
    ConfigError,
    RestoreFailedError,
    TaskFencedError,
)
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

TASK = "Partition 0"


@pytest.fixture
def held(tmp_path: Path) -> Controls:
    return controls(tmp_path)


async def commit(task: Task, offset: int) -> None:
    await (await task.commit({INPUT: str(offset)}, force=True)).wait()


@pytest.mark.asyncio
async def test_a_task_without_a_commit_begins_empty(tmp_path: Path) -> None:
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        assert task.input_offsets == {}
        assert list(task.store("s").scan()) == []


@pytest.mark.asyncio
@pytest.mark.parametrize("is_disk_kept", [True, False], ids=["disk kept", "disk lost"])
async def test_a_restart_has_the_last_commit_and_nothing_written_after_it(
    tmp_path: Path, *, is_disk_kept: bool
) -> None:
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        task.store("s").put(b"k", b"committed")
        await commit(task, 7)
        task.store("s").put(b"k", b"not committed")
    if not is_disk_kept:
        shutil.rmtree(tmp_path / "local")
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        assert task.store("s").get(b"k") == b"committed"
        assert task.input_offsets == {INPUT: "7"}
        assert task.restored.sources == {"s": "local" if is_disk_kept else "held"}
        assert (task.restored.bytes_fetched == 0) == is_disk_kept


@pytest.mark.asyncio
async def test_a_commit_holds_the_stores_as_they_were_when_it_was_asked_for(
    tmp_path: Path, held: Controls
) -> None:
    held.gate.clear()
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        task.store("s").put(b"k", b"before")
        begun = await task.commit({INPUT: "1"})
        task.store("s").put(b"k", b"after")
        assert begun.is_started
        assert not begun.done()
        held.gate.set()
        await begun.wait()
    async with Container(config(tmp_path)) as container:
        assert (await container.start_task(TASK, ["s"])).store("s").get(b"k") == b"before"


@pytest.mark.asyncio
async def test_a_commit_holds_the_offsets_as_they_were_when_it_was_asked_for(
    tmp_path: Path, held: Controls
) -> None:
    held.gate.clear()
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        offsets = {INPUT: "1"}
        begun = await task.commit(offsets)
        offsets[INPUT] = "2"
        held.gate.set()
        checkpoint = await begun.wait()
    assert checkpoint is not None
    assert checkpoint.input_offsets == {INPUT: "1"}


@pytest.mark.asyncio
async def test_a_commit_within_max_delay_of_an_open_one_is_skipped_and_then_due(
    tmp_path: Path, held: Controls
) -> None:
    held.gate.clear()
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        first = await task.commit({INPUT: "1"})
        second = await task.commit({INPUT: "2"})
        assert not second.is_started
        assert second.done()
        assert not task.is_commit_due()
        held.gate.set()
        await first.wait()
        assert task.is_commit_due()
        assert task.metrics.snapshot()["commits-skipped"] == 1


@pytest.mark.asyncio
async def test_a_forced_commit_waits_for_the_open_one(tmp_path: Path, held: Controls) -> None:
    held.gate.clear()
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        first = await task.commit({INPUT: "1"})
        second = asyncio.create_task(task.commit({INPUT: "2"}, force=True))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not second.done()
        held.gate.set()
        assert (await second).is_started
        assert first.done()
        await task.wait()


@pytest.mark.asyncio
async def test_a_commit_after_every_message_never_has_two_open(
    tmp_path: Path, held: Controls
) -> None:
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        for number in range(100):
            task.store("s").put(b"n", b"%d" % number)
            await task.commit({INPUT: str(number)})
        await commit(task, 99)
        figures = task.metrics.snapshot()
    assert held.most_uploading == 1
    assert isinstance(figures["commit-calls"], int)
    assert isinstance(figures["commits-skipped"], int)
    assert figures["commit-calls"] + figures["commits-skipped"] == 101
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        assert (task.store("s").get(b"n"), task.input_offsets[INPUT]) == (b"99", "99")


@pytest.mark.asyncio
async def test_more_tasks_than_threads_commit_and_restart_together(tmp_path: Path) -> None:
    settings = config(tmp_path, job__container__commit__thread__pool__max__size="4")
    names = [f"Partition {number}" for number in range(70)]
    before = set(threading.enumerate())

    async def start_and_commit(container: Container, name: str) -> None:
        task = await container.start_task(name, ["s"])
        task.store("s").put(b"name", name.encode())
        await commit(task, 1)

    async with Container(settings) as container, asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(start_and_commit(container, name))
    async with Container(settings) as container:
        for name in names:
            task = await container.start_task(name, ["s"])
            assert task.store("s").get(b"name") == name.encode()
        begun = set(threading.enumerate()) - before
        threads = [t.name for t in begun if t.name.startswith("statekeep")]
        assert len([name for name in threads if name.startswith("statekeep_")]) <= 4
        assert len(threads) <= 12  # of three pools


@pytest.mark.asyncio
async def test_the_pool_grows_with_the_tasks_up_to_its_ceiling() -> None:
    executor = BoundedExecutor(2, "growing", ceiling=5)
    executor.raise_cap(4)
    assert executor.max_workers == 4
    executor.raise_cap(3)
    executor.raise_cap(99)
    assert executor.max_workers == 5
    await executor.close()


@pytest.mark.asyncio
async def test_the_log_is_trimmed_and_a_restart_reads_what_is_left(
    tmp_path: Path, held: Controls
) -> None:
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        for number in range(30):
            await commit(task, number)
            await task.wait()
    factory = MemoryBackendFactory(BackendName("held"), {"place": str(tmp_path)})
    log = factory.job_log("job/main/Partition_0", SerialExecutor(), FakeClock())
    assert await log.read_floor() > 50
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        assert task.input_offsets == {INPUT: "29"}
        assert task.epoch == 2


@pytest.mark.asyncio
async def test_a_task_that_moved_fences_its_old_container_which_then_deletes_nothing(
    tmp_path: Path, held: Controls
) -> None:
    async with Container(config(tmp_path)) as old, Container(config(tmp_path)) as new:
        zombie = await old.start_task(TASK, ["s"])
        for number in range(3):
            await commit(zombie, number)
        await zombie.wait()
        owner = await new.start_task(TASK, ["s"])
        await owner.wait()
        assert owner.input_offsets == {INPUT: "2"}
        cleaned = len(held.cleaned)

        zombie.store("s").put(b"k", b"zombie")
        with pytest.raises(TaskFencedError):
            await commit(zombie, 9)
        with pytest.raises(TaskFencedError):
            await zombie.commit({INPUT: "10"})
        assert len(held.cleaned) == cleaned

        await commit(owner, 3)
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        assert task.input_offsets == {INPUT: "3"}
        assert task.store("s").get(b"k") is None


@pytest.mark.asyncio
async def test_a_cancelled_restore_stops_and_the_task_can_be_started_again(
    tmp_path: Path, held: Controls
) -> None:
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        task.store("s").put(b"k", b"v")
        await commit(task, 1)
    shutil.rmtree(tmp_path / "local")
    held.restore_gate.clear()
    async with Container(config(tmp_path)) as container:
        starting = asyncio.create_task(container.start_task(TASK, ["s"]))
        await held.restore_began.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not list(tmp_path.rglob("SEAL-MANIFEST"))
        held.restore_gate.set()
        assert (await container.start_task(TASK, ["s"])).store("s").get(b"k") == b"v"


@pytest.mark.asyncio
async def test_a_store_that_is_added_later_begins_empty_beside_the_old_one(tmp_path: Path) -> None:
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        task.store("s").put(b"k", b"v")
        await commit(task, 1)
    shutil.rmtree(tmp_path / "local")
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s", "added"])
        assert task.store("s").get(b"k") == b"v"
        assert list(task.store("added").scan()) == []


@pytest.mark.asyncio
async def test_state_that_every_backend_has_lost_is_an_error_and_never_empty(
    tmp_path: Path,
) -> None:
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        for number in range(3):
            await commit(task, number)
        await task.wait()
    shutil.rmtree(tmp_path / "local")
    memory_place(str(tmp_path)).images.clear()
    async with Container(config(tmp_path)) as container:
        with pytest.raises(RestoreFailedError, match="stores=s") as caught:
            await container.start_task(TASK, ["s"])
        assert all("BlobNotFoundError" in note for note in caught.value.__notes__)


@pytest.mark.asyncio
async def test_old_commits_are_released_and_cleaned_up_and_the_last_two_kept(
    tmp_path: Path, held: Controls
) -> None:
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        for number in range(5):
            await commit(task, number)
            await task.wait()
        versions = list(tmp_path.rglob("SEAL-MANIFEST"))
    assert len(versions) == 2
    assert [a for round_ in held.cleaned for a in round_] == [(1, 0), (1, 1), (1, 2), (1, 3)]


class AdjustedClock(SystemClock):
    """The clock of a machine whose wall clock is set ahead."""

    def __init__(self) -> None:
        self.ahead_s = 0

    @override
    def time_ns(self) -> int:
        return super().time_ns() + self.ahead_s * 1_000_000_000


@pytest.mark.asyncio
async def test_commits_are_kept_for_their_age_and_cleaned_up_after_it(
    tmp_path: Path, held: Controls
) -> None:
    clock = AdjustedClock()
    settings = config(tmp_path, checkpoint__retain__ms="1h")
    async with Container(settings, clock=clock) as container:
        task = await container.start_task(TASK, ["s"])
        for number in range(4):
            await commit(task, number)
            await task.wait()
        assert [a for round_ in held.cleaned for a in round_] == []
        clock.ahead_s = 2 * 60 * 60
        await commit(task, 4)
        await task.wait()
    assert [a for round_ in held.cleaned for a in round_] == [(1, 0), (1, 1), (1, 2), (1, 3)]


@pytest.mark.asyncio
async def test_one_task_cannot_be_started_twice_but_again_after_its_close(tmp_path: Path) -> None:
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        with pytest.raises(ValueError, match="runs in this container already"):
            await container.start_task(TASK, ["s"])
        await task.close()
        with pytest.raises(BackendClosedError):
            await task.commit({INPUT: "1"})
        with pytest.raises(BackendClosedError):
            task.store("s")
        await container.start_task(TASK, ["s"])


@pytest.mark.asyncio
async def test_a_job_that_lists_no_backend_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no listed backend can hold the job log"):
        Container(load_dict({"job.name": "job", "job.logged.store.base.dir": tmp_path}))


@pytest.mark.asyncio
async def test_a_task_is_not_started_in_a_container_that_was_not_entered(tmp_path: Path) -> None:
    with pytest.raises(BackendClosedError, match="not entered"):
        await Container(config(tmp_path)).start_task(TASK, ["s"])
