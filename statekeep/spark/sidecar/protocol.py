"""What tasks and their sidecar say to each other: JSON objects in frames, over a Unix socket.

A frame is a length of four bytes, big-endian, and so many bytes. First each proves to the other that it
is a process of this user which knows the job's key (decision 0038): the sidecar sends a `Hello`, the
task a `Proof`, the sidecar a `Welcome`. The key itself is never sent. Then the task sends one request,
and the sidecar answers with any number of `Progress` and then one `Done` or `Refused`. A
`SubmitVersion` is answered once all of its versions stand in the outbox on disk.
"""

import asyncio
import hashlib
import hmac
import os
import secrets
import socket
import stat
import struct
from asyncio.trsock import TransportSocket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from statekeep.checkpoint.framing import decode_json
from statekeep.errors import CheckpointCorruptError, ConfigError
from statekeep.spark.sidecar.paths import SidecarPaths
from statekeep.stores.local_files import LOCAL_DIR_KEY, private_opener
from statekeep.stores.locks import locked
from statekeep.stores.private_directories import make_private

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
"""Longest frame either side takes: a checkpoint with many stores' markers fits many times."""
MAX_GREETING_BYTES: Final = 4096
"""Longest frame from a peer that is not authenticated yet."""
_LENGTH_BYTES: Final = 4


STALE_SIDECAR: Final = "StaleSidecar"
"""`Refused.error` of a sidecar that was started with other settings, and ends for that."""
STOPPING_SIDECAR: Final = "StoppingSidecar"
"""`Refused.error` of a sidecar that ends as soon as its outbox is empty."""

NOTHING: Final = msgspec.Raw(b"null")
"""Stands where a JSON document may be and none is."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", rename="kebab"):
    """Base of everything on the socket."""


class Hello(_Message, frozen=True, kw_only=True, tag="hello"):
    """The sidecar's first word: what a task has to make its proof for."""

    nonce: str


class Proof(_Message, frozen=True, kw_only=True, tag="proof"):
    """The task's first word."""

    nonce: str
    proof: str


class Welcome(_Message, frozen=True, kw_only=True, tag="welcome"):
    """The sidecar knows the key too: the task may send its request."""

    proof: str


class _Request(_Message, frozen=True, kw_only=True):
    spec_digest: str = ""
    """`SidecarSpec.digest` of the job as the task knows it; `client.ask` fills it in."""
    epoch: int
    """Of the driver that asks. A newer one than before ends all uploads for older drivers: it has
    closed their attempts before its first request (R5)."""


