"""A work directory: where one attempt's stores are written, and from where versions are sealed."""

import logging
import os
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from statekeep.checkpoint.checkpoints import StoreName, VersionId
from statekeep.checkpoint.names import escape_name
from statekeep.config.store_settings import StoreFactoryName
from statekeep.errors import StateBackupError, VersionDamagedError
from statekeep.fault_points import fault_point
from statekeep.stores.base import START_AGAIN, KeyValueStore
from statekeep.stores.change_set import (
    CHANGES_SUFFIX,
    OUTPUT_FILE,
    CapturingStore,
    ChangeSet,
    delta_name,
)
from statekeep.stores.delta import DeltaHeader, DeltaWriter
from statekeep.stores.factory import check_image, open_store, open_to_load
from statekeep.stores.local_files import (
    clone_image,
    explained_errors,
    is_part_of_image,
    private_opener,
    remove_tree,
)
from statekeep.stores.locks import OwnerLock
from statekeep.stores.rocksdb import RocksDbOptions
from statekeep.stores.version import (
    LINEAGE_LIMIT,
    MANIFEST_FILE,
    KnownChecksums,
    SealedVersion,
    SealManifest,
    changes_path,
    image_path,
)

logger = logging.getLogger(__name__)

LOCK_FILE: Final = ".lock"
SUSPECT_FILE: Final = ".suspect"
"""Beside the versions of a task: a store that was opened on one of them has met a damaged block."""
_LARGE_BYTES: Final = 32 << 20
"""Of a file: it takes 10 ms to read, which a commit would wait for."""
_IMAGE: Final = ".image"
_CHECKED: Final = ".checked"
_CHANGE_SET: Final = ".changes"


class Identity(Protocol):
    """Whose state it is; `statekeep.backends.base.TaskIdentity` is one."""

    @property
    def job_name(self) -> str:
        """Name of the job."""
        ...

    @property
    def operator(self) -> str:
        """Name of the stateful operator."""
        ...

    @property
    def task_name(self) -> str:
        """Name of the task."""
        ...


