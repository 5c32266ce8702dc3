"""Everything that a query needs to go on after one batch: which files, and whether they are sound."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from statekeep.backends.awaiting import run_all
from statekeep.backends.base import BlockingExecutor
from statekeep.guarding.spark_location import Batch, Damage, DamageError, SparkLocation
from statekeep.guarding.store_files import (
    StateStore,
    StoreFiles,
    check_content,
    codec_of,
    files_of_store,
)
from statekeep.inspection.spark_state import DEFAULT_STORE

_OF_ROCKSDB: Final = frozenset({"SSTs", "logs", "_metadata"})
"""Directories of a state store that are no stores."""
_PARTITIONS_KEY: Final = "spark.sql.shuffle.partitions"
_SOURCE_LOG: Final = re.compile(r"([0-9]+)(\.compact)?")
_NO_OFFSET: Final = "-"
"""What Spark writes for a source of which no batch has read anything."""


class _FileOffset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    log_offset: int = msgspec.field(name="logOffset")


_file_offset: Final = msgspec.json.Decoder(_FileOffset)


@dataclass(frozen=True, slots=True)
class Operator:
    """A stateful operator, as Spark has noted it when the query started."""

    number: int
    name: str
    """Such as ``stateStoreSave``; "" where Spark noted none."""
    stores: Mapping[str, int]
    """``{store: partitions}``"""
    metadata: str = ""
    """The file that says so."""
    schemas: Sequence[str] = ()
    """Files of ``_stateSchema`` that it names, relative to the location."""

    def state_stores(self) -> Iterator[StateStore]:
        """Yield each store of each partition."""
        for store, partitions in self.stores.items():
            for partition in range(partitions):
                yield StateStore(self.number, partition, store)


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """What there is of one batch."""

    number: int
    batch: Batch | None
    """None: its files in ``offsets`` or ``commits`` are damaged."""
    operators: Sequence[Operator]
    files: Sequence[str]
    """All that Spark reads to go on after the batch; not all of them where something is damaged."""
    damage: Sequence[Damage]
    """What keeps Spark from going on after it."""
    avoided: Sequence[Damage]
    """See `StoreFiles.avoided`."""


async def files_of_batch(
    location: SparkLocation, number: int, executor: BlockingExecutor
) -> BatchFiles:
    """Find the files that a query needs to go on after a committed batch. Reads no content of state.

    Raises:
        ConfigError: The location cannot be reached.
        UnknownFormatError: A newer Spark wrote it.
    """
    damage: list[Damage] = []
    avoided: list[Damage] = []
    files = ["metadata", f"commits/{number}", f"offsets/{number}"]
    previous = location.batch_before(number)
    if previous is not None:
        files.append(f"offsets/{previous}")
    try:
        await executor.run(location.query_id)
    except DamageError as exc:
        damage.append(exc.damage)
    try:
        batch = await executor.run(location.batch, number)
    except DamageError as exc:
        return BatchFiles(number, None, (), files, sorted([*damage, exc.damage]), ())
    for source, offset in batch.source_offsets.items():
        try:
            files += _source_files(location, source, offset)
        except DamageError as exc:
            damage.append(exc.damage)
    operators: list[Operator] = []
    for operator in _operator_numbers(location, batch):
        files += _descriptions(location, operator, number)
        try:
            operators.append(await executor.run(_operator, location, batch, operator))
        except DamageError as exc:
            damage.append(exc.damage)
    stores = [store for operator in operators for store in operator.state_stores()]
    found = await run_all(executor.run(_tried, location, store, batch) for store in stores)
    for one in found:
        if isinstance(one, Damage):
            damage.append(one)
        else:
            files += one.files
            avoided += one.avoided
    # Not all of them were looked at one by one above.
    damage += [Damage(f, location.damaged[f]) for f in set(files) & location.damaged.keys()]
    return BatchFiles(
        number, batch, operators, sorted(set(files)), sorted(set(damage)), sorted(set(avoided))
    )


def damage_of_open_batch(location: SparkLocation) -> list[tuple[int, Damage]]:
    """Return what keeps Spark from starting at all in what belongs to the batch that comes next.

    Spark reads the newest offsets first, and of a file source the whole log, which runs ahead of them.
    Blocks.
    """
    number = location.open_batch()
    found: list[Damage] = []
    if number is not None:
        try:
            location.check_offsets(number)
        except DamageError as exc:
            found.append(exc.damage)
    checked = [content_damage(location, file, "") for file in _ahead_in_sources(location)]
    next_batch = max(location.numbers("commits"), default=-1) + 1 if number is None else number
    return [(next_batch, one) for one in sorted([*found, *filter(None, checked)])]


def _ahead_in_sources(location: SparkLocation) -> Iterator[str]:
    """Yield what the logs of file sources have beyond the newest committed batch that can be read."""
    offsets = {path.split("/")[1]: _NO_OFFSET for path in location.below("sources")}
    for number in reversed(location.numbers("commits")):
        with suppress(DamageError):
            offsets |= location.batch(number).source_offsets
            break
    for source, offset in offsets.items():
        try:
            end = -1 if offset == _NO_OFFSET else _file_offset.decode(offset).log_offset
        except msgspec.DecodeError:  # of another source
            continue
        for name in location.names(f"sources/{source}"):
            match = _SOURCE_LOG.fullmatch(name)
            if match is not None and int(match[1]) > end:
                yield f"sources/{source}/{name}"


async def sound_files_of_batch(
    location: SparkLocation,
    number: int,
    executor: BlockingExecutor,
    on_bytes: Callable[[int], None],
) -> BatchFiles:
    """Do as `files_of_batch`, and read every file: older ones stand in for those that are damaged.

    Args:
        location: Remembers what is damaged.
        number: Of the batch.
        executor: For blocking calls.
        on_bytes: Called with the size of each file that was read.
    """
    checked: set[str] = set()
    while True:
        found = await files_of_batch(location, number, executor)
        if found.batch is None:
            return found
        codec = codec_of(found.batch)
        to_check = [file for file in found.files if file not in checked and file in location.found]
        damage = await run_all(
            executor.run(content_damage, location, file, codec) for file in to_check
        )
        checked.update(to_check)
        for file, what in zip(to_check, damage, strict=True):
            on_bytes(location.found[file].size)
            if what is not None:
                location.damaged[what.file] = what.what
        if not any(damage):
            return found


def content_damage(
    location: SparkLocation, file: str, codec: str, local: Path | None = None
) -> Damage | None:
    """Read a file; return what is wrong with it. Blocks; arguments and errors as of `check_content`."""
    try:
        check_content(location, file, codec, local)
    except DamageError as exc:
        return exc.damage
    return None


def _tried(location: SparkLocation, store: StateStore, batch: Batch) -> StoreFiles | Damage:
    try:
        return files_of_store(location, store, batch)
    except DamageError as exc:
        return exc.damage


def _operator_numbers(location: SparkLocation, batch: Batch) -> list[int]:
    listed = {path.split("/")[1] for path in location.found if path.startswith("state/")}
    found = {int(name) for name in listed if name.isdecimal()} | set(batch.state_ids)
    return list(range(max(found, default=-1) + 1))  # Spark leaves no number out


def _descriptions(location: SparkLocation, operator: int, batch: int) -> Iterator[str]:
    """Yield the files that describe an operator's state; not those of other starts than Spark reads."""
    start = _newest_start(location, operator, batch)
    for path in location.below(f"state/{operator}"):
        if "/_metadata/v2/" in path:
            if path == start:
                yield path
        elif "/_metadata/" in path or "/_stateSchema/" in path:
            yield path


