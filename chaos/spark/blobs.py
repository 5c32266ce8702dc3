"""Reads a blob backend's files by the formats page alone, and checks what commits need of them."""

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class BlobFiles:
    """The files of one blob backend."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self, prefix: str) -> set[str]:
        """Return the blobs below a prefix."""
        directory = self._root / prefix
        found = directory.rglob("*") if directory.exists() else iter(())
        return {
            str(path.relative_to(self._root))
            for path in found
            if path.is_file() and not path.name.startswith(".tmp-")
        }

    def reached(self, marker: str) -> set[str]:
        """Return the blobs that one marker needs, its index included.

        Raises:
            ValueError: A blob is missing or is not what the index says.
        """
        data = self._read(marker)
        digest = marker.rpartition("-")[2].removesuffix(".json")
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f"index differs from its name: {marker}")
        index = json.loads(data)
        found = {marker}
        for file in _files(index["dir-index"]):
            content = b"".join(
                self._read(blob["blob-id"])
                for blob in sorted(file["blobs"], key=lambda blob: blob["offset"])
            )
            found |= {blob["blob-id"] for blob in file["blobs"]}
            if len(content) != file["file-metadata"]["size"] or (
                zlib.crc32(content) != file["checksum"]
            ):
                raise ValueError(f"file differs from its index: {marker} {file['file-name']}")
        return found | self._deltas(marker, index)

    def _deltas(self, marker: str, index: Mapping[str, Any]) -> set[str]:
        """Check that the deltas lead, one from the other, from the image to the version."""
        version = index.get("image-version", index.get("version"))
        for delta in index.get("deltas", ()):
            content = self._read(delta["blob-id"])
            if hashlib.sha256(content).hexdigest() != delta["sha-256"]:
                raise ValueError(f"delta differs from its index: {marker} {delta['version']}")
            if delta["parent"] != version:
                raise ValueError(f"deltas do not connect: {marker} {delta['parent']} {version}")
            version = delta["version"]
        if version != index.get("version"):
            raise ValueError(f"deltas end before the version: {marker} {version}")
        return {delta["blob-id"] for delta in index.get("deltas", ())}

    def base_of(self, marker: str) -> str | None:
        """Return the marker that an increment builds on; None for a full upload."""
        found: str | None = json.loads(self._read(marker))["prev-snapshot-index-blob-id"]
        return found

    def _read(self, name: str) -> bytes:
        try:
            return (self._root / name).read_bytes()
        except FileNotFoundError:
            raise ValueError(f"blob is missing: {name}") from None


def _files(directory: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from directory["files-present"]
    for below in directory["sub-dirs-present"]:
        yield from _files(below)
