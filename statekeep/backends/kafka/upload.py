"""One store's part of one commit: what has to be written so that its changelog holds the version.

Two ways lead there. An *increment* writes the changes since the committed base, and sets every key
of the tail (what stands behind the base's marker, whichever process wrote it) to its value in the version. A *full*
upload does the same with the beginning of the topic in place of the base: every key of the topic
that the version has not becomes a tombstone, and every key of the version is written. So it is made
only where the topic is known to be the job's own.
"""

from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final

from confluent_kafka import Message

from statekeep.backends.awaiting import run_to_end
from statekeep.backends.base import BlockingExecutor, CommitContext
from statekeep.backends.kafka.epochs import EpochStamp, Owners, check_epoch
from statekeep.backends.kafka.images import (
    are_few,
    changes_in_order,
    find_beside,
    merged_changes,
    opened_image,
)
from statekeep.backends.kafka.marker import ContentSummary, KafkaStateCheckpointMarker
from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.reader import PartitionReader
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.backends.kafka.writer import ChangelogWriter
from statekeep.checkpoint.checkpoints import StoreName, VersionId
from statekeep.clock import Clock
from statekeep.errors import CheckpointCorruptError, RetriableError, VersionDamagedError
from statekeep.fault_points import fault_point
from statekeep.stores.base import KeyValueStore
from statekeep.stores.delta import Change
from statekeep.stores.version import SealedVersion

_CHUNK_KEYS: Final = 10_000
_CHUNK_BYTES: Final = 4 << 20
_LOOK_UP_KEYS: Final = 16
_MAX_KNOWN_BYTES: Final = 64 << 20
"""Of all keys that are known to be written; others may be written again, which is as right."""
_BYTES_PER_KEY: Final = 100
"""What the interpreter takes for each key beside its own bytes, about."""


@dataclass(frozen=True, slots=True)
class StorePartition:
    """Where one store's changes go, as the cluster has it at the start of an upload."""

    partition: ChangelogPartition
    topic_id: str
    start: int
    """Offset of the oldest record."""
    end: int
    """Offset behind the newest record, uncommitted ones included."""


