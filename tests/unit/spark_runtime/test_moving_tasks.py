"""Which tasks move once executors have come or gone."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeep.spark.driver.rebalancer import assigned

ONE = [range(8)]


def loads(slots: Sequence[Sequence[int]], executors: Sequence[str]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for tasks, executor in zip(slots, executors, strict=True):
        found[executor] += len(tasks)
    return dict(found)


def test_an_executor_that_joined_gets_its_share_and_the_rest_stays() -> None:
    places = dict.fromkeys(range(8), "a")
    assert assigned(ONE, ["b", "a"], places) == [(4, 5, 6, 7), (0, 1, 2, 3)]


def test_tasks_of_an_executor_that_is_gone_go_to_those_with_less() -> None:
    places = {0: "a", 1: "a", 2: "a", 3: "b", 4: "gone", 5: "gone", 6: "gone", 7: "gone"}
    assert assigned(ONE, ["a", "b"], places) == [(0, 1, 2, 4), (3, 5, 6, 7)]


def test_nothing_moves_where_tasks_are_shared_out() -> None:
    places = {task: "ab"[task % 2] for task in range(7)}
    assert assigned([range(7)], ["b", "a"], places) == [(1, 3, 5), (0, 2, 4, 6)]


def test_each_operator_is_shared_out() -> None:
    slots = assigned([range(2), range(2, 4), range(4, 6)], ["a", "b"], dict.fromkeys(range(6), "a"))
    assert [[task // 2 for task in tasks] for tasks in slots] == [[0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize("places", [{}, dict.fromkeys(range(20), "b")])
def test_executors_get_as_many_tasks_as_their_slots_can_run_at_a_time(
    places: dict[int, str],
) -> None:
    executors = [*"aaaaaaaa", *"bb"]
    slots = assigned([range(20)], executors, places)
    assert loads(slots, executors) == {"a": 16, "b": 4}
    assert {len(slot) for slot in slots} == {2}


def test_what_cannot_be_shared_out_does_not_pile_up() -> None:
    single = [range(number, number + 1) for number in range(4)]
    assert loads(assigned(single, "ab", dict.fromkeys(range(4), "a")), "ab") == {"a": 2, "b": 2}


@settings(deadline=None)
@given(
    operators=st.integers(1, 3),
    tasks=st.integers(1, 12),
    executors=st.lists(st.sampled_from("abcd"), min_size=2, max_size=8),
    data=st.data(),
)
def test_every_task_has_one_slot_and_as_many_stay_as_can(
    operators: int, tasks: int, executors: list[str], data: st.DataObject
) -> None:
    every = range(operators * tasks)
    places = {task: data.draw(st.sampled_from("abcde")) for task in every}
    ranges = [range(number * tasks, (number + 1) * tasks) for number in range(operators)]
    slots = assigned(ranges, executors, places)
    assert sorted(task for found in slots for task in found) == list(every)
    for own in ranges:
        shares = loads([[t for t in found if t in own] for found in slots], executors)
        slots_of = Counter(executors)
        for executor, share in shares.items():
            assert abs(share - tasks * slots_of[executor] / len(executors)) <= 1
        stayed = sum(
            places[task] == executor
            for found, executor in zip(slots, executors, strict=True)
            for task in found
            if task in own
        )
        there = Counter(places[task] for task in own)
        assert stayed == sum(min(there[executor], shares[executor]) for executor in shares)
