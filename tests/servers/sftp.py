"""An SFTP server of paramiko's parts, with OpenSSH's ``posix-rename``; run as a program of its own."""

import os
import socket
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from servers.process import (
    ServerUnavailableError,
    free_ports,
    is_listening,
    running,
    temporary_directory,
)

USER = "tester"


@dataclass(frozen=True, slots=True)
class SftpServer:
    """Where the server answers, and as whom."""

    port: int
    key_file: Path
    """Of the one user."""
    root: Path
    """What the user sees as ``/``."""
    known_hosts: Path
    """With the server's own key."""

    @property
    def endpoint(self) -> str:
        return f"sftp://{USER}@127.0.0.1:{self.port}"


@contextmanager
def sftp_server() -> Generator[SftpServer]:
    """Run the server over a new directory."""
    if find_spec("paramiko") is None:
        raise ServerUnavailableError("paramiko is missing: pip install paramiko")
    import paramiko  # noqa: PLC0415  # looked for just now

    [port] = free_ports()
    with temporary_directory("sftp") as directory:
        root, key_file = directory / "root", directory / "key"
        root.mkdir()
        key = paramiko.RSAKey.generate(2048)
        key.write_private_key_file(str(key_file))
        known_hosts = directory / "known_hosts"
        known_hosts.write_text(f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n")
        command = [sys.executable, __file__, str(port), str(root), str(key_file)]
        env = {"PYTHONPATH": str(Path(__file__).parents[1])}
        ready = running(
            command, log=directory / "log", is_ready=lambda: is_listening(port), env=env
        )
        with ready:
            yield SftpServer(port, key_file, root, known_hosts)


def serve(port: int, root: Path, key_file: Path) -> None:
    """Serve until the process is ended; the user's key is the server's own."""
    import paramiko  # noqa: PLC0415  # in the server's process only

    key = paramiko.RSAKey(filename=str(key_file))

    class OneUser(paramiko.ServerInterface):  # type: ignore[misc]  # paramiko has no types
        def check_channel_request(self, kind: str, chanid: int) -> int:
            return int(paramiko.OPEN_SUCCEEDED)

        def check_auth_publickey(self, username: str, offered: Any) -> int:
            is_known = username == USER and offered == key
            return int(paramiko.AUTH_SUCCESSFUL if is_known else paramiko.AUTH_FAILED)

        def get_allowed_auths(self, username: str) -> str:
            return "publickey"

    class Files(paramiko.SFTPServerInterface):  # type: ignore[misc]  # as above
        def list_folder(self, path: str) -> Any:
            return self._try(
                lambda: [
                    paramiko.SFTPAttributes.from_stat(entry.stat(), entry.name)
                    for entry in self._local(path).iterdir()
                ]
            )

        def stat(self, path: str) -> Any:
            return self._try(lambda: paramiko.SFTPAttributes.from_stat(self._local(path).stat()))

        def lstat(self, path: str) -> Any:
            return self.stat(path)

        def open(self, path: str, flags: int, attr: Any) -> Any:
            def opened() -> Any:
                descriptor = os.open(self._local(path), flags, 0o666)
                is_written = flags & (os.O_WRONLY | os.O_RDWR)
                file = os.fdopen(descriptor, "r+b" if is_written else "rb")
                handle = paramiko.SFTPHandle(flags)
                handle.filename, handle.readfile, handle.writefile = path, file, file
                return handle

            # paramiko's client opens for writing only; its handle wants a file that can be read too.
            flags = flags & ~os.O_WRONLY | os.O_RDWR if flags & os.O_WRONLY else flags
            return self._try(opened)

        def remove(self, path: str) -> int:
            return self._done(lambda: self._local(path).unlink())

        def posix_rename(self, oldpath: str, newpath: str) -> int:
            return self._done(lambda: self._local(oldpath).replace(self._local(newpath)))

        def mkdir(self, path: str, attr: Any) -> int:
            return self._done(lambda: self._local(path).mkdir())

        def _local(self, path: str) -> Path:
            return root / str(self.canonicalize(path)).lstrip("/")

        def _done(self, call: Any) -> int:
            outcome = self._try(call)
            return outcome if isinstance(outcome, int) else int(paramiko.SFTP_OK)

        def _try(self, call: Any) -> Any:
            try:
                return call()
            except OSError as exc:
                return paramiko.SFTPServer.convert_errno(exc.errno)

    def serve_one(connection: socket.socket) -> None:
        transport = paramiko.Transport(connection)
        transport.add_server_key(key)
        transport.set_subsystem_handler("sftp", paramiko.SFTPServer, Files)
        transport.start_server(server=OneUser())

    with socket.create_server(("127.0.0.1", port), backlog=64) as listener:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve_one, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
