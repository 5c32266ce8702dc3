"""The ledger in real object stores: a process that dies at any of its requests leaves nothing."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest
import pytest_asyncio
from increments_kit import BLOB, Changes, IncrementJob, folded, named_blobs
from servers.buckets import Bucket

from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.storage.client import StorageClient
from statekeep.backends.storage.locations import Location
from statekeep.checkpoint.checkpoints import Marker
from statekeep.clock import SystemClock
from statekeep.commit.executor import BoundedExecutor
from statekeep.errors import RetriableError
from statekeep.fault_points import fault_handler
from statekeep.stores.version import SealedVersion
from statekeep.testing.blob_store_tests import METADATA

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

P = ParamSpec("P")
T = TypeVar("T")
PART_BYTES = 5 << 20
"""The least that S3 takes."""
CRASHES = ("upload.before_blob", "upload.before_index", "upload.after_index")


def large(number: int) -> Changes:
    """Return changes that make the next upload a full one, of a file in several parts."""
    return {b"large": bytes([number]) * (2 * PART_BYTES + 1)}


def small(number: int) -> Changes:
    return {b"%04d" % (number % 7): b"%d" % number}


class Process:
    """The requests of a process, each of which may be its last, or get no answer.

    Attributes:
        count: Requests since it began to live.
    """

    def __init__(self) -> None:
        self.live()

    def live(self) -> None:
        """Begin anew, without a fault; requests are counted from 1."""
        self._numbers = itertools.count(1)
        self._is_dead = False
        self._faults: dict[int, Callable[[], None]] = {}
        self._is_landed = False
        self.count = 0

    def strike(self, request: int, fault: Callable[[], None], *, is_landed: bool) -> None:
        """Let a request, before it is made or after it took effect, do what ``fault`` does."""
        self._faults[request] = fault
        self._is_landed = is_landed

    def die(self) -> None:
        """Make no further request: none gets out after a kill."""
        self._is_dead = True
        raise SystemError("killed")

    def request(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        number = self.count = next(self._numbers)
        if self._is_dead:
            raise SystemError("killed")
        fault = self._faults.pop(number, None)
        if fault is not None and not self._is_landed:
            fault()
        result = call(*args, **kwargs)
        if fault is not None and self._is_landed:
            fault()
        return result


def strike(client: StorageClient, process: Process) -> StorageClient:
    """Let every request of a client end with its process."""
    for name in dir(client):
        found = getattr(client, name)
        if not name.startswith("_") and name not in {"close", "explained"} and callable(found):
            setattr(client, name, partial(process.request, found))
    return client


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    process = Process()
    open_client = Location.open_client

    def open_struck(location: Location) -> StorageClient:
        return strike(open_client(location), process)

    monkeypatch.setattr(Location, "open_client", open_struck)
    return process


@pytest_asyncio.fixture
async def make_blobs(
    bucket: Bucket, process: Process
) -> AsyncIterator[Callable[[], BlobStoreManager]]:
    executor = BoundedExecutor(4, "ledger")
    settings = {
        **bucket.settings,
        "part.bytes": str(PART_BYTES),
        "retry.policy.backoff.delay.millis": "1",
    }
    factory = BlobBackendFactory(BLOB, settings)
    yield lambda: factory.blob_store_manager(executor, SystemClock())
    await executor.close()


class Ledger:
    """One task's commits, and what the place holds of them."""

    def __init__(self, job: IncrementJob, process: Process, bucket: Bucket) -> None:
        self.job = job
        self._process = process
        self._bucket = bucket
        self._head: SealedVersion | None = None
        self._content: Mapping[bytes, bytes] = {}
        self.contents: dict[Marker, Mapping[bytes, bytes]] = {}
        self.unfinished_seen = 0

    def seal(self, changes: Changes) -> SealedVersion:
        self._head = self.job.seal(self._head, changes)
        self._content = folded(self._content, changes)
        return self._head

    async def commit(self, changes: Changes) -> int:
        """Commit changes, as the first thing of a process; return how many requests it took."""
        made = await self.job.commit(self.seal(changes))
        self.contents[made.marker] = self._content
        # The last ones read the index for the test, and the full one that it may add to.
        return self._process.count - (1 if made.index.full_index_blob_id is None else 2)

    async def fail(self, version: SealedVersion) -> None:
        """Begin a commit that dies, or is killed between its upload and its record."""
        attempt = self.job.open_attempt(version)
        with contextlib.suppress(SystemError):
            await self.job.manager.upload(
                attempt.checkpoint_id, self.job.manager.snapshot(attempt.checkpoint_id)
            )
        self.job.closed.append((1, attempt.attempt))
        await self.restart()

    async def restart(self) -> None:
        """Begin the next process."""
        await self.job.manager.close()
        self._process.live()
        self.unfinished_seen += len(self._bucket.unfinished())
        self.job.manager = self.job.new_manager()
        await self.job.manager.init()
        self._process.live()

    async def check(self) -> None:
        """The place holds what the retained commits reach, and restores each of them."""
        markers = [made.marker for made in self.job.commits]
        expected = await named_blobs(self.job.blobs, markers)
        found = {name.partition("/")[2] for name in self._bucket.names()}
        assert found == expected
        assert self._bucket.unfinished() == []
        for made in self.job.commits:
            content, _ = await self.job.restore(made.checkpoint)
            assert content == self.contents[made.marker]


