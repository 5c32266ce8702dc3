import asyncio
import random

import pytest
from log_kit import (
    DawdlingBlobs,
    LosingBlobs,
    RefusingBlobs,
    RetryingOnce,
    abort_record,
    attempt_record,
    base_record,
    batch_record,
    commit_record,
    driver_on,
    log_on,
    new_blobs,
    view_of,
)

from statekeep.backends.blob_store import BlobStoreManager
from statekeep.checkpoint.checkpoints import CheckpointId
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.records import (
    AttemptRecord,
    CommitRecord,
    EpochRecord,
    MovedRecord,
    PinRecord,
    Record,
    ReleaseRecord,
    decode_record,
)
from statekeep.errors import CommitFailedError, ConfigError, RetriableError, TaskFencedError
from statekeep.events import Event

pytestmark = pytest.mark.asyncio


async def records_of(blobs: BlobStoreManager) -> list[Record]:
    log = log_on(blobs)
    return [decode_record(data, where=f"position={p}") for p, data in await log.read(0)]


async def test_eight_racers_take_over_and_only_the_newest_can_append() -> None:
    blobs = new_blobs()
    rng = random.Random(7)
    writers = [LogSession(log_on(DawdlingBlobs(blobs, rng))) for _ in range(8)]
    await asyncio.gather(*(writer.open() for writer in writers))

    epochs = await asyncio.gather(*(w.take_over(f"racer {i}") for i, w in enumerate(writers)))

    assert sorted(epochs) == list(range(1, 9))
    outcomes = await asyncio.gather(
        *(writer.append(commit_record(1)) for writer in writers), return_exceptions=True
    )
    won = [epoch for epoch, outcome in zip(epochs, outcomes, strict=True) if outcome == 8]
    assert won == [8]
    assert sum(isinstance(outcome, TaskFencedError) for outcome in outcomes) == 7
    assert [record.epoch for record in await records_of(blobs)] == [*range(1, 9), 8]


async def test_epochs_are_unique_although_every_answer_is_lost_once() -> None:
    blobs = new_blobs()
    losing = LosingBlobs(blobs)
    writer = LogSession(log_on(RetryingOnce(losing)))
    await writer.open()
    losing.losses["put"] = 1

    assert await writer.take_over("driver") == 1

    assert [type(record) for record in await records_of(blobs)] == [EpochRecord]


async def test_record_that_landed_without_an_answer_is_known_by_its_nonce() -> None:
    blobs = new_blobs()
    losing = LosingBlobs(blobs)
    writer = await driver_on(RetryingOnce(losing))
    losing.losses["put"] = 1

    position = await writer.append(attempt_record(1))

    assert position == 1
    assert len(await records_of(blobs)) == 2
    assert await view_of(blobs) == writer.view


async def test_position_of_a_late_answer_is_that_of_the_own_record() -> None:
    blobs = new_blobs()
    losing = LosingBlobs(blobs)
    writer = await driver_on(losing)
    losing.losses["put"] = 1
    with pytest.raises(RetriableError):
        await writer.append(attempt_record(1))
    await driver_on(blobs, "usurper")

    assert await writer.append(attempt_record(1)) == 1
    with pytest.raises(TaskFencedError):
        await writer.append(attempt_record(2))


async def test_repeated_append_of_unknown_outcome_lands_once() -> None:
    blobs = new_blobs()
    losing = LosingBlobs(blobs)
    writer = await driver_on(losing)
    losing.losses["put"] = 1
    with pytest.raises(RetriableError):
        await writer.append(commit_record(1))

    assert await writer.append(commit_record(1)) == 1

    assert len((await view_of(blobs)).commits) == 1


async def test_repeated_append_lands_once_when_another_record_settled_it_first() -> None:
    blobs = new_blobs()
    losing = LosingBlobs(blobs)
    writer = await driver_on(losing)
    losing.losses["put"] = 1
    with pytest.raises(RetriableError):
        await writer.append(commit_record(1))
    assert await writer.append(batch_record(1)) == 2

    assert await writer.append(commit_record(1)) == 1

    assert len(await records_of(blobs)) == 3


