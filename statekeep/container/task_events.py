"""What happens to one task in plain Python, or to copies of a location, written down beside their log."""

import asyncio
from typing import Any

from typing_extensions import override

from statekeep.checkpoint.event_log import EventRecorder
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.clock import Clock
from statekeep.config.job_settings import JobSettings
from statekeep.events import Event, EventSource, Listener


class TaskEvents(Listener):
    """A listener that writes the events of one log's owner in batches; never in the way of the owner.

    Nothing is written before `begin`: until then the epoch is not known, and events wait. There is
    no timer: each event calls `poll`, and so do callers now and then.

    Used by one event loop.
    """

    def __init__(self, settings: JobSettings, clock: Clock) -> None:
        """Take what is needed; nothing is written yet.

        Args:
            settings: How long events may wait, and how many.
            clock: Says when a flush is due.
        """
        self._store: CheckpointStore | None = None
        self._settings = settings
        self._clock = clock
        self._waiting: list[tuple[int, str, dict[str, Any]]] = []
        self._recorder: EventRecorder | None = None
        self._deleting: asyncio.Task[None] | None = None

    def begin(self, epoch: int, store: CheckpointStore) -> None:
        """Write events from now on.

        Args:
            epoch: This owner's alone.
            store: Gets the segments; closed by `end`.
        """
        self._store = store
        self._recorder = EventRecorder(store, epoch, self._settings, self._clock)
        for seen in self._waiting:
            self._recorder.add(*seen)
        self._waiting.clear()
        self._deleting = asyncio.create_task(self._recorder.delete_old(), name="delete old events")

    @override
    def on_event(self, event: Event, source: EventSource, /) -> None:
        if not event.is_recorded:
            return
        seen = (source.time_ns // 1_000_000, event.kind, event.details())
        if self._recorder is None:
            self._waiting.append(seen)
        else:
            self._recorder.add(*seen)
            self._recorder.flush_if_due()

    @override
    def close(self) -> None:
        """What is left is written by `end`."""

    def poll(self) -> None:
        """Begin to write events that have waited for long enough; costs nothing if there are none."""
        if self._recorder is not None:
            self._recorder.flush_if_due()

    async def end(self) -> None:
        """Write what is left, for a few seconds at most, and close."""
        if self._recorder is not None:
            await self._recorder.finish()
        if self._deleting is not None:
            self._deleting.cancel()
            await asyncio.wait({self._deleting})
        if self._store is not None:
            await self._store.close()
