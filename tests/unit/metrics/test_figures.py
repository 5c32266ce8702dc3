"""From events to figures, where they are more than a field of the event."""

from typing import Final

from statekeep.events import (
    BackendUploaded,
    BatchDone,
    CleanUpDone,
    CleanUpFailing,
    CommitBegan,
    CommitDone,
    CommitFailed,
    CommitPassedOver,
    CommitVerified,
    Event,
    EventSource,
    JobStarted,
    JobStopped,
    SnapshotTaken,
    TaskUploaded,
)
from statekeep.metrics.figures import (
    CLEAN_UP_FAILING,
    FILES,
    FILES_REMAINING,
    FILES_RETAINED,
    LAST_COMMIT,
    METRICS,
    PENDING,
    REMAINING,
    RETAINED,
    RUNNING,
    STATE,
    UPLOADED,
    VERIFIED_BATCH,
    Figures,
    Metric,
)

STARTED: Final = JobStarted(1, {}, ["blob"], "blob", 1, 0, 0, [])
DONE: Final = CommitDone(0, "1-0", 4, 0, 1)


def values(figures: Figures, metric: Metric, *events: tuple[Event, str, int]) -> list[float]:
    """Return what a metric is set to by events, each of a task at a second."""
    return [
        round(figure.value, 6)
        for event, task, second in events
        for figure in figures.of(event, EventSource("job", task, second * 10**9))
        if figure.metric is metric
    ]


def test_the_newest_commit_is_that_of_the_task_that_is_furthest_behind() -> None:
    events = ((STARTED, "a", 1), (STARTED, "b", 2), (DONE, "a", 5), (DONE, "b", 9), (DONE, "a", 10))
    assert values(Figures(), LAST_COMMIT, *events) == [1, 1, 2, 5, 9]


def test_a_task_that_has_ended_holds_nothing_back() -> None:
    figures = Figures()
    begun = ((STARTED, "a", 1), (STARTED, "b", 2), (JobStopped(None), "a", 3))
    assert values(figures, RUNNING, *begun) == [1, 2, 1]
    assert values(figures, LAST_COMMIT, (DONE, "b", 7)) == [7]
    assert values(figures, RUNNING, (JobStopped(None), "b", 8)) == [0]


def test_a_commit_that_a_start_makes_up_for_is_no_sign_of_a_running_job() -> None:
    rolled = CommitDone(1, "1-1", 1, 1, 1, was_rolled_forward=True)
    figures = Figures()
    assert values(figures, RUNNING, (rolled, "", 1)) == [0]
    assert values(figures, RUNNING, (STARTED, "", 2), (rolled, "", 3)) == [1, 1]


def test_clean_up_that_fails_for_one_task_is_not_hidden_by_another() -> None:
    events = (
        (CleanUpFailing(120, "no index"), "a", 1),
        (CleanUpFailing(60, "no answer"), "b", 1),
        (CleanUpDone(1, 1), "b", 2),
        (CleanUpDone(1, 1), "c", 3),
        (JobStopped(None), "a", 4),
    )
    assert values(Figures(), CLEAN_UP_FAILING, *events) == [7200, 7200, 7200, 7200, 0]


def test_what_remains_is_that_of_uploads_that_have_not_ended() -> None:
    first, second = (SnapshotTaken(task, "1-0", 1, {"blob": 10}, {"blob": 3}) for task in "ab")
    ended = BackendUploaded("a", "blob", "1-0", "failed", 1, 1)
    again = SnapshotTaken("b", "2-0", 1, {"blob": 4}, {"blob": 1})
    told = [(event, "", 1) for event in (first, second, ended, again)]
    assert values(Figures(), REMAINING, *told) == [10, 20, 10, 4]
    assert values(Figures(), FILES_REMAINING, *told) == [3, 6, 3, 1]


def test_what_was_sent_and_retained_is_counted_by_how_the_upload_ended() -> None:
    ended = {
        outcome: BackendUploaded("a", "blob", "1-0", outcome, 1, 1, 3, 30, 20, 7, 70)
        for outcome in ("done", "failed")
    }
    expected = {UPLOADED: 20, FILES: 3, RETAINED: 70, FILES_RETAINED: 7}
    source = EventSource("job", "", 1)
    found = {
        outcome: {
            figure.metric: (figure.value, figure.attributes.get("outcome"))
            for figure in Figures().of(event, source)
            if figure.metric in expected
        }
        for outcome, event in ended.items()
    }
    assert found["done"] == {
        metric: (value, "done" if "outcome" in metric.attributes else None)
        for metric, value in expected.items()
    }
    assert found["failed"] == {UPLOADED: (20, "failed"), FILES: (3, "failed")}


