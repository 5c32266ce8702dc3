"""A filesystem in place of HDFS, as the client library shows it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

NOT_EMPTY = 'RPCError("org.apache.hadoop.fs.PathIsNotEmptyDirectoryException", "is non empty'
NO_DIRECTORY = 'RPCError("org.apache.hadoop.fs.ParentNotDirectoryException", "not a directory'


@dataclass
class Status:
    path: str
    length: int
    isdir: bool = False


class FakeHdfs:
    """The part of hdfs-native that is used, on a dict; calls that are told to wait without end.

    As on a NameNode, a file is created together with the directories above it, in one step.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.directories: set[str] = {"/"}
        self.stuck: set[str] = set()
        self.errors: dict[str, BaseException] = {}
        self.is_waiting = asyncio.Event()
        self.abandoned = 0
        self.bytes_read = 0

    async def answer(self, operation: str) -> None:
        await asyncio.sleep(0)
        if operation in self.errors:
            raise self.errors.pop(operation)
        if operation in self.stuck:
            self.is_waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.abandoned += 1

    async def create(self, path: str, options: Any) -> "FakeWriter":
        assert not options.overwrite
        await self.answer("create")
        self._check_parents(path)
        self.directories.update(map(str, PurePosixPath(path).parents))
        self.files[path] = b""
        return FakeWriter(self, path)

    async def read(self, path: str) -> "FakeReader":
        await self.answer("read")
        return FakeReader(self, self._content(path))

    async def get_file_info(self, path: str) -> Status:
        await self.answer("info")
        return Status(path, len(self._content(path)))

    async def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        assert not overwrite
        await self.answer("rename")
        if source not in self.files:
            raise FileNotFoundError(source)
        if target in self.files:
            raise FileExistsError(target)
        self.files[target] = self.files.pop(source)

    async def delete(self, path: str, *, recursive: bool) -> bool:
        assert not recursive
        await self.answer("delete")
        self._check_parents(path)
        if path in self.directories:
            if self._children(path):
                raise RuntimeError(NOT_EMPTY)
            self.directories.remove(path)
            return True
        return self.files.pop(path, None) is not None

    async def list_status(self, path: str) -> AsyncIterator[Status]:
        await self.answer("list")
        self._check_parents(path)
        if path not in self.directories:
            raise FileNotFoundError(path)
        for child in self._children(path):
            is_file = child in self.files
            yield Status(child, len(self.files[child]) if is_file else 0, isdir=not is_file)

    def add(self, path: str, content: bytes) -> None:
        """Put a file there without a writer."""
        self.directories.update(map(str, PurePosixPath(path).parents))
        self.files[path] = content

    def below(self, directory: str) -> list[str]:
        """Return the directories below one."""
        return sorted(path for path in self.directories if path.startswith(f"{directory}/"))

    def _children(self, directory: str) -> list[str]:
        known = {*self.files, *self.directories} - {"/"}
        return sorted(path for path in known if str(PurePosixPath(path).parent) == directory)

    def _check_parents(self, path: str) -> None:
        if any(str(parent) in self.files for parent in PurePosixPath(path).parents):
            raise RuntimeError(NO_DIRECTORY)

    def _content(self, path: str) -> bytes:
        try:
            return self.files[path]
        except KeyError:
            raise FileNotFoundError(path) from None


class FakeWriter:
    def __init__(self, hdfs: FakeHdfs, path: str) -> None:
        self._hdfs = hdfs
        self._path = path

    async def write(self, data: bytes) -> None:
        await self._hdfs.answer("write")
        self._hdfs.files[self._path] += data

    async def close(self) -> None:
        await self._hdfs.answer("close")


class FakeReader:
    def __init__(self, hdfs: FakeHdfs, content: bytes) -> None:
        self._hdfs = hdfs
        self._content = content

    def __len__(self) -> int:
        return len(self._content)

    async def read_range(self, start: int, size: int) -> bytes:
        await self._hdfs.answer("read_range")
        assert 0 <= start <= start + size <= len(self._content)
        self._hdfs.bytes_read += size
        return self._content[start : start + size]
