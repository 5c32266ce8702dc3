"""The driver's clean-up really deletes, and trims the log only after that."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec
import pytest

from statekeep.backends.base import CommitContext
from statekeep.backends.blob.backup import BlobBackupManager
from statekeep.backends.registry import BackendRegistry
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
)
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.records import (
    AbortRecord,
    AttemptRecord,
    CommitRecord,
    JobIdentity,
    PinRecord,
)
from statekeep.checkpoint.serde import encode_checkpoint_v2
from statekeep.commit.clean_up import CleanUp, TaskSweep
from statekeep.commit.pipeline import TaskStorageCommitManager
from statekeep.config.load import load_dict
from statekeep.errors import RetriableError
from statekeep.events import CleanUpDone, CleanUpFailing, Event, Report, report_nothing
from statekeep.spark.driver.job_commits import job_clean_up
from statekeep.spark.operator.runner import OperatorSpec
from statekeep.spark.tasks import STATE_STORE, partition_of, task_name
from statekeep.spark.worker.job_spec import JobSpec
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.versions import seal_version

BLOB = BackendName("blob")


class Rig:
    """A log whose one attempt is aborted, and the blobs that the attempt had uploaded."""

    def __init__(self, root: Path) -> None:
        self.blobs = root / "blobs"
        config = load_dict(
            {
                "job.name": "j",
                "job.logged.store.base.dir": str(root / "local"),
                "stores.backup.factories": "blob",
                "blob.store.uri": f"file://{self.blobs}",
            }
        )
        self.spec = JobSpec(
            config=config,
            job_uid="u",
            log_backend="blob",
            app_id="app",
            operator=cast("OperatorSpec", None),
            processor=b"",
            session="a1",
            python_path=(),
        )
        self.factories = BackendRegistry(config).factories()
        self.executor = SerialExecutor()
        self.clock = FakeClock()
        factory = self.factories[BLOB]
        self.writer = LogSession(factory.job_log("j", self.executor, self.clock))
        self.checkpoints = factory.checkpoint_store("j", self.executor, self.clock)

    async def leave_aborted_attempt(self) -> None:
        await self.writer.open()
        await self.writer.take_over("driver")
        attempt = AttemptRecord(attempt=1, batch=0, checkpoint_id="7-1", versions={})
        await self.writer.append(attempt)
        await self._upload()
        aborted = AbortRecord(attempt_epoch=1, attempt=1, reason="test")
        await self.writer.append(aborted)

    def clean_up(self, *, partitions: int = 1, report: Report = report_nothing) -> CleanUp:
        return job_clean_up(
            self.spec,
            partitions,
            self.factories,
            log=self.writer,
            checkpoints=self.checkpoints,
            executor=self.executor,
            clock=self.clock,
            report=report,
        )

    def state_blobs(self) -> Sequence[str]:
        names = [str(path.relative_to(self.blobs)) for path in self.blobs.rglob("*")]
        return [n for n in names if "/state" in n and (self.blobs / n).is_file()]

    async def succeed(self) -> None:
        """Take the job over and commit a batch, as a new driver does."""
        await self.writer.open()
        await self.writer.take_over("successor")
        attempt = AttemptRecord(attempt=1, batch=1, checkpoint_id="7-1", versions={})
        await self.writer.append(attempt)
        checkpoint = await self._upload(epoch=2, version="1_00000001")
        commit = CommitRecord(
            attempt_epoch=2,
            attempt=1,
            batch=1,
            checkpoint_id="7-1",
            identity=JobIdentity(job_uid="u", job_name="j", partitions=1),
            checkpoints={task_name(0): msgspec.Raw(encode_checkpoint_v2(checkpoint))},
            versions={task_name(0): "1_00000001"},
        )
        await self.writer.append(commit)

    async def _upload(self, epoch: int = 1, version: str = "0_00000000") -> CheckpointV2:
        pipeline = TaskStorageCommitManager(
            self.spec.task(0),
            {STATE_STORE: self.spec.config.store(STATE_STORE)},
            self.factories,
            executor=self.executor,
            clock=self.clock,
        )
        sealed = seal_version(self.spec.directory(0), version, None, {b"k": b"v"})
        await pipeline.init()
        context = CommitContext(CheckpointId(7, 1), epoch, 1, sealed, None, None)
        backed_up = await pipeline.commit(context, {})
        await pipeline.close()
        return backed_up.checkpoint


@pytest.mark.asyncio
async def test_a_task_that_cannot_be_cleaned_up_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tmp_path)
    await rig.leave_aborted_attempt()
    clean_up = rig.clean_up(partitions=3)
    before = clean_up._clean_up_task

    async def two_fail(sweep: TaskSweep) -> None:
        if sweep.task != task_name(0):
            error = RetriableError(f"down, on purpose, for {sweep.task}")
            error.add_note("store=state")
            raise ExceptionGroup("clean-up failed", [error])
        await before(sweep)

    monkeypatch.setattr(clean_up, "_clean_up_task", two_fail)
    await clean_up.run()
    assert rig.state_blobs() == []
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "clean-up failed and will be repeated: job=j error=down, on purpose, for"
        f" {task_name(n)}; store=state"
        for n in (1, 2)
    ]


@pytest.mark.asyncio
async def test_one_run_at_most_waits_for_the_one_before(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.writer.open()
    clean_up = rig.clean_up()
    async with clean_up._running:
        waiting = asyncio.create_task(clean_up.run())
        await asyncio.sleep(0)
        assert clean_up.is_waiting
    await waiting
    assert not clean_up.is_waiting


@pytest.mark.asyncio
async def test_the_blobs_of_an_aborted_attempt_disappear(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.leave_aborted_attempt()
    assert rig.state_blobs()
    clean_up = rig.clean_up()
    await clean_up.run()
    assert rig.state_blobs() == []


@pytest.mark.asyncio
async def test_the_pin_of_a_killed_reader_disappears_once_it_has_expired(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.leave_aborted_attempt()
    await rig.succeed()
    position, now_ms = rig.writer.view.last_commit_position, rig.clock.time_ns() // 1_000_000
    for name, expires_ms in (("read-killed", now_ms + 1), ("keep", 0)):
        await rig.writer.append(PinRecord(name=name, position=position, expires_ms=expires_ms))
    await rig.clean_up().run()
    assert set(rig.writer.view.pins) == {"read-killed", "keep"}
    rig.clock.advance(1)
    await rig.clean_up().run()
    assert set(rig.writer.view.pins) == {"keep"}


@pytest.mark.asyncio
async def test_what_was_cleaned_up_behind_a_pin_is_not_cleaned_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path)
    await rig.leave_aborted_attempt()
    await rig.succeed()
    view = rig.writer.view
    await rig.writer.append(PinRecord(name="keep", position=view.last_commit_position))
    for number in (2, 3, 4, 5):
        commit = msgspec.structs.replace(
            view.commit_records[view.last_commit_position],
            attempt=number,
            checkpoint_id=f"7-{number}",
        )
        await rig.writer.append(commit)
    cleaned: list[tuple[int, int]] = []
    delete_all = rig.checkpoints.delete_all

    async def note(attempts: Collection[tuple[int, int]]) -> None:
        cleaned.extend(attempts)
        await delete_all(attempts)

    monkeypatch.setattr(rig.checkpoints, "delete_all", note)
    await rig.clean_up().run()
    assert sorted(cleaned) == [(1, 1), (2, 2), (2, 3)]
    cleaned.clear()
    await rig.clean_up().run()
    assert cleaned == []
    assert "keep" in view.pins


@pytest.mark.asyncio
async def test_what_a_late_writer_leaves_for_a_forgotten_attempt_disappears(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path)
    await rig.leave_aborted_attempt()
    clean_up = rig.clean_up()
    late = rig.checkpoints.write("1-1", task_name(0), b"late")
    await late
    aborted = AbortRecord(attempt_epoch=1, attempt=2, reason="test")
    await rig.writer.append(AttemptRecord(attempt=2, batch=0, checkpoint_id="7-2", versions={}))
    await rig.writer.append(aborted)
    rig.writer.view.orphans.discard((1, 1))  # as after a trim and a restart
    await rig.checkpoints.write("1-3", task_name(0), b"of a later attempt")
    await clean_up.run()
    assert rig.state_blobs() == []
    assert await rig.checkpoints.attempts() == {(1, 3)}


@pytest.mark.asyncio
async def test_late_entries_are_looked_for_now_and_again_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path)
    looks: list[int] = []

    async def look() -> Collection[tuple[int, int]]:
        looks.append(turn)
        return ()

    monkeypatch.setattr(rig.checkpoints, "attempts", look)
    await rig.writer.open()
    await rig.writer.take_over("driver")
    clean_up = rig.clean_up()
    for turn in range(1, 103):
        await rig.writer.append(
            AttemptRecord(attempt=turn, batch=0, checkpoint_id="7", versions={})
        )
        aborted = AbortRecord(attempt_epoch=1, attempt=turn, reason="test")
        await rig.writer.append(aborted)
        await clean_up.run()
    assert looks == [1, 101]


@pytest.mark.asyncio
async def test_the_log_is_not_trimmed_at_once_where_blobs_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path)
    await rig.leave_aborted_attempt()
    trimmed: list[int] = []

    async def note(floor: int) -> None:
        trimmed.append(floor)

    monkeypatch.setattr(rig.writer, "trim", note)
    clean_up = rig.clean_up()

    async def refuse(*_: object) -> None:
        raise OSError("no such location")

    monkeypatch.setattr(BlobBackupManager, "init", refuse)
    await clean_up.run()
    assert not trimmed
    assert rig.state_blobs()


@pytest.mark.asyncio
async def test_a_clean_up_that_wakes_after_another_driver_has_committed_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sleeper, successor = Rig(tmp_path), Rig(tmp_path)
    await sleeper.leave_aborted_attempt()
    aborted = set(sleeper.state_blobs())
    asleep, awake, clean_up = asyncio.Event(), asyncio.Event(), BlobBackupManager.clean_up

    async def sleep_first(
        self: BlobBackupManager,
        retained: Sequence[Mapping[StoreName, Marker]],
        closed_attempts: Sequence[tuple[int, int]],
    ) -> None:
        asleep.set()
        await awake.wait()
        await clean_up(self, retained, closed_attempts)

    monkeypatch.setattr(BlobBackupManager, "clean_up", sleep_first)
    cleaning = asyncio.create_task(sleeper.clean_up().run())
    await asleep.wait()
    await successor.succeed()
    committed = set(successor.state_blobs()) - aborted
    awake.set()
    await cleaning
    assert committed
    assert set(successor.state_blobs()) == committed
    assert "clean-up stopped, another owner has taken over" in caplog.text


@pytest.mark.asyncio
async def test_a_lost_index_of_a_pinned_commit_stops_neither_other_tasks_nor_the_trim(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tmp_path)
    await rig.leave_aborted_attempt()
    await rig.succeed()
    view = rig.writer.view
    before = view.commit_records[view.last_commit_position]
    await rig.writer.append(PinRecord(name="keep", position=view.last_commit_position))
    for index in rig.blobs.rglob("2-1/*-snapshot-index-*"):
        index.unlink()
    for number in (2, 3, 4):
        other = msgspec.structs.replace(before, attempt=number, checkpoint_id=f"7-{number}")
        await rig.writer.append(other)
    events: list[Event] = []
    clean_up = rig.clean_up(report=events.append)
    await clean_up.run()
    assert "BlobNotFoundError" not in caplog.text
    assert any("clean-up failed" in record.getMessage() for record in caplog.records)
    assert await rig.writer._log.read_floor() == view.lowest_needed > 0
    assert (view.released, view.orphans) == ({}, set())
    assert not [event for event in events if isinstance(event, CleanUpDone)]


@pytest.mark.asyncio
async def test_a_clean_up_that_fails_for_an_hour_is_an_error_and_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tmp_path)
    await rig.leave_aborted_attempt()
    events: list[Event] = []

    def report(event: Event) -> None:
        if event.is_recorded:
            events.append(event)

    clean_up = rig.clean_up(report=report)

    async def refuse(*_: object) -> None:
        raise OSError("no such location")

    def alarms() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]

    with monkeypatch.context() as patch:
        patch.setattr(BlobBackupManager, "clean_up", refuse)
        for minutes in (0, 59):
            rig.clock.advance(minutes * 60)
            await clean_up.run()
        assert (alarms(), events) == ([], [])
        assert clean_up.failing == CleanUpFailing(59, "OSError: no such location")
        rig.clock.advance(60)
        await clean_up.run()
        await clean_up.run()
        (alarm,) = alarms()
        assert "failing_minutes=60 error=OSError: no such location" in alarm
        assert events == [CleanUpFailing(60, "OSError: no such location")]
    await clean_up.run()
    assert rig.state_blobs() == []
    assert [event.kind for event in events] == ["clean-up-failing", "clean-up"]
    assert clean_up.failing is None


async def commit_tasks(rig: Rig, number: int, versions: Mapping[int, str]) -> None:
    """Append the commit of an attempt, with a marker that says which version it is of."""
    cid = CheckpointId(7, number)
    checkpoints = {
        p: CheckpointV2(cid, {}, {BLOB: {STATE_STORE: Marker(f"m-{version}")}})
        for p, version in versions.items()
    }
    await rig.writer.append(
        CommitRecord(
            attempt_epoch=1,
            attempt=number,
            batch=number,
            checkpoint_id=cid.serialize(),
            identity=JobIdentity(job_uid="u", job_name="j", partitions=len(versions)),
            checkpoints={
                task_name(p): msgspec.Raw(encode_checkpoint_v2(c)) for p, c in checkpoints.items()
            },
            versions={task_name(p): version for p, version in versions.items()},
        )
    )


async def swept(
    clean_up: CleanUp,
    monkeypatch: pytest.MonkeyPatch,
    *failing: int,
    lacking: Collection[int] = (),
) -> list[int]:
    """Run a clean-up; return the tasks whose backends it asked.

    Args:
        clean_up: Runs.
        monkeypatch: Of the test.
        failing: Tasks of which a backend fails.
        lacking: Tasks of which an optional backend is left out.
    """
    asked: list[int] = []

    async def note(sweep: TaskSweep) -> bool:
        asked.append(partition_of(sweep.task))
        if asked[-1] in failing:
            raise RetriableError("down")
        return asked[-1] not in lacking

    monkeypatch.setattr(clean_up, "_delete", note)
    await clean_up.run()
    return asked


@pytest.mark.asyncio
async def test_only_tasks_of_which_a_released_commit_held_something_else_are_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path)
    await rig.writer.open()
    await rig.writer.take_over("driver")
    clean_up = rig.clean_up(partitions=3)
    versions = {0: "0_00000000", 1: "0_00000000", 2: "0_00000000"}
    for number in (1, 2, 3):
        await commit_tasks(rig, number, versions)
    assert await swept(clean_up, monkeypatch) == [0, 1, 2]  # the first run
    await commit_tasks(rig, 4, versions | {1: "4_00000000"})
    assert await swept(clean_up, monkeypatch) == [1]
    await commit_tasks(rig, 5, versions | {1: "4_00000000"})
    assert await swept(clean_up, monkeypatch, 1) == [1]
    await commit_tasks(rig, 6, versions | {1: "4_00000000"})
    assert await swept(clean_up, monkeypatch, lacking=[1]) == [1]  # it failed before
    await commit_tasks(rig, 7, versions | {1: "4_00000000"})
    assert await swept(clean_up, monkeypatch) == [1]  # a backend did not take part
    await commit_tasks(rig, 8, versions | {1: "4_00000000"})
    assert await swept(clean_up, monkeypatch) == []
    await rig.writer.append(AttemptRecord(attempt=9, batch=9, checkpoint_id="7-9", versions={}))
    await rig.writer.append(AbortRecord(attempt_epoch=1, attempt=9, reason="test"))
    assert await swept(clean_up, monkeypatch) == [0, 1, 2]


@pytest.mark.asyncio
async def test_a_task_that_uploaded_again_what_it_had_is_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path)
    await rig.writer.open()
    await rig.writer.take_over("driver")
    clean_up = rig.clean_up(partitions=1)
    for number in (1, 2, 3):
        await commit_tasks(rig, number, {0: "0_00000000"})
    await swept(clean_up, monkeypatch)
    view = rig.writer.view
    newest = view.commit_records[view.last_commit_position]
    (raw,) = newest.checkpoints.values()
    again = bytes(raw).replace(b"m-0_", b"n-0_")
    await rig.writer.append(
        msgspec.structs.replace(
            newest, attempt=4, checkpoint_id="7-4", checkpoints={task_name(0): msgspec.Raw(again)}
        )
    )
    assert await swept(clean_up, monkeypatch) == [0]


@pytest.mark.asyncio
async def test_clean_ups_are_apart_but_for_the_first_that_failed_and_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path)
    await rig.writer.open()
    clean_up, runs = rig.clean_up(), list[str]()

    async def run() -> None:
        runs.append(step)
        if step.startswith("fails"):
            raise OSError("no such location")
        clean_up._failures.ended_well()

    monkeypatch.setattr(clean_up, "_run", run)
    for seconds, step in (
        (0, "fails"),
        (0, "fails again"),
        (0, "too early after a failure"),
        (119, "still too early"),
        (1, "fails in time"),
        (119, "too early once more"),
        (1, "in time"),
        (119, "too early"),
        (0, "last"),
    ):
        rig.clock.advance(seconds)
        clean_up.start(is_forced=step == "last")
        await clean_up.wait()
    assert runs == ["fails", "fails again", "fails in time", "in time", "last"]


def is_failing(clean_up: CleanUp) -> bool:
    return clean_up.failing is not None


@pytest.mark.asyncio
async def test_memory_and_log_do_not_grow_while_blobs_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path)
    await rig.leave_aborted_attempt()
    await rig.succeed()
    view, left = rig.writer.view, set(rig.state_blobs())
    before = view.commit_records[view.last_commit_position]
    clean_up, init = rig.clean_up(), BlobBackupManager.init

    async def refuse(*_: object) -> None:
        raise OSError("access denied")

    monkeypatch.setattr(BlobBackupManager, "init", refuse)
    for number in range(2, 400):
        await rig.writer.append(
            msgspec.structs.replace(before, attempt=number, checkpoint_id=f"7-{number}")
        )
        await clean_up.run()
        assert len(view.released) <= 251
    assert is_failing(clean_up)
    assert view.lowest_needed - await rig.writer._log.read_floor() < 600
    assert set(rig.state_blobs()) == left

    monkeypatch.setattr(BlobBackupManager, "init", init)
    await clean_up.run()
    assert not is_failing(clean_up)
    assert set(rig.state_blobs()) == {name for name in left if "2-1/" in name} != left
