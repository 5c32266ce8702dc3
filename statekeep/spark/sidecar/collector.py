"""What a sidecar has seen of uploads, restores and requests, until a message takes it to the driver."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from statekeep.checkpoint.serde import encode_events
from statekeep.events import Event, RequestDone

_MOST_REQUESTS: Final = 32
"""Of one upload or restore that are kept one by one; the rest is counted."""


class EventCollector:
    """Keeps events by task. Used by any thread; bounded, whether or not anyone takes them."""

    def __init__(self) -> None:
        self._by_task: dict[str, list[Event]] = {}
        self._counted: dict[tuple[str, str, str, str], RequestDone] = {}
        """Requests beyond `_MOST_REQUESTS`, and those of no task, by all that tells them apart."""
        self._changing = threading.RLock()

    def begin(self, task: str) -> None:
        """Forget what was not taken: an upload or restore of the task begins."""
        with self._changing:
            self._by_task[task] = []

    def report(self, event: Event) -> None:
        """Take in an event; see `statekeep.events.Report`."""
        with self._changing:
            match event:
                case RequestDone():
                    of_task = self._by_task.get(event.task)
                    if of_task is None or len(of_task) >= _MOST_REQUESTS:
                        self._count(event)
                    else:
                        of_task.append(event)
                case _:
                    self._by_task.setdefault(getattr(event, "task", ""), []).append(event)

    def take(self, task: str) -> bytes:
        """Return, and forget, what was seen of a task, and requests that belong to none."""
        with self._changing:
            found = list(self._taken(task))
        return encode_events(found)

    def take_counts(self, task: str) -> bytes:
        """Return how many requests there were, as `take`, and forget the rest."""
        with self._changing:
            for event in self._by_task.pop(task, ()):
                if isinstance(event, RequestDone):
                    self._count(event)
            return self.take(task)

    def _taken(self, task: str) -> Iterator[Event]:
        yield from self._by_task.pop(task, ())
        yield from self._counted.values()
        self._counted = {}

    def _count(self, event: RequestDone) -> None:
        key = (event.backend, event.operation, event.outcome, event.purpose)
        known = self._counted.get(key)
        self._counted[key] = replace(
            event,
            task="",
            count=event.count + (0 if known is None else known.count),
            elapsed_ns=event.elapsed_ns + (0 if known is None else known.elapsed_ns),
        )
