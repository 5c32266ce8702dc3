"""One schedule of the guard level: a real query and a real guard, both killed; `make chaos` runs many."""

from pathlib import Path

import pytest

from chaos.guard import level

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]


def test_copies_of_a_query_that_is_killed_with_its_guard_are_whole(tmp_path: Path) -> None:
    outcome = level.run_schedule(2, ["blob"], tmp_path / "schedule", {})
    assert outcome.failures == ()
    assert outcome.verdicts["copy: goes on"] == 2
    assert outcome.kills > 0
