"""What goes around any `BlobStoreManager`: retry, a cap on calls in flight, a rate, logging.

Put together as ``Retrying(Paced(Limited(Resting(Logged(manager)))))``: a call that waits out its
back-off or for its share of the bandwidth holds no place, one that gets a place in a rest waits for its
end, and each try is logged. Managers of object stores do all this by request instead:
`statekeep.backends.blob.managers.object_requests`.
"""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob_store import MAX_DOCUMENT_BYTES, BlobMetadata, BlobStoreManager
from statekeep.backends.pacing import Throttle, TokenBucket
from statekeep.backends.retry import Retrier
from statekeep.backends.run_to_end import run_to_end
from statekeep.clock import Clock
from statekeep.errors import RetriableError, ThrottledError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class WrappedBlobStoreManager(BlobStoreManager):
    """Passes every operation on to another manager, through one hook."""

    def __init__(self, inner: BlobStoreManager) -> None:
        self._inner = inner

    @abstractmethod
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make ``call``, which passes ``operation`` on blob or prefix ``subject`` on."""

    @override
    async def init(self) -> None:
        await self._around("init", "", self._inner.init)

    @override
    async def put(
        self, name: str, content: bytes | Path, metadata: BlobMetadata, *, if_absent: bool = False
    ) -> str:
        return await self._around(
            "put", name, lambda: self._inner.put(name, content, metadata, if_absent=if_absent)
        )

    @override
    async def get(self, blob_id: str, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
        return await self._around(
            "get", blob_id, lambda: self._inner.get(blob_id, max_bytes=max_bytes)
        )

    @override
    async def get_range(self, blob_id: str, start: int, size: int) -> bytes:
        return await self._around(
            "get_range", blob_id, lambda: self._inner.get_range(blob_id, start, size)
        )

    @override
    async def download(
        self, blob_id: str, target: Path, on_bytes: Callable[[int], None], *, max_bytes: int
    ) -> str:
        return await self._around(
            "download",
            blob_id,
            lambda: self._inner.download(blob_id, target, on_bytes, max_bytes=max_bytes),
        )

    @override
    async def delete(self, blob_id: str) -> None:
        await self._around("delete", blob_id, lambda: self._inner.delete(blob_id))

    @override
    async def list(self, prefix: str) -> Sequence[str]:
        return await self._around("list", prefix, lambda: self._inner.list(prefix))

    @override
    async def list_folders(self, prefix: str) -> Sequence[str]:
        return await self._around("list", prefix, lambda: self._inner.list_folders(prefix))

    @override
    async def remove_unfinished(self, prefix: str, is_closed: Callable[[str], bool]) -> None:
        await self._around(
            "remove_unfinished", prefix, lambda: self._inner.remove_unfinished(prefix, is_closed)
        )

    @override
    async def remove_ttl(self, blob_id: str) -> None:
        await self._around("remove_ttl", blob_id, lambda: self._inner.remove_ttl(blob_id))

    @override
    async def close(self) -> None:
        await self._inner.close()


class RetryingBlobStoreManager(WrappedBlobStoreManager):
    """Repeats every operation that raises `RetriableError`, within the bounds of a `Retrier`.

    A ``put`` with ``if_absent`` whose first try landed without an answer raises `BlobExistsError`
    at its second: whose blob it is, only the caller can tell. A repeated ``download`` begins anew
    and reports only the bytes that no try before it had reported.
    """

    def __init__(
        self, inner: BlobStoreManager, retrier: Retrier, executor: BlockingExecutor
    ) -> None:
        super().__init__(inner)
        self._retrier = retrier
        self._executor = executor

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        return await self._retrier.run(call, operation=operation, subject=subject)

    @override
    async def download(
        self, blob_id: str, target: Path, on_bytes: Callable[[int], None], *, max_bytes: int
    ) -> str:
        reported = 0

        async def one_try() -> str:
            done = 0

            def count(size: int) -> None:
                nonlocal done, reported
                done += size
                if done > reported:
                    on_bytes(done - reported)
                    reported = done

            try:
                return await self._inner.download(blob_id, target, count, max_bytes=max_bytes)
            except RetriableError:
                await run_to_end(self._executor, target.unlink, missing_ok=True)
                raise

        return await self._around("download", blob_id, one_try)


class InFlightLimit:
    """How many calls to a service may be under way at once; one per container and backend.

    Waiting for a place holds no thread. Used by one event loop.
    """

    def __init__(self, max_in_flight: int) -> None:
        if max_in_flight < 1:
            msg = f"no call could ever be made: max_in_flight={max_in_flight}"
            raise ValueError(msg)
        self._places = asyncio.Semaphore(max_in_flight)

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call as soon as there is a place."""
        async with self._places:
            return await call()


