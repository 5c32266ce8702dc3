"""What a checkpoint location holds, what of it is damaged, and up to which batch it is sound."""

from collections import Counter
from collections.abc import Callable, Sequence
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
from statekeep.guarding.spark_location import Batch, Damage, SparkLocation
from statekeep.guarding.store_files import provider_of, versions_in

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
    provider: str
    checkpoint_format: int | None
    stores: Sequence[InspectedStore]
    damage: Sequence[tuple[int, Damage]]
    """Of each batch that was looked at, and of the open one."""
    avoided: Sequence[Damage]
    looked_at: Sequence[int]
    sound: Sequence[int]
    """Those of `looked_at` after which Spark can go on."""

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
            return _summary(location, looks, begun)
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
    location: SparkLocation, looks: Sequence[BatchFiles], begun: Sequence[tuple[int, Damage]]
) -> InspectedLocation:
    committed = location.numbers("commits")
    known = next((look for look in looks if look.batch is not None), None)
    return InspectedLocation(
        location=location.location.shown,
        files=len(location.found),
        bytes=sum(file.size for file in location.found.values()),
        batches=committed,
        open_batch=location.open_batch(),
        provider="" if known is None or known.batch is None else provider_of(known.batch),
        checkpoint_format=None if known is None else _format_of(known.batch),
        stores=_stores(location, [] if known is None else known.operators),
        damage=[*begun, *((look.number, damage) for look in looks for damage in look.damage)],
        avoided=sorted({damage for look in looks for damage in look.avoided}),
        looked_at=[look.number for look in looks],
        sound=[look.number for look in looks if not look.damage],
    )


def _format_of(batch: Batch | None) -> int | None:
    if batch is None:
        return None
    return 2 if batch.state_ids else 1


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
            versions = {v for d in own for v, _ in versions_in(location.names(d))}
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