def test_the_newest_proof_has_the_batch_of_its_commit_on_spark_alone() -> None:
    proven = CommitVerified(9, 4, "Partition 0", ["blob"], 1, 1)
    assert values(Figures(), VERIFIED_BATCH, (proven, "", 7)) == [4]
    assert values(Figures(), VERIFIED_BATCH, (proven, "Partition 0", 7)) == []


def test_the_state_is_that_of_all_tasks() -> None:
    sizes = (("a", 5), ("b", 7), ("a", 1))
    told = [(TaskUploaded(task, 1, 0, 1, 1, state_bytes=size), "", 1) for task, size in sizes]
    assert values(Figures(), STATE, *told) == [5, 12, 8]


def test_state_and_uploads_of_a_task_that_has_stopped_are_not_counted() -> None:
    figures = Figures()
    for task, size in (("a", 5), ("b", 7)):
        uploaded = TaskUploaded(task, 1, 0, 1, 1, state_bytes=size)
        values(figures, STATE, (STARTED, task, 1), (uploaded, task, 1))
        taken = SnapshotTaken(task, "1-0", 1, {"blob": size}, {"blob": 1})
        values(figures, STATE, (taken, task, 1))
    assert values(figures, STATE, (JobStopped(None), "a", 2)) == [7]
    assert values(figures, REMAINING, (JobStopped(None), "b", 3)) == [0]


def test_files_of_a_task_that_has_stopped_do_not_remain() -> None:
    figures = Figures()
    for task in "ab":
        taken = SnapshotTaken(task, "1-0", 1, {"blob": 5}, {"blob": 2})
        values(figures, STATE, (STARTED, task, 1), (taken, task, 1))
    assert values(figures, FILES_REMAINING, (JobStopped(None), "a", 2)) == [2]


def test_after_a_start_the_newest_commit_is_as_old_as_it_is() -> None:
    again = JobStarted(1, {}, ["blob"], "blob", 1, 3, 3, [], commit_ns=4 * 10**9)
    assert values(Figures(), LAST_COMMIT, (again, "", 900)) == [4]
    assert values(Figures(), LAST_COMMIT, (STARTED, "", 900)) == [900]


def test_what_waits_for_a_commit_is_the_oldest_batch_that_none_holds() -> None:
    figures = Figures()
    begun = ((STARTED, "", 1), (BatchDone(1, 5, 5, 0), "", 2), (BatchDone(2, 5, 5, 0), "", 8))
    assert values(figures, PENDING, *begun) == [0, 2, 2]
    first = CommitDone(1, "1-0", 4, 0, 1, elapsed_ns=3 * 10**9)
    assert values(figures, PENDING, (first, "", 9)) == [6]
    assert values(figures, PENDING, (CommitDone(2, "1-0", 4, 0, 1), "", 10)) == [0]
    assert values(figures, PENDING, (BatchDone(3, 5, 5, 0), "", 11)) == [11]
    assert values(figures, PENDING, (JobStopped(None), "", 12)) == [0]


def test_batches_that_a_start_finds_have_waited_since_the_newest_commit() -> None:
    behind = JobStarted(1, {}, ["blob"], "blob", 1, 3, 7, [], commit_ns=4 * 10**9)
    assert values(Figures(), PENDING, (behind, "", 900)) == [4]


def test_an_idle_program_in_plain_python_waits_for_no_commit() -> None:
    figures = Figures()
    events = (
        (STARTED, "a", 1),
        (CommitBegan("1-0"), "a", 2),
        (CommitFailed("1-0", 1, "upload", "no answer", 1), "a", 3),
        (STARTED, "b", 4),
        (CommitBegan("2-0"), "a", 5),
        (CommitBegan("2-0"), "b", 6),
        (DONE, "a", 7),
        (CommitPassedOver(), "b", 8),
    )
    assert values(figures, PENDING, *events) == [0, 2, 2, 2, 2, 6, 0]


def test_names_are_different_and_keep_to_the_rules_of_prometheus() -> None:
    names = [metric.prometheus_name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.prometheus_name.endswith("_total") == (metric.kind == "counter")
        if metric.unit in {"s", "By"}:
            unit = {"s": "_seconds", "By": "_bytes"}[metric.unit]
            assert metric.prometheus_name.removesuffix("_total").endswith(unit)
