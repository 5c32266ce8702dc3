"""The sidecar's server: repeated and superseded submissions, stopping, stale settings."""

import asyncio
import errno
import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from sidecar_process_kit import paths_in, spec_in, submit_slot, submit_versions, until
from typing_extensions import override

from statekeep.backends.awaiting import run_to_end
from statekeep.commit.executor import BoundedExecutor
from statekeep.config.job_settings import ContainerSettings
from statekeep.fault_points import fault_handler
from statekeep.spark.sidecar import server as server_module
from statekeep.spark.sidecar.follower import Follower
from statekeep.spark.sidecar.outbox import Outbox
from statekeep.spark.sidecar.protocol import (
    STALE_SIDECAR,
    STOPPING_SIDECAR,
    Answer,
    Done,
    Progress,
    Refused,
    Request,
    Restore,
    Stop,
    SubmitVersion,
    encode,
)
from statekeep.spark.sidecar.server import SidecarServer
from statekeep.spark.sidecar.work import SidecarWork
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor


class FakeWork:
    """Takes as long as it is told, and notes what runs."""

    def __init__(self) -> None:
        self.executor = SerialExecutor()
        nothing: Any = None
        self.follower = Follower(nothing, nothing, self.executor, [])
        self.spec_digest = "digest"
        self.may_end = asyncio.Event()
        self.began: list[int] = []
        self.ended: list[int] = []
        self.error: Exception | None = None
        self.is_closed = False

    async def upload(self, request: SubmitVersion) -> None:
        self.began.append(request.attempt)
        try:
            if self.error is not None:
                raise self.error
            await self.may_end.wait()
        finally:
            for _ in range(9):  # a cancelled upload takes a while to wind up
                await asyncio.sleep(0)
            self.ended.append(request.attempt)

    async def restore(self, request: Restore, on_progress: Callable[[Progress], None]) -> Done:
        await self.may_end.wait()
        return Done(version="restored")

    async def close(self) -> None:
        self.is_closed = True


