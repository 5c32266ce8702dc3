"""The in-memory backend: for plain Python, tests and demonstrations; it does not outlive a process.

A *place* is what survives a container within one process: factories of one place see the same
backups, job log and checkpoints, as processes that share a directory would.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from typing_extensions import override

from statekeep.backends.awaiting import run_all, run_to_end
from statekeep.backends.base import (
    BackendProperties,
    BackupContext,
    BlockingExecutor,
    JobTasks,
    RestoreContext,
    Snapshot,
    StateBackendAdmin,
    StateBackendFactory,
    StoreSnapshot,
    TaskBackupManager,
    TaskIdentity,
    TaskRestoreManager,
)
from statekeep.backends.storage.checkpoint_store import BlobCheckpointStore
from statekeep.backends.storage.job_log import BlobJobLog
from statekeep.backends.storage.memory import MemoryBlobStoreManager, forget_root
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
)
from statekeep.checkpoint.job_log import CheckpointStore, JobLog
from statekeep.checkpoint.log_session import random_nonce
from statekeep.clock import Clock
from statekeep.errors import (
    BackendClosedError,
    BlobNotFoundError,
    CheckpointCorruptError,
    ConfigError,
    VersionDamagedError,
)
from statekeep.stores.local_files import image_directories
from statekeep.stores.version import SealedVersion

_PLACE: Final = "place"


@dataclass(frozen=True, slots=True)
class MemoryImage:
    """A full copy of one store of one version."""

    owner: tuple[BackendName, TaskIdentity]
    attempt: tuple[int, int]
    files: Mapping[PurePosixPath, bytes]
    checksums: Mapping[PurePosixPath, int]
    """CRC32 of each file, from the seal manifest."""
    directories: Sequence[PurePosixPath]


@dataclass(slots=True)
class MemoryPlace:
    """Everything that backends of one place hold; shared by all event loops of the process."""

    name: str
    images: dict[Marker, MemoryImage] = field(default_factory=dict[Marker, MemoryImage])

    @property
    def blob_root(self) -> str:
        """Root of the blobs that hold the job log and the checkpoints."""
        return f"{self.name}/state-backend"


_places: Final[dict[str, MemoryPlace]] = {}


def memory_place(name: str) -> MemoryPlace:
    """Return the place of that name, made at first use."""
    return _places.setdefault(name, MemoryPlace(name))


def forget_place(name: str) -> None:
    """Drop a place with all that it holds; one that is not there is no error."""
    place = _places.pop(name, None)
    if place is not None:
        forget_root(place.blob_root)


class MemoryBackendFactory(StateBackendFactory):
    """Keeps whole images in the memory of this process.

    Its one setting is ``place``: backends of one place share what they hold. Default: the
    backend's name.
    """

    properties = BackendProperties(needs_files=True, can_hold_job_log=True, is_durable=False)

    def __init__(
        self,
        name: BackendName,
        settings: Mapping[str, str],
        *,
        new_uid: Callable[[], str] = random_nonce,
    ) -> None:
        super().__init__(name, settings)
        for key in settings:
            if key != _PLACE:
                raise ConfigError(
                    f"unknown setting of the memory backend: backend={name} key={key} "
                    f"nearest={_PLACE}",
                    key=f"backends.{name}.{key}",
                )
        self._place = memory_place(settings.get(_PLACE, name))
        self._new_uid = new_uid

    @override
    def backup_manager(self, context: BackupContext) -> TaskBackupManager:
        return MemoryBackupManager(context, self.name, self._place, self._new_uid)

    @override
    def restore_manager(self, context: RestoreContext) -> TaskRestoreManager:
        return MemoryRestoreManager(context, self.name, self._place)

    @override
    def admin(
        self, executor: BlockingExecutor, clock: Clock, tasks: JobTasks | None = None
    ) -> StateBackendAdmin:
        return _MemoryAdmin()

    @override
    def job_log(self, scope: str, executor: BlockingExecutor, clock: Clock) -> JobLog:
        blobs = MemoryBlobStoreManager(self._place.blob_root, executor)
        return BlobJobLog(blobs, scope, root=f"memory:{self._place.name}")

    @override
    def checkpoint_store(
        self, scope: str, executor: BlockingExecutor, clock: Clock
    ) -> CheckpointStore:
        return BlobCheckpointStore(MemoryBlobStoreManager(self._place.blob_root, executor), scope)

    def is_own(self, task: TaskIdentity, store: StoreName, marker: Marker) -> bool:  # noqa: ARG002 - an image is of one store
        """Return whether an image is the task's, or gone: see `SharesBackups`."""
        image = self._place.images.get(marker)
        return image is None or image.owner == (self.name, task)


