"""The local directory of one task: its sealed versions and its work directories.

Several processes may share it (executors of one host). What makes that safe: a version appears by
one rename and disappears by one rename, work directories are locked by their owners, and one lock
file orders those steps that look before they act.
"""

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

from statekeep.checkpoint.checkpoints import StoreName, VersionId
from statekeep.checkpoint.names import MAIN_OPERATOR, escape_name
from statekeep.config.store_settings import StoreFactoryName
from statekeep.errors import (
    CheckpointCorruptError,
    ConfigError,
    RetriableError,
    UnknownFormatError,
    VersionDamagedError,
)
from statekeep.fault_points import fault_point
from statekeep.stores.boot_mark import BootMark
from statekeep.stores.change_set import CHANGES_SUFFIX, OUTPUT_FILE, ChangeSet
from statekeep.stores.local_files import explained_errors, read_document, remove_tree
from statekeep.stores.locks import OwnerLock, has_living_owner, locked
from statekeep.stores.private_directories import is_private, make_private, require_own
from statekeep.stores.version import CHECKPOINT_FILE, MANIFEST_FILE, SealedVersion, SealManifest
from statekeep.stores.work_directory import (
    LOCK_FILE,
    SUSPECT_FILE,
    Identity,
    WorkDirectory,
    publish,
)

__all__ = ["Identity", "TaskDirectory", "WorkDirectory"]

logger = logging.getLogger(__name__)

_WORK_PREFIX: Final = "work-"
_DISPENSABLE_FILE: Final = ".dispensable"
"""Beside versions that a job can do without: its backups hold all that it has committed, and that is
all it needs. Gone as soon as a store is opened here."""
_KEPT_UNUSED_NS: Final = 30 * 24 * 3600 * 1_000_000_000


def find_local_dir(path: Path) -> Path | None:
    """Return the local directory of jobs that a path is or lies in, by what they leave there.

    Blocks. What a `statekeep restore` has made is none: only commits write checkpoints beside
    versions.

    Args:
        path: Absolute; need not be there.
    """
    below = f"*/{escape_name(MAIN_OPERATOR)}/*/*/{CHECKPOINT_FILE}"
    around = (path, *path.parents)
    return next((found for found in around if next(found.glob(below), None) is not None), None)


def sweep_unused(local_dir: Path, now_ns: int) -> int:
    """Remove the versions of tasks of any job that were marked dispensable and not used for 30 days.

    A job that comes back to such a task restores it from its backups. Blocks.

    Args:
        local_dir: Of this host's jobs.
        now_ns: Wall clock. One that is ahead costs a restore.

    Returns:
        From how many tasks something was removed.
    """
    count = 0
    for mark in sorted(local_dir.glob(f"*/*/*/{_DISPENSABLE_FILE}")):
        try:
            if is_private(local_dir, *mark.parent.relative_to(local_dir).parts):
                count += _sweep_unused(mark, now_ns)
        except ConfigError:  # another user's
            continue
        except (OSError, RetriableError) as exc:  # another process sweeps too
            logger.warning("local versions are not swept: directory=%s error=%s", mark.parent, exc)
    return count


def _sweep_unused(mark: Path, now_ns: int) -> bool:
    root = mark.parent
    if now_ns - root.stat().st_mtime_ns < _KEPT_UNUSED_NS or _has_living_work(root):
        return False
    with locked(root / LOCK_FILE, shared=False):
        # Opening a store removes the mark, under the same lock.
        if not mark.exists() or _has_living_work(root):
            return False
        mark.unlink()
        found = [path for path in root.iterdir() if path.is_dir()]
        removed = [_moved_aside(root, path) for path in found]
    logger.info("local versions of an unused task are removed: directory=%s", root)
    for path in removed:
        remove_tree(path)
    return bool(removed)


def _has_living_work(root: Path) -> bool:
    return any(has_living_owner(path / LOCK_FILE) for path in root.glob(f"{_WORK_PREFIX}*"))


