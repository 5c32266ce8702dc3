"""A copy of a Spark query's checkpoint location, cut off at a commit and under a query id of its own."""

# fsspec has no types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final
from uuid import uuid4

import fsspec  # type: ignore[import-untyped] # ships no types
import msgspec

from statekeep.checkpoint.records import CommitRecord, QueryState
from statekeep.errors import CheckpointLocationError

_BATCH_FILE: Final = re.compile(r"\.?([0-9]+)(?:\.crc)?")
"""What Spark names files of ``offsets`` and ``commits``, and Hadoop their checksums beside them."""
_CUT_OFF: Final = frozenset({"offsets", "commits"})
_OWN: Final = frozenset({"metadata", ".metadata.crc"})


def copy_location(source: str, target: str, commit: CommitRecord) -> QueryState:
    """Copy what a query needs to go on after a commit, and nothing that came later.

    The copy has a query id of its own, so that both queries may run in one Spark application.
    Blocks.

    The query may go on meanwhile. What was written is removed again if the copy fails.

    Args:
        source: The checkpoint location of the job's query; only read.
        target: Where there is nothing yet.
        commit: Of a job on Spark.

    Returns:
        What the commit record of the new job says of its query.

    Raises:
        CheckpointLocationError: The source is another query's, lacks or loses a file, or the target
            is not empty.
    """
    query = commit.query
    if query is None:
        raise CheckpointLocationError(f"the commit is of no Spark query: batch={commit.batch}")
    there, root = _open(source)
    here, new_root = _open(target)
    if here.exists(new_root) and here.find(new_root):
        exc = CheckpointLocationError(f"the new checkpoint location is in use: location={target}")
        exc.add_note("hint: name another one, or delete it if an earlier try has left it")
        raise exc
    _check_query(there, root, source, query)
    metadata = json.dumps({"id": str(uuid4())}, separators=(",", ":"))
    written: list[str] = []
    try:
        for name, data in _contents(there, root, source, commit, query):
            written.append(f"{new_root}/{name}")
            _write(here, written[-1], data)
        written.append(f"{new_root}/metadata")
        _write(here, written[-1], metadata.encode())
    except BaseException as exc:
        _remove(here, written)
        if isinstance(exc, OSError):
            msg = f"the checkpoint location could not be copied: from={source} to={target}"
            raise CheckpointLocationError(msg) from exc
        raise
    return msgspec.structs.replace(query, query_id=json.loads(metadata)["id"], metadata=metadata)


def _contents(
    files: Any,  # noqa: ANN401 - fsspec has no types
    root: str,
    location: str,
    commit: CommitRecord,
    query: QueryState,
) -> Iterator[tuple[str, bytes]]:
    """Yield what goes into the copy, by name.

    Raises:
        CheckpointLocationError: A file is missing, or goes while it is read.
    """
    copied: set[str] = set()
    for path in map(str, files.find(root)):
        name = path.removeprefix(root).lstrip("/")
        if name in _OWN or _is_later(name, commit.batch) or _is_passing(name):
            continue
        try:
            data = files.cat_file(path)
        except FileNotFoundError as exc:
            if name.partition("/")[0] in _CUT_OFF:
                continue  # a running query purges them; those of the commit are in its record
            msg = f"file went while it was copied, is the query running?: file={location}/{name}"
            raise CheckpointLocationError(msg) from exc
        copied.add(name)
        yield name, data
    own = {f"offsets/{commit.batch}": query.offsets, f"commits/{commit.batch}": query.commit}
    for name, text in own.items():
        if name not in copied:
            if text is None:
                raise CheckpointLocationError(
                    f"file is missing in the checkpoint location: file={location}/{name}"
                )
            yield name, text.encode()


def _remove(files: Any, paths: Iterable[str]) -> None:  # noqa: ANN401 - fsspec has no types
    """Remove what of these files is there, so that the copy may be made again."""
    for path in paths:
        if files.exists(path):
            files.rm_file(path)


def _check_query(files: Any, root: str, location: str, query: QueryState) -> None:  # noqa: ANN401 - fsspec has no types
    path = f"{root}/metadata"
    try:
        found = json.loads(files.cat_file(path))["id"]
    except (FileNotFoundError, ValueError, KeyError, TypeError) as exc:
        msg = f"not the checkpoint location of a query: location={location}"
        raise CheckpointLocationError(msg) from exc
    if found != query.query_id:
        raise CheckpointLocationError(
            f"the checkpoint location is of another query: location={location} "
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


def _open(uri: str) -> tuple[Any, str]:
    files, root = fsspec.url_to_fs(uri)
    return files, str(root).rstrip("/")


def _write(files: Any, path: str, data: bytes) -> None:  # noqa: ANN401 - fsspec has no types
    files.makedirs(path.rpartition("/")[0], exist_ok=True)
    files.pipe_file(path, data)
