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


def test_servers_die_in_many_schedules_early_and_late_in_a_life(tmp_path: Path) -> None:
    servers = {"s3": Server("http://127.0.0.1:1", "s3://bucket", lambda: None)}
    drawn = places(["blob-s3"], tmp_path, servers)
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
