"""How one container makes requests of one backend's storage: bounded, paced, repeated, logged."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from typing_extensions import override

from statekeep.backends.awaiting import run_to_end
from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob_store import MAX_DOCUMENT_BYTES, BlobMetadata, BlobStoreManager
from statekeep.backends.pacing import ByteBudget, InFlightLimit, Throttle, TokenBucket
from statekeep.backends.retry import Retrier, RetryPolicy
from statekeep.backends.wrappers import WrappedBlobStoreManager
from statekeep.clock import Clock
from statekeep.errors import BlobExistsError, BlobNotFoundError, RetriableError, ThrottledError
from statekeep.events import Report, RequestDone
from statekeep.reporter import current_activity

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

_OUTCOMES: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (BlobNotFoundError, "not_found"),
    (BlobExistsError, "exists"),
    (ThrottledError, "throttled"),
    (RetriableError, "unavailable"),
    (asyncio.CancelledError, "cancelled"),
)
"""By errors; the first that fits."""


class TransferLimits:
    """What all transfers of one container and backend share."""

    def __init__(
        self,
        backend: str,
        *,
        max_in_flight: int,
        task_max_in_flight: int,
        buffer_bytes: int,
        bytes_per_second: int | None = None,
    ) -> None:
        """Set the bounds.

        Args:
            backend: Its name, for the log.
            max_in_flight: Requests under way at once.
            task_max_in_flight: Of these, for one task.
            buffer_bytes: Memory of what is moved.
            bytes_per_second: Both directions together; None: as fast as it goes.
        """
        self.backend = backend
        self.calls = InFlightLimit(max_in_flight)
        self.buffers = ByteBudget(buffer_bytes)
        self.task_max_in_flight = task_max_in_flight
        self.report: Report | None = None
        """Gets every try of a request; None: nothing asks for them."""
        self._bytes_per_second = bytes_per_second
        self._paces: tuple[Throttle, TokenBucket | None] | None = None

    def paces(self, clock: Clock) -> tuple[Throttle, TokenBucket | None]:
        """Return the rest after throttling and the bandwidth, made at first use."""
        if self._paces is None:
            rate = self._bytes_per_second
            self._paces = (Throttle(clock), None if rate is None else TokenBucket(rate, clock))
        return self._paces


class Requests:
    """Makes the requests of one task.

    A request waits for its share of the bandwidth, for its turn among its task's requests and among
    the container's, and for the end of a rest. One that raises `RetriableError` is repeated alone,
    and does not count among them while it waits out its back-off. Each try is logged at level DEBUG.
    """

    def __init__(
        self, limits: TransferLimits, executor: BlockingExecutor, clock: Clock, policy: RetryPolicy
    ) -> None:
        self._limits = limits
        self._executor = executor
        self._clock = clock
        self._retrier = Retrier(policy, clock)
        self._own_calls = InFlightLimit(limits.task_max_in_flight)
        self._throttle, self._bandwidth = limits.paces(clock)
        self.buffers = limits.buffers

    async def run(
        self,
        operation: str,
        blob: str,
        size: int,
        call: Callable[P, T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Make a blocking request that moves up to ``size`` bytes, until answered or time is up.

        A cancel leaves a request that is under way to its thread; its result is dropped.
        """
        return await self.ask(
            operation, blob, size, lambda: self._executor.run(call, *args, **kwargs)
        )

    async def run_to_end(
        self,
        operation: str,
        blob: str,
        size: int,
        call: Callable[P, T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Make a request as `run` does; a cancel waits for the end of the one that is under way."""
        request = partial(run_to_end, self._executor, call, *args, **kwargs)
        return await self.ask(operation, blob, size, request)

    async def ask(
        self, operation: str, blob: str, size: int, request: Callable[[], Awaitable[T]]
    ) -> T:
        """Make a request that is a coroutine; else as `run` does."""

        async def placed() -> T:
            await self._throttle.wait()
            try:
                result = await self._logged(operation, blob, request)
            except ThrottledError:
                self._throttle.slow_down()
                raise
            self._throttle.succeeded()
            return result

        async def one_try() -> T:
            await self.pay(size)
            return await self._own_calls.run(lambda: self._limits.calls.run(placed))

        return await self._retrier.run(one_try, operation=operation, subject=blob)

    async def pay(self, size: int) -> None:
        """Wait for the share of the bandwidth that ``size`` bytes need."""
        if self._bandwidth is not None and size:
            await self._bandwidth.take(size)

    async def local(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make a blocking call that is no request; a cancel waits for its end."""
        return await run_to_end(self._executor, call, *args, **kwargs)

    async def _logged(self, operation: str, blob: str, request: Callable[[], Awaitable[T]]) -> T:
        started_ns = self._clock.monotonic_ns()
        outcome = "done"
        try:
            return await request()
        except BaseException as exc:
            outcome = outcome_of(exc)
            raise
        finally:
            elapsed_ns = self._clock.monotonic_ns() - started_ns
            logger.debug(
                "request ended: outcome=%s backend=%s operation=%s blob=%s elapsed_ms=%d",
                outcome,
                self._limits.backend,
                operation,
                blob,
                elapsed_ns // 1_000_000,
            )
            if self._limits.report is not None:
                doing = current_activity()
                self._limits.report(
                    RequestDone(
                        backend=self._limits.backend,
                        operation=operation,
                        outcome=outcome,
                        ended_ns=self._clock.time_ns(),
                        elapsed_ns=elapsed_ns,
                        purpose=doing.purpose,
                        task=doing.task,
                    )
                )


class RequestingBlobStoreManager(WrappedBlobStoreManager):
    """Makes a request of each operation of a client that knows none: of HDFS, or of a user's.

    A ``put`` with ``if_absent`` whose first try landed without an answer raises `BlobExistsError`
    at its second: whose blob it is, only the caller can tell. A repeated ``download`` begins anew
    and reports only the bytes that no try before it had reported.
    """

    def __init__(self, inner: BlobStoreManager, requests: Requests) -> None:
        super().__init__(inner)
        self._requests = requests

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        return await self._requests.ask(operation, subject, 0, call)

    @override
    async def put(
        self, name: str, content: bytes | Path, metadata: BlobMetadata, *, if_absent: bool = False
    ) -> str:
        put = partial(self._inner.put, name, content, metadata, if_absent=if_absent)
        size = await self._requests.local(_size, content)
        return await self._requests.ask("put", name, size, put)

    @override
    async def get(self, blob_id: str, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
        content = await super().get(blob_id, max_bytes=max_bytes)
        await self._requests.pay(len(content))  # how many they are was not known before
        return content

    @override
    async def get_range(self, blob_id: str, start: int, size: int) -> bytes:
        content = await super().get_range(blob_id, start, size)
        await self._requests.pay(len(content))  # as above
        return content

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
                await self._requests.local(target.unlink, missing_ok=True)
                raise

        digest = await self._around("download", blob_id, one_try)
        await self._requests.pay(reported)  # as above
        return digest


def outcome_of(error: BaseException) -> str:
    """Return how a request has ended, as `RequestDone.outcome` has it."""
    return next((outcome for kind, outcome in _OUTCOMES if isinstance(error, kind)), "failed")


def _size(content: bytes | Path) -> int:
    """Return the size of what is put; 0 for a file that is gone, which the put itself will raise."""
    if isinstance(content, bytes):
        return len(content)
    return content.stat().st_size if content.exists() else 0
