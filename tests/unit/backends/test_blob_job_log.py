import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from log_kit import (
    CountedBlobs,
    InlineExecutor,
    LosingBlobs,
    RefusingBlobs,
    RetryingOnce,
    new_blobs,
)
from typing_extensions import override

from statekeep.backends.blob_store import BlobMetadata, BlobStoreManager
from statekeep.backends.storage.job_log import BlobJobLog
from statekeep.backends.wrappers import WrappedBlobStoreManager
from statekeep.checkpoint.job_log import PositionTakenError
from statekeep.checkpoint.log_reader import LogReader
from statekeep.checkpoint.records import EpochRecord, encode_record
from statekeep.errors import (
    BlobExistsError,
    BlobNotFoundError,
    CheckpointCorruptError,
    ConfigError,
)
from statekeep.testing.storage import bare_manager

T = TypeVar("T")

pytestmark = pytest.mark.asyncio

METADATA = BlobMetadata(task=None, store_name=None, payload_name="test")


@pytest.fixture(params=["memory", "directory", "fsspec"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStoreManager:
    if request.param == "memory":
        return new_blobs()
    root = str(tmp_path) if request.param == "directory" else f"memory:/{tmp_path}"
    return bare_manager(root, {}, InlineExecutor())


@pytest.fixture
def log(blobs: BlobStoreManager) -> BlobJobLog:
    return BlobJobLog(blobs, "job", root="here")


class OverwritingBlobs(WrappedBlobStoreManager):
    """Takes no notice of ``if_absent``."""

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        return await call()

    @override
    async def put(
        self, name: str, content: bytes | Path, metadata: BlobMetadata, *, if_absent: bool = False
    ) -> str:
        return await super().put(name, content, metadata)


class LookingBlobs(OverwritingBlobs):
    """Looks whether a name is taken, then writes: what a store without atomic create invites."""

    @override
    async def put(
        self, name: str, content: bytes | Path, metadata: BlobMetadata, *, if_absent: bool = False
    ) -> str:
        if if_absent and name in await self.list(name):
            raise BlobExistsError(name)
        await asyncio.sleep(0)
        return await super().put(name, content, metadata)


async def filled(log: BlobJobLog, count: int) -> None:
    for position in range(count):
        await log.append(position, b"record %d" % position)


async def test_records_are_read_back_in_order_from_any_position(log: BlobJobLog) -> None:
    await filled(log, 12)

    assert await log.read(10) == [(10, b"record 10"), (11, b"record 11")]
    assert len(await log.read(0)) == 12
    assert await log.read(12) == []


async def test_position_is_taken_once(log: BlobJobLog) -> None:
    await log.append(0, b"first")

    with pytest.raises(PositionTakenError):
        await log.append(0, b"second")

    assert await log.read(0) == [(0, b"first")]


async def test_logs_of_other_scopes_are_not_seen(blobs: BlobStoreManager) -> None:
    await BlobJobLog(blobs, "job-2").append(0, b"foreign")

    assert await BlobJobLog(blobs, "job").read(0) == []


async def test_missing_record_in_the_middle_is_corruption(
    log: BlobJobLog, blobs: BlobStoreManager
) -> None:
    await filled(log, 3)
    await blobs.delete((await blobs.list("job/log/"))[1])

    with pytest.raises(CheckpointCorruptError, match="position=1"):
        await log.read(0)


async def test_missing_first_record_is_corruption(log: BlobJobLog, blobs: BlobStoreManager) -> None:
    await filled(log, 3)
    await blobs.delete((await blobs.list("job/log/"))[0])

    with pytest.raises(CheckpointCorruptError, match="position=0"):
        await log.read(0)


async def test_floor_of_an_untrimmed_log_is_zero(log: BlobJobLog) -> None:
    assert await log.read_floor() == 0


async def test_trim_raises_the_floor_and_deletes_below_it(
    log: BlobJobLog, blobs: BlobStoreManager
) -> None:
    await filled(log, 5)
    await log.trim(2)
    await log.trim(3)

    assert await log.read_floor() == 3
    assert await log.read(0) == [(3, b"record 3"), (4, b"record 4")]
    assert len(await blobs.list("job/")) == 3


async def test_lower_floor_changes_nothing(log: BlobJobLog) -> None:
    await filled(log, 5)
    await log.trim(3)
    await log.trim(1)

    assert await log.read_floor() == 3
    assert len(await log.read(0)) == 2


async def test_records_below_the_floor_are_left_out_though_a_trim_was_cut_short(
    log: BlobJobLog, blobs: BlobStoreManager
) -> None:
    await filled(log, 5)
    await blobs.put("job/log-floor/00000000000000000003", b"", METADATA, if_absent=True)

    assert [position for position, _ in await log.read(1)] == [3, 4]


async def test_a_log_is_there_if_anything_can_be_read_of_it(
    log: BlobJobLog, blobs: BlobStoreManager
) -> None:
    assert not await log.is_there()
    await filled(log, 2)
    assert await log.is_there()
    await log.trim(1)
    assert await log.is_there()
    await blobs.put("job/log-floor/00000000000000000003", b"", METADATA, if_absent=True)
    assert not await log.is_there()


async def test_next_trim_finishes_one_that_was_cut_short(
    log: BlobJobLog, blobs: BlobStoreManager
) -> None:
    await filled(log, 5)
    await blobs.put("job/log-floor/00000000000000000003", b"", METADATA, if_absent=True)

    await log.trim(3)

    assert len(await blobs.list("job/log/")) == 2


class TrimmingBlobs(OverwritingBlobs):
    """Lets another writer trim, and a fenced one write below the floor, before a listing."""

    def __init__(self, inner: BlobStoreManager, log: BlobJobLog) -> None:
        super().__init__(inner)
        self._log = log
        self.is_armed = True

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        if operation == "list" and self.is_armed:
            self.is_armed = False
            await self._log.trim(2)
            await self._log.append(1, b"zombie")
        return await call()


async def test_record_that_a_fenced_writer_made_below_a_rising_floor_is_not_read() -> None:
    blobs = new_blobs()
    log = BlobJobLog(blobs, "job")
    await filled(log, 4)

    found = await BlobJobLog(TrimmingBlobs(blobs, log), "job").read(1)

    assert found == [(2, b"record 2"), (3, b"record 3")]


async def test_record_deleted_between_listing_and_reading_is_no_corruption() -> None:
    blobs = new_blobs()
    log = BlobJobLog(blobs, "job")
    await filled(log, 4)

    class LateTrim(OverwritingBlobs):
        is_armed = True

        @override
        async def _around(
            self, operation: str, subject: str, call: Callable[[], Awaitable[T]]
        ) -> T:
            if operation == "get" and self.is_armed:
                self.is_armed = False
                await log.trim(2)
            return await call()

    assert await BlobJobLog(LateTrim(blobs), "job").read(0) == [
        (2, b"record 2"),
        (3, b"record 3"),
    ]


async def test_probe_accepts_a_store_with_atomic_create_and_leaves_nothing(
    log: BlobJobLog, blobs: BlobStoreManager
) -> None:
    await log.probe()

    assert await blobs.list("") == []


async def test_probe_accepts_a_store_that_loses_an_answer() -> None:
    losing = LosingBlobs(new_blobs())
    losing.losses["put"] = 2

    await BlobJobLog(RetryingOnce(losing), "job").probe()


@pytest.mark.parametrize("careless", [OverwritingBlobs, LookingBlobs], ids=["overwrites", "looks"])
async def test_probe_refuses_a_store_without_atomic_create(
    careless: type[WrappedBlobStoreManager],
) -> None:
    blobs = new_blobs()

    with pytest.raises(ConfigError, match=r"no atomic create: root=here scope=job"):
        await BlobJobLog(careless(blobs), "job", root="here").probe()

    assert await blobs.list("") == []


async def test_probe_names_an_unreachable_store() -> None:
    refusing = RefusingBlobs(new_blobs())
    refusing.refusals["init"] = 1

    with pytest.raises(ConfigError, match=r"unreachable: root=here"):
        await BlobJobLog(refusing, "job", root="here").probe()


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
async def test_damaged_record_is_named_by_its_position(
    blobs: BlobStoreManager, log: BlobJobLog, damage: str
) -> None:
    record = encode_record(EpochRecord(epoch=1, nonce="n", owner="driver"))
    await log.append(0, record)
    damaged = {
        "truncated": record[:-5],
        "flipped": record[:-9] + bytes([record[-9] ^ 4]) + record[-8:],
        "empty": b"",
    }
    await blobs.put("job/log/00000000000000000001.json", damaged[damage], METADATA)

    with pytest.raises(CheckpointCorruptError, match="position=1") as caught:
        await LogReader(log).catch_up()

    assert caught.value.hints


class ListedNames(OverwritingBlobs):
    """Counts the names that it lists."""

    count = 0

    @override
    async def list(self, prefix: str) -> Sequence[str]:
        names = await super().list(prefix)
        self.count += len(names)
        return names


async def test_what_a_look_and_a_trim_list_does_not_grow_with_the_log() -> None:
    blobs = ListedNames(new_blobs())
    log = BlobJobLog(blobs, "job")
    for position in range(2_950):
        await blobs.put(f"job/log/{position:020d}.json", b"x", METADATA)
    await log.trim(1)
    blobs.count = 0

    assert await log.read(2_950) == []
    assert await log.read(2_949) == [(2_949, b"x")]
    await log.trim(10)

    assert blobs.count < 3_000
    blobs.count = 0
    await log.trim(10)
    assert blobs.count < 3


async def test_a_trimmed_log_is_fetched_once() -> None:
    counts: Counter[str] = Counter()
    log = BlobJobLog(CountedBlobs(new_blobs(), counts), "job")
    await filled(log, 30)
    await log.trim(10)
    counts.clear()

    assert len(await log.read(0, limit=1_000)) == 20

    assert counts["get"] == 20
    assert counts["list"] <= 4


@pytest.mark.parametrize("start", [1, 999, 1_000, 1_001, 1_950, 2_000, 2_104, 2_105])
async def test_records_are_read_across_the_blocks_that_are_listed(
    blobs: BlobStoreManager, start: int
) -> None:
    await blobs.init()
    for position in (*range(890, 1_110), *range(1_890, 2_105)):
        await blobs.put(f"job/log/{position:020d}.json", b"x", METADATA)
    log = BlobJobLog(blobs, "job")

    if start in {1, 999, 1_000, 1_001}:
        with pytest.raises(CheckpointCorruptError):
            await log.read(start)
    else:
        assert [p for p, _ in await log.read(start)] == list(range(start, 2_105))


async def test_records_that_are_lost_at_the_end_of_a_block_are_missed(
    blobs: BlobStoreManager,
) -> None:
    await blobs.init()
    for position in (*range(950, 990), 1_001):
        await blobs.put(f"job/log/{position:020d}.json", b"x", METADATA)

    with pytest.raises(CheckpointCorruptError, match="position=990"):
        await BlobJobLog(blobs, "job").read(990)


@pytest.mark.parametrize("limit", [400, 1_000, 3_000])
async def test_records_are_read_so_many_at_a_time(limit: int) -> None:
    blobs = new_blobs()
    for position in range(2_105):
        await blobs.put(f"job/log/{position:020d}.json", b"x", METADATA)
    log, found = BlobJobLog(blobs, "job"), list[int]()
    while records := await log.read(len(found), limit=limit):
        assert len(records) <= limit
        found += [position for position, _ in records]
    assert found == list(range(2_105))


async def test_a_hole_is_not_the_end_of_a_log_that_is_read_in_parts() -> None:
    blobs = new_blobs()
    for position in (*range(1_850), *range(2_000, 2_100)):
        await blobs.put(f"job/log/{position:020d}.json", b"x", METADATA)
    log = BlobJobLog(blobs, "job")

    assert len(await log.read(0, limit=1_000)) == 1_000
    with pytest.raises(CheckpointCorruptError, match="position=1850"):
        await log.read(1_000, limit=1_000)


class LosingOne(WrappedBlobStoreManager):
    """Loses a record after it was listed."""

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        if operation == "get" and subject.endswith("00005.json"):
            raise BlobNotFoundError(subject)
        return await call()


async def test_a_record_that_goes_while_it_is_read_is_not_the_end() -> None:
    blobs = new_blobs()
    for position in range(10):
        await blobs.put(f"job/log/{position:020d}.json", b"x", METADATA)

    with pytest.raises(CheckpointCorruptError, match="position=5"):
        await BlobJobLog(LosingOne(blobs), "job").read(0, limit=6)


async def test_a_log_whose_floor_is_lost_is_not_empty(blobs: BlobStoreManager) -> None:
    await blobs.init()
    for position in range(5_000, 5_003):
        await blobs.put(f"job/log/{position:020d}.json", b"x", METADATA)

    for start in (0, 7):
        with pytest.raises(CheckpointCorruptError):
            await BlobJobLog(blobs, "job").read(start)


async def test_trims_go_on_where_the_one_before_ended(blobs: BlobStoreManager) -> None:
    await blobs.init()
    for position in range(990, 1_030):
        await blobs.put(f"job/log/{position:020d}.json", b"x", METADATA)
    log = BlobJobLog(blobs, "job")

    for floor in (995, 1_000, 1_001, 1_020):
        await log.trim(floor)
        assert len(await blobs.list("job/log/")) == 1_030 - floor
        assert len(await blobs.list("job/log-floor/")) == 1
