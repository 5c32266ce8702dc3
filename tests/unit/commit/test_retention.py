"""What may be released and cleaned up, and what never."""

import msgspec
import pytest

from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import (
    AttemptRecord,
    CommitRecord,
    EpochRecord,
    JobIdentity,
    PinRecord,
    Record,
    ReleaseRecord,
    VoidRecord,
)
from statekeep.commit.retention import closed_attempts, commits_to_release, expired_pins
from statekeep.config.model import CheckpointSettings

NOW_MS = 1_000
IDENTITY = JobIdentity(job_uid="u", job_name="job", partitions=1)


def keeping(commits: int, ms: int = 0) -> CheckpointSettings:
    return CheckpointSettings(retain_commits=commits, retain_ms=ms)


def attempt(number: int) -> AttemptRecord:
    return AttemptRecord(
        epoch=1, nonce=f"a{number}", attempt=number, batch=number, checkpoint_id="1-1", versions={}
    )


def commit(number: int) -> CommitRecord:
    return CommitRecord(
        epoch=1,
        nonce=f"c{number}",
        attempt_epoch=1,
        attempt=number,
        batch=number,
        checkpoint_id="1-1",
        identity=IDENTITY,
    )


def view_of(*records: Record) -> LogView:
    view = LogView()
    for position, record in enumerate((EpochRecord(epoch=1, nonce="e", owner="here"), *records)):
        view.fold(position, record)
    return view


@pytest.mark.parametrize(
    ("keep", "expected"),
    [(1, [1, 2]), (2, [1, 2]), (3, [1]), (9, [])],
    ids=["never fewer than two", "two", "three", "more than there are"],
)
def test_the_newest_commits_are_kept_and_at_least_two(keep: int, expected: list[int]) -> None:
    assert commits_to_release(view_of(*map(commit, range(1, 5))), keeping(keep), NOW_MS) == expected


def test_a_pinned_commit_is_kept() -> None:
    view = view_of(
        *map(commit, range(1, 5)), PinRecord(epoch=1, nonce="p", name="savepoint", position=1)
    )
    assert commits_to_release(view, keeping(2), NOW_MS) == [2]


def test_a_pin_has_expired_only_after_the_time_that_it_names() -> None:
    pins = [
        PinRecord(epoch=1, nonce=name, name=name, position=1, expires_ms=millis)
        for name, millis in (("past", NOW_MS - 1), ("now", NOW_MS), ("never", 0))
    ]
    assert expired_pins(view_of(commit(1), *pins), NOW_MS) == ["past"]


def test_a_log_without_commits_releases_nothing() -> None:
    assert commits_to_release(view_of(), keeping(2), NOW_MS) == []


def test_released_and_void_attempts_are_closed_and_retained_and_open_ones_are_not() -> None:
    view = view_of(
        *(attempt(1), commit(1), attempt(2), commit(2), attempt(3), commit(3), attempt(4)),
        VoidRecord(epoch=1, nonce="v", attempt_epoch=1, attempt=4, reason="timeout"),
        attempt(5),
        ReleaseRecord(epoch=1, nonce="r", positions=[2]),
    )
    assert closed_attempts(view) == [(1, 1), (1, 4)]


def test_a_commit_that_landed_before_its_void_is_not_closed() -> None:
    view = view_of(
        attempt(1),
        commit(1),
        VoidRecord(epoch=1, nonce="v", attempt_epoch=1, attempt=1, reason="unclear"),
    )
    assert closed_attempts(view) == []


def aged(number: int, begun_ms: int) -> CommitRecord:
    return msgspec.structs.replace(commit(number), checkpoint_id=f"{begun_ms}-0")


def test_young_commits_stay_beyond_their_number() -> None:
    view = view_of(*(aged(number, 100 * number) for number in range(1, 7)))
    assert commits_to_release(view, keeping(2), NOW_MS) == [1, 2, 3, 4]
    assert commits_to_release(view, keeping(2, ms=750), NOW_MS) == [1, 2]


@pytest.mark.parametrize("now_ms", [0, 10**12], ids=["slow clock", "fast clock"])
def test_a_wrong_clock_never_releases_what_the_number_keeps(now_ms: int) -> None:
    view = view_of(*(aged(number, 100 * number) for number in range(1, 7)))
    released = commits_to_release(view, keeping(3, ms=750), now_ms)
    assert set(released) <= {1, 2, 3}


def test_without_an_age_no_clock_keeps_a_commit() -> None:
    view = view_of(*(aged(number, 10**12 + number) for number in range(1, 5)))  # made days ahead
    assert commits_to_release(view, keeping(2), NOW_MS) == [1, 2]
