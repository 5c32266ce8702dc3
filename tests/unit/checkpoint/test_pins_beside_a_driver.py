"""Pins that are written beside a living driver."""

import asyncio
import contextlib
import random

import pytest
from log_kit import (
    DawdlingBlobs,
    LosingBlobs,
    RetryingOnce,
    batch_record,
    commit_record,
    driver_on,
    log_on,
    new_blobs,
    view_of,
)

from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.records import ReleaseRecord
from statekeep.errors import ConfigError, RetriableError, TaskFencedError

pytestmark = pytest.mark.asyncio


async def test_a_pin_fences_no_driver_and_outlives_the_retention() -> None:
    blobs = new_blobs()
    driver = await driver_on(blobs)
    first = await driver.append(commit_record(1))

    await LogSession(log_on(blobs)).pin("before the move", first)
    second = await driver.append(commit_record(2))

    with pytest.raises(RetriableError, match="was pinned meanwhile"):
        await driver.append(ReleaseRecord(positions=[first]))
    view = await view_of(blobs)
    assert view.pins == {"before the move": first}
    assert [*view.commits] == [first, second]


async def test_a_commit_that_was_unpinned_is_released() -> None:
    blobs = new_blobs()
    driver = await driver_on(blobs)
    first = await driver.append(commit_record(1))
    await LogSession(log_on(blobs)).pin("p", first)
    await LogSession(log_on(blobs)).unpin("p")
    second = await driver.append(commit_record(2))
    await driver.append(ReleaseRecord(positions=[first]))
    assert [*(await view_of(blobs)).commits] == [second]


async def test_a_pin_of_a_released_commit_is_refused() -> None:
    blobs = new_blobs()
    driver = await driver_on(blobs)
    first = await driver.append(commit_record(1))
    await driver.append(commit_record(2))
    await driver.append(ReleaseRecord(positions=[first]))
    with pytest.raises(ConfigError, match=f"released or was never there: commit={first}"):
        await LogSession(log_on(blobs)).pin("late", first)


async def test_a_name_belongs_to_one_commit() -> None:
    blobs = new_blobs()
    driver = await driver_on(blobs)
    first = await driver.append(commit_record(1))
    second = await driver.append(commit_record(2))
    pin_writer = LogSession(log_on(blobs))
    await pin_writer.pin("name", first)
    await pin_writer.pin("name", first)
    with pytest.raises(ConfigError, match=f"the name is in use: name=name commit={first}"):
        await pin_writer.pin("name", second)


async def test_a_commit_is_pinned_again_although_the_first_pin_had_no_answer() -> None:
    losing = LosingBlobs(new_blobs())
    driver = await driver_on(losing)
    first = await driver.append(commit_record(1))
    losing.losses["put"] = 1
    with pytest.raises(RetriableError):
        await driver.pin("p", first)
    await LogSession(log_on(losing)).unpin("p")
    assert (await driver.poll()).pins == {}
    await driver.pin("p", first)
    assert (await view_of(losing)).pins == {"p": first}


async def test_an_unpin_may_be_repeated_after_a_lost_answer() -> None:
    losing = LosingBlobs(new_blobs())
    driver = await driver_on(losing)
    await driver.pin("p", await driver.append(commit_record(1)))
    losing.losses["put"] = 1
    with pytest.raises(RetriableError):
        await driver.unpin("p")
    await driver.unpin("p")
    assert (await view_of(losing)).pins == {}
    await driver.pin("p", 1)
    await driver.unpin("p")
    with pytest.raises(ConfigError, match="no commit is pinned under this name"):
        await driver.unpin("p")


async def test_of_two_pins_of_one_name_at_once_the_second_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blobs = new_blobs()
    driver = await driver_on(blobs)
    first = await driver.append(commit_record(1))
    second = await driver.append(commit_record(2))
    log = log_on(blobs)
    append = log.append

    async def after_another_pin(position: int, data: bytes) -> None:
        monkeypatch.setattr(log, "append", append)
        await LogSession(log_on(blobs)).pin("name", first)
        await append(position, data)

    monkeypatch.setattr(log, "append", after_another_pin)
    with pytest.raises(ConfigError, match=f"the name is in use: name=name commit={first}"):
        await LogSession(log).pin("name", second)
    assert (await view_of(blobs)).pins == {"name": first}


async def test_a_name_that_is_not_there_is_not_unpinned() -> None:
    blobs = new_blobs()
    await (await driver_on(blobs)).append(commit_record(1))
    with pytest.raises(ConfigError, match="no commit is pinned under this name: name=x"):
        await LogSession(log_on(blobs)).unpin("x")


async def test_a_log_without_a_commit_takes_no_pin() -> None:
    with pytest.raises(ConfigError, match="the job has no commit yet"):
        await LogSession(log_on(new_blobs())).pin("x", 0)


async def test_a_pin_whose_answer_was_lost_is_there_once() -> None:
    blobs = new_blobs()
    driver = await driver_on(blobs)
    first = await driver.append(commit_record(1))
    losing = LosingBlobs(blobs)
    losing.losses["put"] = 1
    await LogSession(log_on(RetryingOnce(losing))).pin("p", first)
    assert (await view_of(blobs)).next_position == driver.view.next_position + 1


async def test_a_pin_goes_on_under_the_epoch_of_a_new_driver() -> None:
    blobs = new_blobs()
    first = await (await driver_on(blobs)).append(commit_record(1))
    pin_writer = LogSession(log_on(blobs))
    await pin_writer.pin("a", first)
    successor = await driver_on(blobs, "successor")
    await pin_writer.pin("b", first)
    await successor.append(batch_record(1))
    view = await view_of(blobs)
    assert view.epoch == successor.epoch
    assert view.pins == {"a": first, "b": first}


@pytest.mark.parametrize("seed", range(20))
async def test_a_pin_that_races_with_a_release_and_a_new_driver_is_decided_by_position(
    seed: int,
) -> None:
    blobs, rng = new_blobs(), random.Random(seed)
    driver = await driver_on(DawdlingBlobs(blobs, rng))
    first = await driver.append(commit_record(1))
    await driver.append(commit_record(2))

    async def pin() -> str:
        try:
            await LogSession(log_on(DawdlingBlobs(blobs, rng))).pin("p", first)
        except ConfigError:
            return "refused"
        return "pinned"

    async def release() -> None:
        with contextlib.suppress(RetriableError, TaskFencedError):
            await driver.append(ReleaseRecord(positions=[first]))

    outcome, _, _ = await asyncio.gather(
        pin(), release(), driver_on(DawdlingBlobs(blobs, rng), "successor")
    )
    view = await view_of(blobs)
    assert (first in view.commits) or outcome == "refused"
    assert (view.pins == {"p": first}) == (outcome == "pinned")
