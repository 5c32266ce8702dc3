"""A job that a newer release has written to: whole, and to be left to that release."""

import asyncio
from pathlib import Path
from unittest.mock import patch

import pytest
from cli_kit import INPUT, TASK, CommandLine, job_settings
from newer_frames import of_next_format

from statekeep.config.load import load_dict
from statekeep.container.container import Container
from statekeep.stores import delta

LOG = f"--task '{TASK}'"
REMEDY = "hint: use the version of Statekeep that wrote it, or a newer one"


def places(job: Path) -> dict[Path, bytes]:
    """Return all that stands in both backends, the log included."""
    paths = [path for place in ("near", "far") for path in (job / place).rglob("*")]
    return {path: path.read_bytes() for path in paths if path.is_file()}


@pytest.fixture
def newer_log(job: Path) -> dict[Path, bytes]:
    """The places of a job whose newest commit record is of the next format."""
    logs = (job / "near" / "orders" / "main" / "Partition_0" / "log").iterdir()
    path = max(path for path in logs if b" commit " in path.read_bytes()[:40])
    path.write_bytes(of_next_format(path.read_bytes()))
    return places(job)


@pytest.mark.parametrize(
    "command",
    [
        "checkpoints list",
        "verify",
        "gc",
        "reset --dry-run",
        "reset --yes",
        "reset --yes --with-savepoints",
        "migrate-log --to far --yes",
    ],
)
def test_its_log_is_not_called_damaged_and_nothing_is_changed(
    statekeep: CommandLine, job: Path, newer_log: dict[Path, bytes], command: str
) -> None:
    result = statekeep(f"{command} {LOG}")
    assert result.status == 2
    assert "unknown format version" in result.err
    assert "version=2" in result.err
    assert REMEDY in result.err
    assert "or reset the job" not in result.err
    assert places(job) == newer_log


def test_a_reset_says_why_it_is_refused(
    statekeep: CommandLine, newer_log: dict[Path, bytes]
) -> None:
    assert newer_log
    told = statekeep(f"reset --yes {LOG}").err
    assert "the log is not reset: this version cannot read which backups it names" in told


def test_its_state_is_not_called_damaged(statekeep: CommandLine, job: Path) -> None:
    async def commit() -> None:
        async with Container(load_dict(job_settings(job))) as container:
            task = await container.start_task(TASK, ["counts"])
            with patch.object(delta, "FORMAT_VERSION", delta.FORMAT_VERSION + 1):
                task.store("counts").put(b"key-1", b"5")
                await (await task.commit({INPUT: "5"}, force=True)).wait()

    asyncio.run(commit())
    result = statekeep(f"verify {LOG} --json")
    assert result.status == 2
    assert [row["is-damaged"] for row in result.json] == [False, False]
    assert all(REMEDY in row["error"] for row in result.json)
    restored = statekeep(f"restore {job / 'mine'} {LOG}")
    assert (restored.status, REMEDY in restored.err) == (2, True)
