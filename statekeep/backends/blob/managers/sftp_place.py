"""Blobs on an SFTP server."""

import io
import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped]  # it ships no types

from statekeep.backends.blob.names import temporary_path, unfinished_name
from statekeep.checkpoint.log_session import random_nonce
from statekeep.errors import ConfigError

_SCHEMES: Final = frozenset({"sftp", "ssh"})
_CONNECT_S: Final = 10
_ANSWER_S: Final = 60
"""Without a byte; a server that hangs longer is given up, and its connection with it."""
_CLOSE_S: Final = 5
_AUTHENTICATION: Final = "_auth"
"""Name of the method of paramiko's client that shows keys to the server."""
_PLAIN_ANSWERS: Final = (FileNotFoundError, FileExistsError, PermissionError)
"""After these a connection is as good as before."""


def is_sftp(uri: str) -> bool:
    """Return whether a URI names a place on an SFTP server."""
    return urlsplit(uri).scheme in _SCHEMES


class SftpPlace:
    """A `Place` below one directory of an SFTP server, which has to know ``posix-rename``.

    A blob is written under a temporary name, its size is confirmed, and it is renamed: it is there
    whole or not at all. A connection serves one call at a time: a call takes an idle one, or opens
    another; one that failed is closed and never used again. There is no atomic create, and directories
    that a delete leaves empty stay.
    """

    def __init__(
        self,
        connect: Callable[..., tuple[AbstractFileSystem, str]],
        *,
        new_uid: Callable[[], str] = random_nonce,
    ) -> None:
        """Take note of how a connection is made; none is yet.

        Args:
            connect: Opens a connection and returns its filesystem and the path of the root; it takes
                options of fsspec and of the client.
            new_uid: Draws lower-case hex that is never drawn again, for temporary names.
        """
        self._connect = connect
        self._new_uid = new_uid
        # Taken from and put back by several threads: both are atomic, and nobody waits.
        self._idle: deque[_Connection] = deque()
        self._is_closed = False

    def check(self) -> None:
        """List the root, which need not exist yet."""
        with self._connection() as connection, suppress(FileNotFoundError):
            connection.fs.ls(connection.root)

    def put(self, name: str, content: bytes | Path, *, if_absent: bool) -> None:
        """Store a blob."""
        if if_absent:
            raise ConfigError("no atomic create on this kind of filesystem: kind=sftp")
        with self._connection() as connection:
            target = connection.path(name)
            temporary = temporary_path(target, self._new_uid())
            connection.make_directories(target.rpartition("/")[0])
            with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
                connection.fs.ftp.putfo(file, temporary, confirm=True)
            connection.fs.mv(temporary, target)

    def size(self, name: str) -> int:
        """Return a blob's size in bytes."""
        with self._connection() as connection:
            return int(connection.fs.info(connection.path(name))["size"])

    def read(self, name: str, start: int, end: int | None) -> bytes:
        """Return the bytes of a blob from ``start`` up to ``end``; None: to its end."""
        with self._connection() as connection:
            path = connection.path(name)
            size = int(connection.fs.info(path)["size"])
            length = (size if end is None else min(end, size)) - start
            if length <= 0:
                return b""
            with connection.fs.open(path, "rb") as file:
                # Asked for ahead; a plain read waits for an answer every 32 KiB.
                return b"".join(file.readv([(start, length)]))

    def delete(self, name: str) -> None:
        """Delete a blob; one that is not there is no error."""
        with self._connection() as connection, suppress(FileNotFoundError):
            connection.fs.rm_file(connection.path(name))

    def list(self, prefix: str) -> Sequence[str]:
        """Return the names that begin with ``prefix``."""
        return [name for name in self._files(prefix) if unfinished_name(name) is None]

    def list_folders(self, prefix: str) -> Sequence[str]:
        """See `BlobStoreManager.list_folders`."""
        with self._connection() as connection, suppress(FileNotFoundError):
            entries = connection.fs.ls(connection.path(prefix.rpartition("/")[0]), detail=True)
            folders = (str(entry["name"]) for entry in entries if entry["type"] == "directory")
            return [folder.rpartition("/")[2] for folder in folders]
        return []

    def remove_unfinished(self, prefix: str, is_closed: Callable[[str], bool]) -> None:
        """See `BlobStoreManager.remove_unfinished`."""
        for name in self._files(prefix):
            blob = unfinished_name(name)
            if blob is not None and is_closed(blob):
                self.delete(name)

    def close(self) -> None:
        """Close the connections that no call is using; the others are closed by their calls' end."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    def _files(self, prefix: str) -> Sequence[str]:
        """Return the names of all files in the directory of a prefix, and below it."""
        with self._connection() as connection:
            # Not by `find`, which leaves a directory out that it cannot list.
            directories = [connection.path(prefix.rpartition("/")[0])]
            names: list[str] = []
            while directories:
                with suppress(FileNotFoundError):
                    for entry in connection.fs.ls(directories.pop(), detail=True):
                        if entry["type"] == "directory":
                            directories.append(entry["name"])
                        else:
                            names.append(entry["name"].removeprefix(f"{connection.root}/"))
        return [name for name in names if name.startswith(prefix) or unfinished_name(name)]

    @contextmanager
    def _connection(self) -> Generator["_Connection"]:
        """Lend a connection to one call."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._new_connection()
        try:
            yield connection
        except _PLAIN_ANSWERS:
            self._give_back(connection)
            raise
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)

    def _new_connection(self) -> "_Connection":
        try:
            opened = self._connect(
                skip_instance_cache=True, timeout=_CONNECT_S, transport_factory=_impatient_transport
            )
            return _Connection(*opened)
        except Exception as exc:
            # Of a key file that the server refused, paramiko tells only that it is no key of the
            # other kinds, by its most general error.
            calls = traceback.walk_tb(exc.__traceback__)
            if not any(frame.f_code.co_name == _AUTHENTICATION for frame, _ in calls):
                raise
            raise ConfigError("access denied: the SFTP server took none of the keys") from exc

    def _give_back(self, connection: "_Connection") -> None:
        self._idle.append(connection)
        if self._is_closed:
            self.close()


class _Connection:
    """One connection to the server, and the path of the root there."""

    def __init__(self, filesystem: AbstractFileSystem, root: str) -> None:
        # fsspec declares no types.
        self.fs = cast("Any", filesystem)
        self.root = root.rstrip("/")
        self.fs.ftp.get_channel().settimeout(_ANSWER_S)
        self.fs.client.get_transport().set_keepalive(0)  # see `_impatient_transport`

    def path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def make_directories(self, path: str) -> None:
        """Make a directory and what is missing above it; others may do so at the same moment."""
        missing: list[str] = []
        while path and not self.fs.isdir(path):
            missing.append(path)
            path = path.rpartition("/")[0]
        for each in reversed(missing):
            try:
                self.fs.ftp.mkdir(each)
            except OSError:  # of whatever kind: the protocol has none for a name that is taken
                if not self.fs.isdir(each):
                    raise

    def close(self) -> None:
        transport = self.fs.client.get_transport()
        self.fs.client.close()
        if transport is not None:
            transport.join(_CLOSE_S)  # a thread, which is now asked to end


def _impatient_transport(sock: object, **options: object) -> object:
    """Make a transport of paramiko that closes itself if the server is silent before it is open.

    By itself paramiko waits for ever for an answer to the request for SFTP.
    """
    from paramiko import Transport  # noqa: PLC0415  # fsspec has it by now

    transport = cast("Any", Transport)(sock, **options)
    transport.packetizer.set_keepalive(_ANSWER_S, transport.close)
    return transport
