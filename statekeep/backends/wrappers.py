"""What goes around any `BlobStoreManager`: retry, a cap on calls in flight, logging.

Put together as ``Retrying(Limited(Logged(manager)))``: a call that waits out its back-off holds no
place, and each try is logged.
"""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from typing_extensions import override

from statekeep.backends.base import BlobMetadata, BlobStoreManager, BlockingExecutor
from statekeep.backends.retry import Retrier
from statekeep.clock import Clock
from statekeep.errors import RetriableError

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
    async def get(self, blob_id: str) -> bytes:
        return await self._around("get", blob_id, lambda: self._inner.get(blob_id))

    @override
    async def download(self, blob_id: str, target: Path, on_bytes: Callable[[int], None]) -> str:
        return await self._around(
            "download", blob_id, lambda: self._inner.download(blob_id, target, on_bytes)
        )

    @override
    async def delete(self, blob_id: str) -> None:
        await self._around("delete", blob_id, lambda: self._inner.delete(blob_id))

    @override
    async def list(self, prefix: str) -> Sequence[str]:
        return await self._around("list", prefix, lambda: self._inner.list(prefix))

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
        def on_retry(error: BaseException) -> None:
            logger.warning(
                "blob operation is repeated: operation=%s blob=%s error=%s",
                operation,
                subject,
                error,
            )

        return await self._retrier.run(call, on_retry=on_retry)

    @override
    async def download(self, blob_id: str, target: Path, on_bytes: Callable[[int], None]) -> str:
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
                return await self._inner.download(blob_id, target, count)
            except RetriableError:
                await self._executor.run(target.unlink, missing_ok=True)
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


class LoggedBlobStoreManager(WrappedBlobStoreManager):
    """Logs each operation with its time, at level DEBUG; what raises is logged and raised on."""

    def __init__(self, inner: BlobStoreManager, backend: str, clock: Clock) -> None:
        super().__init__(inner)
        self._backend = backend
        self._clock = clock

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
