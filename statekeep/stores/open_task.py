"""The stores of one task, kept open from batch to batch and brought from version to version."""

import logging
import threading
import uuid
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from statekeep.checkpoint.checkpoints import StoreName, VersionId
from statekeep.config.store_settings import StoreSettings
from statekeep.errors import StateBackupError, VersionDamagedError
from statekeep.fault_points import fault_point
from statekeep.stores.base import KeyValueStore
from statekeep.stores.change_set import ChangeSet
from statekeep.stores.rocksdb import RocksDbOptions
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion
from statekeep.stores.work_directory import LOCK_FILE, WorkDirectory

logger = logging.getLogger(__name__)

_MAX_DAMAGED: Final = 64
"""Damaged versions that one call sets aside before it gives up: each is another way to get there."""


class OpenTask:
    """Holds a task's stores open at one version, in a work directory of this process.

    Used by one thread. Another process may hold the same task open at another version: each goes
    its own way through the change sets and images that they share.
    """

    def __init__(
        self,
        directory: TaskDirectory,
        settings: Mapping[StoreName, StoreSettings],
        prefix: str,
        required: Collection[StoreName] = (),
    ) -> None:
        """Open nothing yet.

        Args:
            directory: The task's.
            settings: Of every store of the task.
            prefix: Begins the uid of work directories, so that `TaskDirectory.remove_work` finds
                them.
            required: The stores that an image must have to be opened; others begin empty.
        """
        self.directory = directory
        self._required = required
        self._settings = dict(settings)
        self._prefix = prefix
        self._work: WorkDirectory | None = None
        self._stores: dict[StoreName, KeyValueStore] = {}
        self.untidy_batches: int | None = None
        """Change sets made since the last search for what is not needed any more; None: there was
        no search yet."""

    @property
    def work(self) -> WorkDirectory:
        """The work directory, after `go_to`."""
        if self._work is None:
            raise RuntimeError("the stores of the task are not open")
        return self._work

    def store(self, name: StoreName) -> KeyValueStore:
        """Return an open store. What is written to it belongs to the batch at hand."""
        return self._stores[name]

    def stores_but(self, name: StoreName) -> Mapping[StoreName, KeyValueStore]:
        """Return the open stores without one."""
        return {other: store for other, store in self._stores.items() if other != name}

    def size_bytes(self) -> int:
        """Return about how much the content of the open stores takes."""
        return sum(store.size_bytes() for store in self._stores.values())

    def go_to(self, version: VersionId | None) -> bool:
        """Bring the stores to a version; False if it cannot be made of what is on this host.

        What is found damaged is set aside, so that it is not found again.

        Args:
            version: The version, None for empty state.

        Raises:
            ConfigError: The disk is full or not writable.
            UnknownFormatError: A newer version of Statekeep wrote what is needed.
        """
        if self._is_at(version):
            return True
        for _ in range(_MAX_DAMAGED):
            damaged: Path | None = None
            try:
                path = self.directory.find_path(
                    version, self._held(), tuple(self._settings), self._required
                )
                if path is None:
                    break
                if not path.starts_from_held:
                    damaged = None if path.image is None else path.image.directory
                    self._open(path.image)
                for changes in path.changes:
                    damaged = changes.directory
                    self.work.apply(changes)
                    fault_point("catch_up.after_step")
            except BaseException as exc:
                self.close()  # what the stores hold now is no version
                if damaged is None or not isinstance(exc, VersionDamagedError):
                    raise
                logger.error(  # noqa: TRY400 - the text says it all
                    "local version cannot be opened, its files are set aside: path=%s error=%s",
                    damaged,
                    exc.message,
                )
                self.directory.set_aside(damaged)
            else:
                return True
        self.close()
        return False

    @contextmanager
    def batch(self) -> Generator[None]:
        """Run a batch on the stores. After an error they are closed: their content is not known."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def publish_changes(self, batch: int) -> ChangeSet:
        """Make of what was written a change set with a name of its own, and be at that version."""
        made = self.work.publish_changes(batch, uuid.uuid4().hex)
        self.work.begin_read_ahead()
        return made

    def begin_seal(self, version: VersionId) -> None:
        """Let the stores begin to write for the image of a version, if they are at it; waits for nothing.

        Before the images of several tasks: each then waits less. A failure costs nothing, as the
        `seal` meets it again.
        """
        if self._is_at(version):
            with suppress(StateBackupError):
                for store in self._stores.values():
                    store.flush(is_awaited=False)

    def seal(self, committed: VersionId | None) -> SealedVersion:
        """Write the image of the version that the stores are at, unless it is there.

        The stores stay open.

        Args:
            committed: The version of the newest commit: older changes are carried no further.
        """
        self.untidy_batches = None
        head = self.work.head
        there = None if head is None else self.directory.find_image(head)
        if there is not None:
            return there
        try:
            return self.work.seal_head(committed)
        except StateBackupError:
            # Another worker may have been as far at the same moment.
            there = None if head is None else self.directory.find_image(head)
            if there is None:
                raise
            return there

    @property
    def output_path(self) -> Path:
        """Where the output of the batch at hand is written, for `publish_changes` to take along."""
        return self.work.output_path

    def close_stores(self) -> None:
        """Do the part of `close` that has to be done by the thread that uses the stores. Idempotent."""
        if self._work is not None and not self.is_lost:
            self._work.discard_stores()
        self._stores.clear()

    def close(self) -> None:
        """Close the stores and remove their files; change sets and images stay. Idempotent.

        Stores that have lost their files are closed beside the caller: RocksDB waits a second over
        each, and a lost disk has many.
        """
        is_lost = self.is_lost
        work, self._work = self._work, None
        self._stores.clear()
        if is_lost and work is not None:
            name = "statekeep-lost-stores"
            threading.Thread(target=work.discard, name=name, daemon=True).start()
        elif work is not None:
            work.discard()

    @property
    def is_lost(self) -> bool:
        """Whether open stores have lost their files: with the disk, or at the end of a session."""
        return self._work is not None and not (self._work.path / LOCK_FILE).exists()

    def forget_changes(self, committed: VersionId | None) -> None:
        """Drop the deltas that no later image carries: those that lead to ``committed`` or before."""
        self.work.forget_changes(committed)

    def _held(self) -> VersionId | None:
        """Return the version that the stores are open at, if they still have their files."""
        if self.is_lost:
            self.close()
        return None if self._work is None else self._work.head

    def _is_at(self, version: VersionId | None) -> bool:
        held = self._held()
        return self._work is not None and held == version

    def _open(self, image: SealedVersion | None) -> None:
        self.close()
        names = tuple(self._settings)
        uid = f"{self._prefix}{uuid.uuid4().hex}"
        fault_point("open.before")
        self._work = self.directory.begin(uid, image, names, captured=names)
        for name, settings in self._settings.items():
            self._stores[name] = self._work.open_store(
                name, settings.factory, RocksDbOptions.of(settings)
            )
        fault_point("open.after")