class WorkDirectory:
    """Private to one attempt (on Spark) or to a task's life (plain Python); made by `begin`.

    Holds the open stores. `seal` writes an image of them and gives it a version's name; the stores
    stay open and may be written on, for the next version. Used by one thread at a time. A context
    manager: the end of the block is `discard`.

    A crash leaves the directory behind with a free lock, for `TaskDirectory.sweep`.
    """

    def __init__(
        self,
        path: Path,
        identity: Identity,
        *,
        lock: OwnerLock,
        stores: Sequence[StoreName],
        captured: Collection[StoreName],
    ) -> None:
        """Take over a directory that `TaskDirectory.begin` has made and locked."""
        self.path = path
        self.stores = tuple(stores)
        self._identity = identity
        self._lock = lock
        self._captured = frozenset(captured)
        self._open: dict[StoreName, KeyValueStore] = {}
        self._cloned: set[StoreName] = set()
        self._has_dropped = False
        """Whether a store that `head` has begins empty here."""
        self._head: VersionId | None = None
        self._lineage: tuple[VersionId, ...] = ()
        """`head` and its ancestors, nearest first; before them versions whose seal failed."""
        self._checksums = KnownChecksums()
        self._reader: threading.Thread | None = None

    @property
    def head(self) -> VersionId | None:
        """The version that the stores were brought to or last sealed as; None: empty state."""
        return self._head

    def store_directory(self, store: StoreName) -> Path:
        """Return where a store's files are; there only if the base has it or it was opened."""
        return self.path / image_path(store)

    @property
    def has_changes(self) -> bool:
        """Whether the open stores may hold something else than `head` does.

        A store that is not captured may.
        """
        return self._has_dropped or any(
            not isinstance(store, CapturingStore) or store.has_changes
            for store in self._open.values()
        )

    @property
    def output_path(self) -> Path:
        """Where the output of the next change set is written, if it is to have some."""
        return self.path / OUTPUT_FILE

    def open_store(
        self,
        store: StoreName,
        kind: StoreFactoryName,
        options: RocksDbOptions | None = None,
        *,
        is_to_load: bool = False,
    ) -> KeyValueStore:
        """Open a store of this directory, once; closed by `discard`.

        Changes are captured if `begin` said so. A store that the base has is never created: what
        was restored or sealed has an image of it. One that ``is_to_load`` is written much before it is
        read (`statekeep.stores.factory.open_to_load`).

        Raises:
            VersionDamagedError: The files that came from the base are damaged or missing.
            ConfigError: The disk is full or not writable.
        """
        if store in self._open or store not in self.stores:
            raise ValueError(f"store is open already or unknown here: store={store}")
        is_new, directory = store not in self._cloned, self.store_directory(store)
        if is_to_load:
            opened = open_to_load(store, kind, directory, options, is_new=is_new)
        else:
            opened = open_store(
                store, kind, directory, options, is_new=is_new, on_damage=self._suspect_versions
            )
        if store in self._captured:
            opened = CapturingStore(opened, self.path / escape_name(store) / "changes")
        self._open[store] = opened
        return opened

    def start_from(self, base: SealedVersion) -> None:
        """Clone a version by hard links; called by `begin` in an empty directory.

        Raises:
            VersionDamagedError: The version is gone or not whole.
            ConfigError: The disk is full or not writable.
        """
        try:
            with explained_errors(self.path):
                for store in self.stores:
                    if base.store_files(store):
                        clone_image(base.store_directory(store), self.store_directory(store))
                        self._cloned.add(store)
                    if store in self._captured:
                        self._carry_changes(store, base)
                self._checksums.learn(base.directory, base.manifest.files)
        except (FileNotFoundError, VersionDamagedError) as exc:
            error = VersionDamagedError(f"version is not whole: directory={base.directory}")
            error.add_note(START_AGAIN)
            raise error from exc
        self._head, self._lineage = base.id, (base.id, *base.lineage)

    def begin_empty(self, store: StoreName) -> None:
        """Drop what the base has of a store, before it is opened: it begins empty.

        Raises:
            OSError: The local disk refuses.
        """
        if store in self._cloned:
            remove_tree(self.store_directory(store))
            self._cloned.remove(store)
            self._has_dropped = True

    def check_version(
        self,
        version: SealedVersion,
        stores: Mapping[StoreName, StoreFactoryName],
        *,
        is_deep: bool,
    ) -> None:
        """Open each store of a sealed version once, on a clone in this directory.

        The version is not changed: an open would write into it.

        Args:
            version: Its bytes were compared with its manifest.
            stores: Those to open, where the version has them, with their engines.
            is_deep: Read every record too.

        Raises:
            VersionDamagedError: A store cannot be opened or read, or the version is gone.
            ConfigError: Another engine made a store; or the disk is full or not writable.
        """
        clone = self.path / _CHECKED
        for store, kind in stores.items():
            if not version.store_files(store):
                continue
            try:
                with explained_errors(self.path):
                    clone_image(version.store_directory(store), clone)
                check_image(store, kind, clone, is_deep=is_deep)
            except FileNotFoundError as exc:
                msg = f"version is not whole: directory={version.directory}"
                raise VersionDamagedError(msg) from exc
            finally:
                remove_tree(clone)

    def prepare_seal(self) -> None:
        """Do ahead what a `seal` soon after then need not do: flush the stores, read their files.

        The one method that may run beside another thread's reads and writes of the stores; not
        beside `seal` or `discard`. Nothing changes by it, and a failure costs nothing: the `seal`
        meets it again.

        Raises:
            StateBackupError: A store cannot be flushed.
            OSError: A file cannot be read.
        """
        for store in self.stores:
            if store in self._open:
                self._open[store].flush()
        self._checksums.read_ahead(self.path)

    def begin_read_ahead(self) -> None:
        """Let a thread read what the engine has merged since the last image; waits for nothing.

        Between two batches, on the thread that uses the stores. The next image would read these files
        otherwise: a second for 3 GB of them. Small stores are left alone, and so are small files.
        """
        is_large = sum(store.size_bytes() for store in self._open.values()) >= _LARGE_BYTES
        if not is_large or (self._reader is not None and self._reader.is_alive()):
            return
        # A disk that is lost, or a host without another thread: what comes next says so, if it needs them.
        with suppress(OSError, RuntimeError):
            if self._checksums.has_unread(self.path, _LARGE_BYTES):
                reader = threading.Thread(
                    target=self._read_large_files, name="statekeep-read-ahead", daemon=True
                )
                reader.start()
                self._reader = reader

    def _read_large_files(self) -> None:
        try:
            self._checksums.read_ahead(self.path, _LARGE_BYTES)
        except OSError as exc:  # the image reads it, and raises
            logger.info("large files were not read ahead: directory=%s error=%s", self.path, exc)

    def seal(
        self,
        batch: int,
        uid: str,
        parent: SealedVersion | None,
        *,
        committed: VersionId | None = None,
    ) -> SealedVersion:
        """Write an image of all stores and give it the name of a version: the sync snapshot.

        Blocks for some milliseconds, whatever the size of the stores. They are not written to
        meanwhile, and stay open. Nothing is fsynced but what the engine syncs itself: a version
        survives the death of the process, and power loss only once it is committed elsewhere.

        After an error no version is there, and the call may be repeated with a new uid unless the
        error says that changes are lost.

        Args:
            batch: The batch (or commit) after which the stores are as they are.
            uid: Drawn for this attempt; never used before.
            parent: The version that `head` names, given to make sure of it (R4).
            committed: The newest committed version: deltas that lead to it or beyond it into the
                past are no longer carried. None: all are, up to `LINEAGE_LIMIT`.

        Raises:
            ConfigError: The disk is full or not writable.
            StateBackupError: There is a version of that name, or changes were lost.
            ValueError: ``parent`` is not what these stores were made from.
        """
        version, parent_id = VersionId(batch, uid), self._head
        if (parent.id if parent else None) != parent_id or version in self._lineage:
            msg = f"not a child of this work directory: version={version} head={parent_id}"
            raise ValueError(msg)
        with explained_errors(self.path):
            image = self._new_image()
            self._write_images(image)
            self._cut_changes(version)
            sealed = self._seal_image(image, parent_id, committed)
        self._head, self._has_dropped = version, False
        return sealed

    def publish_changes(self, batch: int, uid: str) -> ChangeSet:
        """Give what was written since `head` the name of a version, its child; no image is made.

        Blocks for less than a millisecond, whatever was written. Every store is captured. The
        output of the batch goes along if there is a file at `output_path`. After an error the work
        directory must be discarded.

        Args:
            batch: The batch after which the stores are as they are.
            uid: Drawn for this attempt; never used before.

        Raises:
            ConfigError: The disk is full or not writable.
            StateBackupError: There is a version of that name, or changes were lost.
        """
        version = VersionId(batch, uid)
        made = ChangeSet(self.path.parent / f"{version}{CHANGES_SUFFIX}", version)
        with explained_errors(self.path):
            self._cut_changes(version)
            directory = self.path / _CHANGE_SET
            directory.mkdir(mode=0o700)
            for store in self.stores:
                os.link(self.path / changes_path(store, version), directory / delta_name(store))
            if self.output_path.exists():
                self.output_path.rename(directory / OUTPUT_FILE)
            fault_point("changes.before_rename")
            publish(directory, made.directory)
            fault_point("changes.after_rename")
        self._head = version
        return made

    def apply(self, changes: ChangeSet) -> None:
        """Bring the open stores from `head` to its child, the version of a change set.

        After an error the work directory must be discarded.

        Raises:
            VersionDamagedError: The change set is not whole, or not of a child of `head`.
            ConfigError: The disk is full or not writable.
        """
        version = changes.version
        for store in self.stores:
            opened = self._open[store]
            assert isinstance(opened, CapturingStore)  # noqa: S101 - all are captured here
            source, target = changes.delta_path(store), self.path / changes_path(store, version)
            with explained_errors(self.path):
                try:
                    os.link(source, target)
                except FileNotFoundError as exc:
                    if source.exists():  # it is this directory that is gone
                        raise
                    raise VersionDamagedError(
                        f"delta of a version is missing: path={source}"
                    ) from exc
            with changes.open(store) as delta, explained_errors(self.path):
                if delta.header.parent != str(self.head or ""):
                    msg = f"delta is no child of the version: path={changes.directory} head={self.head}"
                    raise VersionDamagedError(msg)
                for block in delta.blocks():
                    opened.apply(block)
        self._head, self._lineage = version, (version, *self._lineage)[: LINEAGE_LIMIT + 1]

    def seal_head(self, committed: VersionId | None) -> SealedVersion:
        """Write the image of `head`, a version that has a change set only: the sync snapshot.

        As `seal`, but nothing was written since; may be repeated after an error.

        Args:
            committed: As for `seal`.

        Raises:
            ConfigError: The disk is full or not writable.
            StateBackupError: There is an image of that version already.
        """
        with explained_errors(self.path):
            image = self._new_image()
            self._write_images(image)
            fault_point("image.after_write")
            return self._seal_image(image, next(iter(self._lineage[1:]), None), committed)

    def close_as_image(
        self, version: VersionId, parent: VersionId | None, lineage: Sequence[VersionId]
    ) -> tuple[Path, SealManifest]:
        """Close the stores and make of their own files an image, for `TaskDirectory.adopt`."""
        self._close_stores()
        with explained_errors(self.path):
            image = self._new_image()
            for store in self.stores:
                source = self.store_directory(store)
                if source.exists():
                    target = image / image_path(store)
                    target.parent.mkdir(parents=True)
                    source.rename(target)
                    for path in list(target.iterdir()):
                        if not is_part_of_image(path.name):
                            path.unlink()
            return image, self._write_manifest(
                image, version, parent, tuple(lineage)[:LINEAGE_LIMIT]
            )

    def discard_stores(self) -> None:
        """Do the part of `discard` that has to be done by the thread that uses the stores. Idempotent."""
        try:
            self._close_stores()
        except* StateBackupError as group:
            # What could not be closed well is thrown away with its directory.
            logger.warning("store did not close: directory=%s error=%s", self.path, group)

    def discard(self) -> None:
        """Close the stores and remove the directory; sealed versions stay. Idempotent."""
        self.discard_stores()
        try:
            remove_tree(self.path)
        finally:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.discard()

    def _suspect_versions(self) -> None:
        """Have the next start read the versions of the task in full: they share their files."""
        with suppress(OSError):
            (self.path.parent / SUSPECT_FILE).touch()

    def _close_stores(self) -> None:
        errors: list[Exception] = []
        while self._open:
            _, store = self._open.popitem()
            try:
                store.close()
            except StateBackupError as exc:
                errors.append(exc)
        if errors:
            raise ExceptionGroup("stores did not close", errors)

    def _carry_changes(self, store: StoreName, base: SealedVersion) -> None:
        target = self.path / escape_name(store) / "changes"
        target.mkdir(parents=True, exist_ok=True)
        held = {entry.path for entry in base.manifest.files}
        for version in (base.id, *base.lineage):
            path = changes_path(store, version)
            if path not in held:
                break
            os.link(base.directory / path, self.path / path)

    def _seal_image(
        self, image: Path, parent: VersionId | None, committed: VersionId | None
    ) -> SealedVersion:
        """Name an image after the newest version of the lineage: it is a sealed version then."""
        version = self._lineage[0]
        target = self.path.parent / str(version)
        self._link_changes(image, committed)
        manifest = self._write_manifest(image, version, parent, self._lineage[1:])
        fault_point("seal.before_rename")
        publish(image, target)
        fault_point("seal.after_rename")
        return SealedVersion(target, manifest)

    def _new_image(self) -> Path:
        if self._reader is not None:
            self._reader.join()  # rather than read the same files beside it
        image = self.path / _IMAGE
        if image.exists():  # of a seal that failed
            remove_tree(image)
        image.mkdir(mode=0o700)
        return image

    def _write_images(self, image: Path) -> None:
        for store in self.stores:
            target = image / image_path(store)
            if store in self._open:
                target.parent.mkdir()
                self._open[store].checkpoint(target)
            elif self.store_directory(store).exists():
                clone_image(self.store_directory(store), target)

    def _cut_changes(self, version: VersionId) -> None:
        """End every captured delta; a store that was not opened has an empty one.

        From here on ``version`` is an ancestor of what comes, also if the seal fails further on.
        """
        parent = str(self._lineage[0]) if self._lineage else ""
        for store in self._captured:
            header = DeltaHeader(version=str(version), parent=parent, store=store)
            target = self.path / changes_path(store, version)
            opened = self._open.get(store)
            if isinstance(opened, CapturingStore):
                opened.cut(header, target)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    DeltaWriter(file, header).finish()
        self._lineage = (version, *self._lineage)[: LINEAGE_LIMIT + 1]

    def forget_changes(self, committed: VersionId | None) -> None:
        """Drop the captured deltas that lead to ``committed`` or beyond it into the past."""
        wanted = list(self._lineage[:LINEAGE_LIMIT])
        if committed in wanted:
            del wanted[wanted.index(committed) :]
        names = {f"{version}.delta" for version in wanted}
        for store in self._captured:
            for path in list((self.path / escape_name(store) / "changes").glob("*.delta")):
                if path.name not in names:
                    path.unlink()

    def _link_changes(self, image: Path, committed: VersionId | None) -> None:
        """Carry the deltas since ``committed`` into the image, and drop the older ones here."""
        self.forget_changes(committed)
        for store in self._captured:
            target = image / escape_name(store) / "changes"
            target.mkdir(parents=True)
            for path in (self.path / escape_name(store) / "changes").glob("*.delta"):
                os.link(path, target / path.name)

    def _write_manifest(
        self,
        image: Path,
        version: VersionId,
        parent: VersionId | None,
        lineage: tuple[VersionId, ...],
    ) -> SealManifest:
        manifest = SealManifest(
            version=version,
            parent=parent,
            lineage=lineage,
            job_name=self._identity.job_name,
            operator=self._identity.operator,
            task_name=self._identity.task_name,
            files=self._checksums.entries(image),
        )
        with open(image / MANIFEST_FILE, "xb", opener=private_opener) as file:
            file.write(manifest.encode())
        return manifest


def publish(image: Path, target: Path) -> None:
    """Give an image its name: the moment at which a version is there, whole.

    Raises:
        StateBackupError: There is a version of that name; it is left as it is.
    """
    try:
        image.rename(target)
    except OSError as exc:
        if not target.exists():
            raise
        raise StateBackupError(f"version exists already: directory={target}") from exc
