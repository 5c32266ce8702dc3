"""A job whose driver is started with another number of tasks."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import msgspec
import pytest
from driver_kit import Driver, no_uploads
from reshaping_kit import FakeLocation, content, pin_of, reshape, reshaper
from spark_job_kit import BATCH, CONTENT, IN_STORES, KEY, ONE_STORE, make_job, settings
from typing_extensions import override

from statekeep.backends.base import (
    BackendProperties,
    BlockingExecutor,
    JobTasks,
    StateBackendAdmin,
)
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.hdfs.backup import HdfsBackupManager
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.checkpoint.log_view import LogView, checkpoint_of
from statekeep.checkpoint.records import RESHAPE, JobIdentity
from statekeep.clock import Clock, SystemClock
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.errors import CommitFailedError, ConfigError
from statekeep.fault_points import fault_handler
from statekeep.inspection.job import open_job
from statekeep.inspection.state_change import Changing, undo_change
from statekeep.spark.driver import owned_job
from statekeep.spark.driver.first_start import first_commit
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.opening import JobStorage
from statekeep.spark.driver.owned_job import JobDefinition, OwnedJob
from statekeep.spark.driver.progress import Stopwatch
from statekeep.spark.driver.reshaping import check_reshape
from statekeep.spark.driver.takeover import Resumption, new_identity
from statekeep.spark.placement import ROUTER, router_of
from statekeep.spark.state.erasing import EraseRequest, erase_keys
from statekeep.spark.state_reader import read_state

BEFORE = 4


@pytest.fixture
def job(tmp_path: Path) -> Path:
    asyncio.run(make_job(tmp_path))
    return tmp_path


@pytest.mark.parametrize("count", [1, 3, 7])
def test_every_key_is_in_the_task_to_which_spark_routes_it(job: Path, count: int) -> None:
    view = reshape(job, count)
    assert content(job, count) == CONTENT
    pin = pin_of(view)
    assert content(job, BEFORE, pin) == CONTENT
    commit = view.last_commit
    assert commit is not None
    assert (commit.batch, commit.identity.partitions) == (BATCH, count)
    assert commit.change is not None
    assert commit.change.kind == RESHAPE
    assert len(commit.checkpoints) == len(commit.versions) == count
    # A task goes back to none of the commits before.
    assert view.comparable_commits == [commit]
    assert not view.open_attempts


def test_it_can_be_changed_again_and_back(job: Path) -> None:
    for count in (9, 2, BEFORE):
        reshape(job, count)
        assert content(job, count) == CONTENT
    view = reshape(job, BEFORE)
    assert len(view.pins) == 3  # the number was the same the last time


def test_every_store_is_split(tmp_path: Path) -> None:
    asyncio.run(make_job(tmp_path, IN_STORES))
    reshape(tmp_path, 3)
    for variable in IN_STORES.values():
        assert content(tmp_path, 3, variable=variable) == CONTENT


def test_every_backend_has_the_new_tasks(tmp_path: Path) -> None:
    others = {
        "stores.backup.factories": "near,far",
        "backends.near.factory": "blob",
        "backends.near.uri": (tmp_path / "near").as_uri(),
        "backends.far.factory": "hdfs",
        "backends.far.uri": (tmp_path / "far").as_uri(),
    }
    asyncio.run(make_job(tmp_path, ONE_STORE, **others))
    pin = pin_of(reshape(tmp_path, 7, **others))
    for backend in ("near", "far"):
        only = others | {"stores.restore.factories": backend}
        assert content(tmp_path, 7, **only) == CONTENT
        assert content(tmp_path, BEFORE, pin, **only) == CONTENT


def test_an_optional_backend_that_hangs_does_not_hold_up_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {
        "stores.backup.factories": "near,far",
        "stores.backup.optional": "far",
        "task.commit.optional.timeout.ms": "100",
        "backends.near.factory": "blob",
        "backends.near.uri": (tmp_path / "near").as_uri(),
        "backends.far.factory": "hdfs",
        "backends.far.uri": (tmp_path / "far").as_uri(),
    }
    asyncio.run(make_job(tmp_path, ONE_STORE, **others))

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(HdfsBackupManager, "upload", hang)
        commit = reshape(tmp_path, 3, **others).last_commit
    assert commit is not None
    for task in commit.checkpoints:
        checkpoint = checkpoint_of(commit, task)
        assert checkpoint is not None
        assert list(checkpoint.state_markers) == ["near"]
    assert content(tmp_path, 3, **others) == CONTENT


def test_a_new_query_finds_the_commit_that_it_is_to_go_on_from(job: Path) -> None:
    config = load_dict(settings(job))
    driver = Driver(config, FakeLocation())
    try:
        before = driver.open(7)
        assert before is not None
        driver.fence(before.identity)
        driver.append(first_commit(before, before.identity, "", driver.epoch))
        reshaper(driver).run(7)
        commit = driver.view.last_commit
        assert commit is not None
        assert (commit.checkpoint_id, commit.batch) == (before.checkpoint_id, -1)
        assert commit.query is None
    finally:
        driver.close()
    assert content(job, 7) == CONTENT


def test_after_an_error_the_job_is_as_it_was(job: Path) -> None:
    def fail(point: str) -> None:
        if point == "commit_record.before":
            raise CommitFailedError("the test says so", checkpoint_id="c", step="record")

    with fault_handler(fail), pytest.raises(CommitFailedError, match="the test says so") as caught:
        reshape(job, 7)
    assert any("the state is in 4 tasks as before" in hint for hint in caught.value.hints)
    view = reshape(job, BEFORE)
    assert not view.pins
    assert len(view.aborted_attempts) == 1
    assert content(job, BEFORE) == CONTENT
    # What the attempt has left of tasks that the job never got is found.
    assert {f"Partition {number}" for number in range(7)} <= view.tasks


def test_an_error_behind_the_commit_leaves_the_savepoint(job: Path) -> None:
    """Ctrl-C, say, between the commit record and what comes after it."""

    def interrupt(point: str) -> None:
        if point == "commit_record.after":
            raise KeyboardInterrupt

    with fault_handler(interrupt), pytest.raises(KeyboardInterrupt) as caught:
        reshape(job, 7)
    assert not getattr(caught.value, "__notes__", [])  # the state is not in the tasks of before
    view = reshape(job, 7)
    assert content(job, 7) == CONTENT
    assert content(job, BEFORE, pin_of(view)) == CONTENT


def test_commits_of_different_numbers_of_tasks_have_no_change_feed(job: Path) -> None:
    pin = pin_of(reshape(job, 3))
    with pytest.raises(ConfigError, match="number of tasks changed between the two commits"):
        read_state(settings(job), "count", changes_since=pin)


def changing(directory: Path) -> Changing:
    return Changing(directory / "change", "test", is_taking_over=True)


def test_the_number_of_tasks_is_not_undone_as_a_change_of_state(job: Path) -> None:
    reshape(job, 3)

    async def undo() -> None:
        async with open_job(load_dict(settings(job)), SystemClock()) as opened:
            await undo_change(opened, "a mistake", changing(job))

    with pytest.raises(ConfigError, match="changed the number of tasks, not the state"):
        asyncio.run(undo())


def test_a_key_is_not_erased_past_a_savepoint_in_other_tasks(job: Path) -> None:
    """The key's task here may be empty there, and another task there has the key."""
    pin = pin_of(reshape(job, 9))
    user = next(
        row["key"]["user"]
        for row in read_state(settings(job), "count").to_pylist()
        if row["partition_id"] >= BEFORE
    )
    request = EraseRequest(load_dict(settings(job)), [user], "a request")
    with pytest.raises(ConfigError, match=f"kept under names: names={pin}"):
        asyncio.run(erase_keys(request, changing(job)))


