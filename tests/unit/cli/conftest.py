import asyncio
from pathlib import Path

import pytest
from cli_kit import CommandLine, commit_numbers, job_settings


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job of one task with the commits of the numbers 1 to 4."""
    asyncio.run(commit_numbers(tmp_path, [1, 2, 3, 4]))
    return tmp_path


@pytest.fixture
def statekeep(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    config = job / "job.properties"
    lines = [f"{key}={value}" for key, value in job_settings(job).items()]
    config.write_text("\n".join(lines), encoding="utf-8")
    return CommandLine(config, monkeypatch, capsys)
