"""Retry: only what may help is repeated, ever more slowly, and within a limit."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeep.backends.blob.settings import BlobSettings
from statekeep.backends.kafka.settings import KafkaSettings
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
    assert clock.slept == pytest.approx([0.1, 0.5, 2, 2])


@pytest.mark.asyncio
async def test_more_than_three_repetitions_are_made() -> None:
    clock = FakeClock()
    assert await Retrier(NO_JITTER, clock).run(failing(6), operation="put") == "done"
    assert len(clock.slept) == 6


@pytest.mark.asyncio
async def test_retries_end_with_the_time_and_the_last_error_says_how_long() -> None:
    clock = FakeClock()
    with pytest.raises(RetriableError) as caught:
        await Retrier(NO_JITTER, clock).run(failing(1_000_000), operation="put")
    assert clock.monotonic_ns() == 900 * 10**9
    assert caught.value.__notes__ == ["gave up: tries=453 failing_ms=900000"]
    assert caught.value.hints == (
        "the limit that ran out is blob.store.retry.policy.max.retry.duration.millis=900000",
    )


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("policy", "limit_s", "setting"),
    [
        (
            BlobSettings(uri="s3://b").retry,
            900,
            "blob.store.retry.policy.max.retry.duration.millis=900000",
        ),
        (
            BlobSettings.parse("s3", {"uri": "s3://b"}).start_retry,
            60,
            "backends.s3.start.timeout.ms=60000",
        ),
        (
            KafkaSettings.parse("k", {"bootstrap.servers": "b:9092"}).retry,
            900,
            "backends.k.retry.max.duration.ms=900000",
        ),
    ],
    ids=["transfer", "start", "kafka"],
)
async def test_a_limit_is_used_to_its_end_and_named(
    policy: RetryPolicy, limit_s: int, setting: str
) -> None:
    clock = FakeClock()
    tried_ns: list[int] = []

    async def call() -> None:
        tried_ns.append(clock.monotonic_ns())
        raise RetriableError("on purpose")

    with pytest.raises(RetriableError) as caught:
        await Retrier(policy, clock).run(call, operation="put")
    assert tried_ns[-1] == pytest.approx(limit_s * 10**9, abs=2 * 10**6)
    assert caught.value.hints[0] == f"the limit that ran out is {setting}"


@given(st.floats(0, 899), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_after_an_outage_of_any_length_the_next_try_comes_within_three_seconds(
    outage_s: float, random: Random
) -> None:
    clock = FakeClock()

    async def call() -> str:
        if clock.monotonic_ns() < outage_s * 10**9:
            raise RetriableError("the store is down")
        return "done"

    retrier = Retrier(RetryPolicy(), clock, jitter=lambda: random.uniform(-1, 1))
    assert asyncio.run(retrier.run(call, operation="put")) == "done"
    assert clock.monotonic_ns() <= (outage_s + 3) * 10**9 + 1


def test_calls_that_failed_together_return_spread_over_two_seconds() -> None:
    policy = RetryPolicy()
    waits = sorted(policy.delay_s(9, -1 + 2 * call / 199) for call in range(200))
    assert (waits[0], waits[-1]) == (1, 3)
    assert max(later - earlier for earlier, later in pairwise(waits)) < 0.02


@pytest.mark.asyncio
async def test_a_count_of_retries_bounds_them_too() -> None:
    clock = FakeClock()
    with pytest.raises(RetriableError) as caught:
        await Retrier(RetryPolicy(max_retries=2), clock).run(failing(3), operation="put")
    assert len(clock.slept) == 2
    assert caught.value.hints[0] == (
        "the limit that ran out is blob.store.retry.policy.max.retries=2"
    )


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
    assert caught.value.__notes__[0] == "gave up: tries=2 failing_ms=1000100"


@given(st.integers(1, 10_000), st.floats(-1, 1), st.floats(0, 1))
def test_a_delay_is_never_longer_than_its_bound_and_jitter_stays_in_step(
    retry: int, jitter: float, factor: float
) -> None:
    policy = RetryPolicy(jitter_factor=factor)
    plain = RetryPolicy(jitter_factor=0).delay_s(retry, 0)
    assert 0 < plain <= 2
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
async def test_waits_for_a_store_are_warnings_every_ten_seconds_and_the_first_has_the_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    retrier = Retrier(NO_JITTER, FakeClock())
    await retrier.run(failing(8), operation="put", subject="log/000007")
    first, second = (record.getMessage() for record in caplog.records)
    assert "operation=put subject=log/000007 try=1 wait_ms=100 gives_up_in_ms=900000" in first
    assert "until blob.store.retry.policy.max.retry.duration.millis=900000 is over" in first
    assert "try=8 wait_ms=2000 gives_up_in_ms=889400" in second
    assert second.endswith("error=on purpose")
    assert {record.levelname for record in caplog.records} == {"WARNING"}