def _newest_start(location: SparkLocation, operator: int, batch: int) -> str | None:
    """Return the description that Spark reads to go on after a batch.

    There is one for each start that changed something, named by the batch that came next.
    """
    directory = f"state/{operator}/_metadata/v2"
    starts = location.numbers(directory)
    if not starts:
        return None
    newest = max([start for start in starts if start <= batch], default=min(starts))
    return f"{directory}/{newest}"


def _operator(location: SparkLocation, batch: Batch, number: int) -> Operator:
    """Return what Spark has noted about an operator; blocks.

    Raises:
        DamageError: It is damaged, or names a file that is missing.
    """
    path = _newest_start(location, number, batch.number) or f"state/{number}/_metadata/metadata"
    if path not in location.found:
        if any(location.below(f"state/{number}/_stateSchema")):
            raise DamageError(f"state/{number}/_metadata/v2/*", "missing")  # Spark starts by it
        return _operator_by_listing(location, batch, number)
    try:
        noted = json.loads(location.read(path).decode().partition("\n")[2])
        stores = {str(s["storeName"]): int(s["numPartitions"]) for s in noted["stateStoreInfo"]}
        name = str(noted["operatorInfo"]["operatorName"])
        paths = [p for s in noted["stateStoreInfo"] for p in s.get("stateSchemaFilePaths", ())]
    except (ValueError, LookupError, TypeError, AttributeError) as exc:
        raise DamageError(path, "truncated or damaged") from exc
    schemas = [schema_below(uri, number) for uri in paths]
    for schema in schemas:
        location.require(schema)
    return Operator(number, name, stores, path, schemas)


def schema_below(uri: str, operator: int) -> str:
    """Return where a schema that Spark names by its whole URI lies in the location."""
    own = f"state/{operator}/_stateSchema/"
    return f"{own}{uri.rpartition(own)[2]}"


def _operator_by_listing(location: SparkLocation, batch: Batch, number: int) -> Operator:
    """Return an operator of a Spark before 4.0, which noted nothing: its files have to tell."""
    partitions: set[int] = set()
    stores: set[str] = set()
    for path in location.below(f"state/{number}"):
        _, _, partition, *rest = path.split("/")
        if partition.isdecimal() and rest[:-1] != ["_metadata"]:
            partitions.add(int(partition))
            is_named = len(rest) > 1 and rest[0] not in _OF_ROCKSDB
            stores.add(rest[0] if is_named else DEFAULT_STORE)
    count = max(partitions, default=-1) + 1
    if count > 1:  # else it is one of those that have one partition, whatever is set
        given = str(batch.settings.get(_PARTITIONS_KEY, ""))
        count = max(count, int(given) if given.isdecimal() else 0)
    if count == 0:
        raise DamageError(f"state/{number}", "missing")
    return Operator(number, "", dict.fromkeys(sorted(stores), count))


def _source_files(location: SparkLocation, source: str, offset: str) -> list[str]:
    """Return the files of a source up to what a batch had read.

    A file source keeps a log of its own, which runs ahead of the batches: what came later is left
    out, so that those files are found and read again.

    Raises:
        DamageError: The log has a gap.
    """
    directory = f"sources/{source}"
    try:
        end = _file_offset.decode(offset).log_offset
    except msgspec.DecodeError:  # of another source
        return list(location.below(directory))
    entries = {
        int(match[1]): match[0]
        for name in location.names(directory)
        if (match := _SOURCE_LOG.fullmatch(name)) and int(match[1]) <= end
    }
    start = max((number for number, name in entries.items() if "." in name), default=0)
    for number in range(start, end + 1):
        location.require(f"{directory}/{entries.get(number, number)}")
    return [f"{directory}/{entries[number]}" for number in range(start, end + 1)]
