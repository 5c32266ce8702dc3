"""Which executors have copies of which tasks, and where tasks go when an executor is lost."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeep.checkpoint.records import CommitRecord, JobIdentity
from statekeep.spark.driver.standbys import Standbys, chosen
from statekeep.spark.worker.executor_identity import local_disk

HOSTS = {"a": "one/1-1", "b": "two/1-1", "c": "three/1-1"}
HOMES = {0: "a", 1: "b", 2: "c", 3: "a", 4: "b", 5: "c"}
SLOTS = [(0, 3), (1, 4), (2, 5)]


def commit_record(batch: int, *, partitions: int) -> CommitRecord:
    tasks = [f"Partition {number}" for number in range(partitions)]
    return CommitRecord(
        epoch=1,
        nonce="",
        attempt_epoch=1,
        attempt=batch + 1,
        batch=batch,
        checkpoint_id=f"{batch}-1",
        identity=JobIdentity(
            job_uid="u",
            job_name="j",
            partitions=partitions,
            router="murmur",
            key_schema="struct<key:string>",
            stores={"main": ["state"]},
        ),
        checkpoints={task: msgspec.Raw(b"{}") for task in tasks},
        versions=dict.fromkeys(tasks, f"{batch}_0123456789abcdef"),
    )


def asked(standbys: Standbys, commit: CommitRecord) -> Mapping[int, tuple[str, set[int]]]:
    """Return what each slot asks for, after a batch that had the plan."""
    plan = standbys.plan(commit, SLOTS, HOMES, HOSTS, [("blob", "Partition 1", "state", "m")])
    assert plan is not None
    assert plan.bad_markers == (("blob", "Partition 1", "state", "m"),)
    standbys.have_been_asked(plan, HOMES)
    return {slot: (name, set(tasks)) for slot, (name, tasks) in plan.slots.items()}


def test_each_task_has_a_copy_on_another_host_and_each_executor_as_many() -> None:
    found = chosen(HOMES, HOSTS, 1, {})
    assert all(HOMES[task] not in names for task, names in found.items())
    assert Counter(name for (name,) in found.values()) == {"a": 2, "b": 2, "c": 2}
    for executor in HOSTS:
        own = {found[task][0] for task, home in HOMES.items() if home == executor}
        assert len(own) == 2  # its loss is shared out


def test_a_copy_stays_where_it_is_unless_that_is_too_much_for_one() -> None:
    before = chosen(HOMES, HOSTS, 1, {})
    moved = {**HOMES, 0: before[1][0]}
    after = chosen(moved, HOSTS, 1, before)
    assert sum(after[task] != before[task] for task in HOMES if task != 0) <= 1
    crowded = chosen(HOMES, HOSTS, 1, dict.fromkeys(HOMES, ("b",)))
    assert Counter(name for (name,) in crowded.values())["b"] == 2


def test_a_copy_is_on_another_disk_of_the_same_host_only_if_there_is_one_host() -> None:
    disks = {"a": "one/1-1", "b": "one/1-2", "c": "two/1-1"}
    assert chosen({0: "a", 1: "b", 2: "c"}, disks, 1, {}) == {0: ("c",), 1: ("c",), 2: ("a",)}
    assert chosen({0: "a", 1: "b"}, disks, 1, {}) == {0: ("b",), 1: ("a",)}


@pytest.mark.parametrize(
    "disks", [{}, {"a": "one/1-1"}, {"a": "one/1-1", "b": "one/1-1"}, {"a": "", "b": "two/1-1"}]
)
def test_there_is_no_copy_where_the_state_lies_or_where_that_is_not_known(
    disks: dict[str, str],
) -> None:
    assert 0 not in chosen({0: "a", 1: "b"}, disks, 1, {})


def test_two_copies_are_on_two_other_hosts() -> None:
    assert set(chosen(HOMES, HOSTS, 2, {})[0]) == {"b", "c"}


def test_the_commit_of_a_task_goes_to_one_slot_of_each_executor_once() -> None:
    standbys = Standbys(2)
    commit = commit_record(4, partitions=6)
    found = asked(standbys, commit)
    assert {slot: name for slot, (name, _) in found.items()} == {0: "a", 1: "b", 2: "c"}
    assert sorted(task for _, tasks in found.values() for task in tasks) == list(range(6))
    assert all(HOMES[task] != name for name, tasks in found.values() for task in tasks)
    assert standbys.plan(commit, SLOTS, HOMES, HOSTS, ()) is None
    assert asked(standbys, commit_record(5, partitions=6)) == found


def test_a_plan_that_no_batch_has_carried_out_is_made_again() -> None:
    standbys, commit = Standbys(2), commit_record(4, partitions=6)
    first = standbys.plan(commit, SLOTS, HOMES, HOSTS, ())
    assert first is not None
    assert standbys.plan(commit, SLOTS, HOMES, HOSTS, ()) == first


def test_empty_state_has_no_copy() -> None:
    commit = commit_record(4, partitions=6)
    versions = {**commit.versions, "Partition 1": ""}
    found = asked(Standbys(2), msgspec.structs.replace(commit, versions=versions))
    assert sorted(task for _, tasks in found.values() for task in tasks) == [0, 2, 3, 4, 5]


def test_no_copies_are_asked_for_without_the_setting_or_before_all_tasks_have_answered() -> None:
    commit = commit_record(4, partitions=6)
    assert Standbys(1).plan(commit, SLOTS, HOMES, HOSTS, ()) is None
    assert Standbys(2).plan(commit, SLOTS, {0: "a"}, HOSTS, ()) is None
    assert Standbys(2).plan(None, SLOTS, HOMES, HOSTS, ()) is None


def test_tasks_of_a_lost_executor_go_where_their_copies_are() -> None:
    standbys = Standbys(2)
    found = asked(standbys, commit_record(4, partitions=6))
    copy_of = {task: slot for slot, (_, tasks) in found.items() for task in tasks}
    # The slot of "a" has run on "b", where one of its tasks has its copy.
    after = standbys.slots_after_loss(SLOTS, {**HOMES, 0: "b", 3: "b"}, {0, 3})
    assert after is not None
    assert sorted(task for tasks in after for task in tasks) == list(range(6))
    where = {task: slot for slot, tasks in enumerate(after) for task in tasks}
    assert {where[task] for task in (0, 3) if copy_of[task] == 2} == {2}
    assert {where[task] for task in (0, 3) if copy_of[task] == 1} <= {0, 1}
    assert all(where[task] == slot for slot in (1, 2) for task in SLOTS[slot])


def test_tasks_that_have_not_answered_yet_go_with_those_of_their_slot() -> None:
    """They are of a later operator, which the batch has not reached."""
    standbys = Standbys(2)
    asked(standbys, commit_record(4, partitions=6))
    after = standbys.slots_after_loss(SLOTS, {**HOMES, 0: "new"}, {0})
    assert after is not None
    assert after[0] == ()


def test_tasks_stay_whose_executor_is_there() -> None:
    """What was lost there is a version: the other tasks of the slot have theirs."""
    standbys = Standbys(2)
    assert standbys.slots_after_loss(SLOTS, HOMES, {0}) is None
    asked(standbys, commit_record(4, partitions=6))
    assert standbys.slots_after_loss(SLOTS, HOMES, {0}) is None


def test_no_task_goes_anywhere_before_a_batch_has_asked_for_copies() -> None:
    """As in a driver session whose first commit finds that versions are lost: no task has answered."""
    assert Standbys(2).slots_after_loss(SLOTS, {}, {0}) is None


def test_tasks_stay_where_those_that_had_their_copies_are_gone_too() -> None:
    standbys = Standbys(2)
    asked(standbys, commit_record(4, partitions=6))
    gone = dict.fromkeys(HOMES, "new")
    assert standbys.slots_after_loss(SLOTS, gone, set(HOMES)) is None


@settings(deadline=None)
@given(
    tasks=st.integers(1, 24),
    executors=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True),
    others=st.integers(1, 3),
    data=st.data(),
)
def test_copies_are_on_different_disks_and_shared_out(
    tasks: int, executors: list[str], others: int, data: st.DataObject
) -> None:
    homes = {task: executors[task % len(executors)] for task in range(tasks)}
    disks = {name: f"{name}/1-1" for name in executors}
    live = set(homes.values())
    before = {
        task: (data.draw(st.sampled_from(sorted(live))),)
        for task in homes
        if data.draw(st.booleans())
    }
    found = chosen(homes, disks, others, before)
    for task, home in homes.items():
        names = found.get(task, ())
        assert len({*names, home}) == len(names) + 1
        assert len(names) == min(others, len(live) - 1)
    assert (
        chosen(homes, disks, others, found) == found
    )  # else they would be asked for in each batch


def test_a_disk_is_that_of_a_directory_and_its_host(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "one")
    one, two, alias = (local_disk(tmp_path / name) for name in ("one", "two", "alias"))
    assert one == alias != two
    assert one.rpartition("/")[0] == two.rpartition("/")[0] != ""
    assert local_disk(tmp_path / "none") == ""
