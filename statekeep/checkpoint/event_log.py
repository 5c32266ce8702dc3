"""Progress events of a job: what happened, how much, how long. For people; the job never reads them.

What decides is the job log; these events may be lost, and a job goes on without them. They lie in
segments beside the task checkpoints, ``events-<epoch>/<number>`` in the checkpoint store: immutable,
numbered from 0 within an epoch, each a frame (`statekeep.checkpoint.framing`) of one JSON document a
line. A long session goes on in ``events-<epoch>.a`` and ``events-<epoch>.b``, each of which is deleted
and begun anew when the other is full: its beginning is kept, and its newest events.

Source: Flink 1.20 ``JobEventStore`` (FLIP-383): a buffer, a flush interval, a new file for each
session, a truncated tail that is skipped. Different on purpose: checksums and sequence numbers; a
failed flush is tried again instead of ending the recording; the decisive records are not in here.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, islice, takewhile
from typing import Any, Final

import msgspec

from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.framing import decode_json, frame, unframe
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.clock import Clock
from statekeep.config.job_settings import JobSettings
from statekeep.errors import CheckpointCorruptError, StateBackupError, UnknownFormatError

logger = logging.getLogger(__name__)

_NS_PER_MS: Final = 1_000_000

KEPT_SESSIONS: Final = 10
"""The newest driver sessions whose events are kept."""

LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999: no time of a record or an event can be told after it."""

_KIND: Final = "events"
_SEGMENT_BYTES: Final = 512 * 1024
"""Above it a segment is cut: a broker of Kafka takes no more than 1 MB at once."""

_VOLUME_SEGMENTS: Final = 2_000
"""Of each folder: five hours of a job that has events in each flush interval."""


class Event(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """One thing that happened."""

    epoch: int
    """The epoch of the session in which it happened."""
    sequence: int
    """Counts the events of the epoch from 0: a gap is an event that was lost."""
    time_ms: int
    """Wall clock of the process that reported it; only a label."""
    kind: str
    """Such as ``job-initialised`` or ``task-uploaded``."""
    details: dict[str, Any]
    """Numbers, text and lists, by name."""


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Event)


