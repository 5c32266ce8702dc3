"""A file server that dies under its clients: each call into it occupies a thread until the end."""

import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.wrappers import WrappedBlobStoreManager
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.testing.storage import bare_manager

T = TypeVar("T")


class FileServer:
    """What every call goes through; once it is dead, a call occupies its thread until the end."""

    def __init__(self) -> None:
        self.is_dead = False
        self.hung_calls = threading.Semaphore(0)
        self.is_back = threading.Event()

    def answer(self) -> None:
        if self.is_dead:
            self.hung_calls.release()
            assert self.is_back.wait(20)


_servers: Final[dict[str, FileServer]] = {}


class RemoteManager(WrappedBlobStoreManager):
    """A blob client on files of a server."""

    def __init__(
        self, inner: BlobStoreManager, server: FileServer, executor: BlockingExecutor
    ) -> None:
        super().__init__(inner)
        self._server = server
        self._executor = executor

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        await self._executor.run(self._server.answer)
        return await call()


def make_manager(settings: Mapping[str, str], executor: BlockingExecutor) -> BlobStoreManager:
    uri = settings["uri"]
    return RemoteManager(bare_manager(uri, {}, executor), _servers[uri], executor)


@contextmanager
def file_server(directory: Path) -> Iterator[FileServer]:
    """Serve a directory; at the end calls that hang return, and their threads have ended."""
    server = _servers[f"file://{directory}"] = FileServer()
    before = set(threading.enumerate())
    yield server
    server.is_back.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)


def config_of_job_on(directory: Path, **settings: str) -> Config:
    """Return the settings of a job whose only backend is on the server of a directory."""
    values = {
        "job.name": "j",
        "stores.backup.factories": "remote",
        "backends.remote.factory": "blob",
        "backends.remote.uri": f"file://{directory}",
        "backends.remote.manager.factory": "file_server_kit:make_manager",
    }
    return load_dict(values | {key.replace("__", "."): value for key, value in settings.items()})
