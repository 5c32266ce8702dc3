"""Writes the events of one reign beside the tasks' checkpoints, and deletes those of old reigns."""

import asyncio
import logging
from typing import Any, Final

from statekeep.checkpoint.event_log import KEPT_REIGNS, EventWriter, delete_events
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.clock import Clock
from statekeep.config.model import JobSettings
from statekeep.errors import StateBackupError

logger = logging.getLogger(__name__)

_POLL_S: Final = 1.0
_PATIENCE_S: Final = 5.0
"""How long the end of a job waits for its last events, which nobody needs."""


class EventRecorder:
    """Lives on the loop that makes it; `add` comes from any thread.

    Never in the way: whatever fails here is a warning. Its owner either awaits `run`, which looks
    after the flush interval by itself, or calls `flush_if_due` whenever it has the time.
    """

    def __init__(
        self, store: CheckpointStore, epoch: int, settings: JobSettings, clock: Clock
    ) -> None:
        """Take what is needed, on the loop; nothing is written yet.

        Args:
            store: Holds the segments; closed by its owner, after `finish`.
            epoch: The reign.
            settings: How long events may wait, and how many.
            clock: For the flush interval.
        """
        self._store = store
        self._epoch = epoch
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._writer = EventWriter(
            store,
            epoch,
            clock,
            flush_interval_ms=settings.event_flush_interval_ms,
            buffer_bytes=settings.event_buffer_bytes,
        )
        self._flushing: asyncio.Task[None] | None = None

    def add(self, time_ms: int, kind: str, details: dict[str, Any]) -> None:
        """Take in an event that was seen at ``time_ms``; not after the loop has ended."""
        self._loop.call_soon_threadsafe(self._writer.add_seen, time_ms, kind, details)

    async def run(self) -> None:
        """Delete what is older than the newest reigns, then flush when due, until cancelled."""
        await self.delete_old()
        while True:
            await self._clock.sleep(_POLL_S)
            self.flush_if_due()
            if self._flushing is not None:
                # A cancelled write might still land, after the one that follows it.
                await asyncio.shield(self._flushing)

    def flush_if_due(self) -> None:
        """Begin to write what has waited for long enough, unless a write is under way."""
        if self._writer.is_due and (self._flushing is None or self._flushing.done()):
            self._flushing = asyncio.create_task(self._writer.flush(), name="flush events")

    async def finish(self) -> None:
        """Write what is left; gives up after `_PATIENCE_S`. After `run` was cancelled."""
        last = asyncio.create_task(self._flush_rest())
        await asyncio.wait([last], timeout=_PATIENCE_S)
        error = last.exception() if last.done() else None
        if error is not None or not last.done():
            last.cancel()
            logger.warning("the last events are not written: epoch=%d error=%s", self._epoch, error)

    async def _flush_rest(self) -> None:
        if self._flushing is not None:
            await self._flushing
        await self._writer.flush()

    async def delete_old(self) -> None:
        """Delete the events of as many reigns as are kept, so that failures are made up for."""
        newest = self._epoch - KEPT_REIGNS
        try:
            for epoch in range(max(1, newest - KEPT_REIGNS + 1), newest + 1):
                await delete_events(self._store, epoch)
        except (StateBackupError, OSError) as exc:
            logger.warning("old events could not be deleted: epoch=%d error=%s", self._epoch, exc)
