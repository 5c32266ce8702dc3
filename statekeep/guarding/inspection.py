"""What a checkpoint location holds, what of it is damaged, and up to which batch it is sound."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from statekeep.backends.base import BlockingExecutor
from statekeep.guarding.batch_files import (
    BatchFiles,
    Operator,
    damage_of_open_batch,
    files_of_batch,
    sound_files_of_batch,
)
from statekeep.guarding.orphans import orphans_of
from statekeep.guarding.spark_location import Batch, Damage, DamageError, SparkLocation
from statekeep.guarding.store_files import parts_of_name, provider_of

_LOGS_OF_A_QUERY: Final = 2
"""``offsets`` and ``commits``, each of which gets a file from each batch."""
_LISTINGS: Final = 3
"""How often a location is looked at anew: files may have gone because the query went on."""


@dataclass(frozen=True, slots=True)
class InspectedStore:
    """All partitions of one store of an operator."""

    operator: int
    operator_name: str
    store: str
    partitions: int
    files: int
    bytes: int
    files_per_batch: float
    """What a batch leaves on average, in all partitions together."""


@dataclass(frozen=True, slots=True)
class InspectedLocation:
    """What was found."""

    location: str
    """Without secrets."""
    files: int
    """Hadoop's checksum files included."""
    bytes: int
    batches: Sequence[int]
    """Those with a commit file, oldest first."""
    open_batch: int | None
    """The batch that was begun and is not committed."""
    formats: Mapping[str, int]
    """Versions of the ``offsets``, ``commits`` and ``checkpoint`` of the newest batch that can be read."""
    began_ms: int
    """When that batch was begun, by the clock of its driver; 0: it is not known."""
    interval_ms: int | None
    """From the begin of a batch to that of the next one, on average; None: it is not known."""
    writes_per_batch: float
    """Files that a batch writes on average, without Hadoop's checksums: requests to an object store, at least."""
    provider: str
    stores: Sequence[InspectedStore]
    damage: Sequence[tuple[int, Damage]]
    """Of each batch that was looked at, and of the open one."""
    avoided: Sequence[Damage]
    looked_at: Sequence[int]
    sound: Sequence[int]
    """Those of `looked_at` after which Spark can go on."""
    orphans: Mapping[str, int] | None
    """Files that no batch needs, with their sizes; None: not every batch was looked at, or one is damaged."""

    @property
    def newest_sound(self) -> int | None:
        """Return the newest batch after which Spark can go on; None: none that was looked at."""
        return max(self.sound, default=None)

    @property
    def is_sound(self) -> bool:
        """Return whether nothing is wrong with what was looked at."""
        return not self.damage and not self.avoided and bool(self.sound or not self.batches)


