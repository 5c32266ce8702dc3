"""What tasks and their container say to each other: one JSON object a line, over a Unix socket.

The task sends one request; the container answers with any number of `Progress` lines and then one
`Done` or `Refused`. A `HandOver` is answered once it stands in the outbox on disk.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from statekeep.checkpoint.decoding import decode_json

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
"""Longest line either side accepts: a checkpoint with many stores' markers fits many times."""


STALE_CONTAINER: Final = "StaleContainer"
"""`Refused.error` of a container that was started with other settings, and ends for that."""
STOPPING_CONTAINER: Final = "StoppingContainer"
"""`Refused.error` of a container that ends as soon as its outbox is empty."""

NOTHING: Final = msgspec.Raw(b"null")
"""Stands where a JSON document may be and none is."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", rename="kebab"):
    """Base of everything on the socket."""


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


Request = HandOver | Restore | Stop
Answer = Progress | Done | Refused

_encoder = msgspec.json.Encoder()
_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


def encode(message: Request | Answer) -> bytes:
    """Return one line."""
    return _encoder.encode(message) + b"\n"


def decode_request(line: bytes) -> Request:
    """Read a request; CheckpointCorruptError if it is none."""
    return decode_json(_requests, line, "not a request to a container")


def decode_answer(line: bytes) -> Answer:
    """Read an answer; CheckpointCorruptError if it is none."""
    return decode_json(_answers, line, "not an answer of a container")