class WrittenKeys:
    """Which keys an upload has set already to what they are in its version: once is enough.

    Keeps the first keys, as many as fit in memory. Not the last ones: an aborted attempt repeats what
    the one before has written in the same order.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._keys: set[bytes] = set()
        self._bytes = 0

    def new(self, keys: Iterable[bytes]) -> Sequence[bytes]:
        """Return those that are not known to be written, each once; they are about to be."""
        found = [key for key in dict.fromkeys(keys) if key not in self._keys]
        for key in found:
            self._bytes += len(key) + _BYTES_PER_KEY
            if self._bytes > _MAX_KNOWN_BYTES:
                break
            self._keys.add(key)
        return found

    def left(self, changes: Iterable[Change]) -> Sequence[Change]:
        """Return the changes of other keys."""
        return [change for change in changes if change[0] not in self._keys]


@dataclass(slots=True)
class StoreUpload:
    """Brings one store's changelog to one version. Used once, by one coroutine."""

    settings: KafkaSettings
    commit: CommitContext
    store: StoreName
    at: StorePartition
    base: KafkaStateCheckpointMarker | None
    """Marker of the committed base, if an increment may build on it."""
    changes: Sequence[Path] | None
    """The deltas since the base, if they are at hand."""
    is_known_own: bool
    """Whether the committed base names records of this topic, so that it is the job's."""
    stamp: EpochStamp
    writer: ChangelogWriter
    executor: BlockingExecutor
    clock: Clock
    uid: str
    """Never used before; names work directories."""
    seen: dict[ChangelogPartition, tuple[StorePartition, Owners]] = field(
        default_factory=dict[ChangelogPartition, tuple[StorePartition, Owners]]
    )
    """What earlier uploads of the task have read: it is not read again while nothing is added."""
    record_count: int = field(default=0, init=False)

    async def run(self) -> KafkaStateCheckpointMarker:
        """Write what is missing, and return the marker but for its offset if anything was written.

        The caller commits the transaction and then asks the writer for the offset.
        """
        await self.writer.commit_if_old()
        base = self.base
        if base is not None and self._may_lack(base):
            base = None
        increment = None if base is None else await self._increment(base)
        if base is None or increment is None:
            return await self._write_all()
        changes, content = increment
        written = WrittenKeys()
        if self._has_tail(base):
            await self._require_own()
            async with self._image(self.commit.version, "v") as image:
                await self._mend(image, self._after(base), written, is_full=False)
        while chunk := await run_to_end(self.executor, _next_chunk, changes):
            left = written.left(chunk)
            await (self._write(left) if left else self.writer.commit_if_old())
        return replace(self._marker(content, base.offset), is_transactional=base.is_transactional)

    async def finish(self, marker: KafkaStateCheckpointMarker) -> KafkaStateCheckpointMarker:
        """Return what `run` gave with its offset, after the writer has committed.

        Raises:
            RetriableError: The cluster did not say where the records are, or another writer's are
                among them.
        """
        if not self.record_count:
            return marker
        offset = self.writer.offsets.get(self.at.partition)
        if offset is None:
            raise RetriableError(f"offset of the records is unknown: partition={self.at.partition}")
        await self._require_unmixed(offset + 1)
        return replace(marker, offset=offset, is_transactional=self.writer.is_transactional)

    async def _require_unmixed(self, end: int) -> None:
        """Make sure that up to ``end`` no other process has written between this upload's records.

        A record ends each transaction, the last one behind ``end``. Where that does not add up the
        records are counted: the transaction before the first may just have ended.
        """
        ends = max(0, self.writer.commit_counts.get(self.at.partition, 0) - 1)
        if end - self.at.end == self.record_count + ends:
            return
        base, found = self.base, 0

        def count(records: list[Message]) -> None:
            nonlocal found
            found += len(records)

        start = self.at.end if base is None or self._has_tail(base) else self._after(base)
        await self._read(start, count, end=end, is_committed_only=False)
        if found != self.record_count:
            raise RetriableError(
                f"another writer has written to the changelog meanwhile: partition={self.at.partition} "
                f"records={self.record_count} found={found}"
            )

    @property
    def is_full(self) -> bool:
        """Whether there is no base to build on."""
        return self.base is None

    async def _increment(
        self, base: KafkaStateCheckpointMarker
    ) -> tuple[Iterator[Change], ContentSummary] | None:
        """Return the changes since the base and what the content adds up to with them.

        None where they are not at hand.
        """
        base_version, paths = self.commit.base_version, self.changes
        if base_version is None or paths is None:
            return None
        try:
            is_merged = await run_to_end(self.executor, are_few, paths)
        except FileNotFoundError:
            return None
        if not is_merged:
            return changes_in_order(paths), await self._add_up_version()
        changes = await run_to_end(self.executor, merged_changes, paths)
        content = await self._replaced(base.content, base_version, changes)
        if content is None:
            content = await self._add_up_version()
        return iter(changes.items()), content

    async def _replaced(
        self, content: ContentSummary, version: VersionId, changes: Mapping[bytes, bytes | None]
    ) -> ContentSummary | None:
        """Return what a version's content adds up to after some changes.

        None where its image, which has the values that they replace, is not at hand.
        """
        if not changes:
            return content
        before = await run_to_end(self.executor, find_beside, self.commit.version, version)
        if before is None:
            return None
        entries = iter(changes.items())
        try:
            async with self._image(before, "b") as image:
                while chunk := await run_to_end(self.executor, _next_chunk, entries):
                    content = await run_to_end(self.executor, _replace, content, chunk, image)
                    await self.writer.commit_if_old()
        except (VersionDamagedError, FileNotFoundError):  # dropped meanwhile
            return None
        return content

    async def _add_up_version(self) -> ContentSummary:
        async with self._image(self.commit.version, "s") as image:
            return await self._add_up(image, lambda _: self.writer.commit_if_old())

    async def _add_up(
        self, image: KeyValueStore, take: Callable[[Sequence[Change]], Awaitable[None]]
    ) -> ContentSummary:
        """Scan an image, hand its entries on, and return what they add up to."""
        content = ContentSummary()
        entries = image.scan()
        while chunk := await run_to_end(self.executor, _next_chunk, entries):
            content = await run_to_end(self.executor, _add, content, chunk)
            await take(chunk)
        return content

    async def _write_all(self) -> KafkaStateCheckpointMarker:
        self.base = None
        async with self._image(self.commit.version, "v") as image:
            if self.at.end > self.at.start:
                try:
                    await self._require_own()
                    await self._mend(image, self.at.start, WrittenKeys(), is_full=True)
                except CheckpointCorruptError as exc:
                    exc.add_note("hint: delete the topic; the next commit fills it anew")
                    raise
            content = await self._add_up(image, self._write)
        return self._marker(content, None)

    async def _require_own(self) -> None:
        """Make sure that no other job's records are replaced, before any is written.

        Records that were never committed have no owner.

        Raises:
            ConfigError: They are another job's, or nothing says that they are ours.
        """
        if self.is_known_own:
            return
        at, owners = self.seen.get(self.at.partition, (None, Owners(self.stamp, self.at.partition)))
        if at != self.at:
            owners = Owners(self.stamp, self.at.partition)
            await self._read(self.at.start, owners.take, is_committed_only=True)
            self.seen[self.at.partition] = self.at, owners
        owners.check()

    async def _mend(
        self, image: KeyValueStore, start: int, written: WrittenKeys, *, is_full: bool
    ) -> None:
        """Set every key that stands from ``start`` on to its value in the version, once.

        Also keys of aborted and open transactions: writing what the version holds never harms. A
        full upload writes the keys that the version has anyway.
        """
        found: list[list[bytes]] = []

        def take(records: list[Message]) -> None:
            for record in records:
                check_epoch(self.stamp, record.headers(), self.at.partition.topic)
            found.append([key for record in records if (key := record.key()) is not None])

        async def write_found() -> None:
            while found:
                entries = _looked_up(image, written.new(found.pop()))
                while chunk := await run_to_end(self.executor, _next_chunk, entries):
                    await self._write([e for e in chunk if e[1] is None or not is_full])

        await self._read(start, take, is_committed_only=False, then=write_found)
        fault_point("upload.after_tail")

    async def _read(
        self,
        start: int,
        take: Callable[[list[Message]], object],
        *,
        is_committed_only: bool,
        end: int | None = None,
        then: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Hand the records from ``start`` on to ``take``, and await ``then`` after each batch.

        Without an ``end``, to where the partition ended at the start.
        """
        reader = PartitionReader(
            self.settings,
            self.at.partition,
            start,
            self.at.end if end is None else end,
            is_committed_only=is_committed_only,
            executor=self.executor,
            clock=self.clock,
            calls=self.writer.calls,
        )
        try:
            await reader.open()
            while not reader.is_done:
                await self.writer.commit_if_old()
                await reader.next(take)
                if then is not None:
                    await then()
        finally:
            await reader.close()

    async def _write(self, chunk: Sequence[Change]) -> None:
        await self.writer.write(self.at.partition, chunk, self.stamp.headers)
        self.record_count += len(chunk)

    @asynccontextmanager
    async def _image(self, version: SealedVersion, use: str) -> AsyncGenerator[KeyValueStore]:
        """Open a version's image, once for each use; closed on a pool thread too."""
        stack = ExitStack()
        opened = opened_image(version, self.store, f"{self.uid}{use}")
        try:
            yield await run_to_end(self.executor, stack.enter_context, opened)
        finally:
            await run_to_end(self.executor, stack.close)

    def _has_tail(self, base: KafkaStateCheckpointMarker) -> bool:
        """Whether anything but the base's own commit record stands behind its marker."""
        if base.offset is None:
            return self.at.end > self.at.start
        # The record that ends the base's last transaction takes one offset; while it is there,
        # no other process can have written between it and the marker.
        return self.at.end != base.offset + (2 if base.is_transactional else 1)

    def _may_lack(self, base: KafkaStateCheckpointMarker) -> bool:
        """Whether keys of the base may be gone without a trace.

        A tombstone in the tail lets the base's record of its key be compacted away, and goes itself
        after a while: then no upload would write that key again.
        """
        committed = self.commit.base
        if committed is None or not self._has_tail(base):
            return False
        age_ms = self.clock.time_ns() // 1_000_000 - committed.checkpoint_id.millis
        return age_ms > self.settings.traceable_ms(self.store)

    def _after(self, base: KafkaStateCheckpointMarker) -> int:
        return self.at.start if base.offset is None else max(base.offset + 1, self.at.start)

    def _marker(self, content: ContentSummary, offset: int | None) -> KafkaStateCheckpointMarker:
        return KafkaStateCheckpointMarker(
            topic=self.at.partition.topic,
            partition=self.at.partition.partition,
            offset=offset,
            topic_id=self.at.topic_id,
            version=str(self.commit.version.id),
            content=content,
            start=self.at.start,
        )


def _replace(
    content: ContentSummary, changes: Sequence[Change], before: KeyValueStore
) -> ContentSummary:
    """Return the content after some changes of different keys."""
    old = _looked_up(before, [key for key, _ in changes])
    return content.changed(
        (key, value, new) for (key, new), (_, value) in zip(changes, old, strict=True)
    )


def _looked_up(store: KeyValueStore, keys: Iterable[bytes]) -> Iterator[Change]:
    """Yield keys with their values, few at a time: each value may be of many megabytes."""
    left = iter(keys)
    while few := list(islice(left, _LOOK_UP_KEYS)):
        yield from zip(few, store.get_many(few), strict=True)


def _next_chunk(entries: Iterator[Change]) -> list[Change]:
    """Take some thousand entries, but not many megabytes."""
    chunk: list[Change] = []
    size = 0
    for entry in islice(entries, _CHUNK_KEYS):
        chunk.append(entry)
        size += len(entry[0]) + len(entry[1] or b"")
        if size >= _CHUNK_BYTES:
            break
    return chunk


def _add(content: ContentSummary, chunk: Sequence[Change]) -> ContentSummary:
    return content.plus(ContentSummary.of((k, v) for k, v in chunk if v is not None))
