"""Blobs on an SFTP server, once its host key is known to be right."""

# paramiko and fsspec have no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import io
import traceback
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import paramiko
from fsspec.implementations.sftp import (  # type: ignore[import-untyped]  # it ships no types
    SFTPFileSystem,
)
from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped]  # as above
from paramiko.hostkeys import InvalidHostKey
from typing_extensions import override

from statekeep.backends.storage.client import FileClient, ObjectRange, StorageClient
from statekeep.backends.storage.locations import Location
from statekeep.backends.storage.names import temporary_path, unfinished_name
from statekeep.checkpoint.log_session import random_nonce
from statekeep.errors import ConfigError

_CONNECT_S: Final = 10
_ANSWER_S: Final = 60
"""Without a byte; a server that hangs longer is given up, and its connection with it."""
_CLOSE_S: Final = 5
_AUTHENTICATION: Final = "_auth"
"""Name of the method of paramiko's client that shows keys to the server."""
_PLAIN_ANSWERS: Final = (FileNotFoundError, FileExistsError, PermissionError)
"""After these a connection is as good as before."""
KNOWN_HOSTS: Final = "known_hosts"
"""The storage option that names the file of host keys."""
_POLICY: Final = "host_key_policy"
"""fsspec's own option, by which any key would be accepted."""
_SYSTEM_FILE: Final = Path("/etc/ssh/ssh_known_hosts")


def open_client(location: Location) -> StorageClient:
    """Build a client, which opens a connection when it is asked; see the table of stores."""
    return SftpClient(partial(connect_sftp, location.uri, location.options), location.shown_uri)


class SftpClient(FileClient):
    """Files below one directory of an SFTP server, which has to know ``posix-rename``.

    A blob is written under a temporary name, its size is confirmed, and it is renamed: it is there
    whole or not at all. A connection serves one call at a time: a call takes an idle one, or opens
    another; one that failed is closed and never used again. There is no atomic create, and directories
    that a delete leaves empty stay.
    """

    def __init__(
        self,
        connect: Callable[..., tuple[AbstractFileSystem, str]],
        shown_root: str,
        *,
        new_uid: Callable[[], str] = random_nonce,
    ) -> None:
        """Keep how a connection is made; none is yet.

        Args:
            connect: Opens a connection and returns its filesystem and the path of the root; it takes
                options of fsspec and of the client.
            shown_root: See `FileClient`.
            new_uid: Draws lower-case hex that is never drawn again, for temporary names.
        """
        super().__init__(shown_root)
        self._connect = connect
        self._new_uid = new_uid
        # Taken from and put back by several threads: both are atomic, and no thread waits.
        self._idle: deque[_Connection] = deque()
        self._is_closed = False

    @override
    def reach(self) -> None:
        with self._connection() as connection, suppress(FileNotFoundError):
            connection.fs.ls(connection.root)

    @override
    def write(self, name: str, content: bytes | Path, *, if_absent: bool) -> None:
        if if_absent:
            raise ConfigError("no atomic create on this kind of filesystem: kind=sftp")
        with self._connection() as connection:
            target = connection.path(name)
            temporary = temporary_path(target, self._new_uid())
            connection.make_directories(target.rpartition("/")[0])
            with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
                connection.fs.ftp.putfo(file, temporary, confirm=True)
            connection.fs.mv(temporary, target)

    @override
    def read(self, name: str, start: int, length: int) -> ObjectRange:
        with self._connection() as connection:
            path = connection.path(name)
            size = int(connection.fs.info(path)["size"])
            if start >= size:
                return ObjectRange(b"", size)
            with connection.fs.open(path, "rb") as file:
                # Asked for ahead; a plain read waits for an answer every 32 KiB.
                chunks = file.readv([(start, min(length, size - start))])
                return ObjectRange(b"".join(chunks), size)

    @override
    def delete(self, name: str) -> None:
        with self._connection() as connection, suppress(FileNotFoundError):
            connection.fs.rm_file(connection.path(name))

    @override
    def list_folders(self, prefix: str) -> Sequence[str]:
        with self._connection() as connection, suppress(FileNotFoundError):
            entries = connection.fs.ls(connection.path(prefix.rpartition("/")[0]), detail=True)
            folders = (str(entry["name"]) for entry in entries if entry["type"] == "directory")
            return [folder.rpartition("/")[2] for folder in folders]
        return []

    @override
    def close(self) -> None:
        # Connections that calls are using are closed by the end of these.
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    @override
    def files(self, prefix: str) -> Sequence[str]:
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
        connection = self._open_idle() or self._new_connection()
        try:
            yield connection
        except _PLAIN_ANSWERS:
            self._give_back(connection)
            raise
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)

    def _open_idle(self) -> "_Connection | None":
        """Take an idle connection that is still open, if there is one.

        After a restart of the server none is: a call would fail once for each.
        """
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if connection.is_open:
                    return connection
                connection.close()
        return None

    def _new_connection(self) -> "_Connection":
        try:
            opened = self._connect(
                skip_instance_cache=True,
                timeout=_CONNECT_S,
                transport_factory=_transport_with_timeouts,
            )
            return _Connection(*opened)
        except Exception as exc:
            # Of a key file that the server refused, paramiko only says that it is no key of the
            # other kinds, by its most general error.
            calls = traceback.walk_tb(exc.__traceback__)
            if not any(frame.f_code.co_name == _AUTHENTICATION for frame, _ in calls):
                raise
            raise ConfigError("access denied: the SFTP server accepted none of the keys") from exc

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
        self.fs.client.get_transport().set_keepalive(0)  # see `_transport_with_timeouts`

    @property
    def is_open(self) -> bool:
        """Whether the server has not closed it, as far as this side has heard."""
        transport = self.fs.client.get_transport()
        return transport is not None and bool(transport.is_active())

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


