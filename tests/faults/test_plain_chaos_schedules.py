"""A few fixed seeds of the crash harness, so that it keeps running; ``make chaos`` runs many."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.backends import places
from chaos.plain.schedule import draw_schedule
from chaos.servers import Server

ROOT = Path(__file__).parents[2]
S3 = {"s3": Server("http://127.0.0.1:1", "s3://bucket", lambda: None)}
FIRST_SEED = 7
SCHEDULES = 6


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_schedules_of_fixed_seeds_are_green(tmp_path: Path) -> None:
    report = tmp_path / "outcomes.json"
    # A process of its own: the harness forks, which this one, with its threads, must not do.
    harness = subprocess.run(
        [
            sys.executable,
            "-m",
            "chaos",
            f"--seed={FIRST_SEED}",
            f"--runs={SCHEDULES}",
            f"--directory={tmp_path / 'schedules'}",
            f"--json={report}",
        ],
        cwd=ROOT,
        check=False,
        capture_output=True,
        timeout=110,
    )
    assert harness.returncode == 0, harness.stdout.decode() + harness.stderr.decode()
    outcomes = json.loads(report.read_text())
    assert len(outcomes) == SCHEDULES
    assert sum(outcome["kills"] for outcome in outcomes) > 0
    assert {1, 2, 9, 10, 12, 13, 14, 15, 16, 18, 20} <= set(outcomes[0]["invariants"])


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_malice_schedules_of_fixed_seeds_are_green(tmp_path: Path) -> None:
    report = tmp_path / "outcomes.json"
    harness = subprocess.run(
        [
            *(sys.executable, "-m", "chaos", "--level=malice", "--seed=901", "--runs=2"),
            f"--directory={tmp_path / 'schedules'}",
            f"--json={report}",
        ],
        cwd=ROOT,
        check=False,
        capture_output=True,
        timeout=110,
    )
    assert harness.returncode == 0, harness.stdout.decode() + harness.stderr.decode()
    outcomes = json.loads(report.read_text())
    assert len(outcomes) == 2
    assert not any(outcome["failures"] for outcome in outcomes)


def test_servers_die_in_many_schedules_early_and_late_in_a_life(tmp_path: Path) -> None:
    drawn = places(["blob-s3"], tmp_path, S3)
    moments = [
        [
            life.server_fails_after_ms
            for step in draw_schedule(seed, drawn, tmp_path).steps
            for life in step.lives
            if life.server_fails_after_ms is not None
        ]
        for seed in range(1, 151)
    ]
    assert sum(bool(each) for each in moments) > 30
    assert sum(any(moment < 250 for moment in each) for each in moments) > 15
    assert sum(any(moment > 1000 for moment in each) for each in moments) > 10


def test_every_fourth_schedule_on_s3_moves_a_value_in_parts(tmp_path: Path) -> None:
    drawn = places(["blob-s3"], tmp_path, S3)
    schedules = [draw_schedule(seed, drawn, tmp_path) for seed in range(1, 151)]
    with_parts = [schedule for schedule in schedules if schedule.large is not None]
    assert 25 < len(with_parts) < 50
    for schedule in with_parts:
        large = schedule.large
        assert large is not None
        assert large.size >= 8 << 20
        assert len(large.value) == large.size
        assert large.task in schedule.tasks
        assert large.store in schedule.stores
        assert schedule.settings["blob.store.part.bytes"] == "1MiB"


def test_no_other_schedule_has_such_a_value(tmp_path: Path) -> None:
    drawn = places(["blob", "hdfs-file"], tmp_path)
    schedules = [draw_schedule(seed, drawn, tmp_path) for seed in range(1, 151)]
    assert all(schedule.large is None for schedule in schedules)
    assert all("blob.store.part.bytes" not in schedule.settings for schedule in schedules)
