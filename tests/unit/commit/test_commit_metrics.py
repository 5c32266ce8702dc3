"""The figures of commits: names as in Samza, plain data out."""

import json

import pytest

from statekeep.commit.metrics import CommitMetrics


def test_a_snapshot_has_samzas_names_before_anything_happened() -> None:
    figures = CommitMetrics().snapshot()
    assert figures["commit-calls"] == 0
    assert figures["commits-skipped"] == 0
    assert figures["commit-sync-ns"] == {"count": 0, "total": 0, "last": 0, "max": 0}
    assert figures["last-async-commit-timestamp"] == 0
    assert figures["restore-time-ms"] == -1


def test_a_timer_keeps_count_total_last_and_max() -> None:
    metrics = CommitMetrics()
    for elapsed_ns in (5, 9, 1):
        metrics.time("snapshot-ns", elapsed_ns)
    assert metrics.snapshot()["snapshot-ns"] == {"count": 3, "total": 15, "last": 1, "max": 9}


def test_a_snapshot_is_json_and_does_not_change_afterwards() -> None:
    metrics = CommitMetrics()
    metrics.count("commit-calls")
    before = metrics.snapshot()
    metrics.count("commit-calls", 2)
    assert json.loads(json.dumps(before))["commit-calls"] == 1
    assert metrics.snapshot()["commit-calls"] == 3


@pytest.mark.parametrize("call", ["count", "time", "gauge"])
def test_an_unknown_name_is_refused(call: str) -> None:
    with pytest.raises(KeyError):
        getattr(CommitMetrics(), call)("commit-callz", 1)
