"""What happened in a query, as data: for ``query.events``, for tests and for people."""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from statekeep.clock import Clock

logger = logging.getLogger(__name__)

_KEPT: Final = 1000


@dataclass(frozen=True, slots=True)
class QueryEvent:
    """One thing that happened."""

    kind: str
    """``started``, ``batch``, ``commit``, ``recovery``, ``healed-output`` or ``clean-up``."""
    time_ms: int
    """Wall clock of the driver; a label."""
    details: dict[str, Any] = field(default_factory=dict[str, Any])


class EventList:
    """The newest events of a query; appended by the batch thread and the commit thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: deque[QueryEvent] = deque(maxlen=_KEPT)

    def add(self, kind: str, **details: Any) -> None:  # noqa: ANN401 - each kind has its own
        """Append an event."""
        self._events.append(QueryEvent(kind, self._clock.time_ns() // 1_000_000, details))

    def snapshot(self) -> Sequence[QueryEvent]:
        """Return the events so far, oldest first."""
        return list(self._events)
