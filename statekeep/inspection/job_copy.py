"""A new job with the state of another one's commit: as it was, or on another number of tasks."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from statekeep.backends.awaiting import run_all, shielded
from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoints import (
    CheckpointV2,
    StoreName,
    SystemStreamPartition,
    TaskName,
)
from statekeep.checkpoint.log_session import random_nonce
from statekeep.checkpoint.names import MAIN_OPERATOR, escape_name
from statekeep.checkpoint.records import CommitRecord, QueryState
from statekeep.clock import Clock
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.inspection.job import InspectedJob, open_log_storage
from statekeep.inspection.new_job import NewJob, begin_job, require_no_commit
from statekeep.inspection.recommit import TASKS_AT_ONCE
from statekeep.inspection.splitting import StateFiller, StateSplitter
from statekeep.inspection.state_copy import UNSEEN, Uploads
from statekeep.inspection.task_restore import Progress
from statekeep.stores.base import KeyValueStore
from statekeep.stores.local_files import remove_tree
from statekeep.stores.rocksdb import RocksDbOptions
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion
from statekeep.stores.work_directory import WorkDirectory

_WRITE_BUFFER_BYTES: Final = 4 << 20
"""Of each store that is being filled: as many are open as there are new tasks."""


MakeQuery = Callable[[], Awaitable[QueryState | None]]
"""Gives what the new commit record says of the Spark query; None in plain Python."""


@dataclass(frozen=True, slots=True)
class OldTask:
    """One task of the job that the new one comes from."""

    job: InspectedJob
    """Its log: of the whole job on Spark, of this task in plain Python."""
    commit: CommitRecord
    name: TaskName

    @property
    def checkpoint(self) -> CheckpointV2 | None:
        """What the commit holds for it."""
        return self.job.checkpoint(self.commit, self.name)

    @property
    def input_offsets(self) -> Mapping[SystemStreamPartition, str]:
        """Where its inputs stood."""
        found = self.checkpoint
        return {} if found is None else found.input_offsets

    @property
    def stores(self) -> list[StoreName]:
        """The stores that the commit lists."""
        return [store for stores in self.job.stores(self.commit).values() for store in stores]


@dataclass(frozen=True, slots=True)
class Making:
    """What every way to make a new job needs."""

    config: Config
    """Of the new job: its name, and where its state goes."""
    clock: Clock
    directory: Path
    """For the state while it is on its way."""
    owner: str
    """Host and process, for people."""
    on_progress: Progress = field(default=lambda _: None)
    """How the restores get on."""
    uploads: Uploads = UNSEEN
    on_entries: Callable[[int], None] = field(default=lambda _: None)
    """Called with the entries that were routed."""

    async def fetch(self, task: OldTask) -> SealedVersion | None:
        """Restore the state of a task, verified; None where it is empty."""
        target = self.directory / "old" / escape_name(task.name)
        outcome = await task.job.restore(
            task.commit, task.name, target, on_progress=self.on_progress
        )
        return outcome.version

    async def forget(self, task: OldTask) -> None:
        """Remove what `fetch` restored."""
        target = self.directory / "old" / escape_name(task.name)
        if target.exists():
            await task.job.executor.run(remove_tree, target)


@dataclass(frozen=True, slots=True)
class OldLog:
    """One log of the job that the new one is a copy of."""

    job: InspectedJob
    commit: CommitRecord
    """What the new job begins with."""
    task: str | None
    """In plain Python, the task whose log it is."""
    query: MakeQuery
    """Gives what `NewJob.finish` takes; awaited once all else is done."""


async def copy_logs(making: Making, logs: Sequence[OldLog]) -> list[int]:
    """Make a new job from one commit of each log of another, task by task; return the new commits.

    The other job is only read, and may go on meanwhile if the caller holds the commits. All logs
    are begun first and end last: a log that was begun and did not end starts no task.

    Args:
        making: Where the new job goes.
        logs: All of the other job.

    Raises:
        ConfigError: There is a job of the new name already.
        RestoreFailedError: A task's state is out of reach.
        CommitFailedError: A backend did not take it.
    """
    async with AsyncExitStack() as stack:
        made: list[NewJob] = []
        for log in logs:
            partitions = log.commit.identity.partitions
            begun = _begin(making, log.commit, partitions, log.task)
            made.append(await stack.enter_async_context(begun))
        for log, new in zip(logs, made, strict=True):
            await _copy_tasks(making, log, new)
        queries = [await log.query() for log in logs]
        return [await new.finish(query) for new, query in zip(made, queries, strict=True)]


async def _copy_tasks(making: Making, log: OldLog, new: NewJob) -> None:
    limit = asyncio.Semaphore(TASKS_AT_ONCE)

    async def copy(name: TaskName) -> None:
        old = OldTask(log.job, log.commit, name)
        async with limit:
            await new.add(name, await making.fetch(old), old.input_offsets)
            await making.forget(old)

    await run_all(copy(TaskName(name)) for name in sorted(log.commit.versions))


def _begin(
    making: Making, commit: CommitRecord, partitions: int, task: str | None
) -> AbstractAsyncContextManager[NewJob]:
    return begin_job(
        making.config,
        commit,
        making.clock,
        owner=making.owner,
        partitions=partitions,
        task=task,
        uploads=making.uploads,
    )


async def rescale(
    making: Making,
    tasks: Sequence[OldTask],
    partitions: int,
    new_splitter: Callable[[], StateSplitter],
    *,
    is_one_log: bool,
    query: MakeQuery,
) -> list[int]:
    """Make a new job whose tasks are so many, each with the keys that belong to it.

    Args:
        making: Where the new job goes. Needs local disk for the whole state.
        tasks: All tasks of the old job, each at the commit to go on from.
        partitions: M.
        new_splitter: Makes the splitter of one store.
        is_one_log: Whether the new job has one log for all tasks, as on Spark.
        query: Gives what `NewJob.finish` takes; awaited once all else is done.

    Returns:
        The entries that each new task got.

    Raises:
        ConfigError: There is a job of the new name, two tasks read one input to different ends or
            list different stores or hold the same key, a key cannot be routed, or a task that has a version has no state.
        RestoreFailedError: A task's state is out of reach.
        CommitFailedError: A backend did not take it.
    """
    offsets = _union_of_offsets(tasks)
    stores = _stores_of_each(tasks)
    commit = _counting(_newest(tasks), 0 if is_one_log else partitions)
    names = [TaskName(f"Partition {number}") for number in range(partitions)]
    logs = [(None, names)] if is_one_log else [(name, [name]) for name in names]
    for log, _ in logs:
        async with open_log_storage(making.config, making.clock, task=log) as storage:
            await require_no_commit(making.config, storage)
    run = tasks[0].job.executor.run
    new_tasks = _NewTasks(making, names, stores)
    splitters = {store: new_splitter() for store in stores}
    try:
        versions = await _distribute(making, tasks, new_tasks, splitters, commit.batch)
        async with AsyncExitStack() as stack:
            made = [
                await stack.enter_async_context(_begin(making, commit, len(members), log))
                for log, members in logs
            ]
            for (_, members), new in zip(logs, made, strict=True):
                await run_all(new.add(name, versions[name], offsets) for name in members)
            state = await query()
            for new in made:
                await new.finish(state)
    finally:
        await run(new_tasks.close)
    return _entries_of_tasks(splitters)


Fill = Callable[[Mapping[StoreName, Sequence[KeyValueStore]]], None]
"""Writes the state of a job into the stores of its tasks, by number; blocks."""


async def make_job(
    making: Making,
    commit: CommitRecord,
    fillers: Mapping[StoreName, StateFiller],
    fill: Fill,
    *,
    inputs: Mapping[int, Mapping[SystemStreamPartition, str]],
    query: MakeQuery,
) -> list[int]:
    """Make a job on Spark that begins with state from elsewhere; return the entries of each task.

    All or nothing, as every new job: until the commit record is written no task of it starts, and
    making it again begins anew. Needs local disk for the whole state.

    Args:
        making: Where the job goes.
        commit: What its first commit says; the state is not in it yet.
        fillers: Of each store, which ``fill`` counts its entries with.
        fill: Called once, on a thread of its own, before anything is uploaded.
        inputs: Where the inputs of each task go on, by number.
        query: Gives what `NewJob.finish` takes; awaited once all else is done.

    Raises:
        ConfigError: There is a job of that name already, or a storage cannot be reached.
        CommitFailedError: A backend did not take the state.
    """
    names = [TaskName(f"Partition {number}") for number in range(len(inputs))]
    new_tasks = _NewTasks(making, names, list(fillers))
    async with open_log_storage(making.config, making.clock) as storage:
        await require_no_commit(making.config, storage)
        run = storage.executor.run
        try:
            await shielded(run(new_tasks.open))
            await shielded(run(fill, new_tasks.stores))
            versions = await shielded(run(new_tasks.seal, commit.batch, fillers))
            async with _begin(making, commit, len(names), None) as new:
                await run_all(
                    new.add(name, versions[name], inputs[number])
                    for number, name in enumerate(names)
                )
                await new.finish(await query())
        finally:
            await run(new_tasks.close)
    return _entries_of_tasks(fillers)


def _entries_of_tasks(fillers: Mapping[StoreName, StateFiller]) -> list[int]:
    return [sum(counts) for counts in zip(*(f.counts for f in fillers.values()), strict=True)]


async def _distribute(
    making: Making,
    tasks: Sequence[OldTask],
    new_tasks: "_NewTasks",
    splitters: Mapping[StoreName, StateSplitter],
    batch: int,
) -> Mapping[TaskName, SealedVersion | None]:
    """Give each entry of the old tasks to its new task; return what the new tasks have."""
    run = tasks[0].job.executor.run
    # A thread that fills the stores goes on when its waiter is cancelled: they are closed after it.
    await shielded(run(new_tasks.open))
    for task in tasks:
        version = await making.fetch(task)
        if version is not None:
            await shielded(run(new_tasks.take, task, version, splitters))
        await making.forget(task)
    return await shielded(run(new_tasks.seal, batch, splitters))


class _NewTasks:
    """The stores of the new tasks, while they are filled. Every method blocks."""

    def __init__(
        self, making: Making, names: Sequence[TaskName], stores: Sequence[StoreName]
    ) -> None:
        self._making = making
        self._names = names
        self._work: list[WorkDirectory] = []
        self.stores: dict[StoreName, list[KeyValueStore]] = {store: [] for store in stores}
        """Of each name, those of all tasks; empty until `open`."""
        self._undo = ExitStack()

    def open(self) -> None:
        """Make an empty store of each name for each task."""
        for name in self._names:
            task_directory = self._task_directory("new", name)
            work = self._undo.enter_context(
                task_directory.begin(random_nonce(), None, list(self.stores))
            )
            self._work.append(work)
            for store in self.stores:
                self.stores[store].append(self._open_store(work, store))

    def take(
        self,
        task: OldTask,
        version: SealedVersion,
        splitters: Mapping[StoreName, StateSplitter],
    ) -> None:
        """Distribute the entries of an old task.

        Raises:
            ConfigError: None of its stores has a file, so that its version cannot be whole; or one
                of its keys is another task's too.
        """
        if not any(version.store_files(store) for store in task.stores):
            raise ConfigError(
                f"no store of the task could be restored: task={task.name} version={version.id} "
                f"stores={','.join(task.stores)}",
                key="stores.restore.factories",
                hint="give the settings of the job with --config or --set",
            )
        task_directory = TaskDirectory(
            version.directory.parent,
            TaskIdentity(
                version.manifest.job_name,
                version.manifest.operator,
                TaskName(version.manifest.task_name),
            ),
        )
        with task_directory.begin(random_nonce(), version, task.stores) as work:
            for store in task.stores:
                if version.store_files(store):
                    source = self._open_store(work, store)
                    splitters[store].split(
                        task.name, source, self.stores[store], self._making.on_entries
                    )

    def seal(
        self, batch: int, fillers: Mapping[StoreName, StateFiller]
    ) -> Mapping[TaskName, SealedVersion | None]:
        """Seal what each task has got; None for one that got nothing.

        Raises:
            CheckpointCorruptError: One has not got what it was given.
        """
        for store, filler in fillers.items():
            filler.check(self.stores[store])
            filler.finish(self.stores[store])
        sealed: dict[TaskName, SealedVersion | None] = {}
        for number, (name, work) in enumerate(zip(self._names, self._work, strict=True)):
            has_state = any(filler.counts[number] for filler in fillers.values())
            sealed[name] = work.seal(batch, random_nonce(), None) if has_state else None
        return sealed

    def close(self) -> None:
        """Close every store; sealed versions stay. Idempotent."""
        self._undo.close()

    def _task_directory(self, kind: str, name: TaskName) -> TaskDirectory:
        identity = TaskIdentity(self._making.config.job.name, MAIN_OPERATOR, name)
        return TaskDirectory.of(self._making.directory / kind, identity)

    def _open_store(self, work: WorkDirectory, store: StoreName) -> KeyValueStore:
        settings = self._making.config.store(store)
        options = RocksDbOptions(
            write_buffer_bytes=_WRITE_BUFFER_BYTES,
            compression=settings.compression,
            bloom_bits=settings.bloom_bits,
        )
        return work.open_store(store, settings.factory, options)


def _union_of_offsets(tasks: Sequence[OldTask]) -> Mapping[SystemStreamPartition, str]:
    """Return where the inputs of all tasks stood: any new task may be given any of them."""
    union: dict[SystemStreamPartition, str] = {}
    for task in tasks:
        for ssp, offset in task.input_offsets.items():
            if union.setdefault(ssp, offset) != offset:
                raise ConfigError(
                    "two tasks have read one input up to different offsets: "
                    f"input={ssp.system}.{ssp.stream}.{ssp.partition} task={task.name} "
                    f"offset={offset} other_offset={union[ssp]}"
                )
    return union


def _stores_of_each(tasks: Sequence[OldTask]) -> Sequence[StoreName]:
    """Return the stores of the job, which every task has: a key may go to any of the new tasks.

    Raises:
        ConfigError: Two tasks have different ones; a task drops at its start what it does not have.
    """
    first, *others = tasks
    for task in others:
        if set(task.stores) != set(first.stores):
            raise ConfigError(
                f"two tasks have different stores: task={first.name} "
                f"stores={','.join(sorted(first.stores))} task={task.name} "
                f"stores={','.join(sorted(task.stores))}",
                hint="start every task with the same stores, and let each of them commit",
            )
    return first.stores


def _newest(tasks: Sequence[OldTask]) -> CommitRecord:
    """Return the commit with the highest batch: no version of the new job may be numbered below."""
    return max((task.commit for task in tasks), key=lambda commit: commit.batch)


def _counting(commit: CommitRecord, task_count: int) -> CommitRecord:
    """Return the commit as one of a job that has so many tasks; 0 leaves it to ``partitions``."""
    identity = msgspec.structs.replace(commit.identity, task_count=task_count)
    return msgspec.structs.replace(commit, identity=identity)
