"""What the crash harness draws from a seed."""

from collections import Counter

from chaos.spark.plan import POINTS, RECOVERY_POINTS, Consequence, draw_schedule
from statekeep.fault_points import FAULT_POINTS, SPARK_FAULT_POINTS
from statekeep.testing.faults.process_plan import Action


def test_a_seed_always_gives_the_same_schedule() -> None:
    assert draw_schedule(17) == draw_schedule(17)
    assert draw_schedule(17) != draw_schedule(18)


def test_every_point_that_is_struck_is_a_fault_point() -> None:
    struck = {*RECOVERY_POINTS, *(point for points in POINTS.values() for point in points)}
    assert struck <= {*FAULT_POINTS, *SPARK_FAULT_POINTS}


def test_what_follows_on_a_fault_needs_a_process_that_waits_for_it() -> None:
    faults = [planned for seed in range(300) for planned in draw_schedule(seed).faults]
    followed = [planned for planned in faults if planned.consequence is not Consequence.NONE]
    assert {planned.fault.action for planned in followed} == {Action.STOP}
    assert all(p.consequence is not Consequence.NONE for p in faults if p.fault.action == "stop")


def test_a_few_hundred_seeds_draw_every_consequence_and_every_point() -> None:
    faults = [planned for seed in range(1000) for planned in draw_schedule(seed).faults]
    assert {planned.consequence for planned in faults} == set(Consequence)
    drawn = Counter(planned.fault.point for planned in faults)
    assert set(drawn) == {*RECOVERY_POINTS, *(p for points in POINTS.values() for p in points)}