async def test_repeated_append_lands_once_after_a_trim_read_it() -> None:
    blobs = new_blobs()
    losing = LosingBlobs(blobs)
    writer = await driver_on(losing)
    losing.losses["put"] = 1
    with pytest.raises(RetriableError):
        await writer.append(commit_record(1))
    await writer.trim(0)

    assert await writer.append(commit_record(1)) == 1

    assert len(await records_of(blobs)) == 2


async def test_repeated_append_lands_once_when_the_floor_could_not_be_read() -> None:
    blobs = new_blobs()
    refusing = RefusingBlobs(blobs)
    writer = await driver_on(refusing)
    refusing.refusals["list"] = 1
    with pytest.raises(RetriableError):
        await writer.append(commit_record(1))

    assert await writer.append(commit_record(1)) == 1

    assert len(await records_of(blobs)) == 2


async def test_append_that_never_landed_is_made_by_its_repetition() -> None:
    blobs = new_blobs()
    refusing = RefusingBlobs(blobs)
    writer = await driver_on(refusing)
    refusing.refusals["put"] = 1
    with pytest.raises(RetriableError):
        await writer.append(commit_record(1))
    await writer.append(batch_record(1))

    assert await writer.append(commit_record(1)) == 2

    assert await view_of(blobs) == writer.view


async def test_abort_after_a_commit_of_unknown_outcome_reports_that_it_is_durable() -> None:
    losing = LosingBlobs(new_blobs())
    writer = await driver_on(losing)
    await writer.append(attempt_record(1))
    losing.losses["put"] = 1
    with pytest.raises(RetriableError):
        await writer.append(commit_record(1))

    await writer.append(abort_record(1))

    assert writer.view.is_committed(1, 1)
    assert writer.view.aborted_attempts == set()


async def test_commit_of_an_aborted_attempt_is_refused() -> None:
    writer = await driver_on(new_blobs())
    await writer.append(attempt_record(1))
    await writer.append(abort_record(1))

    with pytest.raises(CommitFailedError):
        await writer.append(commit_record(1))

    assert writer.view.commits == {}


async def test_commit_is_refused_when_an_abort_record_of_unknown_outcome_had_landed() -> None:
    losing = LosingBlobs(new_blobs())
    writer = await driver_on(losing)
    losing.losses["put"] = 1
    with pytest.raises(RetriableError):
        await writer.append(abort_record(1))

    with pytest.raises(CommitFailedError):
        await writer.append(commit_record(1))


async def test_writer_of_an_older_epoch_is_fenced_and_changes_nothing() -> None:
    blobs = new_blobs()
    old = await driver_on(blobs, "old")
    await driver_on(blobs, "new")

    with pytest.raises(TaskFencedError) as caught:
        await old.append(commit_record(1))

    assert (caught.value.own_epoch, caught.value.newer_epoch) == (1, 2)
    assert not any(isinstance(record, CommitRecord) for record in await records_of(blobs))


async def test_fenced_writer_stays_fenced() -> None:
    blobs = new_blobs()
    old = await driver_on(blobs, "old")
    await driver_on(blobs, "new")
    with pytest.raises(TaskFencedError):
        await old.append(commit_record(1))

    with pytest.raises(TaskFencedError):
        await old.append(commit_record(1))
    with pytest.raises(TaskFencedError):
        await old.trim(0)
    with pytest.raises(TaskFencedError):
        await old.take_over("old")


async def test_writer_that_slept_while_the_log_was_trimmed_is_fenced() -> None:
    blobs = new_blobs()
    sleeper = await driver_on(blobs, "sleeper")
    awake = await driver_on(blobs, "awake")
    for attempt in (1, 2, 3):
        await awake.append(commit_record(attempt, attempt_epoch=2))
    await awake.append(ReleaseRecord(positions=[2, 3]))
    await awake.trim(4)
    before = await view_of(blobs)

    with pytest.raises(TaskFencedError):
        await sleeper.append(commit_record(1))
    with pytest.raises(TaskFencedError):
        await sleeper.append(commit_record(1))

    assert await view_of(blobs) == before