@dataclass(frozen=True, slots=True)
class LocalUsage:
    """How much of a task's state lies on a disk."""

    versions: int
    size_bytes: int
    """Of all versions together; what they share is counted once."""


@dataclass(frozen=True, slots=True)
class VersionPath:
    """How to get to a version on this disk."""

    image: SealedVersion | None
    """What to open; None: empty state, or the stores that are open."""
    changes: tuple[ChangeSet, ...]
    """To be applied in this order."""
    starts_from_held: bool = False
    """Whether the stores that are open are where to start."""


class TaskDirectory:
    """Finds, makes, keeps and removes the versions of one task. Every method blocks.

    Safe to use from several processes and threads at once; each work directory belongs to the
    one that began it.
    """

    def __init__(self, root: Path, identity: Identity, *, local_dir: Path | None = None) -> None:
        """Name the directory; nothing is touched before the first call.

        Args:
            root: The task's directory: ``<local dir>/<job>/<operator>/<task>``.
            identity: Written into manifests; a version of another task is refused.
            local_dir: The directory above all jobs': no other user may have a hand in what lies
                between it and the root; None: not looked at.
        """
        self.root = root
        self._local_dir = local_dir
        self._identity = identity

    @classmethod
    def of(cls, local_dir: Path, identity: Identity) -> Self:
        """Return the directory of a task below the job's local directory.

        Raises:
            ConfigError: A name is too long for a file system.
        """
        names = (identity.job_name, identity.operator, identity.task_name)
        root = local_dir.joinpath(*map(escape_name, names))
        return cls(root, identity, local_dir=local_dir)

    def begin(
        self,
        uid: str,
        base: SealedVersion | None,
        stores: Sequence[StoreName],
        *,
        captured: Collection[StoreName] = (),
    ) -> WorkDirectory:
        """Make a work directory with a clone of ``base``, empty without one.

        Args:
            uid: Drawn for this attempt; names the directory.
            base: The version to go on from.
            stores: All stores of the task; one that ``base`` lacks begins empty.
            captured: Those whose changes are kept, because one of their backends needs changes.

        Raises:
            VersionDamagedError: ``base`` is gone or not whole.
            ConfigError: The disk is full or not writable.
            FileExistsError: The uid was used before.
        """
        check_store_names(stores)
        path = self.root / f"{_WORK_PREFIX}{uid}"
        with explained_errors(self.root):
            self._make_root()
            # So that no sweep sees the directory between its making and its lock.
            with self._lock(shared=True):
                (self.root / _DISPENSABLE_FILE).unlink(missing_ok=True)
                path.mkdir(mode=0o700)
                lock = OwnerLock(path / LOCK_FILE)
        work = WorkDirectory(path, self._identity, lock=lock, stores=stores, captured=captured)
        try:
            if base is not None:
                work.start_from(base)
        except BaseException:
            work.discard()
            raise
        return work

    def find(self, version: VersionId) -> SealedVersion | None:
        """Return a version if it is here, with every file in its size; contents are not read.

        Raises:
            VersionDamagedError: It is here, but partial, damaged or another task's.
            UnknownFormatError: A newer version of Statekeep wrote it.
            ConfigError: It is another user's, or the local directory is.
        """
        directory = self.root / str(version)
        if not self._is_there():
            return None
        with suppress(FileNotFoundError):
            require_own(directory)
        try:
            sealed = SealedVersion(directory, self._read_manifest(directory, version))
            sealed.verify_sizes()
        except VersionDamagedError:
            if not directory.exists():  # removed while we looked
                return None
            raise
        return sealed

    def require_sound(
        self, version: SealedVersion, stores: Mapping[StoreName, StoreFactoryName], uid: str
    ) -> None:
        """Compare every byte of a version with its seal, and open each of its stores once.

        Every record is read too if a store has met a damaged block since the last such check.

        Args:
            version: One that is here.
            stores: Those to open, where the version has them, with their engines.
            uid: Drawn for this check; names a work directory.

        Raises:
            VersionDamagedError: A file is missing or differs, or a store cannot be opened.
            ConfigError: Another engine made a store; or the disk is full or not writable.
        """
        version.verify()
        with self.begin(uid, None, ()) as work:
            work.check_version(version, stores, is_deep=self._suspect.exists())
        self._suspect.unlink(missing_ok=True)

    def require_sound_path(
        self, path: VersionPath, stores: Mapping[StoreName, StoreFactoryName], uid: str
    ) -> None:
        """Read all that a version is made from: its image as `require_sound`, its change sets whole.

        Raises:
            VersionDamagedError: Something is missing or differs, or a store cannot be opened.
            ConfigError: Another engine made a store; or the disk is full or not writable.
        """
        if path.image is not None:
            self.require_sound(path.image, stores, uid)
        for changes in path.changes:
            changes.verify(tuple(stores))

    def find_whole(self, version: VersionId) -> SealedVersion | None:
        """Return a version if it is here and every byte of it is as it was sealed.

        Raises:
            UnknownFormatError: A newer version of Statekeep wrote it.
        """
        try:
            sealed = self.find(version)
            if sealed is not None:
                sealed.verify()
        except VersionDamagedError:
            return None
        return sealed

    def versions(self) -> list[VersionId]:
        """Return the names of the versions that are here, whole or not, in order of batch."""
        return sorted(version for name in self._names() if (version := _parse(name)) is not None)

    def usage(self) -> LocalUsage:
        """Return how much lies here: for people, so versions that go meanwhile count or not."""
        images, changes = self.versions(), self.change_sets()
        directories = [*map(str, images), *(f"{version}{CHANGES_SUFFIX}" for version in changes)]
        sizes: dict[int, int] = {}
        for version in directories:
            for directory, _, names in os.walk(self.root / version):
                for name in names:
                    with suppress(FileNotFoundError):
                        found = Path(directory, name).lstat()
                        sizes[found.st_ino] = found.st_size
        return LocalUsage(len({*images, *changes}), sum(sizes.values()))

    def adopt(
        self,
        work: WorkDirectory,
        version: VersionId,
        parent: VersionId | None,
        lineage: Sequence[VersionId],
        *,
        engines: Mapping[StoreName, StoreFactoryName],
    ) -> SealedVersion:
        """Seal restored stores under the name of the committed version that they are.

        Ends the work directory. A version of that name that is here, whole and can be opened stays,
        and is returned; one that is damaged, or has more or fewer of the stores, is moved aside. Of
        racing processes one does it, and all get it.

        Args:
            work: Its stores hold the content of ``version``, verified by the restore.
            version: The committed version.
            parent: Its parent, None where unknown.
            lineage: Its ancestors, nearest first.
            engines: Those that open the stores.

        Raises:
            ConfigError: The disk is full or not writable.
            UnknownFormatError: A newer version of Statekeep wrote the one of that name: it stays.
        """
        with work:
            image, manifest = work.close_as_image(version, parent, lineage)
            adopted = SealedVersion(self.root / str(version), manifest)
            with explained_errors(self.root), self._lock(shared=False):
                there = self.find_whole(version)
                missing = adopted.lacks(work.stores)
                if (
                    there is not None
                    and there.lacks(work.stores) == missing
                    and _can_be_opened(work, there, engines, is_deep=self._suspect.exists())
                ):
                    return there
                if adopted.directory.exists():
                    _moved_aside(self.root, adopted.directory)
                fault_point("adopt.before_rename")
                publish(image, adopted.directory)
                self._suspect.unlink(missing_ok=True)
        return adopted

    def find_path(
        self,
        version: VersionId | None,
        held: VersionId | None,
        stores: Sequence[StoreName],
        required: Collection[StoreName] = (),
    ) -> VersionPath | None:
        """Return how to get to a version: what to start from, and the change sets to apply.

        Args:
            version: The one that is wanted; None is empty state.
            held: The version of stores that are open, which are preferred as a start; None: none are.
            stores: All stores of the task.
            required: Those that an image must have to be used. A start with fewer stores has left
                images without the others.

        Returns:
            None if the version cannot be made of what is here. What cannot be read, or is not
            whole by names and sizes, counts as not here. Contents are compared only once after each
            start of the host.

        Raises:
            ConfigError: What is here is another user's.
        """
        if not self._is_there():
            return None if version is not None else VersionPath(None, ())
        if held is None:
            self._check_since_boot(stores)
        steps: list[ChangeSet] = []
        images: list[tuple[VersionId, int]] = []
        at = version
        while at is not None and at != held:
            if (self.root / str(at)).exists():
                images.append((at, len(steps)))
            changes = self._change_set(at)
            if changes is None:
                break
            steps.append(changes)
            try:
                at = changes.parent(stores[0])
            except (VersionDamagedError, UnknownFormatError) as exc:
                logger.error("change set cannot be used: version=%s error=%s", at, exc)  # noqa: TRY400
                break
        if at is not None and at == held:
            return VersionPath(None, tuple(reversed(steps)), starts_from_held=True)
        for name, count in images:
            image = self._find_usable(name)
            if image is not None and not image.lacks(required):
                return VersionPath(image, tuple(reversed(steps[:count])))
        return VersionPath(None, tuple(reversed(steps))) if at is None else None

    def _find_usable(self, version: VersionId) -> SealedVersion | None:
        try:
            return self.find(version)
        except (VersionDamagedError, UnknownFormatError):  # the restore distinguishes the two
            logger.exception("local version cannot be used: version=%s", version)
            return None

    def change_set(self, version: VersionId) -> ChangeSet | None:
        """Return the change set that led to a version, if it is here; it is not read.

        Raises:
            ConfigError: It is another user's, or the local directory is.
        """
        return self._change_set(version) if self._is_there() else None

    def change_sets(self) -> list[VersionId]:
        """Return the versions whose change sets are here, whole or not, in order of batch."""
        names = self._names()
        found = (
            _parse(name.removesuffix(CHANGES_SUFFIX))
            for name in names
            if name.endswith(CHANGES_SUFFIX)
        )
        return sorted(version for version in found if version is not None)

    def set_aside(self, directory: Path) -> None:
        """Take the name away from an image or change set that is damaged. Idempotent."""
        with explained_errors(self.root), self._lock(shared=False):
            if directory.exists():
                _moved_aside(self.root, directory)

    def find_image(self, version: VersionId) -> SealedVersion | None:
        """As `find`, but one that is damaged is set aside: its name is free for another.

        Raises:
            UnknownFormatError: A newer version of Statekeep wrote it.
        """
        try:
            return self.find(version)
        except VersionDamagedError:
            logger.exception("local version is set aside: version=%s", version)
            self.set_aside(self.root / str(version))
            return None

    def retain(
        self,
        keep: Collection[VersionId],
        newest_resolved_batch: int,
        stores: Sequence[StoreName] = (),
        *,
        is_open: bool = True,
    ) -> None:
        """Remove the versions that nothing needs any more (R13).

        A version that stays keeps what it is made from: its image, or the change sets back to the
        newest image among its ancestors, and that image. The output of resolved batches goes. Change sets that are newer than the oldest
        image that stays are left too, for stores that are open at one of them.

        Args:
            keep: Those that stay whatever their batch: of retained commits, of open attempts and of
                outboxes.
            newest_resolved_batch: Up to this batch the chosen versions are known; later ones stay.
            stores: All stores of the task, where there may be change sets.
            is_open: Whether a process of this host may have the task's stores open.
        """
        if not self._is_there():
            return
        with explained_errors(self.root):
            with self._lock(shared=False):
                images, changes = set(self.versions()), set(self.change_sets())
                needed = {
                    version
                    for version in images | changes
                    if version.batch > newest_resolved_batch or version in keep
                }
                needed |= self._sources(needed & changes - images, images, stores)
                oldest = min((v.batch for v in needed & images), default=-1)
                kept_changes = {v for v in changes if v in needed or (is_open and v.batch > oldest)}
                removed = [
                    *(_moved_aside(self.root, self.root / str(v)) for v in images - needed),
                    *(
                        _moved_aside(self.root, self.root / f"{v}{CHANGES_SUFFIX}")
                        for v in changes - kept_changes
                    ),
                ]
            fault_point("retain.before_remove")
            for path in removed:
                remove_tree(path)
            for version in kept_changes:
                if version.batch <= newest_resolved_batch:  # it is delivered
                    (self.root / f"{version}{CHANGES_SUFFIX}" / OUTPUT_FILE).unlink(missing_ok=True)

    def is_unused_since(self, time_ns: int) -> bool:
        """Whether nothing was made or removed here since then, and no process has the task open."""
        try:
            return self.root.stat().st_mtime_ns < time_ns and not _has_living_work(self.root)
        except FileNotFoundError:
            return False

    def mark_dispensable(self) -> None:
        """Say that the job's backups hold all that it needs of what is here: see `sweep_unused`.

        It holds until a store is opened here.
        """
        if self._is_there():
            with explained_errors(self.root), self._lock(shared=True):
                (self.root / _DISPENSABLE_FILE).touch(mode=0o600)

    def is_tidy(self, *, is_dispensable: bool) -> bool:
        """Return whether there is no work directory, and a mark as of `mark_dispensable` if there is to be one.

        For a process that may skip what another one has done.
        """
        names = self._names()
        return not any(name.startswith(_WORK_PREFIX) for name in names) and (
            not is_dispensable or not names or _DISPENSABLE_FILE in names
        )

    def sweep(self) -> int:
        """Remove work directories whose owner is dead, and what was moved aside.

        Returns:
            How many were removed.
        """
        count = 0
        if not self._is_there():
            return count
        with explained_errors(self.root), self._lock(shared=False):
            for path in sorted(self.root.glob(f"{_WORK_PREFIX}*")):
                if not has_living_owner(path / LOCK_FILE):
                    remove_tree(path)
                    count += 1
        return count

    @property
    def _suspect(self) -> Path:
        return self.root / SUSPECT_FILE

    def _make_root(self) -> None:
        if self._local_dir is None:
            self.root.mkdir(parents=True, exist_ok=True)
        else:
            make_private(self._local_dir, *self.root.relative_to(self._local_dir).parts)
        if next(self.root.iterdir(), None) is None:
            BootMark(self.root).write()

    def _check_since_boot(self, stores: Sequence[StoreName]) -> None:
        """Set aside what was damaged by a stop of the host; once after each start of it.

        Processes that do it at once all do it.
        """
        mark = BootMark(self.root)
        if mark.is_current:
            return
        logger.info(
            "local versions are read and checked once, as the host was restarted: directory=%s",
            self.root,
        )
        checks: list[tuple[Path, Callable[[], None]]] = [
            (self.root / str(version), partial(self._verify_image, version))
            for version in self.versions()
        ]
        checks += [
            (changes.directory, partial(changes.verify, stores))
            for version in self.change_sets()
            if (changes := self._change_set(version)) is not None
        ]
        for directory, check in checks:
            try:
                check()
            except VersionDamagedError:
                logger.exception("local version is damaged and set aside: path=%s", directory)
                self.set_aside(directory)
            except UnknownFormatError:
                continue  # reported when it is used
        with explained_errors(self.root):
            mark.write()

    def _verify_image(self, version: VersionId) -> None:
        image = self.find(version)
        if image is not None:
            image.verify()

    def _is_there(self) -> bool:
        """Return whether the root is there; ConfigError if another user has a hand in it."""
        if self._local_dir is None:
            return self.root.exists()
        with explained_errors(self.root):
            return is_private(self._local_dir, *self.root.relative_to(self._local_dir).parts)

    def _change_set(self, version: VersionId) -> ChangeSet | None:
        directory = self.root / f"{version}{CHANGES_SUFFIX}"
        try:
            require_own(directory)
        except FileNotFoundError:
            return None
        return ChangeSet(directory, version)

    def remove_work(self, prefix: str) -> None:
        """Remove the work directories whose uid begins with ``prefix``, also open ones.

        For the end of a driver session: its stores may be open in processes that cannot be reached.
        """
        for path in self.root.glob(f"{_WORK_PREFIX}{prefix}*"):
            try:
                remove_tree(path)
            except OSError as exc:  # a store that is open still writes there
                logger.info("work directory is left to a sweep: path=%s error=%s", path, exc)

    def _sources(
        self,
        versions: Collection[VersionId],
        images: Collection[VersionId],
        stores: Sequence[StoreName],
    ) -> set[VersionId]:
        """Return what versions without an image are made from, as far as it is here."""
        found: set[VersionId] = set()
        for version in versions:
            at: VersionId | None = version
            while at is not None and at not in found:
                found.add(at)
                changes = None if at in images else self._change_set(at)
                try:
                    at = None if changes is None else changes.parent(stores[0])
                except (VersionDamagedError, UnknownFormatError):  # reported when it is used
                    at = None
        return found

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.root)  # noqa: PTH208 - names are all that is needed
        except FileNotFoundError:
            return []

    def _lock(self, *, shared: bool) -> AbstractContextManager[None]:
        return locked(self.root / LOCK_FILE, shared=shared)

    def _read_manifest(self, directory: Path, version: VersionId) -> SealManifest:
        path = directory / MANIFEST_FILE
        try:
            manifest = SealManifest.decode(read_document(path), where=f"path={path}")
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as exc:
            raise VersionDamagedError(f"version has no seal manifest: path={path}") from exc
        except CheckpointCorruptError as exc:
            raise VersionDamagedError(f"seal manifest is damaged: path={path}") from exc
        except UnknownFormatError as exc:
            exc.add_note(f"hint: or remove {directory}, if every store of the task has a backup")
            raise
        own = (self._identity.job_name, self._identity.operator, self._identity.task_name)
        if manifest.version != version or own != (
            manifest.job_name,
            manifest.operator,
            manifest.task_name,
        ):
            msg = f"version is another one than its directory says: path={path} version={manifest.version} task={manifest.task_name}"
            raise VersionDamagedError(msg)
        return manifest


def _moved_aside(root: Path, directory: Path) -> Path:
    """Take the name away from a version; under the lock. `sweep` collects what is left."""
    number = 0
    while True:
        target = root / f"{_WORK_PREFIX}removed-{directory.name}-{number}"
        if not target.exists():
            directory.rename(target)
            return target
        number += 1


def _can_be_opened(
    work: WorkDirectory,
    version: SealedVersion,
    engines: Mapping[StoreName, StoreFactoryName],
    *,
    is_deep: bool,
) -> bool:
    try:
        work.check_version(version, engines, is_deep=is_deep)
    except UnknownFormatError:
        raise
    except (VersionDamagedError, ConfigError):
        return False
    return True


def check_store_names(stores: Sequence[StoreName]) -> None:
    """Refuse a store whose files would lie where a version has its own.

    Raises:
        ConfigError: There is one.
    """
    names = {escape_name(store) for store in stores}
    if names & {MANIFEST_FILE, CHECKPOINT_FILE}:
        raise ConfigError(f"reserved name for a store: stores={','.join(stores)}")


def _parse(name: str) -> VersionId | None:
    try:
        return VersionId.parse(name)
    except CheckpointCorruptError:
        return None
