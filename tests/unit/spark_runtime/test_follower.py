"""Copies of commits on the disk of another host: whole, newest only, and after what a batch waits for."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from sidecar_process_kit import paths_in, spec_in, submit_versions, until
from typing_extensions import override

from statekeep.checkpoint.checkpoints import VersionId
from statekeep.checkpoint.serde import FinishedTask, decode_attempt_entry, encode_checkpoint_v2
from statekeep.config.job_settings import ContainerSettings
from statekeep.fault_points import fault_handler
from statekeep.spark.sidecar import server as server_module
from statekeep.spark.sidecar.follower import BackgroundExecutor
from statekeep.spark.sidecar.protocol import (
    Answer,
    Candidate,
    Done,
    Follow,
    Followed,
    FollowedTask,
    Refused,
    Restore,
    Stop,
)
from statekeep.spark.sidecar.server import SidecarServer
from statekeep.spark.sidecar.work import SidecarWork
from statekeep.spark.tasks import local_directory, task_name
from statekeep.stores.task_directory import TaskDirectory
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.versions import content_of, seal_version

FIRST, SECOND = "0_0123456789abcdef", "1_0123456789abcdef"
LARGE = {b"%05d" % n: b"%d" % (n * 7919**3) * 20 for n in range(500)}


class Asker:
    """Takes the signs of life of a sidecar that is slow."""

    def write(self, frame: bytes) -> None: ...

    async def drain(self) -> None: ...


class Hosts:
    """Two hosts with a disk each and one blob store: the task runs on the one, the other follows."""

    def __init__(self, root: Path) -> None:
        self.root = root
        blobs = {"blob.store.uri": f"file://{root}/blobs"}
        self.active = SidecarWork(spec_in(root / "active", **blobs), FakeClock())
        self.standby = SidecarWork(spec_in(root / "standby", **blobs), FakeClock())
        settings = ContainerSettings(idle_ms=1000)
        paths = paths_in(root / "standby")
        self.clock = FakeClock()
        self.server = SidecarServer(paths, self.standby, self.clock, settings)
        self._base: tuple[str, bytes] | None = None

    def directory(self, host: str, partition: int = 0) -> TaskDirectory:
        return local_directory(self.root / host / "local", "j-u", partition)

    async def commit(self, version: str, changes: dict[bytes, bytes | None]) -> Candidate:
        """Commit a version of task 0 on the host where it runs, and return it for a restore."""
        directory = self.directory("active")
        base = None if self._base is None else directory.find(VersionId.parse(self._base[0]))
        committed = None if base is None else base.id
        seal_version(directory, version, base, changes, committed=committed)
        request = submit_versions(attempt=VersionId.parse(version).batch + 1, version=version)
        if self._base is not None:
            request = msgspec.structs.replace(
                request, base_version=self._base[0], base=msgspec.Raw(self._base[1])
            )
        await self.active.upload(request)
        entries = await self.active._checkpoints.read(f"1-{request.attempt}")
        entry = decode_attempt_entry(entries[task_name(0)], where="test")
        assert isinstance(entry, FinishedTask)
        checkpoint = encode_checkpoint_v2(entry.checkpoint)
        self._base = version, checkpoint
        return Candidate(version=version, checkpoint=msgspec.Raw(checkpoint), stores=["state"])

    async def ask(self, request: Follow | Restore | Stop) -> Answer:
        request = msgspec.structs.replace(request, spec_digest=self.standby.spec_digest)
        return await self.server._answer(request, cast("asyncio.StreamWriter", Asker()))

    async def follow(self, *candidates: Candidate, is_awaited: bool = True) -> Answer:
        tasks = [FollowedTask(partition=0, candidate=candidate) for candidate in candidates]
        answer = await self.ask(Follow(epoch=1, tasks=tasks, is_awaited=is_awaited))
        if not (is_awaited and isinstance(answer, Done)):
            return answer
        assert answer.followed == Followed()  # nothing of it is waiting
        return Done(followed=self.standby.follower.take_counts())

    async def close(self) -> None:
        await self.active.close()
        await self.standby.close()


OnHosts = Callable[[Callable[[Hosts], Awaitable[None]]], None]


@pytest.fixture
def on_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OnHosts:
    monkeypatch.setattr(server_module, "_FOLLOW_S", 60)

    def run(test: Callable[[Hosts], Awaitable[None]]) -> None:
        async def main() -> None:
            hosts = Hosts(tmp_path)
            try:
                await test(hosts)
            finally:
                await hosts.close()

        asyncio.run(main())

    return run


def test_a_copy_is_the_version_of_the_commit_and_takes_the_place_of_the_one_before(
    on_hosts: OnHosts, tmp_path: Path
) -> None:
    async def test(hosts: Hosts) -> None:
        first = await hosts.commit(FIRST, dict(LARGE))
        copied = await hosts.follow(first)
        assert isinstance(copied, Done)
        assert copied.followed.tasks == 1
        second = await hosts.commit(SECOND, {b"k": b"v"})
        changed = await hosts.follow(second)
        assert isinstance(changed, Done)
        # What the copy before has is not fetched again.
        assert 0 < changed.followed.bytes_fetched < copied.followed.bytes_fetched / 10
        directory = hosts.directory("standby")
        assert list(map(str, directory.versions())) == [SECOND]
        version = directory.find_whole(VersionId.parse(SECOND))
        assert version is not None
        assert content_of(version, tmp_path) == {**LARGE, b"k": b"v"}

    on_hosts(test)


def test_a_copy_that_is_there_is_not_read_again_and_one_that_is_damaged_is_replaced(
    on_hosts: OnHosts,
) -> None:
    async def test(hosts: Hosts) -> None:
        commit = await hosts.commit(FIRST, dict(LARGE))
        copied = await hosts.follow(commit)
        assert await hosts.follow(commit) == Done(followed=Followed(tasks=1))
        next((hosts.directory("standby").root / FIRST).rglob("*.sst")).write_bytes(b"")
        again = await hosts.follow(commit)
        assert again == copied
        assert hosts.directory("standby").find_whole(VersionId.parse(FIRST)) is not None

    on_hosts(test)


def test_a_request_is_answered_at_once_and_what_came_of_it_with_the_next_one(
    on_hosts: OnHosts,
) -> None:
    async def test(hosts: Hosts) -> None:
        commit = await hosts.commit(FIRST, {b"k": b"v"})
        assert await hosts.follow(commit, is_awaited=False) == Done()
        assert hosts.directory("standby").versions() == []
        await until(lambda: not hosts.standby.follower.is_busy)
        told = await hosts.follow(commit, is_awaited=False)
        assert isinstance(told, Done)
        assert (told.followed.tasks, told.followed.failures) == (1, 0)

    on_hosts(test)


def test_a_copy_that_cannot_be_made_is_counted_and_leaves_the_one_before(
    on_hosts: OnHosts, tmp_path: Path
) -> None:
    async def test(hosts: Hosts) -> None:
        first = await hosts.commit(FIRST, {b"k": b"v"})
        await hosts.follow(first)
        second = await hosts.commit(SECOND, {b"k": b"w"})
        (tmp_path / "blobs").rename(tmp_path / "away")
        refused = await hosts.follow(second)
        assert isinstance(refused, Refused)
        assert "copies could not be made: count=1" in refused.message
        assert list(map(str, hosts.directory("standby").versions())) == [FIRST]
        (tmp_path / "away").rename(tmp_path / "blobs")
        told = await hosts.follow(second)
        assert isinstance(told, Done)
        assert (told.followed.tasks, told.followed.failures) == (1, 1)

    on_hosts(test)


def test_a_task_that_waits_has_an_answer_soon_and_what_it_wants_comes_once(
    on_hosts: OnHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(hosts: Hosts) -> None:
        monkeypatch.setattr(server_module, "_FOLLOW_S", 0.001)
        commit = await hosts.commit(FIRST, {b"k": b"v"})
        task = FollowedTask(partition=0, candidate=commit)
        request = Follow(epoch=1, tasks=[task], is_awaited=True)
        with hosts.standby._background.held_back():
            for _ in range(3):
                assert await hosts.ask(request) == Done(followed=Followed(waiting=1))
        await until(lambda: not hosts.standby.follower.is_busy)
        assert hosts.standby.follower.take_counts().tasks == 1

    on_hosts(test)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_task_that_asks_again_gets_what_has_ended_meanwhile(
    on_hosts: OnHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    """A look at what is there, and all the more a fetch that fails, may take longer than an answer."""

    async def test(hosts: Hosts) -> None:
        monkeypatch.setattr(server_module, "_FOLLOW_S", 0)
        commit = await hosts.commit(FIRST, {b"k": b"v"})
        task = FollowedTask(partition=0, candidate=commit)
        request = Follow(epoch=1, tasks=[task], is_awaited=True)
        if is_lost:
            (tmp_path / "blobs").rename(tmp_path / "away")
        for _ in range(2):  # a caller that was told asks for something new
            assert await hosts.ask(request) == Done(followed=Followed(waiting=1))
            await until(lambda: not hosts.standby.follower.is_busy)
            answer = await hosts.ask(request)
            if is_lost:
                assert isinstance(answer, Refused)
            else:
                assert answer == Done(followed=Followed())

    on_hosts(test)


def test_of_two_commits_that_wait_the_newer_one_is_brought(on_hosts: OnHosts) -> None:
    async def test(hosts: Hosts) -> None:
        first = await hosts.commit(FIRST, {b"k": b"v"})
        second = await hosts.commit(SECOND, {b"k": b"w"})
        await hosts.follow(first, second, is_awaited=False)
        await until(lambda: not hosts.standby.follower.is_busy)
        assert hosts.standby.follower.take_counts().tasks == 1
        assert list(map(str, hosts.directory("standby").versions())) == [SECOND]

    on_hosts(test)


def test_no_copy_is_made_while_a_batch_waits_for_a_restore(on_hosts: OnHosts) -> None:
    """The restore is of another task; it is held at its end, when all is fetched."""

    async def test(hosts: Hosts) -> None:
        commit = await hosts.commit(FIRST, {b"k": b"v"})
        standby, may_end = hosts.standby, asyncio.Event()
        run, begun = standby._restore_executor.run, list[object]()

        async def hold(call: Callable[..., object], *args: object, **named: object) -> object:
            begun.append(call)
            await may_end.wait()
            return await run(call, *args, **named)

        standby._restore_executor.run = hold  # type: ignore[method-assign, assignment]
        empty = Candidate(version="", stores=[])
        restore = asyncio.create_task(hosts.ask(Restore(epoch=1, partition=1, candidates=[empty])))
        await until(lambda: len(begun) == 1)
        await hosts.follow(commit, is_awaited=False)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(begun) == 1
        may_end.set()
        assert isinstance(await restore, Done)
        await until(lambda: not standby.follower.is_busy)
        assert list(map(str, hosts.directory("standby").versions())) == [FIRST]

    on_hosts(test)


def test_the_end_of_a_sidecar_does_not_wait_for_copies(on_hosts: OnHosts) -> None:
    async def test(hosts: Hosts) -> None:
        commit = await hosts.commit(FIRST, dict(LARGE))
        reached = asyncio.Event()

        def hold(point: str) -> None:
            if point == "restore.before_fetch":
                reached.set()

        with fault_handler(hold):
            following = asyncio.create_task(hosts.follow(commit))
            await reached.wait()
        await hosts.standby.close()
        assert isinstance(await following, Refused)
        assert hosts.directory("standby").versions() == []

    on_hosts(test)


def test_a_newer_driver_says_what_it_wants_followed(on_hosts: OnHosts) -> None:
    async def test(hosts: Hosts) -> None:
        commit = await hosts.commit(FIRST, {b"k": b"v"})
        await hosts.follow(commit, is_awaited=False)
        await hosts.ask(
            Restore(epoch=2, partition=1, candidates=[Candidate(version="", stores=[])])
        )
        await until(lambda: not hosts.standby.follower.is_busy)
        assert hosts.directory("standby").versions() == []

    on_hosts(test)


def test_a_sidecar_that_brings_copies_is_not_idle(on_hosts: OnHosts) -> None:
    async def test(hosts: Hosts) -> None:
        commit = await hosts.commit(FIRST, {b"k": b"v"})
        with hosts.standby._background.held_back():
            await hosts.follow(commit, is_awaited=False)
            leaving = asyncio.create_task(hosts.server._stop_when_idle())
            before_ns = hosts.clock.monotonic_ns()
            await until(lambda: hosts.clock.monotonic_ns() > before_ns + 10_000_000_000)
            assert not hosts.server._is_stopping.is_set()
        await leaving
        assert not hosts.standby.follower.is_busy

    on_hosts(test)


@pytest.mark.asyncio
async def test_the_background_has_few_calls_on_the_pool() -> None:
    running, most, may_end = 0, 0, asyncio.Event()

    class Pool(SerialExecutor):
        @override
        async def run(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await may_end.wait()
            running -= 1
            return call(*args, **kwargs)

    executor = BackgroundExecutor(Pool())
    calls = [asyncio.create_task(executor.run(int)) for _ in range(20)]
    await asyncio.sleep(0)
    may_end.set()
    assert await asyncio.gather(*calls) == [0] * 20
    assert most == 4
