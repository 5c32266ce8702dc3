"""A job in plain Python that begins with the state of a query on Spark's own state store."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial

from statekeep.backends.awaiting import run_all, shielded
from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoints import StoreName, TaskName
from statekeep.checkpoint.log_session import random_nonce
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.checkpoint.records import CommitRecord, JobIdentity
from statekeep.inspection.job import open_log_storage
from statekeep.inspection.job_copy import Making
from statekeep.inspection.new_job import NewJob, begin_job, require_no_commit
from statekeep.inspection.recommit import TASKS_AT_ONCE
from statekeep.inspection.spark_state import SparkState
from statekeep.stores.local_files import remove_tree
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion


@dataclass(frozen=True, slots=True)
class Imported:
    """What was made."""

    version: int
    """The batches that Spark's state held."""
    entries: list[int]
    """Of each task."""


async def import_spark_state(
    making: Making, open_state: Callable[[], SparkState], store: StoreName
) -> Imported:
    """Make a job whose tasks begin with the partitions of a state, each in a store of one name.

    Each is uploaded whole to every backend of the store. Like a copy, the job starts no task before
    all of them are there; repeating the import begins anew. Needs local disk for the state of
    `TASKS_AT_ONCE` partitions.

    Args:
        making: Of the job; called with the records that were read.
        open_state: Finds the state, which is not changed; may block.
        store: Of the settings, what it is called in the job.

    Raises:
        ConfigError: There is a job of that name already, or a storage cannot be reached.
        CheckpointLocationError: As `SparkState.open`.
        BlobNotFoundError: A file of the state is missing.
        CheckpointCorruptError: One is damaged.
        CommitFailedError: A backend did not take it.
    """
    async with AsyncExitStack() as stack:
        open_storage = partial(open_log_storage, making.config, making.clock)
        storage = await stack.enter_async_context(open_storage(task="Partition 0"))
        run = storage.executor.run
        state = await run(open_state)
        names = [TaskName(f"Partition {number}") for number in range(state.partitions)]
        for name in names:
            async with open_storage(task=name) as other:
                await require_no_commit(making.config, other)
        commit = _commit(state, store)
        made = [await stack.enter_async_context(_begin(making, commit, name)) for name in names]
        limit = asyncio.Semaphore(TASKS_AT_ONCE)
        reading = asyncio.Lock()  # one at a time, as it takes the interpreter; uploads go on beside

        async def add(partition: int, new: NewJob) -> int:
            loader = _Loader(making, state, store, partition)
            async with limit:
                try:
                    async with reading:
                        version = await shielded(run(loader.seal))
                    await new.add(names[partition], version, {})
                finally:
                    await shielded(run(loader.discard))
            return loader.entries

        entries = await run_all(add(partition, new) for partition, new in enumerate(made))
        for new in made:
            await new.finish(None)
    return Imported(state.version, entries)


def _begin(
    making: Making, commit: CommitRecord, name: TaskName
) -> AbstractAsyncContextManager[NewJob]:
    return begin_job(
        making.config,
        commit,
        making.clock,
        owner=making.owner,
        partitions=1,
        task=name,
        uploads=making.uploads,
    )


def _commit(state: SparkState, store: StoreName) -> CommitRecord:
    """Return what the new commits have in common with one that the state might be of."""
    return CommitRecord(
        attempt_epoch=0,
        attempt=0,
        batch=state.version - 1,
        checkpoint_id="",
        identity=JobIdentity(
            job_uid="",
            job_name="",
            partitions=1,
            task_count=state.partitions,
            stores={MAIN_OPERATOR: [str(store)]},
        ),
    )


class _Loader:
    """Makes a version of one partition. Every method blocks."""

    def __init__(self, making: Making, state: SparkState, store: StoreName, partition: int) -> None:
        self._making = making
        self._state = state
        self._store = store
        self._partition = partition
        self._directory = making.directory / str(partition)
        self.entries = 0

    def seal(self) -> SealedVersion | None:
        """Read the partition and seal it; None if it is empty."""
        name = TaskName(f"Partition {self._partition}")
        identity = TaskIdentity(self._making.config.job.name, MAIN_OPERATOR, name)
        self._directory.mkdir()
        task_directory = TaskDirectory.of(self._directory, identity)
        with task_directory.begin(random_nonce(), None, (self._store,)) as work:
            kind = self._making.config.store(self._store).factory
            opened = work.open_store(self._store, kind)
            self._state.load(self._partition, opened, self._directory, self._making.on_entries)
            self.entries = sum(1 for _ in opened.scan())
            if not self.entries:
                return None
            return work.seal(self._state.version - 1, random_nonce(), None)

    def discard(self) -> None:
        """Remove what was read."""
        remove_tree(self._directory)
