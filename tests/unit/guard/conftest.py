"""A location and its guard, for every test of a folder."""

from pathlib import Path

import pytest
from cli_kit import CommandLine
from guard_kit import Guard


@pytest.fixture
def guard(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Guard:
    run = CommandLine(tmp_path / "none", monkeypatch, capsys)
    return Guard(run, tmp_path, getattr(request, "param", "hdfs"))
