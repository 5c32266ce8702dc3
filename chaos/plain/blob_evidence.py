"""What the blobs of a place say, read by the verifier's own means."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An index and the blobs that it names, all of them there and whole."""

    blobs: frozenset[str]
    """Ids, that of the index included."""
    base: str | None
    """Id of the index that it is an increment to."""
    version: str


def read_snapshot(root: Path, marker: str) -> Snapshot:
    """Read a snapshot and check every byte of it.

    Raises:
        ValueError: A blob is missing or differs from what vouches for it.
    """
    data = _read(root, marker)
    digest = marker.rpartition("-")[2].removesuffix(".json")
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError(f"index differs from the digest in its name: {marker}")
    index = json.loads(data)
    blobs = {marker}
    for file in _files_of(index["dir-index"]):
        whole = bytearray()
        for blob in sorted(file["blobs"], key=lambda blob: int(blob["offset"])):
            blobs.add(blob["blob-id"])
            whole += _read(root, blob["blob-id"])
        if len(whole) != file["file-metadata"]["size"]:
            raise ValueError(f"{file['file-name']} has another size than its index says: {marker}")
        if hashlib.sha256(whole).hexdigest() != file["sha-256"]:
            raise ValueError(f"{file['file-name']} differs from its digest: {marker}")
    for delta in index.get("deltas", ()):
        blobs.add(delta["blob-id"])
        content = _read(root, delta["blob-id"])
        if hashlib.sha256(content).hexdigest() != delta["sha-256"]:
            raise ValueError(f"delta differs from its digest: {delta['blob-id']} of {marker}")
    return Snapshot(frozenset(blobs), index["prev-snapshot-index-blob-id"], index["version"])


def list_blobs(root: Path, job: str) -> Mapping[str, tuple[int, int]]:
    """Return every blob of the state of a job: its id, and the attempt that made it."""
    found: dict[str, tuple[int, int]] = {}
    for state in root.glob(f"{job}/state-*"):
        for path in state.rglob("*"):
            if path.is_file():
                epoch, _, attempt = path.parent.name.partition("-")
                found[path.relative_to(root).as_posix()] = (int(epoch), int(attempt))
    return found


def _files_of(directory: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from directory["files-present"]
    for inner in directory["sub-dirs-present"]:
        yield from _files_of(inner)


def _read(root: Path, blob: str) -> bytes:
    try:
        return (root / blob).read_bytes()
    except FileNotFoundError as exc:
        raise ValueError(f"no blob: {blob}") from exc
