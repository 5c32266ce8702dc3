"""What happened in a query, as data: for ``query.events``, for tests and for people."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from statekeep.clock import Clock

_KEPT: Final = 1000


@dataclass(frozen=True, slots=True)
class QueryEvent:
    """One thing that happened."""

    kind: str
    """One of those that ``docs/reference/formats.md`` lists under "Progress events"."""
    time_ms: int
    """Wall clock of the driver; a label."""
    details: dict[str, Any] = field(default_factory=dict[str, Any])


class EventList:
    """The newest events of a query, over all its restarts; added to by any thread.

    While a reign writes events down, each one is passed on to it; what happens between two reigns
    waits for the next one.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: deque[QueryEvent] = deque(maxlen=_KEPT)
        self._waiting: deque[QueryEvent] = deque(maxlen=_KEPT)
        self._write_down: Callable[[QueryEvent], None] | None = None
        self._adding = threading.Lock()

    def add(self, kind: str, **details: Any) -> None:  # noqa: ANN401 - each kind has its own
        """Append an event."""
        event = QueryEvent(kind, self._clock.time_ns() // 1_000_000, details)
        with self._adding:
            self._events.append(event)
            if self._write_down is None:
                self._waiting.append(event)
            else:
                self._write_down(event)

    def pass_to(self, write_down: Callable[[QueryEvent], None] | None) -> None:
        """Pass events on from now on, with those that wait; None: let them wait again.

        Args:
            write_down: Called by any thread that adds; must not wait.
        """
        with self._adding:
            self._write_down = write_down
            while self._waiting and write_down is not None:
                write_down(self._waiting.popleft())

    def snapshot(self) -> Sequence[QueryEvent]:
        """Return the events so far, oldest first."""
        with self._adding:
            return list(self._events)
