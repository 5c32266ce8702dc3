"""Which batch a sink is given now, and by which driver: what a store needs to refuse an old driver."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

import msgspec

from statekeep.checkpoint.framing import decode_json


@dataclass(frozen=True, slots=True)
class BatchToken:
    """A fencing token: of two drivers of one job, the later one has the higher epoch."""

    job_uid: str
    """Which job, for as long as its job log lives."""
    query_id: str
    """Which query of the job. Batch numbers compare only within one query."""
    epoch: int
    """Which driver. Every start of a query takes the next number, also after a restart."""
    batch: int
    """The number that the sink is called with."""


_decoder: Final = msgspec.json.Decoder(BatchToken)


def encode_token(token: BatchToken) -> bytes:
    """Return a token as a sink stores it beside what it has written."""
    return msgspec.json.encode(token)


def decode_token(data: bytes, *, where: str) -> BatchToken:
    """Read what `encode_token` wrote.

    Args:
        data: What is stored.
        where: Named in errors, such as ``path=...``.

    Raises:
        CheckpointCorruptError: It is no token.
    """
    return decode_json(_decoder, data, f"token of a batch cannot be read: {where}")


_current: Final[ContextVar[BatchToken | None]] = ContextVar("current_batch", default=None)


def current_batch() -> BatchToken:
    """Return the token of the batch that is being delivered.

    For use inside the function given to ``foreachBatch``, on the thread that calls it. A thread or
    a Spark task that the function starts gets the token as an argument.

    Raises:
        RuntimeError: No batch is being delivered on this thread.
    """
    token = _current.get()
    if token is None:
        msg = "no batch is being delivered on this thread: call current_batch() inside foreachBatch"
        raise RuntimeError(msg)
    return token


@contextmanager
def delivering(token: BatchToken) -> Generator[None]:
    """Make ``token`` the current one for the calling thread; by the driver, around the sink."""
    previous = _current.set(token)
    try:
        yield
    finally:
        _current.reset(previous)
