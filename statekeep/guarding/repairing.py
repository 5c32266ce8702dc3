"""A location taken back to its newest sound batch, in place."""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from statekeep.backends.awaiting import run_all
from statekeep.backends.base import BlockingExecutor
from statekeep.errors import CheckpointCorruptError, CheckpointLocationError
from statekeep.guarding.batch_files import damage_of_open_batch, sound_files_of_batch
from statekeep.guarding.listing import FoundFile, list_files
from statekeep.guarding.spark_location import Damage, SparkLocation
from statekeep.inspection.location_files import (
    LocationFiles,
    explained_location_errors,
    open_location,
)

_STATE: Final = re.compile(
    r"([0-9]{1,18})(_[0-9A-Za-z-]+)?\.(delta|snapshot|zip|changelog)(\.crc)?"
)
_CHUNK_BYTES: Final = 1 << 20
_SOURCE_LOG: Final = re.compile(r"([0-9]{1,18})(\.compact)?")


@dataclass(frozen=True, slots=True)
class Repair:
    """What takes a location back."""

    location: SparkLocation
    batch: int
    """After which the query goes on."""
    newest: int
    """The newest batch that was committed before."""
    removed: Sequence[str]
    """Files, in the order in which they are removed; none: there is nothing to repair."""
    avoided: Sequence[Damage] = ()
    """Damaged snapshots that stay: older ones serve in their place."""


async def plan_repair(
    uri: str, executor: BlockingExecutor, on_bytes: Callable[[int], None] = lambda _: None
) -> Repair:
    """Read a location and return what takes it back to its newest sound batch. Changes nothing.

    Args:
        uri: Of the location, as Spark names it; its query should be stopped.
        executor: For blocking calls.
        on_bytes: Called with the size of each file that was read.

    Raises:
        CheckpointCorruptError: No batch is sound.
        CheckpointLocationError: It is no location, or its query has committed nothing.
        ConfigError: It cannot be reached.
        UnknownFormatError: A newer Spark wrote it.
    """
    location = await executor.run(SparkLocation.open, uri)
    committed = location.numbers("commits")
    begun = await executor.run(damage_of_open_batch, location)
    for number in reversed(committed):
        look = await sound_files_of_batch(location, number, executor, on_bytes)
        if look.damage:
            continue
        if number == committed[-1] and not begun:
            return Repair(location, number, number, (), look.avoided)
        removed = list(_after(location, number, look.files))
        return Repair(location, number, committed[-1], removed, look.avoided)
    exc = CheckpointCorruptError(f"no batch is sound: location={location.location.shown}")
    exc.add_note("hint: `statekeep guard restore` makes a location of a copy")
    raise exc


async def repair_location(repair: Repair, kept_in: str, executor: BlockingExecutor) -> None:
    """Copy all that is removed to another place, then remove it.

    A repair that was cut off leaves a location that Spark refuses, or goes on in after some batch; another
    repair completes it. Where only logs of sources are left to be removed, Spark goes on with all that
    they have found as one batch.

    Args:
        repair: What to do.
        kept_in: Where the copies go: a location in which there is nothing yet.
        executor: For blocking calls.

    Raises:
        CheckpointLocationError: The location has changed since the repair was planned, so that its query
            may run, or there is something where the copies go.
        ConfigError: A place cannot be reached.
    """
    place, keep = repair.location.location, open_location(kept_in)
    run = executor.run
    if await run(_listed, keep):
        raise CheckpointLocationError(f"the location is not empty: location={keep.shown}")
    await _require_unchanged(repair, executor)
    await run_all(run(_copy, place, file, keep) for file in repair.removed)
    sizes = {file: found.size for file, found in (await run(_listed, keep)).items()}
    if sizes != {file: repair.location.found[file].size for file in repair.removed}:
        raise CheckpointLocationError(f"not all files could be copied: location={keep.shown}")
    await _require_unchanged(repair, executor)
    for file in repair.removed:
        await run(_remove, place, file)


def _after(location: SparkLocation, batch: int, needed: Sequence[str]) -> Iterator[str]:
    """Yield the files that only batches after one have, with Hadoop's checksums of them.

    First the state, without which Spark refuses to go on after these batches; then what says that they
    were there; last what the sources had found for them, as offsets without it would have them read
    other input. A state file that stayed would be taken for one of the new batches of its number.
    """
    ends = _ends_of_source_logs(needed)
    batches: list[tuple[int, str]] = []
    of_sources: list[tuple[int, str]] = []
    for path in sorted(location.found.keys() - set(needed)):
        directory, _, name = path.rpartition("/")
        own = name[1:].removesuffix(".crc") if name.startswith(".") else name
        number = int(own) if own.isdecimal() else -1
        if directory in {"commits", "offsets"}:
            if number > batch:
                batches.append((number, path))
        elif directory in ends:
            match = _SOURCE_LOG.fullmatch(own)
            if match is not None and int(match[1]) > ends[directory]:
                of_sources.append((int(match[1]), path))
        elif directory.startswith("state/"):
            match = _STATE.fullmatch(own)
            is_later_start = directory.endswith("/_metadata/v2") and number > batch
            if is_later_start or (match is not None and int(match[1]) > batch + 1):
                yield path
    for logs in (batches, of_sources):  # the newest first, so that what is left has no gap
        yield from (path for _, path in sorted(logs, key=lambda log: (-log[0], log[1])))


def _ends_of_source_logs(needed: Sequence[str]) -> dict[str, int]:
    """Return ``{directory: newest entry}`` of each source that keeps a log of its own."""
    ends: dict[str, int] = {}
    for path in needed:
        directory, _, name = path.rpartition("/")
        match = _SOURCE_LOG.fullmatch(name)
        if directory.startswith("sources/") and match is not None:
            ends[directory] = max(ends.get(directory, -1), int(match[1]))
    return ends


async def _require_unchanged(repair: Repair, executor: BlockingExecutor) -> None:
    place = repair.location.location
    if await executor.run(_listed, place) != repair.location.found:
        exc = CheckpointLocationError(
            f"the location has changed meanwhile, nothing was removed: location={place.shown}"
        )
        exc.add_note("hint: stop the query first")
        raise exc


def _listed(place: LocationFiles) -> Mapping[str, FoundFile]:
    with explained_location_errors(place):
        return list_files(place)


def _copy(place: LocationFiles, file: str, keep: LocationFiles) -> None:
    target = f"{keep.root}/{file}"
    with explained_location_errors(place):
        keep.files.makedirs(target.rpartition("/")[0], exist_ok=True)
        with (
            place.files.open(f"{place.root}/{file}", "rb") as source,
            keep.files.open(target, "wb") as copy,
        ):
            shutil.copyfileobj(source, copy, _CHUNK_BYTES)


def _remove(place: LocationFiles, file: str) -> None:
    with explained_location_errors(place):
        place.files.rm_file(f"{place.root}/{file}")
