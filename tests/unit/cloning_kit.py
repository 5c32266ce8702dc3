"""Jobs and their clones on blobs in memory, without Spark; each may be killed wherever it is."""

import itertools
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import msgspec
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.index_blobs import IndexBlobs
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.storage.memory import MemoryBlobStoreManager, forget_root
from statekeep.backends.wrappers import WrappedBlobStoreManager
from statekeep.checkpoint.checkpoints import BackendName, CheckpointId, TaskName
from statekeep.checkpoint.log_reset import read_remains
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import LogView, checkpoint_of, version_of
from statekeep.checkpoint.records import CommitRecord, JobIdentity, QueryState
from statekeep.checkpoint.serde import encode_checkpoint_v2
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.fault_points import fault_handler, fault_point
from statekeep.inspection.clone_ends import drop_clone, promote_clone
from statekeep.inspection.cloning import Clone, Cloning, make_clone, settings_of
from statekeep.inspection.job import InspectedJob, LogStorage, open_job, open_log_storage
from statekeep.inspection.new_job import begin_job
from statekeep.inspection.state_copy import UNSEEN, CommitBackups
from statekeep.inspection.task_restore import task_identity
from statekeep.spark.driver.job_commits import job_clean_up
from statekeep.spark.operator.runner import OperatorSpec
from statekeep.spark.tasks import STATE_STORE, task_name
from statekeep.spark.worker.job_spec import JobSpec
from statekeep.stores.factory import open_store
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion
from statekeep.testing.clock import FakeClock

T = TypeVar("T")

BLOB = BackendName("blob")
TASKS = [TaskName(str(task_name(number))) for number in range(2)]

Content = Mapping[TaskName, Mapping[bytes, bytes]]
"""Of the state of each task."""


class Killed(BaseException):
    """What a process does no more once it was killed."""


class _Switch:
    is_dead = False
    requests: ClassVar[list[tuple[str, str]]] = []


def dying_blobs(settings: Mapping[str, str], executor: BlockingExecutor) -> BlobStoreManager:
    """Make a client that reaches nothing any more once its process was killed."""
    return _DyingBlobs(MemoryBlobStoreManager(settings["uri"], executor))


class _DyingBlobs(WrappedBlobStoreManager):
    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Any]) -> Any:
        if _Switch.is_dead:
            raise Killed
        _Switch.requests.append((operation, subject))
        return await call()


@contextmanager
def counted_requests() -> Generator[list[tuple[str, str]]]:
    """Yield the requests of the block as they come: operation, and what it is of."""
    _Switch.requests.clear()
    yield _Switch.requests


@contextmanager
def killed_at(*, nth: int = 1, point: str | None = None) -> Generator[list[str]]:
    """Kill what runs in the block at the nth fault point that it reaches, or of one name.

    Yields where that was.
    """
    reached: list[str] = []
    killed: list[str] = []

    def handler(name: str) -> None:
        if point in {None, name}:
            reached.append(name)
        if len(reached) == nth and not killed:
            killed.append(name)
            _Switch.is_dead = True
        if _Switch.is_dead:
            raise Killed

    try:
        with fault_handler(handler):
            yield killed
    except Killed:
        pass
    except BaseExceptionGroup as group:
        if group.subgroup(Killed) is None:
            raise
    finally:
        _Switch.is_dead = False


