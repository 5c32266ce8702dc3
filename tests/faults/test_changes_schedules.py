"""One schedule of the changes level: a stopped job whose state is changed by commands that are killed."""

from pathlib import Path

import pytest

from chaos.changes import level

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]


def test_changes_that_are_killed_leave_the_state_of_before_or_of_after(tmp_path: Path) -> None:
    outcome = level.run_schedule(1, ["blob", "hdfs-file"], tmp_path / "schedule", {})
    assert outcome.failures == ()
    assert outcome.kills > 0
    assert sum(outcome.verdicts.values()) > outcome.kills