@pytest_asyncio.fixture
async def ledger(
    make_blobs: Callable[[], BlobStoreManager], process: Process, bucket: Bucket, tmp_path: Path
) -> AsyncIterator[Ledger]:
    settings = {"part.bytes": str(PART_BYTES)}
    job = IncrementJob(tmp_path, settings=settings, make_blobs=make_blobs)
    await job.blobs.init()
    await job.manager.init()
    yield Ledger(job, process, bucket)
    process.live()
    await job.manager.close()
    await job.blobs.close()


async def fail_everywhere(
    ledger: Ledger, process: Process, changes: Callable[[int], Changes]
) -> SealedVersion:
    """Commit, die and lose answers at every request of an upload; return the version that failed."""
    await ledger.restart()
    await ledger.commit(changes(1))
    await ledger.restart()
    requests = range(1, await ledger.commit(changes(2)) + 1)
    doomed = ledger.seal(changes(3))
    for request, is_landed in itertools.product(requests, (False, True)):
        process.strike(request, process.die, is_landed=is_landed)
        await ledger.fail(doomed)
    for request in requests:
        process.strike(request, _lose_answer, is_landed=True)
        await ledger.commit(changes(3 + request))
        await ledger.restart()
    for point in CRASHES:
        with fault_handler(partial(_crash, point)):
            await ledger.fail(doomed)
    return doomed


@pytest.mark.asyncio
async def test_one_clean_up_leaves_what_is_reached_after_a_death_at_every_request(
    ledger: Ledger, process: Process, bucket: Bucket
) -> None:
    await fail_everywhere(ledger, process, large)
    doomed = await fail_everywhere(ledger, process, small)
    if bucket.settings["uri"].startswith("s3:"):
        assert ledger.unfinished_seen, "no death met an upload in parts"
    while len(ledger.job.commits) > 2:
        ledger.job.release(0)
    for request in (1, 2, 5):
        process.strike(request, process.die, is_landed=False)
        with pytest.raises(SystemError):
            await ledger.job.clean_up()
        await ledger.restart()
    await ledger.fail(doomed)  # the newest attempt is closed, so that all before it may go
    await ledger.job.clean_up()
    await ledger.check()


@pytest.mark.asyncio
async def test_a_put_that_is_cancelled_at_any_request_leaves_no_parts(
    make_blobs: Callable[[], BlobStoreManager], process: Process, bucket: Bucket, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(2 * PART_BYTES + 1))
    blobs = make_blobs()
    await blobs.init()
    process.live()
    await blobs.put("whole", source, METADATA)
    loop, requests = asyncio.get_running_loop(), process.count
    assert requests == 5  # begin, three parts, end
    for request, is_landed in itertools.product(range(1, requests + 1), (False, True)):
        process.live()
        put = asyncio.create_task(blobs.put(f"cancelled-{request}-{is_landed}", source, METADATA))
        process.strike(request, partial(_cancel, loop, put), is_landed=is_landed)
        await asyncio.wait({put})
        assert put.cancelled()
        assert bucket.unfinished() == []
    await blobs.close()


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    loop.call_soon_threadsafe(task.cancel)


def _lose_answer() -> None:
    raise RetriableError("answer lost on purpose")


def _crash(point: str, reached: str) -> None:
    if reached == point:
        raise SystemError(point)
