"""What tasks and their container say to each other: JSON objects in frames, over a Unix socket.

A frame is a length of four bytes, big-endian, and so many bytes. Container and task prove to each
other who they are (`handshake`); then the task sends one request, and the container answers with any
number of `Progress` and then one `Done` or `Refused`. A `HandOver` is answered once it stands in the
outbox on disk.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import BinaryIO, Final

import msgspec

from statekeep.checkpoint.decoding import decode_json
from statekeep.errors import CheckpointCorruptError

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
"""Longest frame either side takes: a checkpoint with many stores' markers fits many times."""
MAX_GREETING_BYTES: Final = 4096
"""Longest frame from somebody who has proved nothing yet."""
_LENGTH_BYTES: Final = 4


STALE_CONTAINER: Final = "StaleContainer"
"""`Refused.error` of a container that was started with other settings, and ends for that."""
STOPPING_CONTAINER: Final = "StoppingContainer"
"""`Refused.error` of a container that ends as soon as its outbox is empty."""

NOTHING: Final = msgspec.Raw(b"null")
"""Stands where a JSON document may be and none is."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", rename="kebab"):
    """Base of everything on the socket."""


class Hello(_Message, frozen=True, kw_only=True, tag="hello"):
    """The container's first word: what a task has to make its proof for."""

    nonce: str


class Proof(_Message, frozen=True, kw_only=True, tag="proof"):
    """The task's first word."""

    nonce: str
    proof: str


class Welcome(_Message, frozen=True, kw_only=True, tag="welcome"):
    """The container knows the key too: the task may send its request."""

    proof: str


class _Request(_Message, frozen=True, kw_only=True):
    spec_digest: str = ""
    """`ContainerSpec.digest` of the job as the task knows it; `client.ask` fills it in."""
    epoch: int
    """Of the driver that asks. A newer one than before ends all uploads for older drivers: it has
    closed their attempts before its first request (R5)."""


class HandOver(_Request, frozen=True, kw_only=True, tag="hand-over"):
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


class Candidate(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """One commit that a task may be restored from."""

    version: str
    """"" for empty state."""
    checkpoint: msgspec.Raw = NOTHING


class Restore(_Request, frozen=True, kw_only=True, tag="restore"):
    """Bring a task's state to this host."""

    partition: int
    candidates: Sequence[Candidate]
    """Newest first."""
    bad_markers: Sequence[tuple[str, str, str, str]] = ()


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


class Done(_Message, frozen=True, kw_only=True, tag="done"):
    """The request was carried out; the fields are of a restore."""

    version: str = ""
    candidate: int = 0
    """Which candidate was restored."""
    sources: Mapping[str, str] = {}
    """``{store: "local" or backend}``"""
    bytes_fetched: int = 0
    elapsed_ms: int = 0
    failures: Sequence[Failure] = ()


class Refused(_Message, frozen=True, kw_only=True, tag="refused"):
    """The request was not carried out."""

    error: str
    """Name of the error class; or `STALE_CONTAINER`, `STOPPING_CONTAINER`: ask its successor."""
    message: str


NOT_ADMITTED: Final = "NotAdmitted"
"""`Refused.error` of a container whose job's key the task does not know."""

Greeting = Hello | Proof | Welcome | Refused
Request = HandOver | Restore | Stop
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
    return decode_json(_requests, line, "not a request to a container")


def decode_answer(line: bytes) -> Answer:
    """Read an answer; CheckpointCorruptError if it is none."""
    return decode_json(_answers, line, "not an answer of a container")


def decode_greeting(line: bytes) -> Greeting:
    """Read what comes before a request; CheckpointCorruptError if it is none."""
    return decode_json(_greetings, line, "not a greeting")