class FakeFactory:
    """A backend as far as its facts go."""

    def __init__(self, *, keeps_every_commit: bool) -> None:
        self.properties = BackendProperties(keeps_every_commit=keeps_every_commit)


def identity(partitions: int, store: str = "state") -> JobIdentity:
    return JobIdentity(job_uid="u", job_name="j", partitions=partitions, stores={"main": [store]})


def test_a_backend_that_overwrites_its_commits_keeps_the_number_of_tasks() -> None:
    name = BackendName("log")
    backends = {name: FakeFactory(keeps_every_commit=False)}
    check_reshape(identity(4), identity(4), backends, [name])  # type: ignore[arg-type]
    check_reshape(identity(4), identity(7), backends, [])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="backend=log before=4 now=7") as caught:
        check_reshape(identity(4), identity(7), backends, [name])  # type: ignore[arg-type]
    assert any("statekeep rescale" in hint for hint in caught.value.hints)


class Changelog(BlobBackendFactory):
    """A backend that makes something for each task of a job, and keeps its newest commit alone."""

    properties = replace(BlobBackendFactory.properties, keeps_every_commit=False)
    made_for: ClassVar[list[int]] = []
    """How many tasks, at each start."""

    @override
    def admin(
        self, executor: BlockingExecutor, clock: Clock, tasks: JobTasks | None = None
    ) -> StateBackendAdmin:
        assert tasks is not None
        self.made_for.append(tasks.count)
        return super().admin(executor, clock, tasks)


