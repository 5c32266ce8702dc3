"""What backends have in common that keep their backups, a job log and checkpoints in a storage."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from typing_extensions import override

from statekeep.backends.base import (
    BlockingExecutor,
    JobTasks,
    StateBackendAdmin,
    StateBackendFactory,
    TaskIdentity,
)
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.dotted_path import load_object
from statekeep.backends.retry import RetryPolicy
from statekeep.backends.storage.admin import ObjectProbe, StorageAdmin
from statekeep.backends.storage.checkpoint_store import BlobCheckpointStore
from statekeep.backends.storage.client import SharedClient
from statekeep.backends.storage.job_log import BlobJobLog
from statekeep.backends.storage.locations import Location
from statekeep.backends.storage.manager import StorageManager
from statekeep.backends.storage.names import job_prefix
from statekeep.backends.storage.requests import RequestingBlobStoreManager, Requests, TransferLimits
from statekeep.backends.storage.settings import StorageSettings
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.checkpoint.job_log import CheckpointStore, JobLog
from statekeep.checkpoint.names import escape_name, is_escaped, unescape_name
from statekeep.clock import Clock
from statekeep.errors import ConfigError
from statekeep.events import Report

ManagerFactory: TypeAlias = Callable[[Mapping[str, str], BlockingExecutor], BlobStoreManager]
"""What ``manager.factory`` names: takes the backend's settings and the executor; does no I/O."""


class Storage:
    """The storage of one backend in one container: builds its managers, which share a client."""

    def __init__(
        self, location: Location, *, part_bytes: int, uncommitted_tags: Mapping[str, str]
    ) -> None:
        """Keep the location; nothing is reached.

        Args:
            location: Of the storage.
            part_bytes: Size of a part, where the store takes as many.
            uncommitted_tags: Of temporary blobs until they may stay; empty: none are temporary.
        """
        self._location = location
        self._part_bytes = part_bytes
        self._uncommitted_tags = uncommitted_tags
        self._client = SharedClient(location.open_client)

    def manager(self, requests: Requests, executor: BlockingExecutor) -> BlobStoreManager:
        """Build one task's manager."""
        if self._location.kind.is_manager:
            return RequestingBlobStoreManager(self._location.open_manager(executor), requests)
        return StorageManager(
            self._client,
            self._location.shown_uri,
            requests,
            part_bytes=self._part_bytes,
            uncommitted_tags=self._uncommitted_tags,
        )

    def probe(self, requests: Requests) -> ObjectProbe | None:
        """Build what tries the store at a start; None where there is nothing more to try."""
        if not self._location.kind.has_buckets:
            return None
        return ObjectProbe(
            self._client,
            requests,
            plainer=self._location.plainer(),
            uncommitted_tags=self._uncommitted_tags,
        )