class MemoryBackupManager(TaskBackupManager):
    """Copies every file of a version, each time."""

    def __init__(
        self,
        context: BackupContext,
        backend: BackendName,
        place: MemoryPlace,
        new_uid: Callable[[], str],
    ) -> None:
        self._context = context
        self._owner = (backend, context.task)
        self._place = place
        self._new_uid = new_uid
        self._is_closed = False

    @override
    async def init(self) -> None:
        pass

    @override
    def snapshot(self, checkpoint_id: CheckpointId) -> Snapshot:
        version = self._context.commit(checkpoint_id).version
        taken: dict[StoreName, StoreSnapshot] = {}
        for store in self._context.stores:
            sizes = version.store_sizes(store)
            taken[store] = StoreSnapshot(None, len(sizes), sum(sizes))
        return Snapshot(taken)

    @override
    async def upload(
        self, checkpoint_id: CheckpointId, snapshot: Snapshot
    ) -> Mapping[StoreName, Marker]:
        _check_open(self._is_closed)
        commit = self._context.commit(checkpoint_id)
        attempt = (commit.epoch, commit.attempt)
        run = self._context.executor.run
        stores = tuple(snapshot.stores)
        images = await run_all(
            run(_copy_image, commit.version, store, self._owner, attempt) for store in stores
        )
        made = {Marker(f"memory:{self._new_uid()}"): image for image in images}
        self._place.images.update(made)
        commit.count_bytes(snapshot.bytes)
        return dict(zip(stores, made, strict=True))

    @override
    async def clean_up(
        self,
        retained: Sequence[Mapping[StoreName, Marker]],
        closed_attempts: Sequence[tuple[int, int]],
    ) -> None:
        _check_open(self._is_closed)
        if not closed_attempts:
            return
        newest_closed = max(closed_attempts)
        reached = {marker for checkpoint in retained for marker in checkpoint.values()}
        for marker, image in list(self._place.images.items()):
            is_closed = image.owner == self._owner and image.attempt <= newest_closed
            if is_closed and marker not in reached:
                self._place.images.pop(marker, None)

    @override
    async def close(self) -> None:
        self._is_closed = True


class MemoryRestoreManager(TaskRestoreManager):
    """Writes the files of an image."""

    def __init__(self, context: RestoreContext, backend: BackendName, place: MemoryPlace) -> None:
        self._context = context
        self._backend = backend
        self._place = place
        self._images: dict[StoreName, MemoryImage] = {}
        self._is_closed = False

    @override
    async def init(self, checkpoint: CheckpointV2) -> None:
        _check_open(self._is_closed)
        markers = checkpoint.markers_of(self._backend)
        for store in self._context.directories:
            marker = markers.get(store, Marker(""))
            image = self._place.images.get(marker)
            if image is None:
                raise BlobNotFoundError(marker)
            self._images[store] = image

    @override
    async def restore(self) -> None:
        _check_open(self._is_closed)
        images = self._images.values()
        self._context.on_total(sum(len(data) for image in images for data in image.files.values()))
        for store, image in self._images.items():
            directory = self._context.directories[store]
            await run_to_end(self._context.executor, _write_image, image, directory)
            self._context.on_bytes(sum(len(data) for data in image.files.values()))

    @override
    async def close(self) -> None:
        self._is_closed = True


class _MemoryAdmin(StateBackendAdmin):
    """There is nothing to set up."""

    @override
    async def create_resources(self) -> None:
        pass

    @override
    async def validate_resources(self) -> None:
        pass

    @override
    async def close(self) -> None:
        pass


def _check_open(is_closed: bool) -> None:  # noqa: FBT001  # the condition of an assertion
    if is_closed:
        raise BackendClosedError("memory backend is closed")


def _copy_image(
    version: SealedVersion,
    store: StoreName,
    owner: tuple[BackendName, TaskIdentity],
    attempt: tuple[int, int],
) -> MemoryImage:
    root = version.store_directory(store)
    checksums = {PurePosixPath(e.path): e.crc32 for e in version.store_files(store)}
    files = {path: (root / path).read_bytes() for path in checksums}
    damaged = _damaged(files, checksums)
    if damaged:
        msg = f"files differ from the seal manifest: store={store} paths={damaged}"
        raise VersionDamagedError(msg)
    return MemoryImage(owner, attempt, files, checksums, image_directories(root))


def _write_image(image: MemoryImage, directory: Path) -> None:
    damaged = _damaged(image.files, image.checksums)
    if damaged:
        raise CheckpointCorruptError(f"image is damaged: paths={damaged}")
    directory.mkdir(parents=True, exist_ok=False)
    for path in image.directories:
        (directory / path).mkdir(parents=True, exist_ok=True)
    for path, data in image.files.items():
        (directory / path).write_bytes(data)


def _damaged(
    files: Mapping[PurePosixPath, bytes], checksums: Mapping[PurePosixPath, int]
) -> list[str]:
    return [str(path) for path, data in files.items() if zlib.crc32(data) != checksums[path]]
