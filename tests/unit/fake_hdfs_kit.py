"""A filesystem in place of HDFS, as the client library shows it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any


@dataclass
class Status:
    path: str
    length: int
    isdir: bool = False


class FakeHdfs:
    """The part of hdfs-native that is used, on a dict; calls that are told to wait without end."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
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
        if target in self.files:
            raise FileExistsError(target)
        self.files[target] = self.files.pop(source)

    async def delete(self, path: str, *, recursive: bool) -> bool:
        assert not recursive
        await self.answer("delete")
        return self.files.pop(path, None) is not None

    async def list_status(self, path: str, recursive: bool = False) -> AsyncIterator[Status]:  # noqa: FBT001, FBT002  # hdfs-native's
        await self.answer("list")
        for name, content in self.files.items():
            if name.startswith(f"{path}/"):
                yield Status(name, len(content))

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
