"""Logs of a job, and blobs of a task whose log nobody knows: found by their names."""

import re

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
    prefix = job_prefix(task.job_name)
    below = "/".join(map(escape_name, (task.operator, task.task_name)))
    form = re.compile(rf"{re.escape(prefix)}[^/]+/[^/]+/{re.escape(below)}/")
    for blob_id in await manager.list(prefix):
        match = form.search(blob_id)
        if match is not None:
            return match[0]
    return None


async def find_task_logs(manager: BlobStoreManager, job_name: str, operator: str) -> list[str]:
    """Return the tasks of a job in plain Python that have records of a log, sorted.

    Raises:
        ConfigError: The place refuses us.
        RetriableError: The service may answer later.
    """
    await manager.init()
    prefix = f"{escape_name(job_name)}/{escape_name(operator)}/"
    form = re.compile(rf"{re.escape(prefix)}([^/]+)/log/[^/]+$")
    found = (form.search(blob_id) for blob_id in await manager.list(prefix))
    parts = {match[1] for match in found if match is not None}
    return sorted(unescape_name(part) for part in parts if is_escaped(part))
