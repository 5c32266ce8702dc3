"""Retry: only what may help is repeated, ever more slowly, and not for ever."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statekeep.backends.retry import Retrier, RetryPolicy
from statekeep.errors import BlobNotFoundError, RetriableError
from statekeep.testing.clock import FakeClock

NO_JITTER = RetryPolicy(jitter_factor=0)


def failing(times: int, error: type[Exception] = RetriableError) -> Callable[[], Awaitable[str]]:
    left = times

    async def call() -> str:
        nonlocal left
        if left:
            left -= 1
            raise error("on purpose")
        return "done"

    return call


@pytest.mark.asyncio
async def test_a_call_that_heals_gives_its_result_after_growing_delays() -> None:
    clock = FakeClock()
    assert await Retrier(NO_JITTER, clock).run(failing(4), operation="put") == "done"
    assert clock.slept == pytest.approx([0.1, 0.5, 2.5, 12.5])


@pytest.mark.asyncio
async def test_more_than_three_repetitions_are_made() -> None:
    retrier = Retrier(NO_JITTER, FakeClock())
    assert await retrier.run(failing(6), operation="put") == "done"
    assert retrier.retry_count == 6


@pytest.mark.asyncio
async def test_retries_end_with_the_time_and_the_last_error_says_how_long() -> None:
    clock = FakeClock()
    with pytest.raises(RetriableError) as caught:
        await Retrier(NO_JITTER, clock).run(failing(1_000_000), operation="put")
    assert clock.monotonic_ns() <= 900 * 10**9
    assert "gave up: tries=" in caught.value.__notes__[0]


@pytest.mark.asyncio
async def test_a_count_of_retries_bounds_them_too() -> None:
    retrier = Retrier(RetryPolicy(max_retries=2), FakeClock())
    with pytest.raises(RetriableError):
        await retrier.run(failing(3), operation="put")
    assert retrier.retry_count == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [BlobNotFoundError, ValueError, asyncio.CancelledError])
async def test_what_asking_again_does_not_help_is_raised_at_once(error: type[Exception]) -> None:
    clock = FakeClock()
    with pytest.raises(error):
        await Retrier(NO_JITTER, clock).run(failing(1, error), operation="put")
    assert not clock.slept


@pytest.mark.asyncio
async def test_the_time_counts_from_the_first_failure_however_long_that_try_took() -> None:
    clock = FakeClock()
    fail = failing(1_000_000)

    async def slow_failure() -> str:
        clock.advance(1_000)
        return await fail()

    with pytest.raises(RetriableError) as caught:
        await Retrier(NO_JITTER, clock).run(slow_failure, operation="put")
    assert caught.value.__notes__ == ["gave up: tries=2 failing_ms=1000100"]


@given(st.integers(1, 10_000), st.floats(-1, 1), st.floats(0, 1))
def test_a_delay_is_never_longer_than_its_bound_and_jitter_stays_in_step(
    retry: int, jitter: float, factor: float
) -> None:
    policy = RetryPolicy(jitter_factor=factor)
    plain = RetryPolicy(jitter_factor=0).delay_s(retry, 0)
    assert 0 < plain <= 312.5
    delay = policy.delay_s(retry, jitter)
    assert plain * (1 - factor) - 1e-9 <= delay <= plain * (1 + factor) + 1e-9


@pytest.mark.parametrize(
    "make",
    [
        lambda: RetryPolicy(max_retries=-2),
        lambda: RetryPolicy(backoff_delay_ms=-1),
        lambda: RetryPolicy(backoff_delay_factor=0.5),
        lambda: RetryPolicy(jitter_factor=1.5),
    ],
    ids=["retries", "delay", "factor", "jitter"],
)
def test_a_policy_without_sense_is_refused(make: Callable[[], RetryPolicy]) -> None:
    with pytest.raises(ValueError, match="retr"):
        make()


@pytest.mark.asyncio
async def test_each_wait_for_a_store_is_a_warning_and_the_first_one_has_the_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    retrier = Retrier(NO_JITTER, FakeClock())
    await retrier.run(failing(2), operation="put", subject="log/000007")
    first, second = (record.getMessage() for record in caplog.records)
    assert "operation=put subject=log/000007 try=1 wait_ms=100 gives_up_in_ms=900000" in first
    assert "retry.policy.max.retry.duration.millis" in first
    assert "try=2 wait_ms=500 gives_up_in_ms=899900" in second
    assert second.endswith("error=on purpose")
    assert {record.levelname for record in caplog.records} == {"WARNING"}
