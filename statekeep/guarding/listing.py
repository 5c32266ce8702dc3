"""The files below a checkpoint location, as its filesystem lists them."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast

from fsspec.asyn import AsyncFileSystem  # type: ignore[import-untyped] # ships no types
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped] # as above
from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped] # as above

from statekeep.inspection.location_files import LocationFiles

_STAMPS: Final = (
    "ETag",
    "etag",
    "generation",
    "mtime",
    "LastModified",
    "last_modified",
    "modificationTime",
)


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as the filesystem lists it."""

    size: int
    stamp: str
    """Changes with the content, as far as the filesystem knows: an ETag, or a time."""


def list_files(location: LocationFiles) -> Mapping[str, FoundFile]:
    """Return all files below a location, also those behind links, by their paths relative to it.

    There are none where it does not exist. It blocks, and raises what the filesystem raises.
    """
    files, root = location.files, location.root
    if isinstance(files, LocalFileSystem):
        return dict(_list_locally(root))
    # A listing that was kept would hide what Spark has written since.
    files.invalidate_cache()
    if _walks_leaving_out(location):
        return dict(_list_by_directory(location, root))
    try:
        listed = files.find(root, detail=True)
    except FileNotFoundError:
        return {}
    return {
        str(path).removeprefix(f"{root}/"): FoundFile(int(info["size"] or 0), _stamp(info))
        for path, info in listed.items()
        if not str(path).endswith("/")  # an object store's marker of a directory
    }


def _walks_leaving_out(location: LocationFiles) -> bool:
    """Return whether a filesystem finds files as fsspec does: what cannot be listed is left out."""
    kind = cast("type[object]", type(location.files))
    if issubclass(kind, cast("type[object]", AsyncFileSystem)):
        return getattr(kind, "_find") is getattr(AsyncFileSystem, "_find")  # noqa: B009 - no types
    return getattr(kind, "find") is getattr(AbstractFileSystem, "find")  # noqa: B009 - as above


def _list_by_directory(location: LocationFiles, directory: str) -> Iterator[tuple[str, FoundFile]]:
    try:
        listed = location.files.ls(directory, detail=True)
    except FileNotFoundError:
        return
    for info in listed:
        path = str(info["name"]).rstrip("/")
        if path == directory:
            continue
        if info["type"] == "directory":
            yield from _list_by_directory(location, path)
        else:
            name = path.removeprefix(f"{location.root}/")
            yield name, FoundFile(int(info["size"] or 0), _stamp(info))


def _list_locally(
    directory: str, above: frozenset[str] = frozenset()
) -> Iterator[tuple[str, FoundFile]]:
    """List a local directory; fsspec would leave out a whole one in which a file has just gone."""
    real = os.path.realpath(directory)
    if real in above:
        return  # behind a link to a directory that it lies in
    for entry in _entries(directory):
        with suppress(FileNotFoundError):
            if entry.is_dir():
                for name, found in _list_locally(entry.path, above | {real}):
                    yield f"{entry.name}/{name}", found
            else:
                status = entry.stat()
                yield entry.name, FoundFile(status.st_size, str(status.st_mtime_ns))


def _entries(directory: str) -> Sequence[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except FileNotFoundError:
        return ()


def _stamp(info: Mapping[str, Any]) -> str:
    return next((str(info[key]) for key in _STAMPS if info.get(key) is not None), "")
