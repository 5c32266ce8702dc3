"""A job that starts from another one's commit, under a name of its own."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import msgspec

from statekeep.backends.base import TaskIdentity
from statekeep.backends.optional_powers import WritesInPlace
from statekeep.checkpoint.checkpoints import (
    CheckpointId,
    CheckpointV2,
    StoreName,
    SystemStreamPartition,
    TaskName,
)
from statekeep.checkpoint.log_reader import LogReader
from statekeep.checkpoint.log_reset import read_remains
from statekeep.checkpoint.log_session import LogSession, random_nonce
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.checkpoint.records import CommitRecord, JobIdentity, QueryState, Share
from statekeep.checkpoint.serde import decode_checkpoint_v2, encode_checkpoint_v2
from statekeep.clock import Clock
from statekeep.config.model import Config
from statekeep.errors import ConfigError, StateBackupError
from statekeep.inspection.clean_up import Sweep, delete_leftovers
from statekeep.inspection.job import LogStorage, name_of_job, open_log_storage, origins_of
from statekeep.inspection.recommit import TASKS_AT_ONCE
from statekeep.inspection.state_copy import UNSEEN, CommitBackups, Uploads, prepare_backends
from statekeep.stores.version import SealedVersion


class NewJob:
    """A job that is being made: each task's state goes through `add`, then `finish` makes it count.

    Before that the job has no commit, and a task of it does not start: making it again begins
    anew, and deletes what was uploaded. Made by `begin_job`; used on its event loop until the end of that block.
    """

    def __init__(
        self,
        log: LogSession,
        commit: CommitRecord,
        backups: CommitBackups,
        identity: JobIdentity,
    ) -> None:
        """Use `begin_job`."""
        self._log = log
        self._commit = commit
        self._backups = backups
        self._identity = identity
        self._tasks: set[TaskName] = set()
        self._has_ended = False
        self._checkpoints: dict[str, msgspec.Raw] = {}
        self._versions: dict[str, str] = {}
        self._limit = asyncio.Semaphore(TASKS_AT_ONCE)

    async def add(
        self,
        task: TaskName,
        version: SealedVersion | None,
        input_offsets: Mapping[SystemStreamPartition, str],
    ) -> None:
        """Back up what a task starts with; tasks may be added side by side.

        Args:
            task: Of the new job.
            version: Its state, which stays in place meanwhile; None: empty.
            input_offsets: Where its inputs go on.

        Raises:
            CommitFailedError: A backend did not take it.
        """
        self._tasks.add(task)
        checkpoint = CheckpointV2(self._backups.checkpoint_id, dict(input_offsets))
        if version is not None:
            identity = TaskIdentity(
                self._identity.job_name, MAIN_OPERATOR, task, job_uid=self._identity.job_uid
            )
            async with self._limit:
                checkpoint = await self._backups.back_up(identity, version, input_offsets)
        self._versions[task] = "" if version is None else str(version.id)
        self._checkpoints[task] = msgspec.Raw(encode_checkpoint_v2(checkpoint))

    def share(self, task: TaskName, version: str, checkpoint: CheckpointV2 | None) -> None:
        """Let a task start with backups of another job, as `begin_job` was told.

        Args:
            task: Of the new job.
            version: Its version there; "" for empty state.
            checkpoint: Names the backups, and where its inputs go on; None: it has none.
        """
        found = checkpoint or CheckpointV2(self._backups.checkpoint_id, {})
        own = replace(found, checkpoint_id=self._backups.checkpoint_id)
        self._tasks.add(task)
        self._versions[task] = version
        self._checkpoints[task] = msgspec.Raw(encode_checkpoint_v2(own))

    @property
    def may_be_made(self) -> bool:
        """Whether the commit record may stand in the log."""
        return self._has_ended

    async def finish(self, query: QueryState | None) -> int:
        """Append the commit record that all of it makes, and return its position.

        Args:
            query: Of the Spark query that goes on with the state; None in plain Python.
        """
        self._has_ended = True
        return await self._log.append(
            msgspec.structs.replace(
                self._commit,
                attempt_epoch=self._log.epoch,
                attempt=self._backups.attempt,
                checkpoint_id=self._backups.checkpoint_id.serialize(),
                identity=self._identity,
                checkpoints=self._checkpoints,
                versions=self._versions,
                query=query,
                change=None,
            )
        )

    def waste(self) -> Sweep | None:
        """Return what was uploaded in vain; None once the commit record may stand in the log."""
        if self._has_ended:
            return None
        return Sweep.of_everything(self._identity, self._tasks, self._backups.epoch + 1)


@asynccontextmanager
async def begin_job(
    config: Config,
    commit: CommitRecord,
    clock: Clock,
    *,
    owner: str,
    partitions: int,
    task: str | None = None,
    uploads: Uploads = UNSEEN,
    shares: Sequence[Share] = (),
) -> AsyncGenerator[NewJob]:
    """Begin a job that goes on from another one's commit.

    What an earlier try left behind that was killed is deleted first: its attempt says below which uid.

    Args:
        config: Of the new job: its name, and where its state goes.
        commit: Of the other job.
        clock: For ids and durations.
        owner: Host and process, for people.
        partitions: N of the new job.
        task: In plain Python, the task whose log it is.
        uploads: Follows what is uploaded.
        shares: What a clone uses of other jobs.

    Raises:
        ConfigError: There is a job of that name already, a storage refuses us, or a backup would be
            written over one of the other job.
        RetriableError: A service may answer later.
        TaskFencedError: Another process makes the same job.
    """
    async with open_log_storage(config, clock, task=task) as storage:
        _require_own_storage(config, storage, commit, name_of_job(config, task))
        await prepare_backends(storage.factories, storage.executor, clock)
        log = await _take_over(storage, config, owner)
        identity = msgspec.structs.replace(
            commit.identity,
            job_uid=random_nonce(),
            job_name=name_of_job(config, task),
            partitions=partitions,
            shares=list(shares),
        )
        tasks = [f"Partition {number}" for number in range(partitions)] if task is None else [task]
        checkpoint_id = CheckpointId.at(clock.time_ns())
        attempt = await log.begin_attempt(commit.batch, checkpoint_id, {}, tasks, identity)
        stores = [StoreName(name) for names in commit.identity.stores.values() for name in names]
        backups = CommitBackups(
            factories=storage.factories,
            stores={store: config.store(store) for store in stores},
            epoch=log.epoch,
            attempt=attempt,
            checkpoint_id=checkpoint_id,
            executor=storage.executor,
            clock=clock,
            uploads=uploads,
        )
        job = NewJob(log, commit, backups, identity)
        try:
            yield job
        except BaseException as exc:
            with suppress(StateBackupError):  # then the next owner aborts it
                await log.close_attempt("the job was not made")
            await _delete_waste(job, storage, config, exc)
            raise


async def _take_over(storage: LogStorage, config: Config, owner: str) -> LogSession:
    """Own the log of a job that is not there yet, and delete what a killed try has left behind."""
    await require_no_commit(config, storage)
    log = await LogSession.of_tool(storage.log, owner)
    # Another process may have made or started the job meanwhile; from here on none can.
    _require_no_commit(config, storage, log.view)
    remains = await read_remains(storage.log)
    for sweep in Sweep.of_remains(remains, log.epoch):
        await delete_leftovers(storage, config, sweep)
    for share in remains.shares:
        await origins_of(storage).drop_pin(share, config.job.name)
    return log


async def _delete_waste(
    job: NewJob, storage: LogStorage, config: Config, exc: BaseException
) -> None:
    """Delete what was uploaded for a job that was not made."""
    waste = job.waste()
    if waste is None:
        return
    try:
        await delete_leftovers(storage, config, waste)
    except StateBackupError as failure:
        exc.add_note(
            "what was uploaded could not be deleted: "
            f"{waste.identity.job_name}/state-{waste.identity.job_uid}: {failure}"
        )


def _require_own_storage(
    config: Config, storage: LogStorage, commit: CommitRecord, job_name: str
) -> None:
    """Make sure that no backup of the new job goes where one of the other job is.

    Raises:
        ConfigError: One does: both would write to it, and each damage what the other needs.
    """
    for name, raw in commit.checkpoints.items():
        checkpoint = decode_checkpoint_v2(bytes(raw), where=f"commit task={name}")
        task = TaskIdentity(job_name, MAIN_OPERATOR, TaskName(name))
        for backend, markers in checkpoint.state_markers.items():
            factory = storage.factories.get(backend)
            if factory is None or not isinstance(factory, WritesInPlace):
                continue
            for store, marker in markers.items():
                is_backed_up = backend in config.store(store).backup_factories
                if is_backed_up and factory.writes_over(task, store, marker):
                    raise ConfigError(
                        "the new job would write over the state of the other one: "
                        f"store={store} backend={backend}",
                        key=f"stores.{store}.changelog",
                        hint="name another changelog, or none: --set "
                        f"stores.{store}.changelog=NAME, here and in the settings of the new job",
                    )


async def require_no_commit(config: Config, storage: LogStorage) -> None:
    """Make sure that a job of this name is not there yet.

    Raises:
        ConfigError: It is.
    """
    if not await storage.log.is_there():
        return
    reader = LogReader(storage.log)
    await reader.catch_up()
    _require_no_commit(config, storage, reader.view)


def _require_no_commit(config: Config, storage: LogStorage, view: LogView) -> None:
    if view.commits:
        raise ConfigError(
            f"there is a job of that name: job={config.job.name} backend={storage.log_backend}",
            key="job.name",
            hint="choose another name, or `statekeep reset` that job first",
        )