async def test_floor_at_the_own_position_fences() -> None:
    blobs = new_blobs()
    writer = await driver_on(blobs)
    await log_on(blobs).trim(1)

    with pytest.raises(TaskFencedError):
        await writer.append(commit_record(1))


async def test_the_commit_of_an_attempt_that_was_begun_below_the_floor_is_fenced() -> None:
    blobs = new_blobs()
    writer = await driver_on(blobs)
    await log_on(blobs).trim(4)
    await writer.append(AttemptRecord(attempt=1, batch=0, checkpoint_id="1-1", versions={}))

    with pytest.raises(TaskFencedError):
        await writer.append(commit_record(1))


async def test_new_driver_reads_a_trimmed_log_with_its_epoch() -> None:
    blobs = new_blobs()
    writer = await driver_on(blobs, "first")
    for attempt in (1, 2):
        await writer.append(commit_record(attempt))
    await writer.append(ReleaseRecord(positions=[1]))
    await writer.trim(2)

    successor = await driver_on(blobs, "second")

    assert successor.epoch == 2
    assert list(successor.view.commits) == [2]


async def test_take_over_starts_anew_when_the_log_was_trimmed_since_open() -> None:
    blobs = new_blobs()
    late = LogSession(log_on(blobs))
    await late.open()
    writer = await driver_on(blobs, "first")
    for attempt in (1, 2):
        await writer.append(commit_record(attempt))
    await writer.append(ReleaseRecord(positions=[1]))
    await writer.trim(2)

    assert await late.take_over("late") == 2

    assert await view_of(blobs) == late.view


async def test_log_is_not_trimmed_beyond_what_a_retained_commit_needs() -> None:
    writer = await driver_on(new_blobs())
    await writer.append(commit_record(1))

    with pytest.raises(ValueError, match="still needed"):
        await writer.trim(2)


async def test_rolled_forward_attempt_is_committed_not_aborted() -> None:
    blobs = new_blobs()
    old = await driver_on(blobs, "old")
    await old.append(attempt_record(1))
    new = await driver_on(blobs, "new")

    await new.append(commit_record(1, attempt_epoch=1))
    await new.append(base_record(0, commit_position=3))

    assert new.view.open_attempts == {}
    assert new.view.aborted_attempts == set()
    assert list(new.view.commits) == [3]


async def test_overlapping_appends_are_done_one_after_the_other() -> None:
    blobs = new_blobs()
    writer = await driver_on(DawdlingBlobs(blobs, random.Random(1)))

    positions = await asyncio.gather(*(writer.append(batch_record(b)) for b in range(8)))

    assert sorted(positions) == list(range(1, 9))
    assert await view_of(blobs) == writer.view


async def test_cancelled_append_is_settled_by_the_next() -> None:
    blobs = new_blobs()
    writer = await driver_on(DawdlingBlobs(blobs, random.Random(3)))
    running = asyncio.create_task(writer.append(commit_record(1)))
    while len(await records_of(blobs)) == 1:
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    await writer.append(batch_record(1))

    assert [type(r).__name__ for r in await records_of(blobs)] == [
        "EpochRecord",
        "CommitRecord",
        "BatchRecord",
    ]
    assert await view_of(blobs) == writer.view


async def test_current_and_pinned_commits_are_not_released() -> None:
    writer = await driver_on(new_blobs())
    first = await writer.append(commit_record(1))
    second = await writer.append(commit_record(2))
    await writer.append(PinRecord(name="keep", position=first))

    with pytest.raises(RetriableError, match="was pinned meanwhile"):
        await writer.append(ReleaseRecord(positions=[first]))
    with pytest.raises(ValueError, match="current commit is kept"):
        await writer.append(ReleaseRecord(positions=[second]))