class StorageBackendFactory(StateBackendFactory):
    """Builds clients of one storage, and what lies in it beside the backups.

    Every client that it builds retries, keeps to one common cap on calls in flight, and logs.
    """

    def __init__(
        self,
        name: BackendName,
        settings: Mapping[str, str],
        storage: StorageSettings,
        *,
        make_manager: ManagerFactory | None = None,
        new_uid: Callable[[], str],
    ) -> None:
        """Take the settings, which are checked.

        Args:
            name: Of the backend.
            settings: As they were given; a client of the user's gets them.
            storage: What they say.
            make_manager: Builds the client, whatever the settings say; None: as they say.
            new_uid: Draws lower-case hex that is never drawn again, for names.
        """
        super().__init__(name, settings)
        self._storage_settings = storage
        self._new_uid = new_uid
        self._make_manager = make_manager
        self._limits = TransferLimits(
            name,
            max_in_flight=storage.max_in_flight,
            task_max_in_flight=storage.transfer.task_max_in_flight,
            buffer_bytes=storage.transfer.buffer_bytes,
            bytes_per_second=storage.transfer.bandwidth_bytes_per_second,
        )
        self._storage = self._make_storage() if make_manager is None else None

    @override
    def report_requests(self, report: Report) -> None:
        self._limits.report = report

    async def check_more(self, executor: BlockingExecutor, clock: Clock) -> None:
        """Check what else a backup needs, at a start; this one checks nothing.

        Raises:
            ConfigError: It lacks; the message says what.
            RetriableError: It does not answer.
        """

    def blob_store_manager(self, executor: BlockingExecutor, clock: Clock) -> BlobStoreManager:
        """Build a client of the storage, wrapped; the caller closes it."""
        return self._manager(executor, clock, self._storage_settings.retry)

    def _manager(
        self, executor: BlockingExecutor, clock: Clock, policy: RetryPolicy
    ) -> BlobStoreManager:
        requests = Requests(self._limits, executor, clock, policy)
        if self._storage is not None:
            return self._storage.manager(requests, executor)
        return RequestingBlobStoreManager(self._bare_manager(executor), requests)

    @override
    def admin(
        self, executor: BlockingExecutor, clock: Clock, tasks: JobTasks | None = None
    ) -> StateBackendAdmin:
        policy = self._storage_settings.start_retry
        probe = None
        if self._storage is not None:
            probe = self._storage.probe(Requests(self._limits, executor, clock, policy))
        return StorageAdmin(
            self.name,
            self._manager(executor, clock, policy),
            new_uid=self._new_uid,
            check_more=partial(self.check_more, executor, clock),
            object_probe=probe,
        )

    @override
    def job_log(self, scope: str, executor: BlockingExecutor, clock: Clock) -> JobLog:
        manager = self.blob_store_manager(executor, clock)
        return BlobJobLog(manager, scope, root=self._storage_settings.shown_root)

    @override
    def checkpoint_store(
        self, scope: str, executor: BlockingExecutor, clock: Clock
    ) -> CheckpointStore:
        return BlobCheckpointStore(self.blob_store_manager(executor, clock), scope)

    async def find_state(
        self, task: TaskIdentity, executor: BlockingExecutor, clock: Clock
    ) -> str | None:
        """Return the folder of a task's blobs: see `FindsState`."""
        manager = self.blob_store_manager(executor, clock)
        try:
            return await find_state(manager, task)
        finally:
            await manager.close()

    async def task_logs(
        self, job_name: str, operator: str, executor: BlockingExecutor, clock: Clock
    ) -> Sequence[str]:
        """Return the tasks that have a log: see `ListsTaskLogs`."""
        manager = self.blob_store_manager(executor, clock)
        try:
            return await find_task_logs(manager, job_name, operator)
        finally:
            await manager.close()

    def _make_storage(self) -> Storage | None:
        """Make what reaches the storage of the settings; None where a client of the user's does."""
        settings = self._storage_settings
        if settings.manager_factory is not None:
            return None
        location = Location(
            uri=settings.uri or "",
            key=f"backends.{self.name}.uri",
            options=settings.storage_options,
            of_buckets=settings.of_buckets,
            connections=settings.max_in_flight,
        )
        tags = settings.transfer.uncommitted_tags
        if location.kind.has_buckets:
            location.bucket()  # refuses a URI that is none
        if location.kind.has_buckets and settings.storage_options:
            raise ConfigError(
                f"storage options are for filesystems of fsspec: backend={self.name}",
                key=f"backends.{self.name}.storage.options",
                hint=f"an object store has settings of its own: {location.kind.module}.*",
            )
        if not location.kind.has_buckets and tags:
            raise ConfigError(
                f"tags are for object stores: backend={self.name}",
                key=f"backends.{self.name}.uncommitted.tags",
                hint="clean-up collects what stays uncommitted without them",
            )
        return Storage(location, part_bytes=settings.transfer.part_bytes, uncommitted_tags=tags)

    def _bare_manager(self, executor: BlockingExecutor) -> BlobStoreManager:
        settings = self._storage_settings
        if self._make_manager is not None:
            return self._make_manager(self.settings, executor)
        key = f"backends.{self.name}.manager.factory"
        make = load_object(settings.manager_factory or "", key=key)
        if not callable(make):
            raise ConfigError(f"not callable: {key}={settings.manager_factory}", key=key)
        manager = make(self.settings, executor)
        if not isinstance(manager, BlobStoreManager):
            raise ConfigError(
                f"made no BlobStoreManager: {key}={settings.manager_factory}", key=key
            )
        return manager


async def find_state(manager: BlobStoreManager, task: TaskIdentity) -> str | None:
    """Return the prefix of blobs that a task has under any uid and backend's name; None: it has none.

    Raises:
        ConfigError: The storage refuses us.
        RetriableError: The service may answer later.
    """
    await manager.init()
    begin = job_prefix(task.job_name)
    job, _, state = begin.rpartition("/")
    below = "/".join(map(escape_name, (task.operator, task.task_name)))
    for uid in await manager.list_folders(f"{job}/"):
        if not uid.startswith(state):
            continue
        for backend in await manager.list_folders(f"{job}/{uid}/"):
            prefix = f"{job}/{uid}/{backend}/{below}/"
            # A folder may be left of blobs that were deleted.
            if await manager.list_folders(prefix) and await manager.list(prefix):
                return prefix
    return None


async def find_task_logs(manager: BlobStoreManager, job_name: str, operator: str) -> list[str]:
    """Return the tasks of a job in plain Python that have a log, sorted.

    Raises:
        ConfigError: The storage refuses us.
        RetriableError: The service may answer later.
    """
    await manager.init()
    prefix = f"{escape_name(job_name)}/{escape_name(operator)}/"
    found = [
        unescape_name(folder)
        for folder in await manager.list_folders(prefix)
        if is_escaped(folder) and "log" in await manager.list_folders(f"{prefix}{folder}/")
    ]
    return sorted(found)
