"""The commit gate: skip, block, abort, tolerance; two commits are never open."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeep.commit.gate import CommitGate, Decision
from statekeep.config.job_settings import TaskSettings
from statekeep.errors import CommitFailedError

MS = 1_000_000
SETTINGS = TaskSettings(commit_ms=1_000, commit_max_delay_ms=5_000, commit_timeout_ms=20_000)
TOLERANT = dataclasses.replace(
    SETTINGS,
    is_skipping_failures=True,
    exception_max_limit=2,
    timeout_max_limit=1,
)


def error(text: str = "refused") -> CommitFailedError:
    return CommitFailedError(text, checkpoint_id="1-1", step="upload")


def finish(gate: CommitGate, how: str, now_ns: int) -> None:
    match how:
        case "succeed":
            gate.succeeded(now_ns)
        case "fail":
            gate.failed(now_ns, error())
        case "abandon":
            gate.abandoned(now_ns)
        case _:
            gate.timed_out(now_ns)


def gate_with_open_commit(settings: TaskSettings = SETTINGS, at_ms: int = 0) -> CommitGate:
    gate = CommitGate(settings)
    assert gate.request(at_ms * MS) is Decision.START
    gate.started(at_ms * MS, "1-1")
    return gate


def test_a_request_starts_when_no_commit_is_open() -> None:
    assert CommitGate(SETTINGS).request(0) is Decision.START


def test_a_request_within_max_delay_is_skipped_and_counted() -> None:
    gate = gate_with_open_commit()
    assert gate.request(4_999 * MS) is Decision.SKIP
    assert gate.skips == 1


def test_a_commit_is_overdue_after_the_max_delay_and_the_timeout() -> None:
    gate = gate_with_open_commit()
    assert not gate.is_overdue(24_999 * MS)
    assert gate.is_overdue(25_000 * MS)
    gate.timed_out(25_000 * MS)
    assert not gate.is_overdue(99_000 * MS)


def test_a_request_after_max_delay_blocks() -> None:
    gate = gate_with_open_commit()
    assert gate.request(5_000 * MS) is Decision.BLOCK


def test_a_blocked_request_has_the_timeout_from_the_first_time_it_blocked() -> None:
    gate = gate_with_open_commit()
    gate.request(6_000 * MS)
    gate.request(9_000 * MS)
    assert gate.remaining_block_ns(10_000 * MS) == 16_000 * MS
    assert gate.remaining_block_ns(30_000 * MS) == 0


def test_a_blocked_request_goes_on_when_the_open_commit_ends() -> None:
    gate = gate_with_open_commit()
    gate.request(6_000 * MS)
    gate.succeeded(7_000 * MS)
    assert gate.request(7_000 * MS) is Decision.START


def test_a_forced_request_blocks_instead_of_being_skipped() -> None:
    gate = gate_with_open_commit()
    assert gate.request(1 * MS, is_forced=True) is Decision.BLOCK
    assert gate.skips == 0


def test_a_second_start_is_refused_while_a_commit_is_open() -> None:
    gate = gate_with_open_commit()
    with pytest.raises(RuntimeError, match="open=1-1 checkpoint_id=2-2"):
        gate.started(1, "2-2")


def test_no_commit_starts_after_a_timeout_until_the_attempt_is_aborted() -> None:
    gate = gate_with_open_commit(TOLERANT)
    gate.request(5_000 * MS)
    assert gate.remaining_block_ns(25_000 * MS) == 0
    assert gate.request(25_000 * MS) is Decision.BLOCK
    gate.timed_out(25_000 * MS)
    assert gate.request(25_000 * MS) is Decision.START


def test_the_end_of_a_commit_that_is_not_open_is_a_mistake_of_the_caller() -> None:
    gate = gate_with_open_commit(TOLERANT)
    gate.timed_out(1)
    with pytest.raises(RuntimeError, match="no commit is open"):
        gate.succeeded(2)


def test_a_failure_that_is_not_tolerated_is_raised_by_every_later_request() -> None:
    gate = gate_with_open_commit()
    failure = error()
    gate.failed(1, failure)
    for _ in range(2):
        with pytest.raises(CommitFailedError) as caught:
            gate.request(2)
        assert caught.value is failure


def test_as_many_failures_in_a_row_as_configured_are_tolerated() -> None:
    gate = CommitGate(TOLERANT)
    for number in range(2):
        assert gate.request(number) is Decision.START
        gate.started(number, f"{number}-0")
        gate.failed(number, error())
    gate.started(3, "3-0")
    gate.failed(3, error("the third"))
    with pytest.raises(CommitFailedError, match="the third"):
        gate.request(4)


def test_a_success_heals_earlier_failures_and_timeouts() -> None:
    gate = CommitGate(TOLERANT)
    for end in ("fail", "time out", "succeed", "fail", "fail"):
        assert gate.request(0) is Decision.START
        gate.started(0, "1-1")
        finish(gate, end, 0)
    assert gate.request(0) is Decision.START
    assert (gate.consecutive_failures, gate.consecutive_timeouts) == (2, 0)


def test_timeouts_beyond_the_tolerance_are_raised_with_the_step_timeout() -> None:
    gate = CommitGate(TOLERANT)
    for number in range(2):
        gate.request(number)
        gate.started(number, f"{number}-0")
        gate.timed_out(number)
    with pytest.raises(CommitFailedError, match="checkpoint_id=1-0") as caught:
        gate.request(2)
    assert caught.value.step == "timeout"


def test_a_commit_is_due_when_its_period_is_over() -> None:
    gate = CommitGate(SETTINGS)
    assert not gate.is_due(500 * MS)
    assert not gate.is_due(1_499 * MS)
    assert gate.is_due(1_500 * MS)


def test_without_a_period_a_commit_is_due_only_after_a_skipped_request() -> None:
    gate = CommitGate(dataclasses.replace(SETTINGS, commit_ms=0))
    assert not gate.is_due(10**15)
    gate.started(0, "1-1")
    gate.request(1)
    assert not gate.is_due(2)
    gate.succeeded(3)
    assert gate.is_due(4)


def test_a_commit_is_due_once_so_many_bytes_have_changed() -> None:
    gate = CommitGate(dataclasses.replace(SETTINGS, commit_ms=0, commit_changed_bytes=100))
    gate.note_changes(100)
    assert gate.is_due(0)
    gate.started(0, "1-1")
    gate.note_changes(100)
    assert gate.is_due(1)
    assert gate.request(1) is Decision.SKIP
    assert not gate.is_due(2)
    gate.succeeded(3)
    assert gate.is_due(3)
    gate.started(3, "2-2")
    gate.succeeded(4)
    assert not gate.is_due(5)


def test_a_skipped_commit_is_due_again_as_soon_as_the_open_one_ends() -> None:
    gate = gate_with_open_commit()
    assert gate.is_due(1_000 * MS)
    assert gate.request(1_000 * MS) is Decision.SKIP
    assert not gate.is_due(1_100 * MS)
    gate.succeeded(1_200 * MS)
    assert gate.is_due(1_200 * MS)


def test_a_commit_that_lasts_longer_than_max_delay_is_due_so_that_processing_blocks() -> None:
    gate = gate_with_open_commit()
    gate.request(1_000 * MS)
    assert gate.is_due(5_000 * MS)


def test_an_abandoned_commit_stays_owed_and_counts_for_nothing() -> None:
    gate = gate_with_open_commit()
    gate.abandoned(1)
    assert not gate.is_open
    assert gate.is_due(2)
    assert gate.request(2) is Decision.START
    assert (gate.consecutive_failures, gate.consecutive_timeouts) == (0, 0)


def test_an_abandoned_commit_does_not_reset_earlier_failures() -> None:
    gate = CommitGate(TOLERANT)
    for end in ("fail", "fail", "abandon", "fail"):
        gate.request(0)
        gate.started(0, "1-1")
        finish(gate, end, 0)
    assert gate.final_error is not None


def test_a_commit_that_used_up_the_tolerance_is_due_so_that_it_surfaces() -> None:
    gate = gate_with_open_commit()
    gate.failed(1, error())
    assert gate.is_due(2)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["request", "force", "succeed", "fail", "time out", "abandon"]),
            st.integers(0, 8_000),
        ),
        max_size=60,
    )
)
def test_at_most_one_commit_is_open_whatever_happens(steps: list[tuple[str, int]]) -> None:
    gate = CommitGate(dataclasses.replace(TOLERANT, exception_max_limit=100))
    now, is_open, abandoned = 0, False, 0
    for step, passed_ms in steps:
        now += passed_ms * MS
        if gate.final_error is not None:
            return
        if step in {"request", "force"}:
            decision = gate.request(now, is_forced=step == "force")
            assert (decision is Decision.START) == (not is_open)
            if decision is Decision.START:
                gate.started(now, "1-1")
                is_open = True
        elif is_open:
            finish(gate, step, now)
            is_open = False
            abandoned += step == "abandon"
        assert gate.is_open == is_open
    ended = gate.successes + gate.failures + gate.timeouts + abandoned
    assert gate.starts == ended + is_open


def test_a_commit_is_near_in_the_last_tenth_of_its_period() -> None:
    gate = CommitGate(TaskSettings(commit_ms=2_000))
    assert not gate.is_near(1_900 * MS)  # the period has not begun
    gate.is_due(0)
    assert not gate.is_near(1_799 * MS)
    assert gate.is_near(1_800 * MS)


def test_a_long_period_leaves_a_second_to_prepare() -> None:
    gate = CommitGate(TaskSettings(commit_ms=60_000))
    gate.is_due(0)
    assert not gate.is_near(58_999 * MS)
    assert gate.is_near(59_000 * MS)


def test_no_commit_is_near_while_one_is_open_or_without_a_period() -> None:
    gate = gate_with_open_commit(TaskSettings(commit_ms=2_000))
    assert not gate.is_near(1_900 * MS)
    on_request = CommitGate(TaskSettings(commit_ms=0))
    on_request.is_due(0)
    assert not on_request.is_near(1_900 * MS)
