"""The history of a job as it stands, and as it goes on: read from its log and its events."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from statekeep.checkpoint.event_log import KEPT_SESSIONS, EventReader
from statekeep.checkpoint.log_reader import LogReader
from statekeep.clock import Clock
from statekeep.config.model import Config
from statekeep.inspection.history import JobHistory
from statekeep.inspection.history_fold import HistoryFold
from statekeep.inspection.job import name_of_job, open_log_storage, read_log


class HistoryWatch:
    """Follows one job. Made by `watch_history`; used on its event loop until the end of that block."""

    def __init__(
        self, job: str, reader: LogReader, events: EventReader, fold: HistoryFold, clock: Clock
    ) -> None:
        self._job = job
        self._reader = reader
        self._events = events
        self._fold = fold
        self._clock = clock
        self._read_up_to = 0
        """The newest epoch whose events were read."""

    async def poll(self) -> JobHistory:
        """Return the history up to now. Reads only what came since the last call.

        Raises:
            ConfigError: The log went on elsewhere meanwhile.
            CheckpointCorruptError: A record of the log cannot be read.
            RetriableError: A service may answer later; the call may be repeated.
        """
        await self._reader.catch_up(self._fold.take_record)
        self._reader.require_here()
        newest = self._reader.view.epoch
        # The driver before the newest one may still write its last events.
        oldest = max(newest - KEPT_SESSIONS + 1, self._read_up_to - 1, 1)
        for event in await self._events.read_new(range(oldest, newest + 1)):
            self._fold.take_event(event)
        self._read_up_to = newest
        now_ms = self._clock.time_ns() // 1_000_000
        return self._fold.history(self._job, self._reader.view, now_ms)


@asynccontextmanager
async def watch_history(
    config: Config, clock: Clock, *, task: str | None = None
) -> AsyncGenerator[HistoryWatch]:
    """Open a job's log and events, without fencing the job; arguments and errors as of `open_job`."""
    async with open_log_storage(config, clock, task=task) as storage:
        fold = HistoryFold()
        reader = await read_log(config, storage, task, fold.take_record)
        store = storage.checkpoint_store()
        try:
            yield HistoryWatch(name_of_job(config, task), reader, EventReader(store), fold, clock)
        finally:
            await store.close()
