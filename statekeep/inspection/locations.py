"""A copy of a Spark query's checkpoint location, cut off at a commit and under a query id of its own."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from uuid import uuid4

import msgspec

from statekeep.checkpoint.records import CommitRecord, QueryState
from statekeep.errors import CheckpointLocationError, ConfigError
from statekeep.inspection.location_files import (
    LocationFiles,
    explained_location_errors,
    open_location,
)

_BATCH_FILE: Final = re.compile(r"\.?([0-9]+)(?:\.crc)?")
"""What Spark names files of ``offsets`` and ``commits``, and Hadoop their checksums beside them."""
_CUT_OFF: Final = frozenset({"offsets", "commits"})
_CLAIM: Final = ".statekeep-clone"
"""Lies in a copy for as long as it may be unfinished, and says for which job it is made."""
_OWN: Final = frozenset({"metadata", ".metadata.crc", _CLAIM, f".{_CLAIM}.crc"})


def check_locations(
    source: str, target: str, commit: CommitRecord, *, claim: str | None = None
) -> None:
    """Make sure that `copy_location` would not refuse, before anything else is moved. Blocks.

    Raises:
        ConfigError: As `copy_location`.
        CheckpointLocationError: As `copy_location`.
    """
    old, _, query = _require_ready(source, target, commit, claim)
    for name, text in _own_files(commit, query).items():
        if text is None and not old.files.exists(f"{old.root}/{name}"):
            raise _missing(old, name)


def copy_location(
    source: str, target: str, commit: CommitRecord, *, claim: str | None = None
) -> QueryState:
    """Copy what a query needs to go on after a commit, and nothing that came later.

    The copy has a query id of its own, so that both queries may run in one Spark application.
    Blocks.

    The query may go on meanwhile. What was written is removed again if the copy fails.

    Args:
        source: The checkpoint location of the job's query; only read.
        target: Where there is nothing yet.
        commit: Of a job on Spark.
        claim: The job that it is made for. Until `end_copy` an earlier try for that job may be made again;
            None: the target has to be empty.

    Returns:
        What the commit record of the new job says of its query.

    Raises:
        ConfigError: A location is on no filesystem that can be reached from here.
        CheckpointLocationError: The source is another query's, lacks or loses a file, or the target
            is not empty.
    """
    old, new, query = _require_ready(source, target, commit, claim)
    metadata = json.dumps({"id": str(uuid4())}, separators=(",", ":"))
    written: list[str] = []
    try:
        if claim is not None:
            _claim(new, claim, written)
        for name, data in _contents(old, commit, query):
            written.append(f"{new.root}/{name}")
            _write(new.files, written[-1], data)
        written.append(f"{new.root}/metadata")
        _write(new.files, written[-1], metadata.encode())
    except BaseException as exc:
        _remove(new.files, written)
        if isinstance(exc, OSError):
            msg = f"the checkpoint location could not be copied: from={old.shown} to={new.shown}"
            raise CheckpointLocationError(msg) from exc
        raise
    return msgspec.structs.replace(query, query_id=json.loads(metadata)["id"], metadata=metadata)


def end_copy(target: str) -> None:
    """Make a copy one that is never made again: the job that it is for is there. Blocks; idempotent."""
    new = open_location(target)
    with explained_location_errors(new):
        _remove(new.files, [f"{new.root}/{_CLAIM}", f"{new.root}/.{_CLAIM}.crc"])


def _claim(new: LocationFiles, claim: str, written: list[str]) -> None:
    """Remove what an earlier try has left, and say whose the location is before anything else is there."""
    own = f"{new.root}/{_CLAIM}"
    if new.files.exists(own):
        _remove(new.files, (path for path in map(str, new.files.find(new.root)) if path != own))
    written.append(own)
    _write(new.files, own, claim.encode())


def _is_claimed(new: LocationFiles, claim: str | None) -> bool:
    own = f"{new.root}/{_CLAIM}"
    if claim is None or not new.files.exists(own):
        return False
    return new.files.cat_file(own) in {b"", claim.encode()}  # empty: its writer was killed


def _require_ready(
    source: str, target: str, commit: CommitRecord, claim: str | None
) -> tuple[LocationFiles, LocationFiles, QueryState]:
    """Open both locations and make sure that they are what they should be."""
    query = commit.query
    if query is None:
        raise ConfigError(
            f"the commit is not of a Spark query: batch={commit.batch}",
            hint="leave out --from-location and --to-location",
        )
    old, new = open_location(source), open_location(target)
    with explained_location_errors(new):
        is_used = new.files.exists(new.root) and bool(new.files.find(new.root))
        is_used = is_used and not _is_claimed(new, claim)
    if is_used:
        exc = CheckpointLocationError(
            f"the new checkpoint location is in use: location={new.shown}"
        )
        exc.add_note("hint: name another one, or delete it if an earlier try has left it")
        raise exc
    with explained_location_errors(old):
        _check_query(old, query)
    return old, new, query


def _own_files(commit: CommitRecord, query: QueryState) -> Mapping[str, str | None]:
    """Return what the copy needs in any case, as the commit record has it; None: it has it not."""
    return {f"offsets/{commit.batch}": query.offsets, f"commits/{commit.batch}": query.commit}


def _missing(location: LocationFiles, name: str) -> CheckpointLocationError:
    exc = CheckpointLocationError(
        f"file is missing in the checkpoint location: file={location.shown}/{name}"
    )
    exc.add_note("hint: a query that runs may be about to write it: try again")
    return exc


def _contents(
    old: LocationFiles, commit: CommitRecord, query: QueryState
) -> Iterator[tuple[str, bytes]]:
    """Yield what goes into the copy, by name.

    Raises:
        CheckpointLocationError: A file is missing, or goes while it is read.
    """
    copied: set[str] = set()
    for path in map(str, old.files.find(old.root)):
        name = path.removeprefix(old.root).lstrip("/")
        if name in _OWN or _is_later(name, commit.batch) or _is_passing(name):
            continue
        try:
            data = old.files.cat_file(path)
        except FileNotFoundError as exc:
            if name.partition("/")[0] in _CUT_OFF:
                continue  # a running query purges them; those of the commit are in its record
            msg = f"file went while it was copied, is the query running?: file={old.shown}/{name}"
            raise CheckpointLocationError(msg) from exc
        copied.add(name)
        yield name, data
    for name, text in _own_files(commit, query).items():
        if name not in copied:
            if text is None:
                raise _missing(old, name)
            yield name, text.encode()


def _remove(files: Any, paths: Iterable[str]) -> None:  # noqa: ANN401 - fsspec has no types
    """Remove what of these files is there."""
    for path in paths:
        if files.exists(path):
            files.rm_file(path)


def _check_query(old: LocationFiles, query: QueryState) -> None:
    try:
        found = json.loads(old.files.cat_file(f"{old.root}/metadata"))["id"]
    except (FileNotFoundError, ValueError, KeyError, TypeError) as exc:
        error = CheckpointLocationError(
            f"not the checkpoint location of a query: location={old.shown}"
        )
        error.add_note("hint: name the directory that the query was started with")
        raise error from exc
    if found != query.query_id:
        raise CheckpointLocationError(
            f"the checkpoint location is of another query: location={old.shown} "
            f"query_id={found} expected={query.query_id}"
        )


def _is_later(name: str, batch: int) -> bool:
    directory, _, file = name.rpartition("/")
    match = _BATCH_FILE.fullmatch(file)
    return directory in _CUT_OFF and match is not None and int(match[1]) > batch


def _is_passing(name: str) -> bool:
    """Whether it is a file that Spark is just writing, or the checksum of one."""
    file = name.rpartition("/")[2]
    return file.startswith(".") and file.removesuffix(".crc").endswith(".tmp")


def _write(files: Any, path: str, data: bytes) -> None:  # noqa: ANN401 - fsspec has no types
    files.makedirs(path.rpartition("/")[0], exist_ok=True)
    files.pipe_file(path, data)