class HangingWork(FakeWork):
    """Uploads by a call that does not return before the test ends."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BoundedExecutor(1, "hanging-work")
        self.is_back = threading.Event()

    @override
    async def upload(self, request: SubmitVersion) -> None:
        self.began.append(request.attempt)
        await run_to_end(self.pool, self.is_back.wait, 20)

    @override
    async def close(self) -> None:
        await self.pool.close()
        await super().close()

    def abandon(self) -> None:
        self.pool.abandon()


class Rig:
    def __init__(
        self, root: Path, idle_ms: int = 0, *, grace_ms: int = 60_000, work: FakeWork | None = None
    ) -> None:
        self.paths = paths_in(root)
        self.work = work or FakeWork()
        self.clock = FakeClock()
        settings = ContainerSettings(grace_ms=grace_ms, idle_ms=idle_ms)
        self.server = SidecarServer(
            self.paths, cast("SidecarWork", self.work), self.clock, settings
        )

    async def ask(self, request: Request, digest: str = "digest") -> Answer:
        request = msgspec.structs.replace(request, spec_digest=digest)
        return await self.server._answer(request, cast("asyncio.StreamWriter", None))

    async def run(self) -> "asyncio.Task[None]":
        running = asyncio.create_task(self.server.run(0))
        await until(self.paths.socket.exists)
        return running


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.mark.asyncio
async def test_a_submission_that_is_repeated_is_worked_on_once(rig: Rig) -> None:
    await rig.ask(submit_versions())
    await until(lambda: rig.work.began == [1])
    assert await rig.ask(submit_versions()) == Done()
    rig.work.may_end.set()
    await until(lambda: not rig.server._uploads)
    assert await rig.ask(submit_versions()) == Done()
    assert not rig.server._uploads
    assert rig.work.began == [1]
    assert Outbox(rig.paths.outbox).pending() == []


@pytest.mark.asyncio
async def test_a_submission_without_an_entry_is_worked_on_again_when_repeated(rig: Rig) -> None:
    rig.work.error = OSError("the checkpoint store is down")
    await rig.ask(submit_versions())
    await until(lambda: rig.work.ended == [1])
    await until(lambda: not rig.server._uploads)
    rig.work.error = None
    await rig.ask(submit_versions())
    await until(lambda: rig.work.began == [1, 1])
    rig.work.may_end.set()
    await until(lambda: not rig.server._uploads)


@pytest.mark.asyncio
async def test_a_submission_that_waited_for_the_disk_while_a_newer_one_came_is_refused(
    rig: Rig,
) -> None:
    run = rig.work.executor.run
    newer: list[Answer] = []

    async def slow_disk(call: Callable[..., Any], *args: Any) -> Any:
        if call.__name__ == "replace" and not newer:
            newer.append(Done())
            newer[0] = await rig.ask(submit_versions(attempt=2))
        return await run(call, *args)

    rig.work.executor.run = slow_disk  # type: ignore[method-assign,assignment]
    older = await rig.ask(submit_slot(0, 1, attempt=1))
    assert newer == [Done()]
    assert isinstance(older, Refused)
    assert "a newer attempt was submitted" in older.message
    await until(lambda: rig.work.began == [2])
    rig.work.may_end.set()
    await until(lambda: not rig.server._uploads)
    assert Outbox(rig.paths.outbox).pending() == []


@pytest.mark.asyncio
async def test_the_versions_of_a_request_are_written_by_one_call(rig: Rig) -> None:
    run, calls = rig.work.executor.run, list[str]()

    async def count(call: Callable[..., Any], *args: Any) -> Any:
        calls.append(call.__name__)
        return await run(call, *args)

    rig.work.executor.run = count  # type: ignore[method-assign, assignment]
    assert await rig.ask(submit_slot(1, 2, 3)) == Done()
    assert calls == ["drop_older", "replace"]
    assert [each.partition for each in Outbox(rig.paths.outbox).pending()] == [1, 2, 3]
    await until(lambda: rig.work.began == [1, 1, 1])
    rig.work.may_end.set()
    await until(lambda: not rig.server._uploads)
    assert Outbox(rig.paths.outbox).pending() == []


@pytest.mark.asyncio
async def test_of_a_request_that_is_repeated_only_what_is_new_is_worked_on(rig: Rig) -> None:
    await rig.ask(submit_slot(1, 2))
    await until(lambda: rig.work.began == [1, 1])
    assert await rig.ask(submit_slot(1, 3, 2)) == Done()
    await until(lambda: rig.work.began == [1, 1, 1])
    assert [partition for _, _, partition in rig.server._uploads] == [1, 2, 3]
    rig.work.may_end.set()
    await until(lambda: not rig.server._uploads)


@pytest.mark.asyncio
async def test_a_request_of_which_not_all_could_be_written_is_refused_and_leaves_nothing(
    rig: Rig,
) -> None:
    running = await rig.run()
    written: list[str] = []

    def fail(point: str) -> None:
        if point == "outbox.after_entry":
            written.append(point)
            if len(written) == 2:
                raise OSError(errno.ENOSPC, "no space left")

    with fault_handler(fail):
        assert isinstance(await rig.ask(submit_slot(1, 2, 3)), Refused)
    assert len(list(rig.paths.outbox.iterdir())) == 2
    assert not rig.server._uploads
    await rig.ask(Stop(epoch=1))
    await running
    assert rig.work.began == []
    assert list(rig.paths.outbox.iterdir()) == []


@pytest.mark.asyncio
async def test_a_server_that_ends_leaves_no_submission_that_it_reported_as_failed(
    rig: Rig,
) -> None:
    running = await rig.run()

    def fail(point: str) -> None:
        if point == "outbox.after_write":
            raise OSError(errno.ENOSPC, "no space left")

    with fault_handler(fail):
        assert isinstance(await rig.ask(submit_versions(partition=1)), Refused)
        assert isinstance(await rig.ask(submit_versions(partition=2)), Refused)
    assert await rig.ask(submit_versions(partition=2)) == Done()  # repeated: this one counts
    assert [each.partition for each in Outbox(rig.paths.outbox).pending()] == [1, 2]
    await until(lambda: rig.work.began == [1])
    rig.work.error = OSError("the checkpoint store is down")
    assert await rig.ask(submit_versions(partition=3)) == Done()
    await until(lambda: rig.work.ended == [1])
    rig.work.may_end.set()
    await rig.ask(Stop(epoch=1))
    await running
    assert [each.partition for each in Outbox(rig.paths.outbox).pending()] == [3]


@pytest.mark.asyncio
async def test_a_submission_that_is_written_while_the_server_ends_is_not_acknowledged(
    rig: Rig,
) -> None:
    running = await rig.run()
    run, is_written, go_on = rig.work.executor.run, asyncio.Event(), asyncio.Event()

    async def dawdle(call: Callable[..., Any], *args: Any) -> Any:
        result = await run(call, *args)
        if call.__name__ == "replace":
            is_written.set()
            await go_on.wait()
        return result

    rig.work.executor.run = dawdle  # type: ignore[method-assign, assignment]
    asked = asyncio.create_task(rig.ask(submit_versions()))
    await is_written.wait()
    await rig.ask(Stop(epoch=1))
    await running
    go_on.set()
    assert isinstance(await asked, Refused)
    assert Outbox(rig.paths.outbox).pending() == []


@pytest.mark.asyncio
async def test_an_upload_begins_only_after_those_that_it_supersedes_have_ended(rig: Rig) -> None:
    await rig.ask(submit_versions(attempt=1))
    await until(lambda: rig.work.began == [1])
    await rig.ask(submit_versions(attempt=2))
    await until(lambda: 2 in rig.work.began)
    assert rig.work.ended == [1]
    rig.work.may_end.set()
    await until(lambda: not rig.server._uploads)


@pytest.mark.asyncio
async def test_a_server_that_stops_finishes_its_uploads_and_refuses_new_requests(rig: Rig) -> None:
    running = await rig.run()
    await rig.ask(submit_versions())
    assert await rig.ask(Stop(epoch=1)) == Done()
    answer = await rig.ask(submit_versions(partition=1))
    assert isinstance(answer, Refused)
    assert answer.error == STOPPING_SIDECAR
    assert not running.done()
    rig.work.may_end.set()
    await running
    assert rig.work.is_closed
    assert not rig.paths.socket.exists()


@pytest.mark.asyncio
async def test_a_server_that_stops_leaves_an_upload_behind_whose_call_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_CLOSE_S", 0.1)
    work = HangingWork()
    rig = Rig(tmp_path, grace_ms=0, work=work)
    running = await rig.run()
    await rig.ask(submit_versions())
    await until(lambda: work.began == [1])
    assert await rig.ask(Stop(epoch=1)) == Done()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(running), 10)
    assert running.done()
    assert work.is_closed
    assert not rig.paths.socket.exists()
    work.is_back.set()


@pytest.mark.asyncio
async def test_a_server_ends_although_its_stores_do_not_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_CLOSE_S", 0.1)

    class NeverClosing(HangingWork):
        @override
        async def close(self) -> None:
            await asyncio.Event().wait()

    rig = Rig(tmp_path, grace_ms=0, work=NeverClosing())
    running = await rig.run()
    assert await rig.ask(Stop(epoch=1)) == Done()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(running), 10)
    assert running.done()


@pytest.mark.asyncio
async def test_a_newer_driver_stops_a_server_whose_blocking_calls_hang(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await rig.run()

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(rig.work.executor, "run", hang)
    asking = asyncio.create_task(rig.ask(Stop(epoch=2)))
    await asyncio.wait_for(running, 10)
    asking.cancel()


@pytest.mark.asyncio
@pytest.mark.timeout(10)
async def test_a_server_that_was_told_to_stop_before_it_had_a_socket_ends(rig: Rig) -> None:
    await rig.server.run(0, lambda: False)
    assert rig.work.is_closed


@pytest.mark.asyncio
async def test_a_server_that_stops_finishes_its_restores(rig: Rig) -> None:
    running = await rig.run()
    restore = asyncio.create_task(rig.ask(Restore(epoch=1, partition=0, candidates=[])))
    await until(lambda: rig.server._restores > 0)
    await rig.ask(Stop(epoch=1))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not running.done()
    rig.work.may_end.set()
    assert await restore == Done(version="restored")
    await running


@pytest.mark.asyncio
async def test_a_request_under_other_settings_is_refused_and_ends_the_sidecar(rig: Rig) -> None:
    running = await rig.run()
    answer = await rig.ask(submit_versions(), digest="another")
    assert isinstance(answer, Refused)
    assert answer.error == STALE_SIDECAR
    await running
    assert rig.work.began == []


@pytest.mark.asyncio
async def test_what_an_earlier_sidecar_left_is_taken_up(rig: Rig) -> None:
    Outbox(rig.paths.outbox).replace([submit_versions()])
    running = await rig.run()
    await until(lambda: rig.work.began == [1])
    await rig.ask(Stop(epoch=1))
    rig.work.may_end.set()
    await running


@pytest.mark.asyncio
async def test_a_request_of_a_newer_driver_ends_the_uploads_of_the_older_one(rig: Rig) -> None:
    running = await rig.run()
    await rig.ask(submit_versions())
    await until(lambda: rig.work.began == [1])
    await rig.ask(Stop(epoch=1))
    answer = await rig.ask(Restore(epoch=2, partition=0, candidates=[]), digest="another")
    assert isinstance(answer, Refused)
    assert answer.error == STALE_SIDECAR
    await running  # at once: its uploads never end by themselves
    assert Outbox(rig.paths.outbox).pending() == []


@pytest.mark.asyncio
async def test_an_older_driver_cannot_end_the_sidecar_of_its_successor(rig: Rig) -> None:
    running = await rig.run()
    await rig.ask(msgspec.structs.replace(submit_versions(), epoch=2))
    for request in (Stop(epoch=1), submit_versions(partition=1)):
        answer = await rig.ask(request, digest="another")
        assert isinstance(answer, Refused)
        assert "newer driver" in answer.message
    rig.work.may_end.set()
    await until(lambda: not rig.server._uploads)
    assert not running.done()
    await rig.ask(Stop(epoch=2))
    await running


@pytest.mark.asyncio
async def test_a_server_that_ends_leaves_the_socket_of_its_successor_alone(rig: Rig) -> None:
    """There is one already where the local directory was lost, and the lock with it."""
    running = await rig.run()
    for _ in range(9):
        await asyncio.sleep(0)  # it takes note of its socket
    rig.paths.socket.unlink()
    successor = Rig(rig.paths.directory.parent)
    assert successor.paths.socket == rig.paths.socket
    following = await successor.run()
    for _ in range(9):
        await asyncio.sleep(0)
    assert await rig.ask(Stop(epoch=1)) == Done()
    await running
    assert rig.paths.socket.exists()
    assert await successor.ask(Stop(epoch=2)) == Done()
    await following
    assert not rig.paths.socket.exists()


@pytest.mark.asyncio
async def test_a_sidecar_without_requests_ends(tmp_path: Path) -> None:
    rig = Rig(tmp_path, idle_ms=600_000)
    await rig.ask(submit_versions())
    running = await rig.run()
    await until(lambda: rig.work.began == [1])
    rig.clock.advance(3600)
    for _ in range(99):
        await asyncio.sleep(0)
    assert not running.done()  # an upload is under way, however long it takes
    rig.work.may_end.set()
    await running
    assert rig.clock.slept == [600.0]
    assert not rig.paths.socket.exists()


class RequestOfOldRelease(msgspec.Struct, tag_field="type", tag="hand-over", rename="kebab"):
    """What a sidecar knew of a submission that took one version a request."""

    spec_digest: str
    partition: int


OLD_REQUESTS = msgspec.json.Decoder(RequestOfOldRelease)


def test_a_sidecar_that_knows_one_version_a_request_sees_that_it_is_not_meant(
    tmp_path: Path,
) -> None:
    """It sends the task to its successor; it would acknowledge what it had not read."""
    spec = spec_in(tmp_path)
    request = msgspec.structs.replace(submit_slot(1, 2), spec_digest=spec.digest)
    read = OLD_REQUESTS.decode(encode(request))
    assert read.partition == 1
    old_digest = hashlib.sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()
    assert read.spec_digest not in {old_digest, ""}


def test_the_digest_depends_on_settings_but_not_on_their_order(tmp_path: Path) -> None:
    spec = spec_in(tmp_path)
    turned = msgspec.structs.replace(spec, settings=dict(reversed(list(spec.settings.items()))))
    assert turned.digest == spec.digest
    assert spec_in(tmp_path, **{"task.commit.ms": "5"}).digest != spec.digest
