"""What the blobs of a place say, read by the verifier's own means."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from chaos.evidence.deltas import parse_delta
from chaos.evidence.files import Files

Attempt = tuple[int, int]
_MEMORY_IMAGE: Final = "image.delta"
_ATTEMPT: Final = re.compile(r"(\d+)-(\d+)")
_UPLOAD: Final = re.compile(r"\d+_([0-9a-f]{8})([0-9a-f]{8})[0-9a-f]{16}\.(?:delta|snapshot)")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An index and the blobs that it names, all of them there and whole."""

    blobs: frozenset[str]
    """Ids, that of the index included."""
    base: str | None
    """Id of the index that it is an increment to."""
    version: str
    image: Mapping[str, bytes]
    """``{path: bytes}`` of the files of the image."""
    deltas: Sequence[bytes]
    """Each a file of changes, in order."""

    def content(
        self, read_database: Callable[[Mapping[str, bytes]], dict[bytes, bytes]]
    ) -> dict[bytes, bytes]:
        """Return its keys and values: those of the image, with the deltas applied.

        Args:
            read_database: Gives those of the files of a database.

        Raises:
            ValueError: A delta is damaged.
        """
        content: dict[bytes, bytes] = {}
        if set(self.image) == {_MEMORY_IMAGE}:
            changes = parse_delta(self.image[_MEMORY_IMAGE]).changes
            content = {key: value for key, value in changes if value is not None}
        elif self.image:
            content = read_database(self.image)
        for data in self.deltas:
            for key, value in parse_delta(data).changes:
                if value is None:
                    content.pop(key, None)
                else:
                    content[key] = value
        return content


def read_snapshot(files: Files, marker: str) -> Snapshot:
    """Read a snapshot and check every byte of it, and that its deltas connect.

    Raises:
        ValueError: A blob is missing or differs from what vouches for it.
    """
    index, blobs = _read_index(files, marker), {marker}
    if (full := index.get("full-index-blob-id")) is not None:
        blobs.add(full)
        index = _joined(index, _read_index(files, full), full)
    image, deltas = dict[str, bytes](), list[bytes]()
    for path, file in _files_of(index["dir-index"], PurePosixPath()):
        what = f"{path} {marker}"
        of_file, image[str(path)] = _check(files, file, file["file-metadata"]["size"], what)
        blobs |= of_file
    version = index.get("image-version", index["version"])
    for delta in index.get("deltas", ()):
        if delta["parent"] != version:
            raise ValueError(f"deltas do not connect: {delta['parent']} {version} {marker}")
        version = delta["version"]
        if delta.get("in-index"):
            holder = marker if delta["blob-id"] == "." else delta["blob-id"]
            of_delta, data = {holder}, _held_delta(files, holder, delta)
        else:
            whole = {"blobs": [{"blob-id": delta["blob-id"], "offset": 0}], **delta}
            of_delta, data = _check(files, whole, delta["size"], f"delta {version} {marker}")
        blobs |= of_delta
        deltas.append(data)
    if version != index["version"]:
        raise ValueError(f"deltas end before the version: {version} {marker}")
    base = index["prev-snapshot-index-blob-id"]
    return Snapshot(frozenset(blobs), base, index["version"], image, deltas)


def _read_index(files: Files, marker: str) -> dict[str, Any]:
    data = _read(files, marker)
    digest = marker.rpartition("-")[2].removesuffix(".json")
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError(f"index differs from the digest in its name: {marker}")
    index: dict[str, Any] = json.loads(data)
    return index


def _joined(addition: dict[str, Any], full: dict[str, Any], full_id: str) -> dict[str, Any]:
    """Return an index with what the full one says that it adds to."""
    if "full-index-blob-id" in full:
        raise ValueError(f"full index that is an addition: {full_id}")
    before = [
        {**delta, "blob-id": full_id} if delta["blob-id"] == "." else delta
        for delta in full.get("deltas", ())
    ]
    image = {"image-version": full.get("image-version", full["version"])}
    return {**full, **addition, **image, "deltas": [*before, *addition.get("deltas", ())]}


def _held_delta(files: Files, holder: str, delta: Mapping[str, Any]) -> bytes:
    """Return a delta that lies in an index."""
    for other in _read_index(files, holder)["deltas"]:
        if other["version"] == delta["version"] and "content" in other:
            data = base64.b64decode(other["content"])
            if hashlib.sha256(data).hexdigest() != delta["sha-256"]:
                raise ValueError(f"it differs from its digest: delta {delta['version']} {holder}")
            return data
    raise ValueError(f"delta is not in its index: {delta['version']} {holder}")


def _check(files: Files, entry: Mapping[str, Any], size: int, what: str) -> tuple[set[str], bytes]:
    """Check one file of an index; return the blobs that it lies in, and its bytes."""
    if "stored-form" in entry:
        raise ValueError(f"it is compressed or encrypted, which no schedule asks for: {what}")
    whole = bytearray()
    parts = sorted(entry["blobs"], key=lambda part: int(part["offset"]))
    for part in parts:
        data = _read(files, part["blob-id"])
        if (span := part.get("range")) is not None:
            data = data[span["start"] : span["start"] + span["size"]]
            if hashlib.sha256(data).hexdigest() != span["sha-256"]:
                raise ValueError(f"a range differs from its digest: {part['blob-id']} {what}")
        whole += data
    if len(whole) != size:
        raise ValueError(f"it has another size than its index says: {what}")
    if hashlib.sha256(whole).hexdigest() != entry["sha-256"]:
        raise ValueError(f"it differs from its digest: {what}")
    return {part["blob-id"] for part in parts}, bytes(whole)


def list_blobs(files: Files, job: str) -> Mapping[str, Attempt]:
    """Return every file of the state of a job, blob or upload: its name, and who made it."""
    states = f"{job}/state-"
    names = [name for name in files.names(job) if name.startswith(states)]
    return {name: attempt for name in names if (attempt := attempt_of(name)) is not None}


def attempt_of(name: str) -> Attempt | None:
    """Return the (epoch, attempt) that a file's name tells, of either form."""
    upload = _UPLOAD.fullmatch(PurePosixPath(name).name)
    if upload is not None:
        return int(upload[1], 16), int(upload[2], 16)
    directory = _ATTEMPT.fullmatch(PurePosixPath(name).parent.name)
    return None if directory is None else (int(directory[1]), int(directory[2]))


def _files_of(
    directory: Mapping[str, Any], place: PurePosixPath
) -> Iterator[tuple[PurePosixPath, Mapping[str, Any]]]:
    for file in directory["files-present"]:
        yield place / file["file-name"], file
    for inner in directory["sub-dirs-present"]:
        yield from _files_of(inner, place / inner["dir-name"])


def _read(files: Files, blob: str) -> bytes:
    try:
        return files.read(blob)
    except FileNotFoundError as exc:
        raise ValueError(f"no blob: {blob}") from exc
