"""Requests of a client: each is retried, those in flight are capped, progress is not doubled."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob_store import MAX_FILE_BYTES, BlobMetadata, BlobStoreManager
from statekeep.backends.pacing import InFlightLimit
from statekeep.backends.retry import RetryPolicy
from statekeep.backends.storage.memory import MemoryBlobStoreManager, forget_root
from statekeep.backends.storage.requests import RequestingBlobStoreManager, Requests, TransferLimits
from statekeep.backends.wrappers import WrappedBlobStoreManager
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.errors import BlobExistsError, BlobNotFoundError, RetriableError, ThrottledError
from statekeep.events import Event, RequestDone
from statekeep.reporter import activity
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.faults import Fault, FaultPlan, FaultyBlobStoreManager

METADATA = BlobMetadata(None, None, "x")


def limits_of(
    max_in_flight: int = 8, *, of_a_task: int = 8, bytes_per_second: int | None = None
) -> TransferLimits:
    return TransferLimits(
        "near",
        max_in_flight=max_in_flight,
        task_max_in_flight=of_a_task,
        buffer_bytes=100,
        bytes_per_second=bytes_per_second,
    )


def requesting(
    inner: BlobStoreManager, limits: TransferLimits | None = None, clock: FakeClock | None = None
) -> BlobStoreManager:
    limits, clock = limits or limits_of(), clock or FakeClock()
    requests = Requests(limits, SerialExecutor(), clock, RetryPolicy())
    return RequestingBlobStoreManager(inner, requests)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path)
    forget_root(str(tmp_path))


@pytest.fixture
def plan() -> FaultPlan:
    return FaultPlan()


@pytest.fixture
def retrying(root: str, plan: FaultPlan) -> BlobStoreManager:
    faulty = FaultyBlobStoreManager(MemoryBlobStoreManager(root, SerialExecutor()), plan)
    return requesting(faulty)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("init", ()),
        ("put", ("b", b"1", METADATA)),
        ("get", ("a",)),
        ("delete", ("a",)),
        ("list", ("",)),
        ("remove_ttl", ("a",)),
        ("download", ("a", "target", lambda size: None)),
    ],
    ids=["init", "put", "get", "delete", "list", "remove_ttl", "download"],
)
async def test_every_operation_is_retried(
    retrying: BlobStoreManager,
    plan: FaultPlan,
    tmp_path: Path,
    operation: str,
    arguments: tuple[Any, ...],
) -> None:
    await retrying.put("a", b"1", METADATA)
    plan.calls.clear()
    plan.add(Fault(operation, times=5))
    given = [tmp_path / "target" if each == "target" else each for each in arguments]
    options = {"max_bytes": 9} if operation == "download" else {}
    await getattr(retrying, operation)(*given, **options)
    assert len(plan.called(operation)) == 6


@pytest.mark.asyncio
async def test_a_create_that_landed_without_an_answer_surfaces_as_taken(
    retrying: BlobStoreManager, plan: FaultPlan
) -> None:
    plan.add(Fault("put", moment="after"))
    with pytest.raises(BlobExistsError):
        await retrying.put("a", b"1", METADATA, if_absent=True)
    assert await retrying.get("a") == b"1"


class BreakingManager(WrappedBlobStoreManager):
    """Breaks off the first downloads half way, leaving half a file."""

    breaks_left = 2

    @override
    async def _around(self, operation: str, subject: str, call: Any) -> Any:
        return await call()

    @override
    async def download(self, blob_id: str, target: Path, on_bytes: Any, *, max_bytes: int) -> str:
        assert not target.exists()
        if not self.breaks_left:
            return await super().download(blob_id, target, on_bytes, max_bytes=max_bytes)
        self.breaks_left -= 1
        target.write_bytes(b"bad partial data")
        on_bytes(5)
        raise RetriableError("connection reset")


@pytest.mark.asyncio
async def test_a_broken_download_begins_anew_and_counts_no_byte_twice(
    root: str, tmp_path: Path
) -> None:
    inner = MemoryBlobStoreManager(root, SerialExecutor())
    await inner.put("a", b"0123456789", METADATA)
    manager = requesting(BreakingManager(inner))
    sizes: list[int] = []
    await manager.download("a", tmp_path / "target", sizes.append, max_bytes=MAX_FILE_BYTES)
    assert (tmp_path / "target").read_bytes() == b"0123456789"
    assert sizes == [5, 5]


class CountingManager(WrappedBlobStoreManager):
    """Counts how many calls are under way."""

    now = 0
    most = 0

    @override
    async def _around(self, operation: str, subject: str, call: Any) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(3):
            await asyncio.sleep(0)
        self.now -= 1
        return await call()


@pytest.mark.asyncio
async def test_managers_that_share_a_limit_keep_to_it_together(root: str) -> None:
    counting = CountingManager(MemoryBlobStoreManager(root, SerialExecutor()))
    limits = limits_of(3)
    managers = [requesting(counting, limits) for _ in range(4)]
    await asyncio.gather(
        *(m.put(f"{i}/{n}", b"", METADATA) for n in range(10) for i, m in enumerate(managers))
    )
    assert counting.most == 3
    assert len(await counting.list("")) == 40


class ThrottlingManager(WrappedBlobStoreManager):
    """Refuses its first call; notes when calls arrive."""

    def __init__(self, inner: BlobStoreManager, clock: FakeClock) -> None:
        super().__init__(inner)
        self._clock = clock
        self.arrived_ms: list[int] = []

    @override
    async def _around(self, operation: str, subject: str, call: Any) -> Any:
        self.arrived_ms.append(self._clock.monotonic_ns() // 1_000_000)
        if len(self.arrived_ms) == 1:
            raise ThrottledError("slow down")
        return await call()


@pytest.mark.asyncio
async def test_all_managers_of_a_backend_rest_after_a_throttled_call(root: str) -> None:
    clock = FakeClock()
    slow = ThrottlingManager(MemoryBlobStoreManager(root, SerialExecutor()), clock)
    factory = BlobBackendFactory(
        BackendName("b"), {"manager.factory": "not.used"}, make_manager=lambda *_: slow
    )
    first, second = (factory.blob_store_manager(SerialExecutor(), clock) for _ in range(2))
    throttled = asyncio.create_task(first.put("a", b"", METADATA))
    await asyncio.sleep(0)
    await asyncio.gather(second.put("b", b"", METADATA), throttled)
    assert slow.arrived_ms[0] == 0
    assert min(slow.arrived_ms[1:]) >= 250


@pytest.mark.asyncio
async def test_a_task_takes_no_more_places_than_its_own(root: str) -> None:
    counting = CountingManager(MemoryBlobStoreManager(root, SerialExecutor()))
    manager = requesting(counting, limits_of(8, of_a_task=2))
    await asyncio.gather(*(manager.put(f"{n}", b"", METADATA) for n in range(10)))
    assert counting.most == 2


@pytest.mark.asyncio
async def test_a_cancelled_call_gives_its_place_back(root: str) -> None:
    counting = CountingManager(MemoryBlobStoreManager(root, SerialExecutor()))
    manager = requesting(counting, limits_of(1))
    first = asyncio.create_task(manager.put("a", b"", METADATA))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    await manager.put("b", b"", METADATA)
    assert await manager.list("") == ["b"]


@pytest.mark.asyncio
async def test_waiting_for_a_place_uses_up_none_of_the_time_for_retries(
    root: str, plan: FaultPlan
) -> None:
    clock = FakeClock()
    faulty = FaultyBlobStoreManager(MemoryBlobStoreManager(root, SerialExecutor()), plan)
    limits = limits_of(1)
    manager = requesting(faulty, limits, clock)
    is_free = asyncio.Event()
    holding = asyncio.create_task(limits.calls.run(is_free.wait))
    await asyncio.sleep(0)
    plan.add(Fault("put"))
    waiting = asyncio.create_task(manager.put("a", b"1", METADATA))
    await asyncio.sleep(0)
    clock.advance(999)
    is_free.set()
    await waiting
    assert len(plan.called("put")) == 2
    await holding


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_in_flight=0"):
        InFlightLimit(0)


@pytest.mark.asyncio
async def test_each_try_is_logged_with_its_outcome(
    root: str, plan: FaultPlan, caplog: pytest.LogCaptureFixture
) -> None:
    faulty = FaultyBlobStoreManager(MemoryBlobStoreManager(root, SerialExecutor()), plan)
    manager = requesting(faulty)
    plan.add(Fault("get"))
    with caplog.at_level(logging.DEBUG, "statekeep.backends.storage.requests"):
        await manager.put("a", b"1", METADATA)
        await manager.get("a")
    told = [record.getMessage() for record in caplog.records if record.levelname == "DEBUG"]
    assert told == [
        "request ended: outcome=done backend=near operation=put blob=a elapsed_ms=0",
        "request ended: outcome=unavailable backend=near operation=get blob=a elapsed_ms=0",
        "request ended: outcome=done backend=near operation=get blob=a elapsed_ms=0",
    ]


@pytest.mark.asyncio
async def test_each_try_is_reported_with_its_outcome_and_what_it_is_for(
    root: str, plan: FaultPlan
) -> None:
    faulty = FaultyBlobStoreManager(MemoryBlobStoreManager(root, SerialExecutor()), plan)
    limits, reported = limits_of(), list[Event]()
    limits.report = reported.append
    manager = requesting(faulty, limits)
    plan.add(Fault("get"))
    plan.add(Fault("get", make_error=lambda: ThrottledError("slow down")))
    with activity("upload", "Partition 0"):
        await manager.put("a", b"1", METADATA)
    await manager.get("a")
    with pytest.raises(BlobNotFoundError):
        await manager.get("b")
    with pytest.raises(BlobExistsError):
        await manager.put("a", b"2", METADATA, if_absent=True)
    found = [e for e in reported if isinstance(e, RequestDone)]
    assert {e.backend for e in found} == {"near"}
    assert [(e.operation, e.outcome, e.purpose, e.task) for e in found] == [
        ("put", "done", "upload", "Partition 0"),
        ("get", "unavailable", "", ""),
        ("get", "throttled", "", ""),
        ("get", "done", "", ""),
        ("get", "not_found", "", ""),
        ("put", "exists", "", ""),
    ]


@pytest.mark.asyncio
async def test_bytes_both_ways_keep_to_the_rate(root: str, tmp_path: Path) -> None:
    clock = FakeClock()
    inner = MemoryBlobStoreManager(root, SerialExecutor())
    paced = requesting(inner, limits_of(bytes_per_second=10), clock)
    source = tmp_path / "source"
    source.write_bytes(bytes(20))
    await paced.put("a", source, METADATA)
    await paced.put("b", bytes(10), METADATA)
    await paced.get("b")
    await paced.download("a", tmp_path / "target", lambda size: None, max_bytes=MAX_FILE_BYTES)
    # 60 bytes at 10 a second, the first second saved up.
    assert clock.monotonic_ns() == 5_000_000_000


@pytest.mark.asyncio
async def test_a_file_that_is_gone_is_reported_by_the_put_itself(root: str, tmp_path: Path) -> None:
    inner = MemoryBlobStoreManager(root, SerialExecutor())
    paced = requesting(inner, limits_of(bytes_per_second=10))
    with pytest.raises(FileNotFoundError):
        await paced.put("a", tmp_path / "missing", METADATA)
