"""What happens to one task in plain Python, written down beside its log."""

import asyncio
from typing import Any

from statekeep.checkpoint.event_recorder import EventRecorder
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.checkpoint.note import summary_of
from statekeep.clock import Clock
from statekeep.config.model import JobSettings
from statekeep.errors import TaskFencedError


class TaskEvents:
    """Takes in the events of a task and writes them in batches; never in the way of the task.

    Nothing is written before `begin`: until then the epoch is not known, and events wait. There is
    no timer: whoever has the time calls `look`, and each event does.

    Used by one event loop.
    """

    def __init__(self, store: CheckpointStore, settings: JobSettings, clock: Clock) -> None:
        """Take what is needed; nothing is written yet.

        Args:
            store: Holds the segments; closed by `end`.
            settings: How long events may wait, and how many.
            clock: Stamps events, and says when a flush is due.
        """
        self._store = store
        self._settings = settings
        self._clock = clock
        self._waiting: list[tuple[int, str, dict[str, Any]]] = []
        self._recorder: EventRecorder | None = None
        self._deleting: asyncio.Task[None] | None = None

    def begin(self, epoch: int) -> None:
        """Write events from now on, under an epoch that nobody else has."""
        self._recorder = EventRecorder(self._store, epoch, self._settings, self._clock)
        for event in self._waiting:
            self._recorder.add(*event)
        self._waiting.clear()
        self._deleting = asyncio.create_task(self._recorder.delete_old(), name="delete old events")

    def note(self, kind: str, **details: Any) -> None:  # noqa: ANN401 - each kind has its own
        """Take in an event that happens now; see `statekeep.checkpoint.note.Note`."""
        event = (self._clock.time_ns() // 1_000_000, kind, details)
        if self._recorder is None:
            self._waiting.append(event)
        else:
            self._recorder.add(*event)
            self._recorder.flush_if_due()

    def look(self) -> None:
        """Begin to write events that have waited for long enough; costs nothing if there are none."""
        if self._recorder is not None:
            self._recorder.flush_if_due()

    async def end(self, error: BaseException | None = None, **details: Any) -> None:  # noqa: ANN401
        """Note that the task has stopped, write what is left, for a few seconds at most, and close.

        Args:
            error: Why it stopped; None if it was asked to.
            details: Of the last event.
        """
        if self._recorder is not None:
            if isinstance(error, TaskFencedError):
                self.note("fenced", own_epoch=error.own_epoch, newer_epoch=error.newer_epoch)
            self.note("stopped", error=None if error is None else summary_of(error), **details)
            await self._recorder.finish()
        if self._deleting is not None:
            self._deleting.cancel()
            await asyncio.wait({self._deleting})
        await self._store.close()
