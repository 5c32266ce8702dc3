"""Rates, budgets and rests, by a clock that is moved by hand."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeep.backends.pacing import ByteBudget, Throttle, TokenBucket
from statekeep.testing.clock import FakeClock


@settings(deadline=None)
@given(st.lists(st.integers(0, 1000), max_size=20), st.integers(1, 1000))
def test_a_rate_is_kept_but_for_one_second_saved_up(sizes: list[int], rate: int) -> None:
    clock = FakeClock()
    bucket = TokenBucket(rate, clock)

    async def take_all() -> None:
        for size in sizes:
            await bucket.take(size)

    asyncio.run(take_all())
    elapsed_s = clock.monotonic_ns() / 1e9
    assert sum(sizes) <= rate * (elapsed_s + 1) + len(sizes)


@pytest.mark.asyncio
async def test_no_caller_is_overtaken_in_a_budget() -> None:
    budget = ByteBudget(10)
    order: list[str] = []

    async def hold(name: str, size: int) -> None:
        async with budget.hold(size):
            order.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(hold("a", 6), hold("large", 10), hold("b", 1), hold("c", 99))
    assert order == ["a", "large", "b", "c"]


@pytest.mark.asyncio
async def test_a_claim_that_is_cancelled_while_it_waits_takes_nothing() -> None:
    budget = ByteBudget(10)
    async with budget.hold(10):
        waiting = asyncio.create_task(budget.hold(5).__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
    async with asyncio.timeout(1), budget.hold(10):
        pass


@pytest.mark.asyncio
async def test_a_claim_that_is_cancelled_as_it_is_granted_gives_it_back() -> None:
    budget = ByteBudget(10)
    holder = budget.hold(10)
    await holder.__aenter__()
    waiting = asyncio.create_task(budget.hold(5).__aenter__())
    await asyncio.sleep(0)
    await holder.__aexit__(None, None, None)  # grants
    waiting.cancel()
    await asyncio.wait({waiting})
    async with asyncio.timeout(1), budget.hold(10):
        pass


@pytest.mark.asyncio
async def test_rests_double_up_to_half_a_minute_and_shrink_with_success() -> None:
    clock = FakeClock()
    throttle = Throttle(clock)
    for _ in range(9):
        throttle.slow_down()
        await throttle.wait()
    assert clock.slept == [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30]
    for _ in range(20):
        throttle.succeeded()
    throttle.slow_down()
    await throttle.wait()
    assert clock.slept[-1] == 0.25


def test_answers_to_calls_of_before_do_not_lengthen_a_rest() -> None:
    clock = FakeClock()
    throttle = Throttle(clock)
    for _ in range(64):
        throttle.slow_down()
    asyncio.run(throttle.wait())
    assert clock.slept == [0.25]


@pytest.mark.parametrize("kind", [TokenBucket, ByteBudget])
def test_nothing_at_all_is_refused(kind: type) -> None:
    with pytest.raises(ValueError, match="nothing could ever be"):
        kind(0, FakeClock()) if kind is TokenBucket else kind(0)
