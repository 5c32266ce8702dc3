"""A job log that moves, is cut off on its way, and has others write to it meanwhile."""

from collections.abc import Awaitable, Callable

import msgspec
import pytest
from log_kit import (
    LosingBlobs,
    RetryingOnce,
    commit_record,
    driver_on,
    log_on,
    new_blobs,
    view_of,
)
from typing_extensions import override

from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.storage.job_log import BlobJobLog
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.records import JobIdentity, MovedRecord, ReleaseRecord, decode_record
from statekeep.errors import ConfigError, RetriableError
from statekeep.inspection.log_move import check_move, move_log

pytestmark = pytest.mark.asyncio


class Interposed(BlobJobLog):
    """A log that calls something just before one of its appends, told by its number from 0."""

    def __init__(
        self, blobs: BlobStoreManager, number: int, call: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(blobs, "job")
        self._number = number
        self._call = call

    @override
    async def append(self, position: int, data: bytes) -> None:
        self._number -= 1
        if self._number == -1:
            await self._call()
        await super().append(position, data)


class LosingAppends(BlobJobLog):
    """A log whose every append is tried again, as the answer of the first try is lost."""

    def __init__(self, losing: LosingBlobs) -> None:
        super().__init__(RetryingOnce(losing), "job")
        self._losses = losing.losses

    @override
    async def append(self, position: int, data: bytes) -> None:
        self._losses["put"] = 1
        await super().append(position, data)


class Forgetful(BlobJobLog):
    """A log that confirms its appends after the first one, and keeps none of them."""

    def __init__(self, blobs: BlobStoreManager) -> None:
        super().__init__(blobs, "job")

    @override
    async def append(self, position: int, data: bytes) -> None:
        if position == 0:
            await super().append(position, data)


async def fail() -> None:
    raise RetriableError("cut off")


async def committed(blobs: BlobStoreManager, count: int) -> LogSession:
    driver = await driver_on(blobs)
    for number in range(count):
        await driver.append(commit_record(number + 1, number))
    return driver


async def records(blobs: BlobStoreManager) -> list[tuple[int, bytes]]:
    return list(await log_on(blobs).read(0))


async def test_a_log_that_has_moved_there_already_counts_as_done() -> None:
    old, new = new_blobs(), new_blobs()
    await committed(old, 2)
    assert await move_log(log_on(old), log_on(new), "new", owner="mover") == 4
    before = await records(old), await records(new)

    await check_move(log_on(old), log_on(new), "new")
    await move_log(log_on(old), log_on(new), "new", owner="mover")

    assert (await records(old), await records(new)) == before


async def test_a_log_that_goes_on_in_the_new_backend_is_left_alone_when_it_is_moved_again() -> None:
    old, new = new_blobs(), new_blobs()
    await committed(old, 2)
    await move_log(log_on(old), log_on(new), "new", owner="mover")
    await driver_on(new, "next start")
    before = await records(new)

    await move_log(log_on(old), log_on(new), "new", owner="mover")

    assert await records(new) == before


async def test_a_log_that_has_moved_to_a_third_backend_is_refused() -> None:
    old, new = new_blobs(), new_blobs()
    await committed(old, 1)
    await move_log(log_on(old), log_on(new_blobs()), "third", owner="mover")
    with pytest.raises(ConfigError, match="the job log has moved: backend=third"):
        await check_move(log_on(old), log_on(new), "new")


async def test_a_copy_that_was_cut_off_is_finished_although_the_job_went_on_and_trimmed() -> None:
    old, new = new_blobs(), new_blobs()
    await committed(old, 3)
    with pytest.raises(RetriableError):
        await move_log(log_on(old), Interposed(new, 3, fail), "new", owner="mover")
    assert len(await records(new)) == 3
    driver = await driver_on(old, "went on")
    last = await driver.append(commit_record(1, 9, attempt_epoch=driver.epoch))
    released = [position for position in driver.view.commits if position != last]
    await driver.append(ReleaseRecord(positions=released))
    await driver.trim(last)

    await move_log(log_on(old), log_on(new), "new", owner="mover")

    assert [*(await view_of(new)).commits] == [last]
    assert (await records(new))[0][0] == last


async def test_a_copy_goes_on_behind_records_that_landed_without_an_answer() -> None:
    old, losing = new_blobs(), LosingBlobs(new_blobs())
    await committed(old, 3)
    target = LosingAppends(losing)
    assert await move_log(log_on(old), target, "new", owner="mover") == 5

    assert (await view_of(old)).moved_to == "new"
    assert await records(losing) == (await records(old))[:-1]


async def test_a_log_is_not_left_before_the_target_holds_all_of_it() -> None:
    old, new = new_blobs(), new_blobs()
    await committed(old, 3)
    with pytest.raises(RetriableError, match="lacks records: first=1 count=4"):
        await move_log(log_on(old), Forgetful(new), "new", owner="mover")
    assert (await view_of(old)).moved_to is None


async def test_another_jobs_log_in_the_new_backend_is_refused_also_below_the_own_floor() -> None:
    old, new = new_blobs(), new_blobs()
    driver = await committed(old, 4)
    await driver.append(ReleaseRecord(positions=[1, 2, 3]))
    await driver.trim(4)
    other = await driver_on(new, "other")
    identity = JobIdentity(job_uid="another", job_name="job", partitions=1)
    await other.append(msgspec.structs.replace(commit_record(1), identity=identity))
    with pytest.raises(ConfigError, match="there is another log in the new backend") as refused:
        await move_log(log_on(old), log_on(new), "new", owner="mover")
    assert "reset" not in "".join(refused.value.hints)


async def test_a_location_under_two_names_is_never_marked_as_moved() -> None:
    place = new_blobs()
    await committed(place, 1)
    with pytest.raises(ConfigError, match="both backends have one location"):
        await move_log(log_on(place), log_on(place), "new", owner="mover")
    assert (await view_of(place)).moved_to is None


async def test_a_pin_that_is_written_during_the_copy_goes_along() -> None:
    old, new = new_blobs(), new_blobs()
    await committed(old, 1)

    async def pin() -> None:
        await LogSession(log_on(old)).pin("keep", 1)

    # The first append here is the mover's epoch, the second one the word that the log has moved.
    await move_log(Interposed(old, 1, pin), log_on(new), "new", owner="mover")

    assert (await view_of(new)).pins == {"keep": 1}
    assert (await view_of(old)).moved_to == "new"


async def test_a_pin_writer_writes_nothing_behind_the_record_of_a_move() -> None:
    old = new_blobs()
    await committed(old, 1)
    mover = await driver_on(old, "mover")

    async def move() -> None:
        await mover.append(MovedRecord(backend="new"))

    with pytest.raises(ConfigError, match="the job log has moved: backend=new"):
        await LogSession(Interposed(old, 0, move)).pin("late", 1)
    position, data = (await records(old))[-1]
    assert isinstance(decode_record(data, where=str(position)), MovedRecord)
