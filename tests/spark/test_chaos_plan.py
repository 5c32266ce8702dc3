"""What the crash harness draws from a seed."""

import itertools

from chaos.backends import fault_points_of
from chaos.fault_profile import FaultProfile
from chaos.spark.draw import (
    POINTS,
    RECOVERY_POINTS,
    RESHAPE_POINTS,
    draw_schedule,
    with_task_counts,
)
from chaos.spark.plan import Consequence, Drift, Loss
from statekeep.fault_points import (
    FAULT_POINTS,
    HDFS_FAULT_POINTS,
    KAFKA_FAULT_POINTS,
    SPARK_FAULT_POINTS,
)
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


def test_a_few_hundred_seeds_draw_every_consequence_loss_and_drift() -> None:
    schedules = [draw_schedule(seed) for seed in range(1000)]
    faults = [planned for schedule in schedules for planned in schedule.faults]
    assert {planned.consequence for planned in faults} == set(Consequence)
    assert {loss for schedule in schedules for loss in schedule.losses} == {None, *Loss}
    assert {schedule.drift for schedule in schedules} == {None, *Drift}
    modes = {schedule.modes for schedule in schedules}
    assert {mode for of_operators in modes for mode in of_operators} == {
        "None",
        "EventTime",
        "ProcessingTime",
    }
    assert {len(of_operators) for of_operators in modes} == {1, 2}


def test_a_few_hundred_seeds_draw_bad_days_and_damage_of_either_place() -> None:
    schedules = [draw_schedule(seed) for seed in range(300)]
    days = [schedule.bad_day for schedule in schedules if schedule.bad_day is not None]
    assert {day.profile for day in days} == {
        FaultProfile.SLOW,
        FaultProfile.FLAPPING,
        FaultProfile.OUTAGE,
    }
    assert {day.place for day in days} == {0, 1}
    damages = [schedule.damage for schedule in schedules if schedule.damage is not None]
    assert {(damage.place, damage.is_truncated) for damage in damages} == {
        (place, is_truncated) for place in (0, 1) for is_truncated in (False, True)
    }
    assert None in {schedule.bad_day for schedule in schedules if schedule.damage is not None}


def test_as_many_seeds_as_there_are_points_draw_each_of_them() -> None:
    points = {*RECOVERY_POINTS, *(point for points in POINTS.values() for point in points)}
    schedules = [draw_schedule(seed) for seed in range(500, 500 + len(points))]
    assert {planned.fault.point for schedule in schedules for planned in schedule.faults} == points


def test_points_of_a_changelog_are_drawn_only_where_there_is_one() -> None:
    drawn = {
        kinds: {
            planned.fault.point
            for seed in range(300)
            for planned in draw_schedule(seed, fault_points_of(kinds.split(","))).faults
        }
        for kinds in ("blob,hdfs", "kafka", "blob,kafka")
    }
    assert drawn["blob,hdfs"].isdisjoint(KAFKA_FAULT_POINTS)
    assert drawn["blob,hdfs"] >= {*HDFS_FAULT_POINTS}
    assert drawn["kafka"] >= {*KAFKA_FAULT_POINTS}
    assert drawn["blob,kafka"] >= {*KAFKA_FAULT_POINTS}


def test_what_strikes_late_snapshots_finds_one() -> None:
    for seed in range(300):
        schedule = draw_schedule(seed, HDFS_FAULT_POINTS)
        points = [planned.fault.point for planned in schedule.faults]
        if "late_snapshot.before" in points:
            assert schedule.settings["hdfs.store.min.deltas.for.snapshot"] == "1"


def test_what_strikes_behind_a_tail_has_something_that_leaves_one() -> None:
    for seed in range(300):
        points = [planned.fault.point for planned in draw_schedule(seed, KAFKA_FAULT_POINTS).faults]
        assert "upload.after_tail" not in points or "transaction.after_commit" in points


def test_what_strikes_a_recovery_has_something_that_brings_it_about() -> None:
    for seed in range(300):
        faults = draw_schedule(seed).faults
        if any(planned.from_run > 1 for planned in faults):
            assert any(planned.from_run == 1 and planned.ends_driver for planned in faults)


def test_what_strikes_a_move_of_tasks_finds_one() -> None:
    schedules = [draw_schedule(seed) for seed in range(300)]
    moving = [s for s in schedules if any(p.fault.point.startswith("move.") for p in s.faults)]
    assert moving
    for schedule in moving:
        assert schedule.settings["task.commit.ms"] == "1"
        assert schedule.batches >= 8
        assert Consequence.EXECUTOR in {planned.consequence for planned in schedule.faults}


def test_a_job_with_other_numbers_of_tasks_is_struck_where_it_gets_them() -> None:
    schedules = [with_task_counts(draw_schedule(seed)) for seed in range(60)]
    for schedule in schedules:
        counts = [schedule.task_count(run) for run in range(1, 5)]
        assert all(before != now for before, now in itertools.pairwise(counts))
        assert any(p.from_run == 1 and p.ends_driver for p in schedule.faults)
    struck = {planned.fault.point for schedule in schedules for planned in schedule.faults}
    assert {point for _, point in RESHAPE_POINTS} <= struck
    assert {point for _, point in RESHAPE_POINTS if point.startswith("reshape")} <= {
        *SPARK_FAULT_POINTS
    }
    assert draw_schedule(17).task_count(1) == draw_schedule(17).task_count(2)
