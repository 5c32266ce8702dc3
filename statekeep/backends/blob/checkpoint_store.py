"""The checkpoint store on top of any `BlobStoreManager` that creates blobs atomically."""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final

from typing_extensions import override

from statekeep.backends.blob.bounded import run_bounded
from statekeep.backends.blob_store import BlobMetadata, BlobStoreManager
from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.escaping import escape_name, is_escaped, unescape_name
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.errors import BlobExistsError, BlobNotFoundError

_ATTEMPT: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")
_NUMBER: Final = re.compile(r"/[0-9]{6,18}\Z")


class BlobCheckpointStore(CheckpointStore):
    """One blob per entry; an entry that replaces another is the next number.

    ::

        <scope>/checkpoints/<epoch>-<attempt>/<task>/000000   the first entry of the task
        <scope>/checkpoints/<epoch>-<attempt>/<task>/000001   in its place; the highest holds

    The manager is this store's own: `close` closes it.
    """

    def __init__(self, blobs: BlobStoreManager, scope: str) -> None:
        """Build the store; nothing is reached yet.

        Args:
            blobs: The client.
            scope: The prefix of the store's blobs, without a slash at the end.
        """
        self._blobs = blobs
        self._scope = scope

    @override
    async def write(self, attempt: str, task_name: TaskName, data: bytes) -> None:
        await self._blobs.init()
        prefix = f"{self._prefix(attempt)}{escape_name(task_name)}/"
        number = 0
        while not await self._create(f"{prefix}{number:06d}", data):
            newest = max(await self._entries(prefix), key=_number, default=None)
            if newest is None:  # deleted meanwhile: the attempt is closed
                continue
            if await self._get(newest) == data:  # perhaps by a first try whose answer was lost
                return
            number = _number(newest) + 1

    @override
    async def read(
        self, attempt: str, *, known: Collection[TaskName] = ()
    ) -> Mapping[TaskName, bytes]:
        await self._blobs.init()
        skipped = {escape_name(task) for task in known}
        newest: dict[str, str] = {}
        for blob_id in sorted(await self._entries(self._prefix(attempt)), key=_number):
            task = blob_id.split("/")[-2]
            if task not in skipped and is_escaped(task):
                newest[task] = blob_id
        contents = await run_bounded([partial(self._get, blob_id) for blob_id in newest.values()])
        return {
            TaskName(unescape_name(task)): data
            for task, data in zip(newest, contents, strict=True)
            if data is not None
        }

    @override
    async def attempts(self) -> Collection[tuple[int, int]]:
        await self._blobs.init()
        folders = await self._blobs.list_folders(f"{self._scope}/checkpoints/")
        found = map(_ATTEMPT.fullmatch, folders)
        return {(int(match[1]), int(match[2])) for match in found if match}

    @override
    async def delete(self, attempt: str) -> None:
        await self._blobs.init()
        prefix = self._prefix(attempt)
        blob_ids = await self._blobs.list(prefix)
        await run_bounded([partial(self._blobs.delete, blob_id) for blob_id in blob_ids])
        await self._blobs.remove_unfinished(prefix, lambda _: True)

    @override
    async def close(self) -> None:
        await self._blobs.close()

    def _prefix(self, attempt: str) -> str:
        return f"{self._scope}/checkpoints/{attempt}/"

    async def _entries(self, prefix: str) -> Sequence[str]:
        """Return the ids of entries; what else lies there is somebody else's."""
        blob_ids = await self._blobs.list(prefix)
        return [blob_id for blob_id in blob_ids if _NUMBER.search(blob_id)]

    async def _create(self, name: str, data: bytes) -> bool:
        """Create a blob; False if there is one."""
        metadata = BlobMetadata(task=None, store_name=None, payload_name="checkpoint")
        try:
            await self._blobs.put(name, data, metadata, if_absent=True)
        except BlobExistsError:
            return False
        return True

    async def _get(self, blob_id: str) -> bytes | None:
        try:
            return await self._blobs.get(blob_id)
        except BlobNotFoundError:
            return None


def _number(blob_id: str) -> int:
    return int(blob_id.rpartition("/")[2])
