"""The figures of commits: names as in Samza, plain data out."""

import json

import pytest

from statekeep.commit.metrics import CommitMetrics
from statekeep.events import (
    BackendUploaded,
    CommitBegan,
    CommitDone,
    CommitFailed,
    CommitSkipped,
    CommitSubmitted,
    Event,
    EventSource,
    StoresSealed,
    TaskCleanedUp,
)


def test_a_snapshot_has_samzas_names_before_anything_happened() -> None:
    figures = CommitMetrics().snapshot()
    assert figures["commit-calls"] == 0
    assert figures["commits-skipped"] == 0
    assert figures["commit-sync-ns"] == {"count": 0, "total": 0, "last": 0, "max": 0}
    assert figures["last-async-commit-timestamp"] == 0
    assert figures["restore-time-ms"] == -1


def tell(metrics: CommitMetrics, *events: Event, at_ns: int = 7) -> None:
    for event in events:
        metrics.on_event(event, EventSource("job", "Partition 0", at_ns))


def test_a_timer_keeps_count_total_last_and_max() -> None:
    metrics = CommitMetrics()
    tell(metrics, *(StoresSealed(elapsed_ns) for elapsed_ns in (5, 9, 1)))
    assert metrics.snapshot()["store-checkpoint-ns"] == {
        "count": 3,
        "total": 15,
        "last": 1,
        "max": 9,
    }


def test_a_snapshot_is_json_and_does_not_change_afterwards() -> None:
    metrics = CommitMetrics()
    tell(metrics, CommitBegan("1-0"))
    before = metrics.snapshot()
    tell(metrics, CommitBegan("2-0"), CommitBegan("3-0"))
    assert json.loads(json.dumps(before))["commit-calls"] == 1
    assert metrics.snapshot()["commit-calls"] == 3


@pytest.mark.parametrize(
    ("event", "figure"),
    [
        (CommitSkipped(), "commits-skipped"),
        (CommitFailed("1-0", 0, "timeout", "", 1), "commits-timed-out"),
        (CommitFailed("1-0", 0, "upload", "", 1), "commit-exceptions"),
        (BackendUploaded("t", "b", "1-0", "left-out", 1, 1), "optional-upload-failures"),
        (TaskCleanedUp("t", 1, failures=1), "cleanup-failures"),
    ],
)
def test_an_event_counts_in_its_figure_alone(event: Event, figure: str) -> None:
    metrics = CommitMetrics()
    tell(metrics, event)
    assert {name for name, count in metrics.counters.items() if count} == {figure}


def test_gauges_have_the_wall_clock_of_the_newest_commit() -> None:
    metrics = CommitMetrics()
    tell(metrics, CommitSubmitted("1-0", 0, 3), at_ns=100)
    tell(metrics, CommitDone(0, "1-0", 4, 0, 1, elapsed_ns=9, background_ns=6), at_ns=106)
    figures = metrics.snapshot()
    assert figures["last-commit-ns"] == 100
    assert figures["last-async-commit-timestamp"] == 106
    assert metrics.timers["commit-sync-ns"].last_ns == 3
    assert metrics.timers["commit-async-ns"].last_ns == 6
    assert metrics.timers["commit-ns"].last_ns == 9
