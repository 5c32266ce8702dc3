"""The job log on top of any `BlobStoreManager` that creates blobs atomically."""

import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from typing_extensions import override

from statekeep.backends.awaiting import run_all, run_bounded
from statekeep.backends.blob_store import BlobMetadata, BlobStoreManager
from statekeep.checkpoint.job_log import JobLog, PositionTakenError
from statekeep.checkpoint.log_session import random_nonce
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
_BLOCK: Final = 1_000
"""Positions that are listed at once, by the digits that they share: one page of an object store."""
_BLOCK_DIGITS: Final = 17
_NEAR_END: Final = 100
"""So close to the end of a block the next one is listed too: some records may be lost in between."""


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
        self._where = f"root={root} scope={scope}" if root else f"scope={scope}"
        self._new_uid = new_uid
        self._trimmed_to: int | None = None
        """Below this floor nothing is left, by a trim of this object's own."""
        self._unfinished: Collection[int] = ()
        """Positions of records above the floor that a writer was killed at, or is at work on."""
        self._newest_listed = -1
        """Position of the newest record that a listing has shown: a read that ends before has lost some."""

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
            msg = f"the storage of the job log is unreachable: {self._where}"
            raise ConfigError(msg) from exc
        if problem is not None:
            msg = f"the storage cannot hold the job log, {problem}: {self._where}"
            raise ConfigError(msg, hint="keep the job log in a store with atomic create")

    @override
    async def append(self, position: int, data: bytes) -> None:
        await self._blobs.init()
        if not await self._create(f"{self._scope}/log/{position:020d}.json", data):
            raise PositionTakenError(position)

    @override
    async def read(self, start: int, *, limit: int | None = None) -> Sequence[tuple[int, bytes]]:
        await self._blobs.init()
        if start == 0:
            start = await self.read_floor()  # else all of a trimmed log would be fetched twice
        while True:
            records = await self._fetch(start, limit)
            # Read last: what was at a position below a floor that is raised by now may have been
            # deleted, or even written anew by a fenced writer.
            floor = await self.read_floor()
            if floor <= start:
                break
            start = floor
        found: list[tuple[int, bytes]] = []
        for expected, (position, data) in enumerate(records, start):
            if position != expected or data is None:
                msg = f"a record of the job log is missing: {self._where} position={expected}"
                raise CheckpointCorruptError(msg)
            found.append((position, data))
        end = start + len(found)
        if (limit is None or len(found) < limit) and end <= self._newest_listed:
            msg = f"a record of the job log is missing: {self._where} position={end}"
            raise CheckpointCorruptError(msg)
        return found

    @override
    async def read_left(self) -> Sequence[tuple[int, bytes]]:
        await self._blobs.init()
        records = await self._fetch(0, None)
        floor = await self.read_floor()
        return [(p, data) for p, data in records if data is not None and p >= floor]

    @override
    async def read_at(self, positions: Collection[int]) -> Sequence[tuple[int, bytes]]:
        await self._blobs.init()
        contents = await run_bounded([partial(self._find, p) for p in sorted(positions)])
        pairs = zip(sorted(positions), contents, strict=True)
        return [(position, data) for position, data in pairs if data is not None]

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
        await self._blobs.init()
        floors = await self._listed("log-floor", _FLOOR)
        highest = max(floors, default=0)
        if floor > highest:
            await self._create(f"{self._scope}/log-floor/{floor:020d}", b"")
            highest = floor
        fault_point("trim.after_floor")
        # From here on for the floor that holds, so that a trim that was cut short is finished too.
        records = await self._listed_below(highest)
        stale = [blob_id for number, blob_id in floors.items() if number < highest]
        await self._blobs.delete_all([*records, *stale])
        if self._trimmed_to is None or any(p < highest for p in self._unfinished):
            await self._remove_unfinished(highest)
        self._trimmed_to = highest

    @override
    async def close(self) -> None:
        await self._blobs.close()

    async def _remove_unfinished(self, floor: int) -> None:
        """Remove what killed writers have left of records below a floor.

        Not of those above it that are there: a writer that is still at work on one would find the
        name taken and its own file gone, as after a rename that succeeded. They go once the floor
        is above them, too.
        """
        above: set[int] = set()

        def is_trimmed(name: str) -> bool:
            match = _RECORD.fullmatch(name.rpartition("/")[2])
            if match is None:
                return False
            position = int(match[1])
            if position >= floor:
                above.add(position)
            return position < floor

        await self._blobs.remove_unfinished(f"{self._scope}/log/", is_trimmed)
        self._unfinished = above

    async def _fetch(self, start: int, limit: int | None) -> list[tuple[int, bytes | None]]:
        """Return the first records from ``start`` on, in order; None for one that went meanwhile."""
        listed = await self._listed_from(start, limit)
        self._newest_listed = max([self._newest_listed, *listed])
        positions = sorted(position for position in listed if position >= start)[:limit]
        contents = await run_bounded([partial(self._get, listed[p]) for p in positions])
        return list(zip(positions, contents, strict=True))

    async def _listed_from(self, start: int, limit: int | None) -> dict[int, str]:
        """Return the first records from ``start`` on, and perhaps some before: positions and ids.

        All are listed unless the record before ``start`` is there: what is read then goes on where
        something was read before.
        """
        if start == 0:
            return await self._listed("log", _RECORD)
        block = (start - 1) // _BLOCK
        found = await self._listed_block(block)
        if start - 1 not in found:
            return await self._listed("log", _RECORD)
        end = None if limit is None else start + limit
        while max(found) >= (block + 1) * _BLOCK - _NEAR_END and (end is None or max(found) < end):
            block += 1
            found |= await self._listed_block(block)
        return found

    async def _listed_below(self, floor: int) -> list[str]:
        """Return the ids of the records below a floor; after the first trim those since then."""
        if self._trimmed_to is None:
            found = await self._listed("log", _RECORD)
        else:
            is_higher = floor > self._trimmed_to
            last = (floor - 1) // _BLOCK if is_higher else -1
            found = dict[int, str]()
            for block in range(self._trimmed_to // _BLOCK, last + 1):
                found |= await self._listed_block(block)
        return [blob_id for position, blob_id in found.items() if position < floor]

    async def _listed_block(self, block: int) -> dict[int, str]:
        return await self._listed("log", _RECORD, begin=f"{block:0{_BLOCK_DIGITS}d}")

    async def _get(self, blob_id: str) -> bytes | None:
        try:
            return await self._blobs.get(blob_id)
        except BlobNotFoundError:
            return None

    async def _find(self, position: int) -> bytes | None:
        """Return one record; None if it is gone."""
        found = await self._listed("log", _RECORD, begin=f"{position:020d}")
        return await self._get(found[position]) if position in found else None

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

    async def _listed(
        self, folder: str, form: re.Pattern[str], *, begin: str = ""
    ) -> dict[int, str]:
        """Return the blobs of a folder whose names are of a form: their numbers and ids."""
        blob_ids = await self._blobs.list(f"{self._scope}/{folder}/{begin}")
        matches = [(form.fullmatch(i.rpartition("/")[2]), i) for i in blob_ids]
        return {int(match[1]): blob_id for match, blob_id in matches if match is not None}