class Place:
    """Where all jobs of a test keep their state."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory
        self._settings = settings
        self.uri = str(directory / "place")
        self.clock = FakeClock()
        self._numbers = itertools.count(1)
        self.contents: dict[tuple[str, int], Content] = {}
        """Of the commits of each job, by its uid and their positions."""
        forget_root(self.uri)

    def config(self, name: str) -> Config:
        return load_dict(
            {
                "job.name": name,
                "job.logged.store.base.dir": str(self.directory / "local"),
                "stores.backup.factories": "blob",
                "stores.state.factory": "memory",
                "blob.store.uri": self.uri,
                "blob.store.manager.factory": "cloning_kit:dying_blobs",
                "checkpoint.retain.commits": "2",
                "checkpoint.clean.up.ms": "0",
                **self._settings,
            }
        )

    async def begin(self, name: str) -> None:
        """Make a job with some state."""
        commit = CommitRecord(
            attempt_epoch=0,
            attempt=0,
            batch=0,
            checkpoint_id="1-1",
            identity=JobIdentity(
                job_uid="", job_name="", partitions=len(TASKS), stores={"main": [STATE_STORE]}
            ),
        )
        config = self.config(name)
        content: Content = {task: {b"begun": name.encode()} for task in TASKS}
        async with begin_job(config, commit, self.clock, owner="test", partitions=2) as job:
            for task in TASKS:
                made = self._seal(name, task, None, 0, content[task])
                await job.add(task, made, {})
            position = await job.finish(QueryState(query_id="q", metadata='{"id":"q"}'))
        self.contents[await self.uid(name), position] = content

    def _seal(
        self,
        name: str,
        task: TaskName,
        base: SealedVersion | None,
        batch: int,
        changes: Mapping[bytes, bytes],
    ) -> SealedVersion:
        uid = f"{next(self._numbers):032x}"
        versions = TaskDirectory.of(self.directory / "versions" / name, _Named(name, task))
        with versions.begin(uid, base, [STATE_STORE], captured=[STATE_STORE]) as work:
            work.open_store(STATE_STORE, "memory").write(changes)
            return work.seal(batch, uid, base)

    async def uid(self, name: str) -> str:
        return (await self.view(name)).last_commit.identity.job_uid  # type: ignore[union-attr] # it has one

    async def view(self, name: str) -> LogView:
        async with open_job(self.config(name), self.clock) as job:
            return job.view

    async def clone(self, origin: str, name: str, at: str | None = None) -> Clone:
        """Clone a job, and remember what the clone begins with."""
        cloning = Cloning(settings_of(self.config(origin), name), self.clock, "test")
        async with open_job(self.config(origin), self.clock) as job:
            made = await make_clone(job, at, cloning)
        shared = self.contents[await self.uid(origin), made.origin_position]
        self.contents[await self.uid(name), made.position] = shared
        return made

    async def promote(self, name: str) -> None:
        """Promote a clone: its newest content stays."""
        before = await self.newest(name)
        async with open_job(self.config(name), self.clock) as job:
            await promote_clone(job, self._scratch(), owner="test")
        assert await self.newest(name) == before
        await self.note(name)

    async def drop(self, name: str) -> None:
        config = self.config(name)
        async with open_log_storage(config, self.clock) as storage:
            await drop_clone(storage, config, owner="test", is_dropping_savepoints=True)

    async def forget(self, name: str) -> None:
        """Delete all that there is of a job, as a careless person does."""
        async with open_log_storage(self.config(name), self.clock) as storage:
            manager = MemoryBlobStoreManager(self.uri, storage.executor)
            await manager.delete_all(
                [b for b in await manager.list("") if b.startswith(f"{name}/")]
            )

    async def newest(self, name: str) -> Content:
        view = await self.view(name)
        assert view.last_commit is not None
        return await self.restored(name, view.last_commit_position)

    async def is_there(self, name: str) -> bool:
        """Return whether the log of a job says anything of it."""
        async with open_log_storage(self.config(name), self.clock) as storage:
            if not await storage.log.is_there():
                return False
            return bool((await read_remains(storage.log)).identities)

    async def note(self, name: str) -> None:
        """Remember the content of commits that a promotion has made: that of the one before each."""
        view, uid = await self.view(name), await self.uid(name)
        known = [position for of, position in self.contents if of == uid]
        for position in view.commits:
            if (uid, position) not in self.contents:
                before = max(other for other in known if other < position)
                self.contents[uid, position] = self.contents[uid, before]

    async def restored(self, name: str, position: int) -> Content:
        """Restore a commit from the blobs."""
        found: dict[TaskName, Mapping[bytes, bytes]] = {}
        async with open_job(self.config(name), self.clock) as job:
            for task in TASKS:
                outcome = await job.restore(job.commit_at(position), task, self._scratch())
                assert outcome.version is not None
                found[task] = content_of(outcome.version)
        return found

    async def check(self, *names: str) -> None:
        """Each retained commit of each job restores to what it held."""
        for name in names:
            view, uid = await self.view(name), await self.uid(name)
            for position in view.commits:
                assert await self.restored(name, position) == self.contents[uid, position]

    async def reached(self, name: str) -> set[str]:
        """Return the blobs that the retained commits of a job name."""
        found: set[str] = set()
        async with open_job(self.config(name), self.clock) as job:
            factory = cast("Any", job.storage.factories[BLOB])
            blobs = factory.blob_store_manager(job.executor, self.clock)
            indexes = IndexBlobs(blobs, factory._codec(self.clock), job.executor)
            for position in job.view.commits:
                for task in TASKS:
                    checkpoint = checkpoint_of(job.commit_at(position), task)
                    assert checkpoint is not None
                    for marker in checkpoint.markers_of(BLOB).values():
                        found |= {marker, *(await indexes.load(marker)).blob_ids()}
        return found

    async def blobs(self) -> set[str]:
        """Return all blobs of state that there are."""
        async with open_log_storage(self.config("any"), self.clock) as storage:
            manager = MemoryBlobStoreManager(self.uri, storage.executor)
            return {blob for blob in await manager.list("") if "/state-" in blob}

    def _scratch(self) -> Path:
        directory = self.directory / "scratch"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        return directory


class _Named:
    def __init__(self, job_name: str, task: TaskName) -> None:
        self.job_name, self.operator, self.task_name = job_name, "main", task


def content_of(version: SealedVersion) -> Mapping[bytes, bytes]:
    directory = version.store_directory(STATE_STORE)
    store = open_store(STATE_STORE, "memory", directory, is_new=False)
    try:
        return dict(store.scan())
    finally:
        store.close()


class Driver:
    """Runs a job: commits changes of some tasks, and cleans up, as the driver of a query does."""

    def __init__(self, place: Place, name: str) -> None:
        self.place = place
        self.name = name

    async def run(self, changes: Mapping[int, Mapping[bytes, bytes]], *, cleans_up: bool) -> None:
        """Take the job over, commit once, and clean up if asked to.

        Args:
            changes: By number of the task; the others keep their versions.
            cleans_up: Afterwards.
        """
        config = self.place.config(self.name)
        async with open_job(config, self.place.clock) as job:
            log = await LogSession.of_tool(job.log, "driver")
            commit = log.view.last_commit
            assert commit is not None
            is_shared = [True]
            if changes:
                await self._commit(job, log, commit, changes)
            if cleans_up:
                await self._clean_up(config, job.storage, log, is_shared.clear)
            if not is_shared and changes:  # a later commit says so
                newest = log.view.last_commit
                assert newest is not None
                identity = msgspec.structs.replace(newest.identity, shares=[])
                again = msgspec.structs.replace(newest, identity=identity)
                await self._commit(job, log, again, {0: {b"alone": b"now"}})

    async def _commit(
        self,
        job: InspectedJob,
        log: LogSession,
        commit: CommitRecord,
        changes: Mapping[int, Mapping[bytes, bytes]],
    ) -> None:
        clock, place = self.place.clock, self.place
        clock.advance(1)
        batch, checkpoint_id = commit.batch + 1, CheckpointId.at(clock.time_ns())
        content = dict(place.contents[commit.identity.job_uid, log.view.last_commit_position])
        made: dict[TaskName, SealedVersion] = {}
        for number, changed in changes.items():
            task = TASKS[number]
            outcome = await job.restore(commit, task, place._scratch())
            made[task] = place._seal(self.name, task, outcome.version, batch, changed)
            content[task] = dict(content[task]) | dict(changed)
        named_now = {str(task): str(version.id) for task, version in made.items()}
        versions = {**commit.versions, **named_now}
        attempt = await log.begin_attempt(batch, checkpoint_id, versions, list(made))
        backups = CommitBackups(
            factories=job.storage.factories,
            stores={STATE_STORE: job.config.store(STATE_STORE)},
            epoch=log.epoch,
            attempt=attempt,
            checkpoint_id=checkpoint_id,
            executor=job.executor,
            clock=clock,
            uploads=UNSEEN,
        )
        checkpoints: dict[str, msgspec.Raw] = dict(commit.checkpoints)
        for task, version in made.items():
            before, named = log.view.usable_checkpoint(commit, task), version_of(commit, task)
            assert before is not None
            assert named is not None
            done = await backups.back_up(task_identity(commit, task), version, {}, (before, named))
            checkpoints[task] = msgspec.Raw(encode_checkpoint_v2(done))
        fault_point("commit_record.before")
        position = await log.append(
            msgspec.structs.replace(
                commit,
                attempt_epoch=log.epoch,
                attempt=attempt,
                batch=batch,
                checkpoint_id=checkpoint_id.serialize(),
                checkpoints=checkpoints,
                versions=versions,
                change=None,
            )
        )
        place.contents[commit.identity.job_uid, position] = content

    async def _clean_up(
        self, config: Config, storage: LogStorage, log: LogSession, on_gone: Callable[[], None]
    ) -> None:
        newest = log.view.last_commit
        assert newest is not None
        spec = JobSpec(
            config=config,
            job_uid=newest.identity.job_uid,
            log_backend="blob",
            app_id="app",
            operator=cast("OperatorSpec", None),
            processor=b"",
            session="a1",
            python_path=(),
        )
        clean_up = job_clean_up(
            spec,
            len(TASKS),
            storage.factories,
            log=log,
            checkpoints=storage.checkpoint_store(),
            executor=storage.executor,
            clock=self.place.clock,
            on_gone=on_gone,
        )
        await clean_up.run()
        assert clean_up.failing is None
