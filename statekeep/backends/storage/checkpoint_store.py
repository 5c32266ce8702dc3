"""The checkpoint store on top of any `BlobStoreManager` that creates blobs atomically."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

from typing_extensions import override

from statekeep.backends.awaiting import run_bounded
from statekeep.backends.blob_store import BlobMetadata, BlobStoreManager
from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.checkpoint.log_session import random_nonce
from statekeep.checkpoint.names import escape_name, is_escaped, unescape_name
from statekeep.checkpoint.serde import decode_entries, encode_entries
from statekeep.errors import BlobExistsError, BlobNotFoundError

_ATTEMPT: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")
_PACK: Final = "!"
"""Begins the folder of a store object's packs: `escape_name` leaves it in no name of a task."""
_PARTS_OF_ENTRY: Final = 3
"""Of the end of its name: attempt, task, number."""
_NUMBER: Final = re.compile(r"/[0-9]{6,18}\Z")


class BlobCheckpointStore(CheckpointStore):
    """One blob per entry, or for several that are written together.

    An entry that replaces another is the next number.

    ::

        <scope>/checkpoints/<epoch>-<attempt>/<task>/000000   the first entry of the task
        <scope>/checkpoints/<epoch>-<attempt>/<task>/000001   the same, written again; the highest holds
        <scope>/checkpoints/<epoch>-<attempt>/!<uid>/000000   a pack of entries of several tasks
        <scope>/checkpoints/<epoch>-<attempt>/!<uid>/000001   the next one by the same store object

    The manager is this store's own: `close` closes it.
    """

    def __init__(
        self,
        blobs: BlobStoreManager,
        scope: str,
        *,
        new_uid: Callable[[], str] = random_nonce,
    ) -> None:
        """Build the store; nothing is reached yet.

        Args:
            blobs: The client.
            scope: The prefix of the store's blobs, without a slash at the end.
            new_uid: Draws the part of the names of this object's packs.
        """
        self._blobs = blobs
        self._scope = scope
        self._uid = new_uid()
        self._packs_written = 0
        self._packs_read: dict[str, Mapping[TaskName, bytes]] = {}
        """Of the attempt that was read last, by id."""

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
        packs: list[str] = []
        for blob_id in sorted(await self._entries(self._prefix(attempt)), key=_number):
            task = blob_id.split("/")[-2]
            if task.startswith(_PACK):
                packs.append(blob_id)
            elif task not in skipped and is_escaped(task):
                newest[task] = blob_id
        contents = await run_bounded([partial(self._get, blob_id) for blob_id in newest.values()])
        found = {
            TaskName(unescape_name(task)): data
            for task, data in zip(newest, contents, strict=True)
            if data is not None
        }
        for pack in await self._read_packs(packs):
            found |= {task: data for task, data in pack.items() if task not in known}
        return found

    @override
    async def write_all(self, attempt: str, entries: Mapping[TaskName, bytes]) -> None:
        await self._blobs.init()
        name = f"{self._prefix(attempt)}{_PACK}{self._uid}/{self._packs_written:06d}"
        self._packs_written += 1
        metadata = BlobMetadata(task=None, store_name=None, payload_name="checkpoint")
        await self._blobs.put(name, encode_entries(entries), metadata)

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
        await self._blobs.delete_all(await self._blobs.list(prefix))
        await self._blobs.remove_unfinished(prefix, lambda _: True)

    @override
    async def delete_all(self, attempts: Collection[tuple[int, int]]) -> None:
        await self._blobs.init()
        prefix = f"{self._scope}/checkpoints/"
        # By epoch, as the events of the job lie there too, in many more blobs.
        listed = [
            await self._blobs.list(f"{prefix}{epoch}-")
            for epoch in sorted({e for e, _ in attempts})
        ]
        names = [blob_id for of_epoch in listed for blob_id in of_epoch]
        await self._blobs.delete_all([n for n in names if _attempt_of(n) in attempts])
        await self._blobs.remove_unfinished(prefix, lambda name: _attempt_of(name) in attempts)

    @override
    async def close(self) -> None:
        await self._blobs.close()

    async def _read_packs(self, blob_ids: Sequence[str]) -> Sequence[Mapping[TaskName, bytes]]:
        """Return the entries of packs, each of which is fetched once."""
        new = [blob_id for blob_id in blob_ids if blob_id not in self._packs_read]
        contents = await run_bounded([partial(self._get, blob_id) for blob_id in new])
        known = {b: self._packs_read[b] for b in blob_ids if b in self._packs_read}
        self._packs_read = known | {
            blob_id: decode_entries(data, where=f"blob_id={blob_id}")
            for blob_id, data in zip(new, contents, strict=True)
            if data is not None
        }
        return [self._packs_read[b] for b in blob_ids if b in self._packs_read]

    def _prefix(self, attempt: str) -> str:
        return f"{self._scope}/checkpoints/{attempt}/"

    async def _entries(self, prefix: str) -> Sequence[str]:
        """Return the ids of entries; other files there are not ours."""
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


def _attempt_of(blob_id: str) -> tuple[int, int] | None:
    """Return the (epoch, attempt) that an entry is of; None of what is no entry."""
    parts = blob_id.rsplit("/", 3)
    match = _ATTEMPT.fullmatch(parts[1]) if len(parts) > _PARTS_OF_ENTRY else None
    return None if match is None else (int(match[1]), int(match[2]))


def _number(blob_id: str) -> int:
    return int(blob_id.rpartition("/")[2])
