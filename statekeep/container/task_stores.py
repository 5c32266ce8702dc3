"""The open stores of one task in plain Python, and the versions that are sealed from them."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Self

from statekeep.backends.awaiting import shielded
from statekeep.backends.base import BlockingExecutor
from statekeep.checkpoint.checkpoints import StoreName, VersionId
from statekeep.config.store_settings import StoreSettings
from statekeep.errors import StateBackupError
from statekeep.stores.base import KeyValueStore
from statekeep.stores.rocksdb import RocksDbOptions
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion
from statekeep.stores.work_directory import WorkDirectory

logger = logging.getLogger(__name__)


class TaskStores:
    """One work directory that lives as long as the task, with every store open in it.

    The program reads and writes the stores on its own thread; `seal` and `close` touch them from an
    executor thread while the program awaits them, and what `prepare_seal` begins goes on beside it.
    """

    def __init__(
        self,
        work: WorkDirectory,
        base: SealedVersion | None,
        stores: Mapping[StoreName, KeyValueStore],
        *,
        first_batch: int,
        executor: BlockingExecutor,
        new_uid: Callable[[], str],
    ) -> None:
        """Use `open`."""
        self._work = work
        self._head = base
        self._stores = stores
        self._next_batch = first_batch
        self._executor = executor
        self._new_uid = new_uid
        self._preparation: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        directory: TaskDirectory,
        settings: Mapping[StoreName, StoreSettings],
        base: SealedVersion | None,
        *,
        captured: frozenset[StoreName],
        first_batch: int,
        executor: BlockingExecutor,
        new_uid: Callable[[], str],
    ) -> Self:
        """Clone a version and open every store on the clone.

        A store that is restored from nowhere begins empty: the state of a task must not depend on
        which disk it is started on.

        Args:
            directory: The task's local versions; what dead owners left there is swept.
            settings: The stores.
            base: The version to go on from; None: empty state.
            captured: Stores whose changes are kept.
            first_batch: Number of the next version.
            executor: For blocking calls.
            new_uid: Names the work directory and the versions.

        Raises:
            ConfigError: The disk is full or not writable.
            VersionDamagedError: The version is gone or not whole.
        """

        def begin() -> tuple[WorkDirectory, Mapping[StoreName, KeyValueStore]]:
            directory.sweep()
            work = directory.begin(new_uid(), base, tuple(settings), captured=captured)
            try:
                directory.mark_dispensable()  # what is to be kept goes into commits, and only that
                for name, store in settings.items():
                    if not store.restore_factories:
                        _warn_of_loss(directory, store)
                        work.begin_empty(name)
                return work, {
                    name: work.open_store(name, store.factory, RocksDbOptions.of(store))
                    for name, store in settings.items()
                }
            except BaseException:
                work.discard()
                raise

        async def discard(opened: tuple[WorkDirectory, object]) -> None:
            await executor.run(opened[0].discard)

        work, stores = await shielded(executor.run(begin), undo=discard)
        return cls(work, base, stores, first_batch=first_batch, executor=executor, new_uid=new_uid)

    @property
    def head(self) -> SealedVersion | None:
        """The version sealed last, or the one that the task started from."""
        return self._head

    def store(self, name: StoreName) -> KeyValueStore:
        """Return an open store; KeyError for one that the task was not started with."""
        return self._stores[name]

    def prepare_seal(self) -> None:
        """Begin in the background what shortens the next `seal`; nothing if it is under way."""
        if self._preparation is None:
            self._preparation = asyncio.create_task(self._prepare(), name="prepare seal")

    async def seal(self, committed: VersionId | None) -> tuple[int, SealedVersion]:
        """Seal the stores as they are now; they stay open. Done to the end even if cancelled.

        Stores that have not changed since the newest commit keep its version.

        Args:
            committed: The newest committed version: changes before it are no longer needed.

        Returns:
            The number of the commit that this is for, and the version.

        Raises:
            ConfigError: The disk is full or not writable.
            StateBackupError: Changes were lost by an earlier error.
        """
        await self._end_preparation()
        batch, self._next_batch = self._next_batch, self._next_batch + 1
        if self._head is None or self._head.id != committed or self._has_changes(self._head):
            self._head = await shielded(
                self._executor.run(
                    self._work.seal, batch, self._new_uid(), self._head, committed=committed
                ),
                undo=self._remember,
            )
        return batch, self._head

    async def close(self) -> None:
        """Close the stores and remove the work directory; sealed versions stay. Idempotent."""
        await self._end_preparation()
        await shielded(self._executor.run(self._work.discard))

    def _has_changes(self, head: SealedVersion) -> bool:
        return self._work.has_changes or bool(head.lacks(self._stores))

    async def _remember(self, version: SealedVersion) -> None:
        self._head = version

    async def _prepare(self) -> None:
        try:
            await self._executor.run(self._work.prepare_seal)
        except (StateBackupError, OSError) as exc:
            # The seal meets it again, and raises it in the commit.
            logger.warning("stores could not be flushed ahead of a commit: error=%s", exc)

    async def _end_preparation(self) -> None:
        """Wait for what `prepare_seal` began, also if cancelled: it works in the directory."""
        if self._preparation is not None:
            await shielded(self._preparation)
            self._preparation = None


def _warn_of_loss(directory: TaskDirectory, store: StoreSettings) -> None:
    """Say that a store is not kept: a name that is misspelt in the settings looks like this."""
    if not store.is_begun_empty:
        logger.warning(
            "store is backed up nowhere and begins empty at each start: directory=%s store=%s "
            "(set stores.%s.backup.factories, or leave stores.%s.restore.factories empty)",
            directory.root,
            store.name,
            store.name,
            store.name,
        )
