"""The storage of one backend in one container."""

from collections.abc import Mapping

from statekeep.backends.base import BlockingExecutor, TaskIdentity
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.storage.admin import ObjectProbe
from statekeep.backends.storage.client import SharedClient
from statekeep.backends.storage.locations import Location
from statekeep.backends.storage.manager import StorageManager
from statekeep.backends.storage.names import job_prefix
from statekeep.backends.storage.requests import RequestingBlobStoreManager, Requests
from statekeep.checkpoint.names import escape_name, is_escaped, unescape_name


class Storage:
    """Builds the managers of one backend's storage; they share a client."""

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
