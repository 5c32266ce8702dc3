"""The state of one task, restored to a directory of the reader's own and opened there."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from statekeep.checkpoint.checkpoints import BackendName, StoreName, TaskName
from statekeep.checkpoint.log_session import random_nonce
from statekeep.checkpoint.names import escape_name
from statekeep.checkpoint.records import CommitRecord
from statekeep.config.model import Config
from statekeep.inspection.job import LogStorage
from statekeep.inspection.task_restore import Progress, restore_task, task_identity
from statekeep.restore.plan import BadMarkers
from statekeep.stores.base import KeyValueStore
from statekeep.stores.local_files import remove_tree
from statekeep.stores.rocksdb import RocksDbOptions
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion

SCRATCH: Final = "statekeep-read-"
"""Begins the names of temporary directories for restored state."""
NOW: Final = "now"
"""The directory in one of them for the commit that is read."""
BEFORE: Final = "before"
"""The same for the commit where a change feed begins."""


@dataclass(frozen=True, slots=True)
class RestoredTask:
    """One store of a task at one commit, on this disk."""

    config: Config
    name: StoreName
    """Of the store."""
    directory: TaskDirectory
    version: SealedVersion | None
    """None: its state is empty."""

    @classmethod
    async def restore(
        cls,
        storage: LogStorage,
        config: Config,
        commit: CommitRecord,
        task: TaskName,
        directory: Path,
        *,
        store: StoreName,
        bad_markers: BadMarkers,
        backend: str | None = None,
        on_progress: Progress = lambda _: None,
    ) -> "RestoredTask":
        """Restore a store; what an earlier restore has left there is taken if every byte is whole.

        Raises:
            ConfigError: As `restore_task`.
            RestoreFailedError: The state is out of reach.
        """
        own = directory / escape_name(store)
        outcome = await restore_task(
            config,
            storage.factories,
            commit,
            task,
            own,
            executor=storage.executor,
            clock=storage.clock,
            bad_markers=bad_markers,
            backend=None if backend is None else BackendName(backend),
            only=[store],
            on_progress=on_progress,
        )
        versions = TaskDirectory.of(own, task_identity(commit, task))
        return cls(config, store, versions, outcome.version)

    @contextmanager
    def store(self) -> Generator[KeyValueStore]:
        """Open the store, on a clone of the files; it is empty where the state is."""
        settings = self.config.store(self.name)
        with self.directory.begin(random_nonce(), self.version, [self.name]) as work:
            yield work.open_store(self.name, settings.factory, RocksDbOptions.of(settings))

    def remove(self) -> None:
        """Delete the files."""
        remove_tree(self.directory.root)
