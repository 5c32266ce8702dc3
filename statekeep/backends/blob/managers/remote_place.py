"""Blobs on any filesystem that fsspec knows, except the local one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from fsspec.asyn import AsyncFileSystem  # type: ignore[import-untyped]  # it ships no types
from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped]  # as above

from statekeep.errors import ConfigError

_generic_pipe_file = cast("Any", AbstractFileSystem).pipe_file
_generic_find = cast("Any", AbstractFileSystem).find
_generic_async_find = cast("Any", AsyncFileSystem)._find  # noqa: SLF001  # what its `find` is made of


class RemotePlace:
    """A `Place` below one path of an fsspec filesystem.

    Whether a blob is there whole or not at all is up to the filesystem: object stores keep to it.
    ``if_absent`` needs a filesystem with a ``mode="create"`` of its own, since fsspec's generic one
    looks first and writes then.
    """

    def __init__(self, filesystem: AbstractFileSystem, root: str) -> None:
        # fsspec declares no types.
        self._fs = cast("Any", filesystem)
        self._root = root.rstrip("/")

    def check(self) -> None:
        """List the root, which need not exist yet."""
        self._fs.invalidate_cache()
        with suppress(FileNotFoundError):
            self._fs.ls(self._root, detail=False)

    def put(self, name: str, content: bytes | Path, *, if_absent: bool) -> None:
        """Store a blob; FileExistsError with ``if_absent`` and a name that is taken."""
        path = self._path(name)
        if if_absent:
            # What is created is small: log records, not files of a store.
            self._create(path, content if isinstance(content, bytes) else content.read_bytes())
        elif isinstance(content, bytes):
            if self._is_generic():
                # It opens a file, where the filesystem's put_file makes the directories too.
                self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(path, content)
        else:
            self._fs.put_file(str(content), path)

    def size(self, name: str) -> int:
        """Return a blob's size in bytes."""
        self._fs.invalidate_cache()
        return int(self._fs.info(self._path(name))["size"])

    def read(self, name: str, start: int, end: int | None) -> bytes:
        """Return the bytes of a blob from ``start`` up to ``end``; None: to its end."""
        try:
            return bytes(self._fs.cat_file(self._path(name), start=start or None, end=end))
        except FileNotFoundError:
            raise
        except Exception:
            # HTTP has no answer for the nothing that stands behind the end.
            if (start or end) and self.size(name) == start:
                return b""
            raise

    def delete(self, name: str) -> None:
        """Delete a blob; one that is not there is no error."""
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    def list(self, prefix: str) -> Sequence[str]:
        """Return the names that begin with ``prefix``."""
        if not _has_own_find(self._fs):
            return self._listed_by_level(prefix)
        self._fs.invalidate_cache()
        with suppress(FileNotFoundError):
            return self._names(cast("list[str]", self._fs.find(self._directory(prefix))), prefix)
        return []

    def list_folders(self, prefix: str) -> Sequence[str]:
        """See `BlobStoreManager.list_folders`."""
        directory = self._directory(prefix)
        with suppress(FileNotFoundError):
            return _folders(self._entries(directory), directory)
        return []

    def remove_unfinished(self, prefix: str, is_closed: Callable[[str], bool]) -> None:
        """Do nothing: what an unfinished write leaves is the filesystem's."""

    def close(self) -> None:
        """Do nothing: fsspec shares its filesystems and keeps them."""

    def _listed_by_level(self, prefix: str) -> Sequence[str]:
        """List one directory after the other: fsspec's own `find` takes one that cannot be for empty."""
        waiting = [self._directory(prefix)]
        paths: list[str] = []
        while waiting:
            directory = waiting.pop()
            with suppress(FileNotFoundError):  # it has gone meanwhile, or was never there
                for entry in self._entries(directory):
                    name = str(entry["name"])
                    if entry["type"] != "directory":
                        paths.append(name)
                    elif name != directory:
                        waiting.append(name)
        return self._names(paths, prefix)

    def _directory(self, prefix: str) -> str:
        return self._path(prefix.rpartition("/")[0]).rstrip("/") or "/"

    def _names(self, paths: Sequence[str], prefix: str) -> Sequence[str]:
        names = [path.removeprefix(f"{self._root}/") for path in paths]
        return [name for name in names if name.startswith(prefix)]

    def _entries(self, directory: str) -> Sequence[Mapping[str, Any]]:
        self._fs.invalidate_cache()
        return cast("Sequence[Mapping[str, Any]]", self._fs.ls(directory, detail=True))

    def _is_generic(self) -> bool:
        """Return whether the filesystem has no way of its own to write a small file."""
        return getattr(self._fs.pipe_file, "__func__", None) is _generic_pipe_file

    def _create(self, path: str, data: bytes) -> None:
        if self._is_generic():
            msg = f"no atomic create on this kind of filesystem: kind={type(self._fs).__name__}"
            raise ConfigError(msg)
        self._fs.pipe_file(path, data, mode="create")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def _folders(entries: Iterable[Mapping[str, Any]], directory: str) -> Sequence[str]:
    """Return the names of what is a directory and not the listed one, which some stores list too."""
    names = (str(entry["name"]).rstrip("/") for entry in entries if entry["type"] == "directory")
    return [name.rpartition("/")[2] for name in names if name != directory]


def _has_own_find(filesystem: object) -> bool:
    """Return whether a filesystem lists in a way of its own: object stores do, in one request."""
    kind = cast("Any", type(filesystem))
    if isinstance(filesystem, AsyncFileSystem):
        return kind._find is not _generic_async_find  # noqa: SLF001  # what `find` is made of
    return kind.find is not _generic_find
