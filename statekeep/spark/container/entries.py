"""Writes the entries of tasks together: one request for those that end at about the same time."""

import asyncio
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.clock import Clock

QUIET_S: Final = 0.25
"""How long the last entry waits for another upload to begin: tasks hand over one after the other."""
_QUIET_AWAITED_S: Final = 0.02
"""The same where a batch waits for its commit."""
_LONGEST_S: Final = 1.0
"""How long an entry waits for uploads that take longer."""


@dataclass(slots=True)
class _Pack:
    """Entries that are written next."""

    entries: dict[TaskName, bytes] = field(default_factory=dict[TaskName, bytes])
    writing: asyncio.Task[None] | None = None


class EntryWriter:
    """Holds the entries of an attempt back until none of its uploads is under way; on the loop."""

    def __init__(self, store: CheckpointStore, clock: Clock, *, is_awaited: bool) -> None:
        """Take what is needed; nothing is written yet.

        Args:
            store: Where the entries go; closed by its owner, after `close`.
            clock: For the waits.
            is_awaited: Whether each batch waits for its commit.
        """
        self._store = store
        self._clock = clock
        self._quiet_s = _QUIET_AWAITED_S if is_awaited else QUIET_S
        self._under_way = Counter[str]()
        self._ended = asyncio.Event()
        self._packs: dict[str, _Pack] = {}
        self._writing: set[asyncio.Task[None]] = set()

    @contextmanager
    def upload(self, attempt: str) -> Generator[None]:
        """Count an upload of an attempt; its entry is to be given to `write` directly afterwards."""
        self._under_way[attempt] += 1
        try:
            yield
        finally:
            self._under_way[attempt] -= 1
            if not self._under_way[attempt]:
                del self._under_way[attempt]
            self._ended.set()

    async def write(self, attempt: str, task: TaskName, data: bytes) -> None:
        """Write an entry, with others; it is durable when this returns.

        A cancelled caller leaves its entry to be written.

        Raises:
            RetriableError: The service may answer later.
        """
        pack = self._packs.setdefault(attempt, _Pack())
        pack.entries[task] = data
        if pack.writing is None:
            pack.writing = asyncio.create_task(self._write(attempt, pack))
            self._writing.add(pack.writing)
            pack.writing.add_done_callback(self._writing.discard)
        await asyncio.shield(pack.writing)

    async def close(self) -> None:
        """Give up what is not written yet. Idempotent."""
        writing = list(self._writing)
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing, return_exceptions=True)

    async def _write(self, attempt: str, pack: _Pack) -> None:
        try:
            await self._wait(attempt, pack)
        finally:
            del self._packs[attempt]  # what comes from here on begins another
        await self._store.write_all(attempt, pack.entries)

    async def _wait(self, attempt: str, pack: _Pack) -> None:
        deadline_ns = self._clock.monotonic_ns() + round(_LONGEST_S * 1e9)
        size = 0
        while self._under_way[attempt] or len(pack.entries) > size:
            size = len(pack.entries)
            left_s = (deadline_ns - self._clock.monotonic_ns()) / 1e9
            if left_s <= 0:
                return
            if self._under_way[attempt]:
                await self._wait_for_end(left_s)
            else:
                await self._clock.sleep(self._quiet_s)

    async def _wait_for_end(self, timeout_s: float) -> None:
        """Wait until an upload has ended."""
        self._ended.clear()
        ended = asyncio.ensure_future(self._ended.wait())
        timeout = asyncio.ensure_future(self._clock.sleep(timeout_s))
        try:
            await asyncio.wait([ended, timeout], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            timeout.cancel()
