"""Job logs for tests: records to write, and blob stores that misbehave in one way each."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from typing import ParamSpec, TypeVar

import msgspec
from typing_extensions import override

from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.storage.job_log import BlobJobLog
from statekeep.backends.storage.memory import MemoryBlobStoreManager
from statekeep.backends.wrappers import WrappedBlobStoreManager
from statekeep.checkpoint.log_reader import LogReader
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import (
    AbortRecord,
    AttemptRecord,
    BaseRecord,
    BatchRecord,
    CommitRecord,
    JobIdentity,
    QueryState,
    Record,
    TaskBatch,
)
from statekeep.errors import RetriableError

P = ParamSpec("P")
T = TypeVar("T")

_root_numbers = count()

UID = "0123456789abcdef"


class InlineExecutor:
    """Makes blocking calls in line."""

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return call(*args, **kwargs)


class CountedBlobs(WrappedBlobStoreManager):
    """Counts the calls by operation."""

    def __init__(self, inner: BlobStoreManager, counts: Counter[str]) -> None:
        super().__init__(inner)
        self.counts = counts

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        self.counts[operation] += 1
        return await call()


class LosingBlobs(WrappedBlobStoreManager):
    """Does what it is asked, then fails as if the answer were lost, as often as `losses` says."""

    def __init__(self, inner: BlobStoreManager) -> None:
        super().__init__(inner)
        self.losses: dict[str, int] = {}

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        result = await call()
        if self.losses.get(operation, 0) > 0:
            self.losses[operation] -= 1
            raise RetriableError(f"answer lost: operation={operation}")
        return result


class RefusingBlobs(WrappedBlobStoreManager):
    """Fails before it does what it is asked, as often as `refusals` says."""

    def __init__(self, inner: BlobStoreManager) -> None:
        super().__init__(inner)
        self.refusals: dict[str, int] = {}

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        if self.refusals.get(operation, 0) > 0:
            self.refusals[operation] -= 1
            raise RetriableError(f"refused: operation={operation}")
        return await call()


class RetryingOnce(WrappedBlobStoreManager):
    """Repeats every call that raises `RetriableError`, once."""

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        try:
            return await call()
        except RetriableError:
            return await call()


class DawdlingBlobs(WrappedBlobStoreManager):
    """Lets others run, for a random while, before and after each call.

    May lose the answer of a put, though not of a probe, which is to be told of such a store.
    """

    def __init__(self, inner: BlobStoreManager, rng: random.Random, *, loss: float = 0) -> None:
        super().__init__(inner)
        self._rng = rng
        self._loss = loss

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        await self._dawdle()
        result = await call()
        await self._dawdle()
        is_probe = "/log-probe/" in subject
        if operation == "put" and not is_probe and self._rng.random() < self._loss:
            raise RetriableError(f"answer lost: operation={operation}")
        return result

    async def _dawdle(self) -> None:
        for _ in range(self._rng.randrange(4)):
            await asyncio.sleep(0)


def new_blobs() -> MemoryBlobStoreManager:
    """Return an empty store of its own."""
    return MemoryBlobStoreManager(f"test-{next(_root_numbers)}", InlineExecutor())


def log_on(blobs: BlobStoreManager) -> BlobJobLog:
    return BlobJobLog(blobs, "job")


async def driver_on(blobs: BlobStoreManager, owner: str = "driver") -> LogSession:
    """Return a writer that has taken over the log."""
    writer = LogSession(log_on(blobs))
    await writer.open()
    await writer.take_over(owner)
    return writer


async def view_of(blobs: BlobStoreManager) -> LogView:
    """Return what a fresh reader makes of the log."""
    reader = LogReader(log_on(blobs))
    await reader.catch_up()
    return reader.view


def stamped(record: Record, epoch: int) -> Record:
    """Return a record as it stands in a log."""
    return msgspec.structs.replace(record, epoch=epoch, nonce="n")


def attempt_record(attempt: int, batch: int = 0) -> AttemptRecord:
    return AttemptRecord(
        attempt=attempt,
        batch=batch,
        checkpoint_id="1700000000123-456789",
        versions={"Partition 0": f"{batch}_{UID}"},
    )


def commit_record(
    attempt: int, batch: int = 0, *, attempt_epoch: int = 1, query_id: str = "q"
) -> CommitRecord:
    return CommitRecord(
        attempt_epoch=attempt_epoch,
        attempt=attempt,
        batch=batch,
        checkpoint_id="1700000000123-456789",
        identity=JobIdentity(job_uid="u", job_name="job", partitions=1),
        checkpoints={"Partition 0": msgspec.Raw(b'{"version":2}')},
        versions={"Partition 0": f"{max(batch, 0)}_{UID}"},
        query=QueryState(query_id=query_id, metadata="{}"),
    )


def batch_record(batch: int, *, query_id: str = "q", uid: str = UID) -> BatchRecord:
    return BatchRecord(
        query_id=query_id,
        batch=batch,
        offsets=f"offsets of {batch}",
        tasks={"Partition 0": TaskBatch(version=f"{batch}_{uid}")},
    )


def base_record(head: int, *, query_id: str = "q", commit_position: int = 0) -> BaseRecord:
    return BaseRecord(query_id=query_id, commit_position=commit_position, head=head)


def abort_record(attempt: int, *, attempt_epoch: int = 1) -> AbortRecord:
    return AbortRecord(attempt_epoch=attempt_epoch, attempt=attempt, reason="test")
