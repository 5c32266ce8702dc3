"""One schedule of the clones level: a job is cloned, and all of them are changed and ended by killed commands."""

from pathlib import Path

import pytest

from chaos.clones import level

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]


def test_killed_commands_on_clones_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    outcome = level.run_schedule(1, ["blob"], tmp_path / "schedule", {})
    assert outcome.failures == ()
    assert outcome.kills > 0