class LimitedBlobStoreManager(WrappedBlobStoreManager):
    """Keeps the calls in flight, of all managers that share one limit, below it."""

    def __init__(self, inner: BlobStoreManager, limit: InFlightLimit) -> None:
        super().__init__(inner)
        self._limit = limit

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        return await self._limit.run(call)


class RestingBlobStoreManager(WrappedBlobStoreManager):
    """Lets all calls, of all managers that share one throttle, rest after a `ThrottledError`."""

    def __init__(self, inner: BlobStoreManager, throttle: Throttle) -> None:
        super().__init__(inner)
        self._throttle = throttle

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        await self._throttle.wait()
        try:
            result = await call()
        except ThrottledError:
            self._throttle.slow_down()
            raise
        self._throttle.succeeded()
        return result


class PacedBlobStoreManager(WrappedBlobStoreManager):
    """Keeps to a rate: bytes up wait for it, bytes down, whose number is known late, pay after."""

    def __init__(
        self, inner: BlobStoreManager, bandwidth: TokenBucket, executor: BlockingExecutor
    ) -> None:
        super().__init__(inner)
        self._bandwidth = bandwidth
        self._executor = executor

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        return await call()

    @override
    async def put(
        self, name: str, content: bytes | Path, metadata: BlobMetadata, *, if_absent: bool = False
    ) -> str:
        await self._bandwidth.take(await self._executor.run(_size, content))
        return await self._inner.put(name, content, metadata, if_absent=if_absent)

    @override
    async def get(self, blob_id: str, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
        content = await self._inner.get(blob_id, max_bytes=max_bytes)
        await self._bandwidth.take(len(content))
        return content

    @override
    async def get_range(self, blob_id: str, start: int, size: int) -> bytes:
        content = await self._inner.get_range(blob_id, start, size)
        await self._bandwidth.take(len(content))
        return content

    @override
    async def download(
        self, blob_id: str, target: Path, on_bytes: Callable[[int], None], *, max_bytes: int
    ) -> str:
        moved = 0

        def count(size: int) -> None:
            nonlocal moved
            moved += size
            on_bytes(size)

        digest = await self._inner.download(blob_id, target, count, max_bytes=max_bytes)
        await self._bandwidth.take(moved)
        return digest


def _size(content: bytes | Path) -> int:
    """Return the size of what is put; 0 for a file that is gone, which the put itself will tell."""
    if isinstance(content, bytes):
        return len(content)
    return content.stat().st_size if content.exists() else 0


class LoggedBlobStoreManager(WrappedBlobStoreManager):
    """Logs each operation with its time, at level DEBUG; what raises is logged and raised on."""

    def __init__(self, inner: BlobStoreManager, backend: str, clock: Clock) -> None:
        super().__init__(inner)
        self._backend = backend
        self._clock = clock

    @override
    async def delete_all(self, blob_ids: Sequence[str]) -> None:
        subject = f"{len(blob_ids)} blobs"
        await self._around("delete_all", subject, lambda: self._inner.delete_all(blob_ids))

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        started_ns = self._clock.monotonic_ns()
        outcome = "failed"
        try:
            result = await call()
            outcome = "done"
            return result
        finally:
            elapsed_ms = (self._clock.monotonic_ns() - started_ns) // 1_000_000
            logger.debug(
                "blob operation %s: backend=%s operation=%s blob=%s elapsed_ms=%d",
                outcome,
                self._backend,
                operation,
                subject,
                elapsed_ms,
            )


class KeptBlobStoreManager(WrappedBlobStoreManager):
    """Deletes nothing; remembers what it was asked to delete.

    Attributes:
        condemned: Ids of blobs, in the order of the calls.
    """

    def __init__(self, inner: BlobStoreManager) -> None:
        super().__init__(inner)
        self.condemned: list[str] = []

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        return await call()

    @override
    async def delete(self, blob_id: str) -> None:
        self.condemned.append(blob_id)

    @override
    async def remove_unfinished(self, prefix: str, is_closed: Callable[[str], bool]) -> None:
        pass  # it is no blob, so nobody asks for its name