def test_nothing_is_made_for_a_number_that_such_a_backend_refuses(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Changelog, "made_for", [])
    both = {
        "stores.backup.factories": "blob,changelog",
        "backends.changelog.factory": "test_reshaped_job:Changelog",
        "backends.changelog.uri": (job / "changelog").as_uri(),
    }

    def start(name: str) -> int:
        driver = Driver(load_dict(settings(job, name) | both), FakeLocation())
        try:
            driver.open(7)
            assert driver.storage is not None
            return driver.storage.partitions
        finally:
            driver.close()

    assert start("counts") == start("a new job") == 7  # it is the start that refuses it
    assert Changelog.made_for == [BEFORE, 7]


def test_the_numbers_that_are_refused_are_those_of_the_setting() -> None:
    """It counts the tasks of an operator."""
    before, now = (
        msgspec.structs.replace(identity(count), router=router_of(2)) for count in (8, 14)
    )
    name = BackendName("log")
    backends = {name: FakeFactory(keeps_every_commit=False)}
    with pytest.raises(ConfigError, match="before=4 now=7"):
        check_reshape(before, now, backends, [name])  # type: ignore[arg-type]


def test_stores_and_the_number_of_tasks_change_one_after_the_other() -> None:
    with pytest.raises(ConfigError, match="cannot change in one start"):
        check_reshape(identity(4), identity(7, "other"), {}, [])


class Started(OwnedJob):
    """A start up to the first batch, without Spark, of a query whose settings have no ``task.count``."""

    def __init__(self, config: Config) -> None:
        unused: Any = None
        location = cast("CheckpointLocation", FakeLocation())
        clock = SystemClock()
        definition = JobDefinition(
            spark=unused,
            frame=unused,
            stages=[],
            config=config,
            location=location,
            sink=unused,
            clock=clock,
        )
        self.driver = Driver(config, location)
        super().__init__(
            definition, self.driver.thread, threading.Lock(), Stopwatch(clock), lambda: 0
        )
        self.asked: list[int] = []
        """The numbers of tasks that the state was to be given to."""

    @override
    def _open_storage(self) -> tuple[JobStorage, JobIdentity]:
        self.driver.open(None)
        storage = self.storage = self.driver.storage
        assert storage is not None
        expected = new_identity(self._config, storage.partitions, ROUTER, KEY.simpleString())
        return storage, expected

    @override
    def _reshape(self, storage: JobStorage, resumption: Resumption, partitions: int) -> Resumption:
        self.asked.append(partitions)
        return resumption

    @override
    def _wire_tasks(self, storage: JobStorage) -> None:
        self.commits = self.driver._commits(storage, self.identity)
        unused: Any = SimpleNamespace(
            abandoned=no_uploads, check_variables=lambda: None, resume=lambda *_: None
        )
        self.jobs = self.batches = unused

    @override
    def _check_time_mode(self, view: LogView) -> None: ...

    @override
    def _spread_tasks(self, identity: JobIdentity) -> None: ...

    @override
    def _wire_batches(self, storage: JobStorage) -> None: ...


def test_without_a_setting_a_job_keeps_the_number_that_another_driver_has_just_given_it(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("check_retention", "check_sources", "sweep_shadows", "source_limits"):
        monkeypatch.setattr(owned_job, name, lambda *_, **__: ())
    started = Started(load_dict(settings(job)))

    def reshape_meanwhile() -> None:
        """Between the look at the log and the fence: starting Spark's executors takes a while."""
        reshape(job, 7)

    try:
        started.open(check_wanted=reshape_meanwhile)
    finally:
        started.driver.thread.run(started.release())
        started.driver.thread.close()
    assert started.identity.partitions == 7
    assert started.asked == []