async def inspect_location(
    uri: str,
    executor: BlockingExecutor,
    *,
    is_deep: bool = False,
    looks_at_all: bool = False,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> InspectedLocation:
    """Look at batches from the newest down to the first that is sound.

    Args:
        uri: Of the location, as Spark names it; the query may run meanwhile.
        executor: For blocking calls.
        is_deep: Read every file too.
        looks_at_all: Look at every batch that is there.
        on_bytes: Called with the size of each file that was read.

    Raises:
        ConfigError: The location cannot be reached.
        CheckpointLocationError: It is not the location of a query.
        UnknownFormatError: A newer Spark wrote it.
    """
    listings = 0
    before: set[Damage] = set()
    while True:
        location = await executor.run(SparkLocation.open, uri)
        looks = await _look(location, executor, on_bytes if is_deep else None, is_all=looks_at_all)
        begun = await executor.run(damage_of_open_batch, location)
        listings += 1
        damage = {one for look in looks for one in look.damage} | {one for _, one in begun}
        if damage <= before or listings == _LISTINGS:
            orphans = None
            if looks_at_all and not damage:
                orphans = await executor.run(orphans_of, location, looks)
            return _summary(location, looks, begun, orphans)
        before = damage


async def _look(
    location: SparkLocation,
    executor: BlockingExecutor,
    on_bytes: Callable[[int], None] | None,
    *,
    is_all: bool,
) -> list[BatchFiles]:
    """Look at batches; read their files where ``on_bytes`` is given."""
    committed = location.numbers("commits")
    looks: list[BatchFiles] = []
    for number in reversed(committed):
        if number == committed[0] and number > 0 and looks:
            break  # Spark needs the batch before too, whose offsets it has deleted
        if on_bytes is None:
            looks.append(await files_of_batch(location, number, executor))
        else:
            looks.append(await sound_files_of_batch(location, number, executor, on_bytes))
        if not is_all and not looks[-1].damage:
            break
    return looks


def _summary(
    location: SparkLocation,
    looks: Sequence[BatchFiles],
    begun: Sequence[tuple[int, Damage]],
    orphans: Mapping[str, int] | None,
) -> InspectedLocation:
    committed = location.numbers("commits")
    known = next((look for look in looks if look.batch is not None), None)
    batch = None if known is None else known.batch
    stores = _stores(location, [] if known is None else known.operators)
    return InspectedLocation(
        location=location.location.shown,
        files=len(location.found),
        bytes=sum(file.size for file in location.found.values()),
        batches=committed,
        open_batch=location.open_batch(),
        formats=_formats_of(batch),
        began_ms=0 if batch is None else batch.began_ms,
        interval_ms=_interval_ms(location, batch),
        writes_per_batch=_writes_per_batch(location, stores),
        provider="" if batch is None else provider_of(batch),
        stores=stores,
        damage=[*begun, *((look.number, damage) for look in looks for damage in look.damage)],
        avoided=sorted({damage for look in looks for damage in look.avoided}),
        looked_at=[look.number for look in looks],
        sound=[look.number for look in looks if not look.damage],
        orphans=orphans,
    )


def _formats_of(batch: Batch | None) -> Mapping[str, int]:
    if batch is None:
        return {}
    checkpoint = 2 if batch.state_ids else 1
    return {"offsets": batch.offsets_format, "commits": batch.format, "checkpoint": checkpoint}


def _interval_ms(location: SparkLocation, newest: Batch | None) -> int | None:
    """Return how far apart batches were begun, by the oldest one of which that can be read."""
    if newest is None or not newest.began_ms:
        return None
    for number in location.numbers("offsets"):
        with suppress(DamageError):
            began_ms = location.began_ms(number)
            if number < newest.number and 0 < began_ms <= newest.began_ms:
                return (newest.began_ms - began_ms) // (newest.number - number)
    return None


def _writes_per_batch(location: SparkLocation, stores: Sequence[InspectedStore]) -> float:
    logs = sum(1 for d in location.directories if re.fullmatch(r"sources/[0-9]+", d))
    return round(_LOGS_OF_A_QUERY + logs + sum(store.files_per_batch for store in stores), 1)


def _stores(location: SparkLocation, operators: Sequence[Operator]) -> list[InspectedStore]:
    """Sum up the files of each store; those of RocksDB lie in directories below it."""
    files: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for path, file in location.found.items():
        directory = path.rpartition("/")[0]
        for below in ("/SSTs", "/logs", "/_metadata"):
            directory = directory.removesuffix(below)
        files[directory] += 1
        sizes[directory] += file.size
    found: list[InspectedStore] = []
    for operator in operators:
        for name, partitions in operator.stores.items():
            own = [s.directory for s in operator.state_stores() if s.name == name]
            parts = [parts_of_name(name) for d in own for name in location.names(d)]
            versions = {part.version for part in parts if part is not None}
            count = sum(files[directory] for directory in own)
            found.append(
                InspectedStore(
                    operator.number,
                    operator.name,
                    name,
                    partitions,
                    count,
                    sum(sizes[directory] for directory in own),
                    round(count / len(versions), 1) if versions else 0.0,
                )
            )
    return found