class OtherVersion(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The version of another task in a `SubmitVersion`; the fields are as there."""

    partition: int
    version: str
    checkpoint: msgspec.Raw
    base: msgspec.Raw = NOTHING
    base_version: str = ""


class SubmitVersion(_Request, frozen=True, kw_only=True, tag="hand-over"):
    """Upload a sealed version and write the task's checkpoint (R5)."""

    attempt: int
    """Requests of a lower (epoch, attempt) are dropped from now on."""
    partition: int
    version: str
    """The sealed version, by its `VersionId`."""
    checkpoint: msgspec.Raw
    """The task's checkpoint as it will be, in Samza's JSON, still without markers."""
    base: msgspec.Raw = NOTHING
    """The newest committed checkpoint of the task, in Samza's JSON."""
    base_version: str = ""
    is_awaited: bool = False
    """The driver waits for this commit: the entry is not held back for those of other tasks."""
    is_observed: bool = False
    """The driver has listeners: the entry has all that was seen of the upload, not just how many requests."""
    others: tuple[OtherVersion, ...] = ()
    """Versions of other tasks of the slot, in the same attempt: all are taken, or the request is refused.
    A sidecar whose release does not know them has another digest, and is not asked."""

    def each(self) -> "list[SubmitVersion]":
        """Return a request for each version, as the outbox keeps them."""
        first = msgspec.structs.replace(self, others=())
        rest = (msgspec.structs.asdict(other) for other in self.others)
        return [first, *(msgspec.structs.replace(first, **fields) for fields in rest)]


class Candidate(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """One commit that a task may be restored from."""

    version: str
    """"" for empty state."""
    checkpoint: msgspec.Raw = NOTHING
    stores: Sequence[str]
    """Those that the commit record lists."""


class Restore(_Request, frozen=True, kw_only=True, tag="restore"):
    """Bring a task's state to this host."""

    partition: int
    candidates: Sequence[Candidate]
    """Newest first."""
    bad_markers: Sequence[tuple[str, str, str, str]] = ()


class FollowedTask(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """A task that runs elsewhere, and the commit of it that is to lie on this host too."""

    partition: int
    candidate: Candidate


class Follow(_Request, frozen=True, kw_only=True, tag="follow"):
    """Bring commits of tasks here that run elsewhere, after whatever a batch waits for."""

    tasks: Sequence[FollowedTask]
    bad_markers: Sequence[tuple[str, str, str, str]] = ()
    is_awaited: bool = False
    """The answer comes some tenths of a second later, if not all is here before, and says what is not
    here; else it comes at once. A task that waited for all of it would keep a core from the batches."""


class Stop(_Request, frozen=True, kw_only=True, tag="stop"):
    """End as soon as the outbox is empty; obeyed whatever the settings."""


class Progress(_Message, frozen=True, kw_only=True, tag="progress"):
    """How far a restore is."""

    done_bytes: int
    total_bytes: int


class Failure(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """A backend that could not restore a store."""

    store: str
    backend: str
    marker: str
    error: str
    is_marker_bad: bool
    """What the marker names is gone or damaged for good."""


class Followed(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """What a sidecar has done for requests to follow, since it was asked before."""

    tasks: int = 0
    """Commits of tasks that were brought here, or lay here."""
    failures: int = 0
    """Those that could not be."""
    bytes_fetched: int = 0
    waiting: int = 0
    """Of the commits in a request that is awaited, those that are not here yet."""


class Done(_Message, frozen=True, kw_only=True, tag="done"):
    """The request was carried out; the fields are of a restore, the last one of a `Follow`."""

    version: str = ""
    candidate: int = 0
    """Which candidate was restored."""
    sources: Mapping[str, str] = {}
    """``{store: "local" or backend}``"""
    bytes_fetched: int = 0
    elapsed_ms: int = 0
    failures: Sequence[Failure] = ()
    events: msgspec.Raw = NOTHING
    """What was seen of the restore, for listeners (`statekeep.checkpoint.serde`)."""
    followed: Followed = Followed()


class Refused(_Message, frozen=True, kw_only=True, tag="refused"):
    """The request was not carried out."""

    error: str
    """Name of the error class; or `STALE_SIDECAR`, `STOPPING_SIDECAR`: ask its successor."""
    message: str


NOT_ADMITTED: Final = "NotAdmitted"
"""`Refused.error` of a sidecar whose job's key the task does not know."""

Greeting = Hello | Proof | Welcome | Refused
Request = SubmitVersion | Restore | Follow | Stop
Answer = Progress | Done | Refused

_encoder = msgspec.json.Encoder()
_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


_greetings: msgspec.json.Decoder[Greeting] = msgspec.json.Decoder(Greeting)


def encode_frame(message: Greeting | Request | Answer) -> bytes:
    """Return a message as it goes over the socket."""
    content = encode(message)
    return len(content).to_bytes(_LENGTH_BYTES) + content


async def read_frame(reader: asyncio.StreamReader, limit: int = MAX_FRAME_BYTES) -> bytes:
    """Read what one frame holds.

    Raises:
        CheckpointCorruptError: It is longer than ``limit``; nothing of it was read.
        EOFError: The other end has gone.
    """
    length = _checked(await reader.readexactly(_LENGTH_BYTES), limit)
    return await reader.readexactly(length)


def read_frame_from(stream: BinaryIO, limit: int = MAX_FRAME_BYTES) -> bytes:
    """Read what one frame holds. Blocks.

    Raises:
        CheckpointCorruptError: It is longer than ``limit``; nothing of it was read.
        EOFError: The other end has gone.
    """
    head = stream.read(_LENGTH_BYTES)
    content = stream.read(_checked(head, limit)) if len(head) == _LENGTH_BYTES else b""
    if not content or len(content) < int.from_bytes(head):
        raise EOFError
    return content


def _checked(head: bytes, limit: int) -> int:
    length = int.from_bytes(head)
    if length > limit:
        raise CheckpointCorruptError(f"message is too long: bytes={length} limit_bytes={limit}")
    return length


def encode(message: Greeting | Request | Answer) -> bytes:
    """Return a message as one line, as the outbox keeps it."""
    return _encoder.encode(message) + b"\n"


def decode_request(line: bytes) -> Request:
    """Read a request; CheckpointCorruptError if it is none."""
    return decode_json(_requests, line, "not a request to a sidecar")


def decode_answer(line: bytes) -> Answer:
    """Read an answer; CheckpointCorruptError if it is none."""
    return decode_json(_answers, line, "not an answer of a sidecar")


def decode_greeting(line: bytes) -> Greeting:
    """Read what comes before a request; CheckpointCorruptError if it is none."""
    return decode_json(_greetings, line, "not a greeting")


SIDECAR: Final = "sidecar"
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
        role: `SIDECAR` or `TASK`: a proof of the one is none of the other.
        challenge: The sidecar's nonce.
        answer: The task's nonce.
    """
    text = f"statekeep-sidecar-1 {role} {challenge} {answer}"
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def is_proof(given: str, key: bytes, role: str, challenge: str, answer: str) -> bool:
    """Return whether ``given`` is the `proof`; takes as long for any other text."""
    return hmac.compare_digest(given.encode(), proof(key, role, challenge, answer).encode())


def job_key(paths: SidecarPaths) -> bytes:
    """Return the job's key on this host; the first who asks draws it. Blocks.

    It lies in the job's local directory and is readable for the job's user alone.

    Raises:
        ConfigError: The directory or the file is another user's.
        RetriableError: A process that was stopped holds its lock.
    """
    job = paths.directory.parent
    path = make_private(job.parent, job.name) / _KEY_FILE
    with locked(path, shared=False):
        found = path.lstat()
        if found.st_uid != os.geteuid():
            raise ConfigError(
                f"not a file of this user: path={path} owner={found.st_uid} user={os.geteuid()}",
                key=LOCAL_DIR_KEY,
                hint=f"remove it, or set {LOCAL_DIR_KEY} to a directory of this user",
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


def check_sidecar(connection: socket.socket, path: Path) -> None:
    """Check that the process that listens at a socket is this user's.

    Raises:
        ConfigError: It is another user's, who was there first.
    """
    user = peer_user(connection)
    if user != os.geteuid():
        raise ConfigError(
            f"another user listens at the sidecar's socket: socket={path} owner={user} "
            f"user={os.geteuid()}",
            key=LOCAL_DIR_KEY,
            hint="set TMPDIR to a directory of this user",
        )
