"""The commit pipeline: all backends or nothing, optional ones loudly left out, order of steps."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from statekeep.backends.base import (
    BackupContext,
    BlockingExecutor,
    CommitContext,
    JobTasks,
    RestoreContext,
    StateBackendAdmin,
    StateBackendFactory,
    TaskBackupManager,
    TaskIdentity,
    TaskRestoreManager,
)
from statekeep.checkpoint.checkpoint_id import CheckpointId
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointV2,
    Marker,
    StoreName,
    SystemStreamPartition,
    TaskName,
)
from statekeep.checkpoint.serde import decode_checkpoint_v2
from statekeep.clock import Clock
from statekeep.commit.metrics import CommitMetrics
from statekeep.commit.pipeline import TaskCommitPipeline
from statekeep.config.model import StoreSettings
from statekeep.errors import CommitFailedError, ConfigError, RetriableError, TaskFencedError
from statekeep.fault_points import fault_handler
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

TASK = TaskIdentity("job", "main", TaskName("Partition 0"))
S0, S1 = StoreName("s0"), StoreName("s1")
F0, F1 = BackendName("f0"), BackendName("f1")
INPUT = SystemStreamPartition("kafka", "orders.v1", 0)
ID = CheckpointId(7, 1)


class FakeBackup(TaskBackupManager):
    """Takes notes and fails where it is told to."""

    def __init__(self, name: BackendName, context: BackupContext, calls: list[str]) -> None:
        self.name = name
        self.context = context
        self.calls = calls
        self.fail: dict[str, BaseException] = {}
        self.hang = False
        self.markers: Mapping[StoreName, Marker] = {
            store: Marker(f"{name}-{store}") for store in context.stores
        }
        self.clean_up_args: Any = None

    def note(self, step: str) -> None:
        self.calls.append(f"{self.name}.{step}")
        if step in self.fail:
            raise self.fail[step]

    @override
    async def init(self, checkpoint: CheckpointV2 | None) -> None:
        self.note("init")

    @override
    def snapshot(self, checkpoint_id: CheckpointId) -> Mapping[StoreName, Marker]:
        assert self.context.commit(checkpoint_id).checkpoint_id == checkpoint_id
        self.note("snapshot")
        return {}

    @override
    async def upload(
        self, checkpoint_id: CheckpointId, markers: Mapping[StoreName, Marker]
    ) -> Mapping[StoreName, Marker]:
        self.note("upload")
        if self.hang:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.calls.append(f"{self.name}.cancelled")
                raise
        return self.markers

    @override
    async def clean_up(
        self,
        retained: Sequence[Mapping[StoreName, Marker]],
        closed_attempts: Sequence[tuple[int, int]],
    ) -> None:
        self.clean_up_args = (list(retained), list(closed_attempts))
        self.note("clean_up")

    @override
    async def close(self) -> None:
        self.note("close")


class FakeAdmin(StateBackendAdmin):
    """Checks the place of a `FakeBackup`, which says whether it is there."""

    def __init__(self, backup: FakeBackup) -> None:
        self.backup = backup

    @override
    async def create_resources(self) -> None:
        self.backup.note("create")

    @override
    async def validate_resources(self) -> None:
        self.backup.note("check")

    @override
    async def close(self) -> None:
        self.backup.note("check-end")


class FakeFactory(StateBackendFactory):
    def __init__(self, name: BackendName, calls: list[str]) -> None:
        super().__init__(name, {})
        self.calls = calls
        self.manager: FakeBackup

    @override
    def backup_manager(self, context: BackupContext) -> TaskBackupManager:
        self.manager = FakeBackup(self.name, context, self.calls)
        return self.manager

    @override
    def restore_manager(self, context: RestoreContext) -> TaskRestoreManager:
        raise NotImplementedError

    @override
    def admin(
        self, executor: BlockingExecutor, clock: Clock, tasks: JobTasks | None = None
    ) -> StateBackendAdmin:
        return FakeAdmin(self.manager)


class Rig:
    """Two stores, both backed up to f0 and f1; f1 may be optional."""

    def __init__(self, root: Path, optional: Mapping[StoreName, tuple[str, ...]]) -> None:
        self.calls: list[str] = []
        self.factories = {name: FakeFactory(name, self.calls) for name in (F0, F1)}
        self.metrics = CommitMetrics()
        stores = {
            name: StoreSettings(
                name,
                factory="memory",
                backup_factories=(F0, F1),
                optional_factories=optional.get(name, ()),
            )
            for name in (S0, S1)
        }
        self.pipeline = TaskCommitPipeline(
            TASK,
            stores,
            self.factories,
            executor=SerialExecutor(),
            clock=FakeClock(),
            metrics=self.metrics,
            optional_timeout_s=0.001 if optional else None,
        )
        directory = TaskDirectory.of(root, TASK)
        with directory.begin("aaaaaaaa", None, (S0, S1)) as work:
            for name in (S0, S1):
                work.open_store(name, "memory").put(b"k", b"v")
            self.version: SealedVersion = work.seal(0, "aaaaaaaa", None)

    def backup(self, name: BackendName) -> FakeBackup:
        return self.factories[name].manager

    async def commit(self) -> CheckpointV2:
        context = CommitContext(ID, 1, 1, self.version, None, None)
        return await self.pipeline.commit(context, {INPUT: "41"})


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, {})


@pytest.fixture
def lenient(tmp_path: Path) -> Rig:
    return Rig(tmp_path, {S0: ("f1",), S1: ("f1",)})


@pytest.mark.asyncio
async def test_a_checkpoint_holds_the_markers_of_every_backend_for_every_store(rig: Rig) -> None:
    await rig.pipeline.init(None)
    checkpoint = await rig.commit()
    assert checkpoint == CheckpointV2(
        ID,
        {INPUT: "41"},
        {
            F0: {S0: Marker("f0-s0"), S1: Marker("f0-s1")},
            F1: {S0: Marker("f1-s0"), S1: Marker("f1-s1")},
        },
    )


@pytest.mark.asyncio
async def test_the_steps_come_in_order_and_the_checkpoint_file_after_every_upload(
    rig: Rig,
) -> None:
    with fault_handler(rig.calls.append):
        await rig.pipeline.init(None)
        await rig.commit()
    assert rig.calls == [
        *("f0.init", "f1.init"),
        *("snapshot.before", "f0.snapshot", "f1.snapshot", "snapshot.after"),
        *("upload.before", "f0.upload", "f1.upload"),
        *("checkpoint.before_write", "checkpoint.after_write"),
    ]


@pytest.mark.asyncio
async def test_the_checkpoint_lies_beside_the_version(rig: Rig) -> None:
    await rig.pipeline.init(None)
    checkpoint = await rig.commit()
    data = rig.version.read_checkpoint()
    assert data is not None
    assert decode_checkpoint_v2(data, "test") == checkpoint


@pytest.mark.asyncio
@pytest.mark.parametrize("step", ["snapshot", "upload"])
async def test_a_failing_step_fails_the_commit_and_writes_no_checkpoint(
    rig: Rig, step: str
) -> None:
    await rig.pipeline.init(None)
    rig.backup(F1).fail[step] = RetriableError("down")
    with pytest.raises(CommitFailedError, match=f"step={step}") as caught:
        await rig.commit()
    assert caught.value.__cause__ is rig.backup(F1).fail[step]
    assert rig.version.read_checkpoint() is None


@pytest.mark.asyncio
async def test_a_checkpoint_that_cannot_be_written_locally_fails_the_commit(rig: Rig) -> None:
    await rig.pipeline.init(None)
    (rig.version.directory / "CHECKPOINT-V2").mkdir()
    with pytest.raises(CommitFailedError, match="step=checkpoint"):
        await rig.commit()


@pytest.mark.asyncio
async def test_the_first_failed_upload_cancels_the_others(rig: Rig) -> None:
    await rig.pipeline.init(None)
    rig.backup(F0).hang = True
    rig.backup(F1).fail["upload"] = RetriableError("down")
    with pytest.raises(CommitFailedError):
        await rig.commit()
    assert "f0.cancelled" in rig.calls


@pytest.mark.asyncio
async def test_the_commit_after_a_failed_one_succeeds(rig: Rig) -> None:
    await rig.pipeline.init(None)
    rig.backup(F1).fail["upload"] = RetriableError("down")
    with pytest.raises(CommitFailedError):
        await rig.commit()
    rig.backup(F1).fail.clear()
    assert set((await rig.commit()).state_markers) == {F0, F1}


@pytest.mark.asyncio
async def test_a_cancelled_commit_stops_its_uploads_and_writes_nothing(rig: Rig) -> None:
    await rig.pipeline.init(None)
    rig.backup(F0).hang = True
    committing = asyncio.create_task(rig.commit())
    while "f0.upload" not in rig.calls:
        await asyncio.sleep(0)
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    assert "f0.cancelled" in rig.calls
    assert rig.version.read_checkpoint() is None
    with pytest.raises(KeyError):
        rig.backup(F0).context.commit(ID)


@pytest.mark.asyncio
async def test_an_optional_backend_that_fails_is_left_out_loudly(
    lenient: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await lenient.pipeline.init(None)
    lenient.backup(F1).fail["upload"] = RetriableError("down")
    checkpoint = await lenient.commit()
    assert set(checkpoint.state_markers) == {F0}
    assert lenient.metrics.counters["optional-upload-failures"] == 1
    assert [r.levelno for r in caplog.records if "optional backend" in r.message] == [logging.ERROR]


@pytest.mark.asyncio
async def test_a_commit_waits_for_an_optional_backend_no_longer_than_it_may(
    lenient: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await lenient.pipeline.init(None)
    lenient.backup(F1).hang = True
    checkpoint = await lenient.commit()
    assert set(checkpoint.state_markers) == {F0}
    assert "f1.cancelled" in lenient.calls
    assert "step=timeout" in caplog.text
    lenient.backup(F1).hang = False
    assert set((await lenient.commit()).state_markers) == {F0, F1}


@pytest.mark.asyncio
async def test_an_optional_backend_whose_snapshot_fails_fails_no_commit(lenient: Rig) -> None:
    await lenient.pipeline.init(None)
    lenient.backup(F1).fail["snapshot"] = RetriableError("no room for the note")
    assert set((await lenient.commit()).state_markers) == {F0}
    lenient.backup(F1).fail.clear()
    assert set((await lenient.commit()).state_markers) == {F0, F1}


@pytest.mark.asyncio
async def test_an_optional_backend_that_is_not_ready_joins_at_a_later_commit(lenient: Rig) -> None:
    lenient.backup(F1).fail["init"] = ConfigError("no such place")
    await lenient.pipeline.init(None)
    assert set((await lenient.commit()).state_markers) == {F0}
    lenient.backup(F1).fail.clear()
    assert set((await lenient.commit()).state_markers) == {F0, F1}


@pytest.mark.asyncio
async def test_an_optional_backend_that_was_left_out_is_asked_before_it_takes_part_again(
    lenient: Rig,
) -> None:
    await lenient.pipeline.init(None)
    lenient.backup(F1).fail["upload"] = RetriableError("down")
    lenient.backup(F1).fail["check"] = RetriableError("still down")
    for _ in range(2):
        assert set((await lenient.commit()).state_markers) == {F0}
    assert [call for call in lenient.calls if call.startswith("f1.")] == [
        *("f1.init", "f1.snapshot", "f1.upload"),
        *("f1.create", "f1.check", "f1.check-end"),
    ]
    lenient.backup(F1).fail.clear()
    lenient.calls.clear()
    for _ in range(2):
        assert set((await lenient.commit()).state_markers) == {F0, F1}
    assert [call for call in lenient.calls if call.startswith("f1.")] == [
        *("f1.create", "f1.check", "f1.check-end", "f1.snapshot", "f1.upload"),
        *("f1.snapshot", "f1.upload"),
    ]


@pytest.mark.asyncio
async def test_what_an_optional_backend_lacks_is_created_before_a_process_first_uploads_to_it(
    lenient: Rig,
) -> None:
    lenient.pipeline.ask_optional_first()
    await lenient.pipeline.init(None)
    assert lenient.calls == ["f0.init"]
    for _ in range(2):
        assert set((await lenient.commit()).state_markers) == {F0, F1}
    assert [call for call in lenient.calls if call.startswith("f1.")] == [
        *("f1.create", "f1.check", "f1.check-end", "f1.init", "f1.snapshot", "f1.upload"),
        *("f1.snapshot", "f1.upload"),
    ]


@pytest.mark.asyncio
async def test_a_required_backend_is_never_taken_for_away_beforehand(rig: Rig) -> None:
    rig.pipeline.ask_optional_first()
    await rig.pipeline.init(None)
    assert rig.calls == ["f0.init", "f1.init"]


@pytest.mark.asyncio
async def test_clean_up_leaves_a_backend_alone_that_was_left_out_of_the_commit(
    lenient: Rig,
) -> None:
    await lenient.pipeline.init(None)
    lenient.backup(F1).fail["upload"] = RetriableError("down")
    checkpoint = await lenient.commit()
    await lenient.pipeline.clean_up([checkpoint], [])
    assert "f0.clean_up" in lenient.calls
    assert "f1.clean_up" not in lenient.calls


@pytest.mark.asyncio
async def test_clean_up_leaves_an_optional_backend_alone_that_a_checkpoint_lacks(
    lenient: Rig,
) -> None:
    checkpoint = CheckpointV2(ID, {}, {F0: {S0: Marker("m")}})
    lenient.pipeline.leave_out(checkpoint)
    await lenient.pipeline.clean_up([checkpoint], [])
    assert "f0.clean_up" in lenient.calls
    assert not [call for call in lenient.calls if call.startswith("f1.")]


@pytest.mark.asyncio
async def test_an_optional_backend_that_was_busy_when_a_commit_was_given_up_is_asked_first(
    lenient: Rig,
) -> None:
    await lenient.pipeline.init(None)
    lenient.backup(F1).fail["upload"] = asyncio.CancelledError()
    with pytest.raises(asyncio.CancelledError):
        await lenient.commit()
    lenient.backup(F1).fail.clear()
    lenient.calls.clear()
    await lenient.commit()
    assert next(call for call in lenient.calls if call.startswith("f1.")) == "f1.create"


@pytest.mark.asyncio
async def test_a_failed_commit_names_the_backend_that_it_failed_for(rig: Rig) -> None:
    await rig.pipeline.init(None)
    rig.backup(F1).fail["upload"] = RetriableError("down")
    with pytest.raises(CommitFailedError, match="task=Partition 0 backend=f1"):
        await rig.commit()


@pytest.mark.asyncio
async def test_a_backend_that_is_optional_for_one_store_only_still_fails_the_commit(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, {S0: ("f1",)})
    await rig.pipeline.init(None)
    rig.backup(F1).fail["upload"] = RetriableError("down")
    with pytest.raises(CommitFailedError, match="step=upload"):
        await rig.commit()


@pytest.mark.asyncio
async def test_a_store_that_no_backend_took_fails_the_commit_though_all_are_optional(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, {S0: ("f0", "f1"), S1: ("f0", "f1")})
    await rig.pipeline.init(None)
    for name in (F0, F1):
        rig.backup(name).fail["upload"] = RetriableError("down")
    with pytest.raises(CommitFailedError, match="no backend took the store"):
        await rig.commit()


@pytest.mark.asyncio
async def test_a_backend_that_forgets_a_marker_fails_the_commit(rig: Rig) -> None:
    await rig.pipeline.init(None)
    rig.backup(F0).markers = {S0: Marker("m")}
    with pytest.raises(CommitFailedError, match="step=upload") as caught:
        await rig.commit()
    assert "stores=s1" in str(caught.value.__cause__)


@pytest.mark.asyncio
async def test_being_fenced_is_told_apart_from_failing(rig: Rig) -> None:
    await rig.pipeline.init(None)
    rig.backup(F1).fail["upload"] = TaskFencedError("moved", own_epoch=1, newer_epoch=2)
    with pytest.raises(TaskFencedError):
        await rig.commit()


@pytest.mark.asyncio
async def test_clean_up_gives_each_backend_its_own_retained_markers(rig: Rig) -> None:
    await rig.pipeline.init(None)
    checkpoint = await rig.commit()
    await rig.pipeline.clean_up([checkpoint], [(1, 0)])
    assert rig.backup(F1).clean_up_args == ([checkpoint.state_markers[F1]], [(1, 0)])


@pytest.mark.asyncio
@pytest.mark.parametrize("step", ["clean_up", "close"])
async def test_clean_up_and_close_try_every_backend_and_then_raise(rig: Rig, step: str) -> None:
    await rig.pipeline.init(None)
    rig.backup(F0).fail[step] = RetriableError("down")
    with pytest.raises(ExceptionGroup) as caught:
        await (rig.pipeline.clean_up([], []) if step == "clean_up" else rig.pipeline.close())
    assert caught.value.exceptions == (rig.backup(F0).fail[step],)
    assert f"f1.{step}" in rig.calls


@pytest.mark.asyncio
async def test_a_required_backend_that_is_not_ready_fails_the_start(rig: Rig) -> None:
    rig.backup(F0).fail["init"] = ConfigError("no such place")
    with pytest.raises(ConfigError):
        await rig.pipeline.init(None)


@pytest.mark.asyncio
async def test_clean_up_gets_the_backends_ready_that_are_not(rig: Rig) -> None:
    await rig.pipeline.clean_up([], [(1, 0)])
    assert rig.backup(F0).clean_up_args == ([], [(1, 0)])
    assert rig.backup(F1).clean_up_args == ([], [(1, 0)])
    await rig.pipeline.clean_up([], [(1, 1)])
    assert rig.calls.count("f0.init") == 1


@pytest.mark.asyncio
async def test_clean_up_fails_if_a_required_backend_does_not_get_ready(rig: Rig) -> None:
    rig.backup(F0).fail["init"] = RetriableError("down")
    with pytest.raises(ExceptionGroup) as caught:
        await rig.pipeline.clean_up([], [(1, 0)])
    assert caught.value.exceptions == (rig.backup(F0).fail["init"],)
    assert rig.backup(F0).clean_up_args is None
    assert rig.backup(F1).clean_up_args == ([], [(1, 0)])


@pytest.mark.asyncio
async def test_clean_up_leaves_out_an_optional_backend_that_does_not_get_ready(
    lenient: Rig,
) -> None:
    lenient.backup(F1).fail["init"] = RetriableError("down")
    await lenient.pipeline.clean_up([], [(1, 0)])
    assert lenient.backup(F0).clean_up_args == ([], [(1, 0)])
    assert lenient.backup(F1).clean_up_args is None
