"""Who may talk to whom over a container's socket: processes of one user that know the job's key.

Decision 0038. The container sends a `Hello`, the task a `Proof`, the container a `Welcome`; then
each has seen that the other knows the key, which itself is never sent.
"""

import hashlib
import hmac
import os
import secrets
import socket
import stat
import struct
from asyncio.trsock import TransportSocket
from pathlib import Path
from typing import Final

from statekeep.errors import ConfigError
from statekeep.spark.container.place import ContainerPlace
from statekeep.stores.local_files import LOCAL_DIR_KEY, private_opener
from statekeep.stores.locks import locked
from statekeep.stores.private_directories import make_private

CONTAINER: Final = "container"
TASK: Final = "task"
_KEY_FILE: Final = ".container-key"
_KEY_BYTES: Final = 32
_CREDENTIALS: Final = struct.Struct("3i")
"""Process, user and group, as Linux tells them of the other end of a Unix socket."""


def new_nonce() -> str:
    """Return what no proof was ever made for."""
    return secrets.token_hex(_KEY_BYTES)


def proof(key: bytes, role: str, challenge: str, answer: str) -> str:
    """Return the proof that ``role`` knows the key, for this connection only.

    Args:
        key: The job's.
        role: `CONTAINER` or `TASK`: a proof of the one is none of the other.
        challenge: The container's nonce.
        answer: The task's nonce.
    """
    text = f"statekeep-container-1 {role} {challenge} {answer}"
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def is_proof(given: str, key: bytes, role: str, challenge: str, answer: str) -> bool:
    """Tell whether ``given`` is the `proof`; takes as long for any other text."""
    return hmac.compare_digest(given.encode(), proof(key, role, challenge, answer).encode())


def job_key(place: ContainerPlace) -> bytes:
    """Return the job's key on this host; the first who asks draws it. Blocks.

    It lies in the job's local directory and is readable for the job's user alone.

    Raises:
        ConfigError: The directory or the file is another user's.
        RetriableError: A process that was stopped holds its lock.
    """
    job = place.directory.parent
    path = make_private(job.parent, job.name) / _KEY_FILE
    with locked(path, shared=False):
        found = path.lstat()
        if found.st_uid != os.geteuid():
            raise ConfigError(
                f"not a file of this user: path={path} owner={found.st_uid} user={os.geteuid()}",
                key=LOCAL_DIR_KEY,
                hint=f"remove it, or let {LOCAL_DIR_KEY} name a directory of this user",
            )
        key = path.read_bytes()
        if len(key) == _KEY_BYTES and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            return key
        key = secrets.token_bytes(_KEY_BYTES)
        path.chmod(0o600)
        with open(path, "wb", opener=private_opener) as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())  # after a power loss no other process may read zeros
        return key


def peer_user(connection: socket.socket | TransportSocket) -> int:
    """Return the user id of the process at the other end."""
    answer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(answer)[1])


def check_container(connection: socket.socket, path: Path) -> None:
    """Check that the process that listens at a socket is this user's.

    Raises:
        ConfigError: It is another user's, who was there first.
    """
    user = peer_user(connection)
    if user != os.geteuid():
        raise ConfigError(
            f"another user listens at the container's socket: socket={path} owner={user} "
            f"user={os.geteuid()}",
            key=LOCAL_DIR_KEY,
            hint="let TMPDIR name a directory of this user",
        )
