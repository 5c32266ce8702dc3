"""Coroutines side by side: results in order, one telling error, none left running."""

import asyncio
import gc

import pytest

from statekeep.backends.awaiting import run_all, shielded
from statekeep.errors import CheckpointCorruptError, RetriableError


async def result_of(number: int) -> int:
    for _ in range(10 - number):
        await asyncio.sleep(0)
    return number


async def failure(error: Exception) -> int:
    raise error


@pytest.mark.asyncio
async def test_results_come_in_the_order_of_the_coroutines() -> None:
    assert await run_all(result_of(number) for number in range(10)) == list(range(10))


@pytest.mark.asyncio
async def test_nothing_to_run_gives_no_results() -> None:
    assert await run_all([]) == []


@pytest.mark.asyncio
async def test_an_error_that_retry_cannot_mend_is_raised_before_one_that_it_can() -> None:
    errors = [RetriableError("later"), CheckpointCorruptError("never"), RetriableError("later 2")]
    with pytest.raises(CheckpointCorruptError, match="never") as caught:
        await run_all(failure(error) for error in errors)
    assert any("later" in note for note in caught.value.__notes__)


@pytest.mark.asyncio
async def test_a_failure_cancels_the_rest_and_waits_for_them() -> None:
    ended: list[str] = []

    async def endless() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("endless")
        return 0

    with pytest.raises(RetriableError):
        await run_all([endless(), failure(RetriableError("x"))])
    assert ended == ["endless"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.asyncio
async def test_a_cancel_reaches_all_of_them() -> None:
    running = asyncio.create_task(_wait_for_ever())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def _wait_for_ever() -> None:
    await run_all([asyncio.sleep(1e9), asyncio.sleep(1e9)])


@pytest.mark.asyncio
async def test_what_fails_after_its_caller_was_cancelled_is_not_logged_as_forgotten() -> None:
    forgotten: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: forgotten.append(context["message"])
    )
    may_fail = asyncio.Event()

    async def fail() -> None:
        await may_fail.wait()
        raise CheckpointCorruptError("late")

    waiting = asyncio.create_task(shielded(fail()))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    may_fail.set()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    del waiting
    gc.collect()
    assert forgotten == []
