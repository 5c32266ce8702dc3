"""What the commands of ``statekeep guard`` print."""

from collections.abc import Mapping, Sequence
from typing import Final

from rich.text import Text

from statekeep.cli.output import JsonValue, print_line, print_table, size_of, state_of
from statekeep.cli.page.units import ago, duration
from statekeep.config.model import Config
from statekeep.guarding.copying import Copied
from statekeep.guarding.inspection import InspectedLocation
from statekeep.guarding.spark_location import Damage
from statekeep.guarding.verifying import LoadedStore, VerifiedCopy

_DAY_MS: Final = 86_400_000
_ONLY_NEWER_SPARK: Final = (
    "only Spark 4.1 or later goes on from an older snapshot if one is damaged"
)


def copy_document(settings: Config, copied: Copied) -> dict[str, JsonValue]:
    """Return a copy that was made, as JSON."""
    return {
        "job": settings.job.name,
        "commit": copied.position,
        "batch": copied.batch,
        "is-new": copied.is_new,
        "new-files": copied.new_files,
        "new-bytes": copied.new_bytes,
    }


def copy_line(settings: Config, copied: Copied) -> str:
    """Return the line about a copy that was made."""
    commit = f"commit {copied.position} of job {settings.job.name}"
    if not copied.is_new:
        return f"batch {copied.batch} was copied before: {commit}"
    new = f"{copied.new_files} new files, {size_of(copied.new_bytes)}"
    return f"batch {copied.batch} is copied: {commit}, {new}"


def verified_document(
    found: VerifiedCopy, loaded: Sequence[LoadedStore] | None
) -> dict[str, JsonValue]:
    """Return a copy that was verified, as JSON; without what Spark has opened where ``loaded`` is None."""
    document: dict[str, JsonValue] = {
        "commit": found.position,
        "batch": found.batch,
        "backends": [
            {
                "backend": one.backend,
                "files": one.files,
                "bytes": one.bytes,
                "damage": one.damage or None,
            }
            for one in found.backends
        ],
    }
    if loaded is not None:
        document["loaded"] = [
            {
                "operator": one.operator,
                "name": one.operator_name,
                "store": one.store,
                "variable": one.variable or None,
                "rows": one.rows,
            }
            for one in loaded
        ]
    return document


def show_verified(found: VerifiedCopy, loaded: Sequence[LoadedStore] | None) -> None:
    """Print a copy that was verified; without what Spark has opened where ``loaded`` is None."""
    print_line(f"commit {found.position}: the location after batch {found.batch}")
    print_table(
        ["backend", "files", "size", "state"],
        [
            [one.backend, one.files, size_of(one.bytes), state_of(one.damage, is_damaged=True)]
            for one in found.backends
        ],
        prose={"state"},
    )
    if loaded is not None:
        print_table(
            ["operator", "name", "store", "variable", "rows"],
            [
                [one.operator, one.operator_name, one.store, one.variable, one.rows]
                for one in loaded
            ],
            if_empty="Spark has no state to open: no operator of the query is stateful",
        )


def location_document(found: InspectedLocation) -> dict[str, JsonValue]:
    """Return a location that was inspected, as JSON."""
    return {
        "location": found.location,
        "files": found.files,
        "bytes": found.bytes,
        "batches": list(found.batches),
        "open-batch": found.open_batch,
        "provider": found.provider,
        "formats": dict(found.formats),
        "began-ms": found.began_ms or None,
        "interval-ms": found.interval_ms,
        "writes-per-batch": found.writes_per_batch,
        "stores": [
            {
                "operator": store.operator,
                "name": store.operator_name,
                "store": store.store,
                "partitions": store.partitions,
                "files": store.files,
                "bytes": store.bytes,
                "files-per-batch": store.files_per_batch,
            }
            for store in found.stores
        ],
        "looked-at": list(found.looked_at),
        "sound": list(found.sound),
        "newest-sound": found.newest_sound,
        "damage": [
            {"batch": batch, "file": damage.file, "what": damage.what}
            for batch, damage in found.damage
        ],
        "avoided": [damage_document(damage) for damage in found.avoided],
        "orphans": None
        if found.orphans is None
        else [{"file": file, "bytes": size} for file, size in found.orphans.items()],
    }


def show_location(found: InspectedLocation, now_ms: int, *, is_deep: bool, is_full: bool) -> None:
    """Print a location that was inspected."""
    print_line(f"{found.files} files, {size_of(found.bytes)}; {_batches(found)}")
    if found.began_ms:
        print_line(_pace(found, now_ms))
    if found.formats:
        formats = ", ".join(f"{name} {number}" for name, number in found.formats.items())
        print_line(f"formats: {formats}")
    if found.stores:
        print_line(f"state of {found.provider}")
        print_table(
            ["operator", "name", "store", "partitions", "files", "size", "files a batch"],
            [
                [
                    store.operator,
                    store.operator_name,
                    store.store,
                    store.partitions,
                    store.files,
                    size_of(store.bytes),
                    store.files_per_batch,
                ]
                for store in found.stores
            ],
            is_full=is_full,
        )
    else:
        print_line("no state: no operator of the query is stateful, or its directory is gone")
    rows: list[Sequence[object]] = [
        [batch, damage.file, Text(damage.what, style="red")] for batch, damage in found.damage
    ]
    rows += [
        [None, d.file, Text(f"{d.what}; an older one can be used", "yellow")] for d in found.avoided
    ]
    if rows:
        print_table(["batch", "file", "damage"], rows, prose={"damage"}, is_full=is_full)
    if found.avoided:
        print_line(_ONLY_NEWER_SPARK)
    if found.orphans is not None:
        print_line(_orphans(found.orphans, is_full=is_full))
    if not found.batches:
        print_line("the query has committed no batch yet")
    elif found.newest_sound is None:
        print_line("Spark can go on after none of these batches")
    else:
        print_line(f"sound up to batch {found.newest_sound}")
    if not is_deep:
        print_line("looked at names, sizes and small files; --deep compares checksums")


def damage_document(damage: Damage) -> dict[str, JsonValue]:
    """Return a damaged file, as JSON."""
    return {"file": damage.file, "what": damage.what}


def show_avoided(damaged: Sequence[Damage]) -> None:
    """Print the snapshots that a repair leaves although they are damaged."""
    for damage in damaged:
        print_line(f"{damage.file}: {damage.what}; it stays, as an older one can be used")
    if damaged:
        print_line(_ONLY_NEWER_SPARK)


def _pace(found: InspectedLocation, now_ms: int) -> str:
    """Return how old the newest batch is, and what batches cost."""
    text = f"the newest batch began {ago(found.began_ms, now_ms)}"
    writes = f"a batch writes {found.writes_per_batch:g} files"
    if not found.interval_ms:
        return f"{text}; {writes}"
    a_day = round(found.writes_per_batch * _DAY_MS / found.interval_ms)
    return f"{text}; one in {duration(found.interval_ms)}; {writes}: {a_day:,} a day"


def _orphans(orphans: Mapping[str, int], *, is_full: bool) -> str:
    """Return how much Spark could delete; with the names, if they are asked for."""
    if not orphans:
        return "each file of state is needed by a batch"
    size = size_of(sum(orphans.values()))
    lines = [f"files of state that no batch needs: {len(orphans)}, {size}"]
    if is_full:
        lines += [f"  {file}" for file in orphans]
    return "\n".join(lines)


def _batches(found: InspectedLocation) -> str:
    if not found.batches:
        return "no batch is committed"
    text = f"batches {found.batches[0]} to {found.batches[-1]} are committed"
    return text if found.open_batch is None else f"{text}, {found.open_batch} has begun"
