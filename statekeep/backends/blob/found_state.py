"""Logs of a job, and blobs of a task whose log nobody knows: found by their names, folder by folder."""

from statekeep.backends.base import TaskIdentity
from statekeep.backends.blob.names import job_prefix
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.checkpoint.escaping import escape_name, is_escaped, unescape_name


async def find_state(manager: BlobStoreManager, task: TaskIdentity) -> str | None:
    """Return the prefix of blobs that a task has under any uid and backend's name; None: it has none.

    Raises:
        ConfigError: The place refuses us.
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
        ConfigError: The place refuses us.
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
