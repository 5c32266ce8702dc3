"""A copy of a Spark query's checkpoint location, cut off at a commit and under a query id of its own."""

# fsspec has no types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

import json
import re
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

    Args:
        source: The checkpoint location of the job's query; only read.
        target: Where there is nothing yet.
        commit: Of a job on Spark.

    Returns:
        What the commit record of the new job says of its query.

    Raises:
        CheckpointLocationError: The source is another query's, lacks a file, or the target is not
            empty.
    """
    query = commit.query
    if query is None:
        raise CheckpointLocationError(f"the commit is of no Spark query: batch={commit.batch}")
    there, root = _open(source)
    here, new_root = _open(target)
    found = [str(path) for path in there.find(root)]
    if here.exists(new_root) and here.find(new_root):
        raise CheckpointLocationError(f"the new checkpoint location is in use: location={target}")
    _check_query(there, root, source, query)
    for path in found:
        name = path.removeprefix(root).lstrip("/")
        if name not in _OWN and not _is_later(name, commit.batch):
            _write(here, f"{new_root}/{name}", there.cat_file(path))
    own = {f"offsets/{commit.batch}": query.offsets, f"commits/{commit.batch}": query.commit}
    for name, text in own.items():
        if not here.exists(f"{new_root}/{name}"):
            if text is None:
                raise CheckpointLocationError(
                    f"file is missing in the checkpoint location: file={source}/{name}"
                )
            _write(here, f"{new_root}/{name}", text.encode())
    metadata = json.dumps({"id": str(uuid4())}, separators=(",", ":"))
    _write(here, f"{new_root}/metadata", metadata.encode())
    return msgspec.structs.replace(query, query_id=json.loads(metadata)["id"], metadata=metadata)


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


def _open(uri: str) -> tuple[Any, str]:
    files, root = fsspec.url_to_fs(uri)
    return files, str(root).rstrip("/")


def _write(files: Any, path: str, data: bytes) -> None:  # noqa: ANN401 - fsspec has no types
    files.makedirs(path.rpartition("/")[0], exist_ok=True)
    files.pipe_file(path, data)
