"""When a commit is wanted: by time, by bytes, by batches without one, at each batch."""

import dataclasses

import pytest

from statekeep.commit.gate import CommitPolicy, Urgency
from statekeep.config.job_settings import TaskSettings

MS = 1_000_000
SETTINGS = TaskSettings(commit_ms=1_000, replay_max_batches=10)


def test_a_period_begins_with_the_first_look_and_with_each_commit() -> None:
    policy = CommitPolicy(SETTINGS)
    assert not policy.is_time(5_000 * MS)
    policy.start(5_000 * MS)
    policy.start(5_500 * MS)
    assert not policy.is_time(5_999 * MS)
    assert policy.is_time(6_000 * MS)
    policy.restart(6_200 * MS)
    assert not policy.is_time(7_199 * MS)
    assert policy.is_time(7_200 * MS)


def test_a_commit_is_near_in_the_last_tenth_of_its_period() -> None:
    policy = CommitPolicy(SETTINGS)
    assert not policy.is_near(0)
    policy.start(0)
    assert not policy.is_near(899 * MS)
    assert policy.is_near(900 * MS)


def test_without_a_period_no_time_comes() -> None:
    policy = CommitPolicy(dataclasses.replace(SETTINGS, commit_ms=0))
    policy.start(0)
    assert not policy.is_time(10**18)
    assert not policy.is_near(10**18)


def test_a_commit_is_wanted_once_so_many_bytes_have_changed_since_one_began() -> None:
    policy = CommitPolicy(dataclasses.replace(SETTINGS, commit_ms=0, commit_changed_bytes=100))
    policy.note_changes(99)
    assert not policy.is_wanted(0)
    policy.note_changes(1)
    assert policy.is_wanted(0)
    policy.restart(0)
    policy.note_changes(99)
    assert not policy.is_wanted(10**18)


def test_no_number_of_bytes_asks_for_a_commit_where_none_is_set() -> None:
    policy = CommitPolicy(SETTINGS)
    policy.start(0)
    policy.note_changes(1 << 60)
    assert not policy.is_wanted(999 * MS)
    assert policy.is_wanted(1_000 * MS)


@pytest.mark.parametrize(
    ("uncommitted", "urgency"),
    [
        (0, Urgency.IF_DUE),
        (7, Urgency.IF_DUE),
        (8, Urgency.WAITS_FOR_OPEN),
        (9, Urgency.WAITS_FOR_OPEN),
        (10, Urgency.HOLDS_UP),
        (11, Urgency.HOLDS_UP),
    ],
)
def test_batches_without_a_commit_make_one_urgent(uncommitted: int, urgency: Urgency) -> None:
    assert CommitPolicy(SETTINGS).before_batch(uncommitted) is urgency


def test_where_each_batch_is_committed_nothing_is_wanted_before_a_batch() -> None:
    policy = CommitPolicy(dataclasses.replace(SETTINGS, is_commit_every_batch=True))
    assert policy.is_each_batch
    assert policy.before_batch(100) is None
