"""The job log on top of any `BlobStoreManager` that creates blobs atomically."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from typing_extensions import override

from statekeep.backends.blob.bounded import run_bounded
from statekeep.backends.blob_store import BlobMetadata, BlobStoreManager
from statekeep.backends.fan_out import run_all
from statekeep.checkpoint.job_log import JobLog, PositionTakenError
from statekeep.checkpoint.log_writer import random_nonce
from statekeep.errors import (
    BlobExistsError,
    BlobNotFoundError,
    CheckpointCorruptError,
    ConfigError,
    RetriableError,
)
from statekeep.fault_points import fault_point

_RECORD: Final = re.compile(r"([0-9]{20})\.json")
_FLOOR: Final = re.compile(r"([0-9]{20})")
_PROBE_RACERS: Final = 4


class BlobJobLog(JobLog):
    """One blob per record, one per floor; the names are the positions.

    ::

        <scope>/log/00000000000000000007.json    the record at position 7
        <scope>/log-floor/00000000000000000005   positions below 5 are trimmed; the highest holds
        <scope>/log-probe/<uid>                  written and deleted by `probe`

    The manager is this log's own: `close` closes it.
    """

    def __init__(
        self,
        blobs: BlobStoreManager,
        scope: str,
        *,
        root: str = "",
        new_uid: Callable[[], str] = random_nonce,
    ) -> None:
        """Build the log; nothing is reached yet.

        Args:
            blobs: The client.
            scope: The prefix of the log's blobs, without a slash at the end.
            root: What ``blobs`` is rooted at, for messages.
            new_uid: Draws names for `probe`.
        """
        self._blobs = blobs
        self._scope = scope
        self._place = f"root={root} scope={scope}" if root else f"scope={scope}"
        self._new_uid = new_uid

    @override
    async def probe(self) -> None:
        name = f"{self._scope}/log-probe/{self._new_uid()}"
        try:
            await self._blobs.init()
            problem = await self._problem_of_create(name)
            for blob_id in await self._blobs.list(name):
                await self._blobs.delete(blob_id)
            if problem is None and await self._blobs.list(name):
                problem = "a deleted blob is still there"
        except RetriableError as exc:
            msg = f"the place for the job log is unreachable: {self._place}"
            raise ConfigError(msg) from exc
        if problem is not None:
            msg = f"the place cannot hold the job log, {problem}: {self._place}"
            raise ConfigError(msg, hint="keep the job log in a store with atomic create")

    @override
    async def append(self, position: int, data: bytes) -> None:
        await self._blobs.init()
        if not await self._create(f"{self._scope}/log/{position:020d}.json", data):
            raise PositionTakenError(position)

    @override
    async def read(self, start: int) -> Sequence[tuple[int, bytes]]:
        await self._blobs.init()
        while True:
            records = await self._fetch(start)
            # Read last: what was at a position below a floor that is raised by now may have been
            # deleted, or even written anew by a fenced writer.
            floor = await self.read_floor()
            if floor <= start:
                break
            start = floor
        for expected, (position, _) in enumerate(records, start):
            if position != expected:
                msg = f"a record of the job log is missing: {self._place} position={expected}"
                raise CheckpointCorruptError(msg)
        return records

    @override
    async def is_there(self) -> bool:
        # Read first: one that is raised after it leaves newer records than the old ones.
        floor = await self.read_floor()
        return max(await self._listed("log", _RECORD), default=-1) >= floor

    @override
    async def read_floor(self) -> int:
        await self._blobs.init()
        return max(await self._listed("log-floor", _FLOOR), default=0)

    @override
    async def trim(self, floor: int) -> None:
        if floor > await self.read_floor():
            await self._create(f"{self._scope}/log-floor/{floor:020d}", b"")
        fault_point("trim.after_floor")
        # From here on for the floor that holds, so that a trim that was cut short is finished too.
        floors = await self._listed("log-floor", _FLOOR)
        highest = max(floors, default=0)
        listed = [*(await self._listed("log", _RECORD)).items(), *floors.items()]
        stale = [blob_id for number, blob_id in listed if number < highest]
        await run_bounded([partial(self._blobs.delete, blob_id) for blob_id in stale])
        await self._remove_unfinished(highest)

    @override
    async def close(self) -> None:
        await self._blobs.close()

    async def _remove_unfinished(self, floor: int) -> None:
        """Remove what killed writers have left of records below a floor.

        Not of those above it that are there: a writer that is still at work on one would find the
        name taken and its own file gone, as after a rename that succeeded.
        """

        def is_trimmed(name: str) -> bool:
            match = _RECORD.fullmatch(name.rpartition("/")[2])
            return match is not None and int(match[1]) < floor

        await self._blobs.remove_unfinished(f"{self._scope}/log/", is_trimmed)

    async def _fetch(self, start: int) -> list[tuple[int, bytes]]:
        """Return the records from ``start`` on, in order; one that went meanwhile is left out."""
        listed = await self._listed("log", _RECORD)
        positions = sorted(position for position in listed if position >= start)
        contents = await run_bounded([partial(self._get, listed[p]) for p in positions])
        pairs = zip(positions, contents, strict=True)
        return [(position, data) for position, data in pairs if data is not None]

    async def _get(self, blob_id: str) -> bytes | None:
        try:
            return await self._blobs.get(blob_id)
        except BlobNotFoundError:
            return None

    async def _create(self, name: str, data: bytes) -> bool:
        """Create a blob; False if there is one."""
        metadata = BlobMetadata(task=None, store_name=None, payload_name="job-log")
        try:
            await self._blobs.put(name, data, metadata, if_absent=True)
        except BlobExistsError:
            return False
        return True

    async def _problem_of_create(self, name: str) -> str | None:
        """Race to create one blob, look at it, try once more; return what went wrong, if any.

        A racer may lose to its own first try, if the answer to that was lost: so there may be no
        winner, but never two.
        """
        contents = [b"racer %d" % number for number in range(_PROBE_RACERS)]
        has_won = await run_all([self._create(name, content) for content in contents])
        winners = [content for content, won in zip(contents, has_won, strict=True) if won]
        listed = await self._blobs.list(name)
        if len(listed) != 1:
            return "a new blob is not listed"
        found = await self._blobs.get(listed[0])
        is_second_refused = not await self._create(name, b"too late")
        if (
            len(winners) <= 1
            and found in (winners or contents)
            and is_second_refused
            and await self._blobs.get(listed[0]) == found
        ):
            return None
        return "it has no atomic create"

    async def _listed(self, folder: str, form: re.Pattern[str]) -> dict[int, str]:
        """Return the blobs of a folder whose names are of a form: their numbers and ids."""
        blob_ids = await self._blobs.list(f"{self._scope}/{folder}/")
        matches = [(form.fullmatch(i.rpartition("/")[2]), i) for i in blob_ids]
        return {int(match[1]): blob_id for match, blob_id in matches if match is not None}