async def test_released_commit_is_not_pinned() -> None:
    writer = await driver_on(new_blobs())
    first = await writer.append(commit_record(1))
    await writer.append(commit_record(2))
    await writer.append(ReleaseRecord(positions=[first]))

    with pytest.raises(ConfigError, match="released or was never there"):
        await writer.append(PinRecord(name="late", position=first))


async def test_append_before_take_over_is_refused() -> None:
    writer = LogSession(log_on(new_blobs()))
    await writer.open()

    with pytest.raises(RuntimeError, match="take_over"):
        await writer.append(commit_record(1))


@pytest.mark.asyncio
async def test_a_writer_that_appends_nothing_can_find_out_that_it_is_fenced() -> None:
    blobs = new_blobs()
    old = await driver_on(blobs)
    await old.check_fence()
    await driver_on(blobs)

    with pytest.raises(TaskFencedError):
        await old.check_fence()


async def test_a_log_that_moved_after_it_was_opened_is_not_taken_over() -> None:
    blobs = new_blobs()
    late = LogSession(log_on(blobs))
    mover = await driver_on(blobs)
    await late.open()
    await mover.append(MovedRecord(backend="new"))

    with pytest.raises(ConfigError, match="the job log has moved: backend=new"):
        await late.take_over("late")

    assert [type(record) for record in await records_of(blobs)] == [EpochRecord, MovedRecord]


async def test_nothing_is_written_behind_the_record_of_a_move() -> None:
    blobs = new_blobs()
    mover = await driver_on(blobs)
    await mover.append(MovedRecord(backend="new"))

    with pytest.raises(ConfigError, match="the job log has moved: backend=new"):
        await mover.append(attempt_record(1))


async def test_a_pin_writer_writes_nothing_but_pins() -> None:
    blobs = new_blobs()
    await (await driver_on(blobs)).append(commit_record(1))
    pin_writer = LogSession(log_on(blobs))
    with pytest.raises(RuntimeError, match="append before take_over"):
        await pin_writer.append(batch_record(0))
    assert (await view_of(blobs)).next_position == 2


async def test_an_attempt_whose_end_is_unknown_is_aborted_before_the_next_begins() -> None:
    blobs = RefusingBlobs(new_blobs())
    told: list[Event] = []
    session = LogSession(log_on(blobs), report=told.append)
    await session.open()
    await session.take_over("driver")
    first = await session.begin_attempt(0, CheckpointId(1, 1), {"Partition 0": ""})
    blobs.refusals["put"] = 1
    with pytest.raises(RetriableError):
        await session.close_attempt("a backend failed")
    second = await session.begin_attempt(1, CheckpointId(2, 1), {"Partition 0": ""})

    view = await view_of(blobs)
    assert (first, second) == (1, 2)
    assert [*view.open_attempts] == [(1, 2)]
    assert [*view.aborted_attempts] == [(1, 1)]
    assert [(e.details()["attempt"], e.details()["reason"]) for e in told] == [
        (1, "its end is unknown")
    ]


async def test_a_commit_that_landed_without_an_answer_is_not_aborted() -> None:
    losing = LosingBlobs(new_blobs())
    session = await driver_on(losing)
    attempt = await session.begin_attempt(0, CheckpointId(1, 1), {"Partition 0": ""})
    losing.losses["put"] = 1
    with pytest.raises(RetriableError):
        await session.append(commit_record(attempt))
    assert await session.close_attempt("no answer")
    assert not await session.close_attempt("asked again")
    assert not (await view_of(losing)).aborted_attempts


async def test_attempts_of_older_owners_are_aborted_by_the_base_record_and_reported() -> None:
    blobs = new_blobs()
    before = await driver_on(blobs)
    await before.begin_attempt(0, CheckpointId(1, 1), {"Partition 0": ""})
    told: list[Event] = []
    session = LogSession(log_on(blobs), report=told.append)
    await session.open()
    await session.take_over("next")
    await session.go_on_from("q", 0)
    assert [*(await view_of(blobs)).aborted_attempts] == [(1, 1)]
    assert [(e.details()["attempt_epoch"], e.details()["reason"]) for e in told] == [
        (1, "its owner is gone")
    ]
