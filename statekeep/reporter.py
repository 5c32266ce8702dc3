"""Brings events to what listens: at once to the parts of the job, on a thread to the listeners of users."""

import logging
import threading
from collections import Counter, deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from statekeep.clock import Clock
from statekeep.events import (
    CommitDone,
    Event,
    EventSource,
    JobStopped,
    Listener,
    Report,
    RequestDone,
    RequestsCounted,
    report_nothing,
)

logger = logging.getLogger(__name__)

_MOST_WAITING: Final = 10_000
_COUNTS_APART_NS: Final = 60 * 10**9
_CLOSE_S: Final = 5.0
"""How long the end of a job waits for listeners, on which nothing depends."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What requests are made for."""

    purpose: str = ""
    task: str = ""


_NONE: Final = Activity()
_activity: ContextVar[Activity] = ContextVar("statekeep_activity", default=_NONE)


@contextmanager
def activity(purpose: str, task: str) -> Generator[None]:
    """Name what the requests of this context, and of asyncio tasks begun in it, are made for."""
    token = _activity.set(Activity(purpose, task))
    try:
        yield
    finally:
        _activity.reset(token)


def current_activity() -> Activity:
    """Return what the requests of this context are made for."""
    return _activity.get()


class ListenerThread:
    """Passes events on to listeners, on one thread that the first event starts."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        """Take the listeners, which it closes at the end.

        Args:
            listeners: Called in this order with each event.
        """
        self._listeners = tuple(listeners)
        self._waiting: deque[tuple[Event, EventSource]] = deque()
        self._dropped = 0
        self._has_failed: set[int] = set()
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def put(self, event: Event, source: EventSource) -> None:
        """Take in an event; any thread. Ignored after `close`."""
        with self._changed:
            if self._is_closing:
                return
            if self._thread is None:
                # A daemon: a listener that hangs must not keep the process from ending.
                self._thread = threading.Thread(
                    target=self._serve, name="statekeep-listeners", daemon=True
                )
                self._thread.start()
            if len(self._waiting) >= _MOST_WAITING:
                self._waiting.popleft()
                self._dropped += 1
                if self._dropped == 1:
                    logger.warning("listeners are slow: the oldest events are dropped")
            self._waiting.append((event, source))
            self._changed.notify()

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Deliver what waits, close the listeners, and end the thread. Idempotent.

        Args:
            timeout_s: How long to wait for a slow listener, whose thread is then left behind.
        """
        with self._changed:
            if self._is_closing:
                return
            self._is_closing = True
            self._changed.notify()
        if self._thread is None:
            self._close_listeners()
            return
        if self._thread is threading.current_thread():  # a listener ends its job; `_serve` goes on
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning(
                "listeners do not end, and are left behind: waiting=%d", len(self._waiting)
            )
        if self._dropped:
            logger.warning("listeners were slow: events_dropped=%d", self._dropped)

    def _serve(self) -> None:
        while (found := self._next()) is not None:
            for listener in self._listeners:
                try:
                    listener.on_event(*found)
                except BaseException as exc:  # noqa: BLE001 - a user's code: even its exit ends no other
                    self._log_failure(listener, found[0], exc)
        self._close_listeners()

    def _next(self) -> tuple[Event, EventSource] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            return self._waiting.popleft() if self._waiting else None

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            try:
                listener.close()
            except BaseException:
                logger.exception("a listener could not be closed: listener=%s", _name(listener))

    def _log_failure(self, listener: Listener, event: Event, error: BaseException) -> None:
        """Log a failure; with its stack once for each listener, which may fail at every event."""
        if id(listener) in self._has_failed:
            logger.debug("a listener failed: listener=%s event=%s", _name(listener), event.kind)
            return
        self._has_failed.add(id(listener))
        logger.error(
            "a listener failed; it gets the next events all the same (later failures are logged"
            " at level DEBUG): listener=%s event=%s",
            _name(listener),
            event.kind,
            exc_info=error,
        )


class Reporter:
    """Reports the events of one job, or of one task in plain Python; used by any thread."""

    def __init__(
        self,
        clock: Clock,
        job: str,
        task: str = "",
        *,
        parts: Sequence[Listener] = (),
        listeners: ListenerThread | None = None,
    ) -> None:
        """Take what is needed.

        Args:
            clock: Stamps events.
            job: Whose events they are.
            task: In plain Python.
            parts: Of the job itself: called at once, and never failing.
            listeners: Of users; None: there are none, and nothing is spent on them. Closed by its owner.
        """
        self._clock = clock
        self._job = job
        self._task = task
        self._parts = tuple(parts)
        self._listeners = listeners

    @property
    def has_listeners(self) -> bool:
        """Whether anything listens that wants to know all of an upload."""
        return self._listeners is not None

    def report(self, event: Event) -> None:
        """Report an event that happens now; see `statekeep.events.Report`."""
        source = EventSource(self._job, self._task, self._clock.time_ns())
        for part in self._parts:
            part.on_event(event, source)
        if self._listeners is not None:
            self._listeners.put(event, source)

    def report_rest(self) -> None:
        """Report what was added up since the end of the job was reported, such as its last clean-up."""
        for part in self._parts:
            if isinstance(part, RequestCounter):
                part.report_counts()


class RequestCounter(Listener):
    """A part of a job that adds requests up, and reports the sums now and then: with a commit, and at the end."""

    def __init__(self) -> None:
        """Count from 0; `report_to` says where the sums go."""
        self._counts: Counter[tuple[str, str]] = Counter()
        """By backend and operation."""
        self._reported_ns = 0
        self._report: Report = report_nothing
        self._adding = threading.Lock()

    def report_to(self, report: Report) -> None:
        """Report by this from now on: the reporter of the job, which has this as a part."""
        self._report = report

    @override
    def on_event(self, event: Event, source: EventSource, /) -> None:
        match event:
            case RequestDone():
                with self._adding:
                    self._counts[event.backend, event.operation] += event.count
            case CommitDone() if source.time_ns - self._reported_ns < _COUNTS_APART_NS:
                pass
            case CommitDone() | JobStopped():
                self._reported_ns = source.time_ns
                self.report_counts()
            case _:
                pass

    @override
    def close(self) -> None:
        """What has not been reported is lost."""

    def report_counts(self) -> None:
        """Report the requests since the report before, if there were any."""
        with self._adding:
            counts, self._counts = self._counts, Counter()
        by_backend: dict[str, dict[str, int]] = {}
        for (backend, operation), count in sorted(counts.items()):
            by_backend.setdefault(backend, {})[operation] = count
        if by_backend:
            self._report(RequestsCounted(by_backend))


def _name(listener: Listener) -> str:
    return type(listener).__qualname__
