"""What may be released and cleaned up, and what never."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import msgspec
import pytest

from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
)
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import (
    AbortRecord,
    AttemptRecord,
    BadMarkerRecord,
    CommitRecord,
    EpochRecord,
    JobIdentity,
    PinRecord,
    Record,
    ReleaseRecord,
)
from statekeep.checkpoint.serde import encode_checkpoint_v2
from statekeep.commit.retention import (
    closed_attempts,
    commits_in_reach,
    commits_to_release,
    expired_pins,
)
from statekeep.config.job_settings import CheckpointSettings

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


def test_released_and_aborted_attempts_are_closed_and_retained_and_open_ones_are_not() -> None:
    view = view_of(
        *(attempt(1), commit(1), attempt(2), commit(2), attempt(3), commit(3), attempt(4)),
        AbortRecord(epoch=1, nonce="v", attempt_epoch=1, attempt=4, reason="timeout"),
        attempt(5),
        ReleaseRecord(epoch=1, nonce="r", positions=[2]),
    )
    assert closed_attempts(view) == [(1, 1), (1, 4)]


def test_an_aborted_attempt_waits_while_too_many_retained_commits_are_older() -> None:
    def aborted(number: int) -> AbortRecord:
        return AbortRecord(epoch=1, attempt_epoch=1, attempt=number, reason="timeout")

    kept = [record for number in range(1, 101) for record in (attempt(number), commit(number))]
    view = view_of(attempt(0), aborted(0), *kept, attempt(101), aborted(101))

    assert closed_attempts(view) == [(1, 0)]
    view.fold(view.next_position, ReleaseRecord(positions=[4, 6, 8], epoch=1))
    assert closed_attempts(view) == [(1, 0), (1, 1), (1, 2), (1, 3)]
    older = [position for position in view.commits if position != view.last_commit_position][:-60]
    view.fold(view.next_position, ReleaseRecord(positions=older, epoch=1))
    assert closed_attempts(view)[-1] == (1, 101)


def test_a_commit_that_landed_before_its_abort_is_not_closed() -> None:
    view = view_of(
        attempt(1),
        commit(1),
        AbortRecord(epoch=1, nonce="v", attempt_epoch=1, attempt=1, reason="unclear"),
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


def checkpoint_of(number: int) -> CheckpointV2:
    return CheckpointV2(
        CheckpointId(number, 1), {}, {BackendName("b"): {StoreName("s"): Marker(f"m{number}")}}
    )


def commit_with_state(number: int, *, attempt: int | None = None) -> CommitRecord:
    document = msgspec.Raw(encode_checkpoint_v2(checkpoint_of(number)))
    return msgspec.structs.replace(
        commit(number),
        attempt=number if attempt is None else attempt,
        checkpoints={"t": document},
    )


def reached(kept: Sequence[Record], *closed: int) -> list[int]:
    """Return the commits whose checkpoints a clean-up is given; their records are in the log."""

    async def read(positions: Iterable[int]) -> Mapping[int, CommitRecord]:
        return {p: cast("CommitRecord", kept[p - 1]) for p in positions}

    found = asyncio.run(
        commits_in_reach(view_of(*kept), [(1, number) for number in closed], read)
    ).checkpoints("t")
    return [checkpoint.checkpoint_id.millis for checkpoint in found]


def test_of_many_retained_commits_the_first_after_the_closed_attempts_is_enough() -> None:
    kept = [commit_with_state(number) for number in (2, 5, 6, 7, 8)]

    assert reached(kept, 1, 4) == [2, 5]
    assert reached(kept, 6) == [2, 5, 6, 7]


def test_a_query_that_goes_on_from_an_older_commit_reaches_what_the_first_one_does_not() -> None:
    again = msgspec.structs.replace(commit_with_state(2, attempt=0), attempt_epoch=2)
    kept = [commit_with_state(number) for number in (5, 6)]

    assert reached([*kept, again, commit_with_state(9)], 4)[:2] == [5, 2]


@pytest.mark.parametrize(
    ("bad", "expected"),
    [(["m5"], [5, 6]), (["m5", "m6"], [5, 6, 7]), (["m7"], [5]), (["m5", "m7"], [5, 6])],
    ids=["the first", "the first two", "a later one", "the first and a later one"],
)
def test_behind_a_bad_marker_the_next_commit_without_one_counts_too(
    bad: list[str], expected: list[int]
) -> None:
    # What the first one after the closed attempts hides, the next one may have taken over from it.
    marks = [
        BadMarkerRecord(epoch=1, nonce=m, backend="b", task="t", store="s", marker=m, reason="crc")
        for m in bad
    ]
    kept = [commit_with_state(number) for number in (5, 6, 7, 8)]

    assert reached([*kept, *marks], 4) == expected
