"""The state of one task, restored to a directory of the reader's own and opened there."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from statekeep.checkpoint.checkpoints import BackendName, TaskName
from statekeep.checkpoint.log_session import random_nonce
from statekeep.checkpoint.records import CommitRecord
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.inspection.job import LogPlace
from statekeep.inspection.task_restore import Progress, restore_task, task_identity
from statekeep.restore.plan import BadMarkers
from statekeep.spark.tasks import STATE_STORE
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
    """A task at one commit, on this disk."""

    config: Config
    directory: TaskDirectory
    version: SealedVersion | None
    """None: its state is empty."""

    @classmethod
    async def restore(
        cls,
        place: LogPlace,
        config: Config,
        commit: CommitRecord,
        task: TaskName,
        directory: Path,
        *,
        bad_markers: BadMarkers,
        backend: str | None = None,
        on_progress: Progress = lambda _: None,
    ) -> "RestoredTask":
        """Restore a task; what an earlier restore has left there is taken if every byte is whole.

        Raises:
            ConfigError: As `restore_task`; or the job keeps no state of a Spark operator.
            RestoreFailedError: The state is out of reach.
        """
        outcome = await restore_task(
            config,
            place.factories,
            commit,
            task,
            directory,
            executor=place.executor,
            clock=place.clock,
            bad_markers=bad_markers,
            backend=None if backend is None else BackendName(backend),
            on_progress=on_progress,
        )
        found = outcome.version
        if found is not None and found.lacks([STATE_STORE]):
            raise ConfigError(
                f"the job has no state variables: task={task} "
                f"stores={','.join(sorted(outcome.sources))}",
                hint="`statekeep restore` writes the stores of a job in plain Python to a directory",
            )
        return cls(config, TaskDirectory.of(directory, task_identity(commit, task)), found)

    @contextmanager
    def store(self) -> Generator[KeyValueStore]:
        """Open the store, on a clone of the files; it is empty where the state is."""
        settings = self.config.store(STATE_STORE)
        with self.directory.begin(random_nonce(), self.version, [STATE_STORE]) as work:
            yield work.open_store(STATE_STORE, settings.factory, RocksDbOptions.of(settings))

    def remove(self) -> None:
        """Delete the files."""
        remove_tree(self.directory.root)