class EventWriter:
    """Gathers the events of one driver session and writes them in segments.

    Used by one event loop. `add` never waits and never fails; the owner awaits `flush` now and
    then, and at the end.
    """

    def __init__(
        self,
        store: CheckpointStore,
        epoch: int,
        clock: Clock,
        *,
        flush_interval_ms: int,
        buffer_bytes: int,
    ) -> None:
        """Take what the writer needs; nothing is written yet.

        Args:
            store: Where the segments go; closed by its owner.
            epoch: The session's epoch; no other session writes these segments.
            clock: Stamps events and says when a flush is due.
            flush_interval_ms: How long an event may wait.
            buffer_bytes: A segment of this size does not wait; and as much at most is kept while
                the store cannot be reached, after that the oldest events are dropped.
        """
        self._store = store
        self._epoch = epoch
        self._clock = clock
        self._flush_interval_ns = flush_interval_ms * _NS_PER_MS
        self._buffer_bytes = buffer_bytes
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._dropped = 0
        self._sequence = 0
        self._segment = 0
        self._waiting_since_ns: int | None = None

    def add(self, kind: str, **details: Any) -> None:  # noqa: ANN401 - each kind has its own
        """Take in an event that happens now.

        Args:
            kind: Of the event.
            details: What JSON can hold.
        """
        self.add_seen(self._clock.time_ns() // _NS_PER_MS, kind, details)

    def add_seen(self, time_ms: int, kind: str, details: dict[str, Any]) -> None:
        """Add an event that was seen at ``time_ms``; otherwise as `add`."""
        event = Event(
            epoch=self._epoch,
            sequence=self._sequence,
            time_ms=time_ms,
            kind=kind,
            details=details,
        )
        self._sequence += 1
        self._lines.append(_encoder.encode(event))
        self._bytes += len(self._lines[-1]) + 1
        if self._waiting_since_ns is None:
            self._waiting_since_ns = self._clock.monotonic_ns()

    @property
    def is_due(self) -> bool:
        """Whether enough has been gathered, or waited for long enough, to be flushed."""
        if self._waiting_since_ns is None:
            return False
        waited_ns = self._clock.monotonic_ns() - self._waiting_since_ns
        return self._bytes >= self._buffer_bytes or waited_ns >= self._flush_interval_ns

    async def flush(self) -> None:
        """Write what was gathered in as few segments as will do.

        A failure is a warning, and is made up for. Not to be awaited twice at once.
        """
        while self._lines and await self._write_segment():
            pass

    async def _write_segment(self) -> bool:
        """Write the oldest events as one segment; False if that failed."""
        ends = accumulate(len(line) + 1 for line in self._lines)
        count = max(1, sum(1 for _ in takewhile(lambda end: end <= _SEGMENT_BYTES, ends)))
        lines = list(islice(self._lines, count))
        data = frame(_KIND, b"\n".join(lines))
        volume, number = divmod(self._segment, _VOLUME_SEGMENTS)
        folder = _folder_of(self._epoch, volume)
        try:
            if volume and not number:
                await self._store.delete(folder)
            await self._store.write(folder, TaskName(f"{self._segment:06d}"), data)
        except (StateBackupError, OSError) as exc:
            self._waiting_since_ns = self._clock.monotonic_ns()
            self._drop_oldest()
            logger.warning(
                "events could not be written: epoch=%d events=%d dropped=%d error=%s",
                self._epoch,
                len(self._lines),
                self._dropped,
                exc,
            )
            return False
        # Unlike in a failed write, nothing is left to do for these lines, also if more were added meanwhile.
        for line in lines:
            self._lines.popleft()
            self._bytes -= len(line) + 1
        self._segment += 1
        self._waiting_since_ns = self._clock.monotonic_ns() if self._lines else None
        return True

    def _drop_oldest(self) -> None:
        while self._bytes > self._buffer_bytes:
            self._bytes -= len(self._lines.popleft()) + 1
            self._dropped += 1


class EventReader:
    """Reads events as they come: each segment once. Used by one event loop."""

    def __init__(self, store: CheckpointStore) -> None:
        """Take the store, which its owner closes."""
        self._store = store
        self._known: dict[str, set[TaskName]] = {}

    async def read_new(self, epochs: Iterable[int]) -> Sequence[Event]:
        """Return the events of some sessions that no earlier call has read, by epoch and sequence.

        A segment that is truncated or damaged, or that a newer release wrote, is skipped with a
        warning.

        Raises:
            RetriableError: The service may answer later.
        """
        events: list[Event] = []
        found: dict[str, Mapping[TaskName, bytes]] = {}
        for epoch in sorted(epochs):
            segments: dict[TaskName, bytes] = {}
            for folder in _folders(epoch):
                found[folder] = await self._store.read(folder, known=self._known.get(folder, ()))
                segments |= found[folder]
            for name in sorted(segments, key=lambda name: (len(name), name)):
                try:
                    events += decode_segment(segments[name], where=f"epoch={epoch} segment={name}")
                except (CheckpointCorruptError, UnknownFormatError) as exc:
                    logger.warning("segment of events is skipped: error=%s", exc)
        for folder, new in found.items():  # not before: a call that fails has returned nothing
            self._known.setdefault(folder, set()).update(new)
        return events


async def read_events(store: CheckpointStore, epochs: Iterable[int]) -> Sequence[Event]:
    """Return the events of some sessions, as `EventReader.read_new` does."""
    return await EventReader(store).read_new(epochs)


async def delete_events(store: CheckpointStore, epoch: int) -> None:
    """Delete the events of a session. Idempotent."""
    for folder in _folders(epoch):
        await store.delete(folder)


def decode_segment(data: bytes, *, where: str) -> Sequence[Event]:
    """Read one segment back.

    Raises:
        CheckpointCorruptError: Truncated or damaged.
        UnknownFormatError: A newer version of Statekeep wrote it.
    """
    found = unframe(data, where=where)
    if found.kind != _KIND:
        raise CheckpointCorruptError(f"not a segment of events: {where} kind={found.kind}")
    damage = f"segment of events cannot be read: {where}"
    return [decode_json(_decoder, line, damage) for line in found.payload.split(b"\n")]


def _folders(epoch: int) -> Sequence[str]:
    """Return where the events of a session may lie."""
    first = f"events-{epoch}"
    return (first, f"{first}.a", f"{first}.b")


def _folder_of(epoch: int, volume: int) -> str:
    first, *others = _folders(epoch)
    return others[(volume - 1) % len(others)] if volume else first


_POLL_S: Final = 1.0
_TIMEOUT_S: Final = 5.0
"""How long the end of a job waits for its last events, which nothing depends on."""


class EventRecorder:
    """Writes the events of one driver session; deletes those of old sessions.

    Lives on the loop that makes it; `add` comes from any thread. Never in the way: whatever fails here is a warning. Its owner either awaits `run`, which looks
    after the flush interval by itself, or calls `flush_if_due` whenever it has the time.
    """

    def __init__(
        self, store: CheckpointStore, epoch: int, settings: JobSettings, clock: Clock
    ) -> None:
        """Take what is needed, on the loop; nothing is written yet.

        Args:
            store: Holds the segments; closed by its owner, after `finish`.
            epoch: The session's epoch.
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
        """Delete what is older than the newest sessions, then flush when due, until cancelled."""
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
        """Write what is left; gives up after `_TIMEOUT_S`. After `run` was cancelled."""
        last = asyncio.create_task(self._flush_rest())
        await asyncio.wait([last], timeout=_TIMEOUT_S)
        error = last.exception() if last.done() else None
        if error is not None or not last.done():
            last.cancel()
            logger.warning(
                "the last events could not be written: epoch=%d error=%s", self._epoch, error
            )

    async def _flush_rest(self) -> None:
        if self._flushing is not None:
            await self._flushing
        await self._writer.flush()

    async def delete_old(self) -> None:
        """Delete the events of as many sessions as are kept, so that failures are made up for."""
        newest = self._epoch - KEPT_SESSIONS
        try:
            for epoch in range(max(1, newest - KEPT_SESSIONS + 1), newest + 1):
                await delete_events(self._store, epoch)
        except (StateBackupError, OSError) as exc:
            logger.warning("old events could not be deleted: epoch=%d error=%s", self._epoch, exc)