def _transport_with_timeouts(sock: object, **options: object) -> object:
    """Make a transport of paramiko that closes itself if the server is silent before it is open.

    By default paramiko waits without a limit for an answer to the request for SFTP.
    """
    transport = cast("Any", paramiko.Transport)(sock, **options)
    transport.packetizer.set_keepalive(_ANSWER_S, transport.close)
    return transport


def connect_sftp(
    root_uri: str, storage_options: Mapping[str, Any], **options: object
) -> tuple[SFTPFileSystem, str]:
    """Open a connection; return its filesystem and the path of the root.

    Args:
        root_uri: ``sftp://user@host:port/path``.
        storage_options: Of paramiko's client, and `KNOWN_HOSTS`; the default are those of OpenSSH.
        options: Of fsspec and of the client.

    Raises:
        ConfigError: The server's key is unknown, or another one than is known.
    """
    if _POLICY in storage_options:
        raise ConfigError(
            f"host keys are always checked: option={_POLICY}",
            key=f"blob.store.storage.options.{_POLICY}",
            hint=f"leave it out, and name the file of the keys: storage.options.{KNOWN_HOSTS}",
        )
    of_uri = cast("Any", SFTPFileSystem)._get_kwargs_from_urls(root_uri)  # noqa: SLF001  # as fsspec does
    filesystem = cast("Any", _CheckedSftp)(**{**of_uri, **storage_options, **options})
    return filesystem, filesystem._strip_protocol(root_uri)  # noqa: SLF001  # as above


class _CheckedSftp(SFTPFileSystem):  # type: ignore[misc]  # as above
    """Talks to servers whose key is in a file of known hosts; by default fsspec accepts any key."""

    @override
    def _connect(self) -> None:
        options = dict(self.ssh_kwargs)
        files = _known_hosts_files(options.pop(KNOWN_HOSTS, None))
        self.client = paramiko.SSHClient()
        for file in files:
            _load(self.client, file)
        self.client.set_missing_host_key_policy(_RefuseUnknown(files))
        try:
            self.client.connect(self.host, **options)
        except paramiko.BadHostKeyException as exc:
            raise ConfigError(
                f"the SFTP server has another host key than is known: host={exc.hostname} "
                f"files={_shown(files)}",
                hint="the connection may be intercepted: ask the server's administrator before you "
                "replace the key in that file",
            ) from None
        self.ftp = self.client.open_sftp()


class _RefuseUnknown(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]  # paramiko has no types
    def __init__(self, files: list[Path]) -> None:
        self._files = files

    @override
    def missing_host_key(self, client: object, hostname: str, key: Any) -> None:
        host, _, port = hostname.strip("[").partition("]:")
        scan = f"ssh-keyscan {f'-p {port} ' if port else ''}{host}"
        raise ConfigError(
            f"the host key of the SFTP server is unknown: host={hostname} kind={key.get_name()} "
            f"fingerprint={key.fingerprint} files={_shown(self._files)}",
            hint=f"ask the server's administrator whether this is its fingerprint, then add the key: "
            f"{scan} >> ~/.ssh/known_hosts on every machine, or in a file that "
            f"storage.options.{KNOWN_HOSTS} names",
        )


def _known_hosts_files(named: str | None) -> list[Path]:
    if named is not None:
        return [Path(named).expanduser()]
    files = [Path("~/.ssh/known_hosts").expanduser(), _SYSTEM_FILE]
    return [file for file in files if file.is_file()]


def _load(client: paramiko.SSHClient, file: Path) -> None:
    try:
        client.load_system_host_keys(str(file))
    except OSError as exc:
        msg = f"cannot read the file of known hosts: path={file} reason={exc.strerror}"
        hint = "it has to be on every machine that talks to the server"
        raise ConfigError(msg, key=f"blob.store.storage.options.{KNOWN_HOSTS}", hint=hint) from exc
    except InvalidHostKey as exc:
        msg = f"a line of the file of known hosts is not one: path={file}"
        raise ConfigError(msg, key=f"blob.store.storage.options.{KNOWN_HOSTS}") from exc


def _shown(files: list[Path]) -> str:
    return ",".join(map(str, files)) or "none"
