"""When a query needs a batch although its input has nothing new."""

from statekeep.spark.driver.ticks import TickRule
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.due import NextTimes
from statekeep.testing.clock import FakeClock


class Watermark:
    """What Spark would say, and how often it was asked."""

    def __init__(self) -> None:
        self.ms = 0
        self.asked = 0

    def __call__(self) -> int:
        self.asked += 1
        return self.ms


def rule_of(mode: TimeMode, now_ms: int = 0) -> tuple[TickRule, FakeClock, Watermark]:
    clock, watermark = FakeClock(now_ms * 1_000_000), Watermark()
    return TickRule(mode, range(2), clock, watermark), clock, watermark


def at(ms: int) -> BatchClock:
    return BatchClock(ms, ms)


def test_event_time_needs_a_batch_once_the_newest_one_has_moved_the_watermark() -> None:
    rule, _, watermark = rule_of(TimeMode.EVENT)
    watermark.ms = 50
    assert not rule.wants_batch(
        is_available_now=False
    )  # as in Spark: no batch before the first rows of a run
    rule.note_batch(at(0), {})
    assert rule.wants_batch(is_available_now=False)
    assert rule.wants_batch(is_available_now=True)
    rule.note_batch(at(50), {})
    assert not any(rule.wants_batch(is_available_now=False) for _ in range(100))
    assert watermark.asked == 2  # not at each look: a query looks a hundred times a second


def test_processing_time_needs_a_batch_when_the_first_timer_is_due() -> None:
    rule, clock, _ = rule_of(TimeMode.PROCESSING, 1_000)
    assert rule.wants_batch(is_available_now=False)  # it is not known yet what is due
    rule.note_batch(at(1_000), {0: NextTimes(3_000), 1: NextTimes()})
    assert not rule.wants_batch(is_available_now=False)
    clock.advance(1.9)
    assert not rule.wants_batch(is_available_now=False)
    clock.advance(0.1)
    assert rule.wants_batch(is_available_now=False)
    assert rule.waiting(at(3_000)) == {0}
    rule.note_batch(at(3_000), {0: NextTimes()})
    assert not rule.wants_batch(is_available_now=False)
    assert rule.waiting(at(9_000)) == frozenset()


def test_tasks_are_asked_again_once_a_replay_has_given_them_another_state() -> None:
    rule, _, _ = rule_of(TimeMode.PROCESSING, 1_000)
    rule.note_batch(at(1_000), {0: NextTimes(), 1: NextTimes()})
    assert not rule.wants_batch(is_available_now=False)
    rule.forget()
    assert rule.wants_batch(is_available_now=False)
    assert rule.waiting(at(1_000)) == {0, 1}


def test_a_task_that_has_not_reported_is_asked() -> None:
    rule, _, _ = rule_of(TimeMode.PROCESSING)
    rule.note_batch(at(0), {0: NextTimes()})
    assert rule.wants_batch(is_available_now=False)
    assert rule.waiting(at(0)) == {1}


def test_state_that_has_ended_waits_for_a_batch_with_rows_or_a_minute() -> None:
    rule, clock, _ = rule_of(TimeMode.PROCESSING)
    rule.note_batch(at(0), {0: NextTimes(None, 5), 1: NextTimes()})
    clock.advance(59.9)
    assert not rule.wants_batch(is_available_now=False)
    assert rule.waiting(at(5)) == {0}
    clock.advance(0.1)
    assert rule.wants_batch(is_available_now=False)


def test_a_run_over_what_is_available_gets_one_batch_of_its_own() -> None:
    rule, clock, _ = rule_of(TimeMode.PROCESSING)
    assert rule.wants_batch(is_available_now=True)
    rule.note_batch(at(0), {0: NextTimes(1), 1: NextTimes()})
    clock.advance(10)
    assert not rule.wants_batch(is_available_now=True)
