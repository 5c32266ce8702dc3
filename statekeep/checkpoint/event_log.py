"""Progress events of a job: what happened, how much, how long. Useful to people, needed by nobody.

What decides is the job log; these events may be lost, and a job goes on without them. They lie in
segments beside the task checkpoints, ``events-<epoch>/<number>`` in the checkpoint store: immutable,
numbered from 0 within an epoch, each a frame (`statekeep.checkpoint.framing`) of one JSON document a
line. A long reign goes on in ``events-<epoch>.a`` and ``events-<epoch>.b``, each of which is deleted
and begun anew when the other is full: its beginning is kept, and its newest events.

Source: Flink 1.20 ``JobEventStore`` (FLIP-383): a buffer, a flush interval, a new file for each
reign, a truncated tail that is skipped. Different on purpose: checksums and sequence numbers; a
failed flush is tried again instead of ending the recording; the decisive records are not in here.
"""

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate, islice, takewhile
from typing import Any, Final

import msgspec

from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.decoding import decode_json
from statekeep.checkpoint.framing import frame, unframe
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.clock import Clock
from statekeep.errors import CheckpointCorruptError, StateBackupError, UnknownFormatError

logger = logging.getLogger(__name__)

KEPT_REIGNS: Final = 10
"""The newest reigns whose events are kept."""

_KIND: Final = "events"
_SEGMENT_BYTES: Final = 512 * 1024
"""Above it a segment is cut: a broker of Kafka takes no more than 1 MB at once."""

_VOLUME_SEGMENTS: Final = 2_000
"""Of each place: five hours of a job that has something to tell in each flush interval."""

_NS_PER_MS: Final = 1_000_000


class Event(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """One thing that happened."""

    epoch: int
    """The reign in which it happened."""
    sequence: int
    """Counts the events of the epoch from 0: a gap is an event that was lost."""
    time_ms: int
    """Wall clock of whoever saw it; a label."""
    kind: str
    """Such as ``job-initialised`` or ``task-uploaded``."""
    details: dict[str, Any]
    """Numbers, text and lists, by name."""


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Event)


class EventWriter:
    """Gathers the events of one reign and writes them in segments.

    Used by one event loop. `add` never waits and never fails; `flush` is awaited now and then by
    whoever owns the writer, and at the end.
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
            epoch: The reign; its segments are nobody else's.
            clock: Stamps events and tells when a flush is due.
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
        """Take in an event that somebody saw at ``time_ms``; otherwise as `add`."""
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
        place = _place_of(self._epoch, volume)
        try:
            if volume and not number:
                await self._store.delete(place)
            await self._store.write(place, TaskName(f"{self._segment:06d}"), data)
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
        # Unlike in a failed write, nothing is left to do for these lines, whoever added meanwhile.
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


async def read_events(store: CheckpointStore, epochs: Iterable[int]) -> Sequence[Event]:
    """Return the events of some reigns, in order of epoch and sequence.

    A segment that is truncated or damaged, or that a newer release wrote, is skipped with a warning.

    Raises:
        RetriableError: The service may answer later.
    """
    events: list[Event] = []
    for epoch in sorted(epochs):
        segments: dict[TaskName, bytes] = {}
        for place in _places(epoch):
            segments |= await store.read(place)
        for name in sorted(segments, key=lambda name: (len(name), name)):
            try:
                events += decode_segment(segments[name], where=f"epoch={epoch} segment={name}")
            except (CheckpointCorruptError, UnknownFormatError) as exc:
                logger.warning("segment of events is skipped: error=%s", exc)
    return events


async def delete_events(store: CheckpointStore, epoch: int) -> None:
    """Delete the events of a reign. Idempotent."""
    for place in _places(epoch):
        await store.delete(place)


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


def _places(epoch: int) -> Sequence[str]:
    """Return where the events of a reign may lie."""
    first = f"events-{epoch}"
    return (first, f"{first}.a", f"{first}.b")


def _place_of(epoch: int, volume: int) -> str:
    first, *others = _places(epoch)
    return others[(volume - 1) % len(others)] if volume else first
