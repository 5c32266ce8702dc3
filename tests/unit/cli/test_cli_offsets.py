"""``statekeep checkpoints overwrite-offsets``."""

import asyncio
import io
from pathlib import Path

import pytest
from cli_kit import INPUT, TASK, CommandLine, commit_numbers, job_settings

from statekeep.config.load import load_dict
from statekeep.container.container import Container
from statekeep.errors import TaskFencedError

LOG = f"--task '{TASK}'"
OVERWRITE = f"checkpoints overwrite-offsets '{TASK}'"


async def offset_and_content(directory: Path) -> tuple[str, dict[bytes, bytes]]:
    """Start the job and return what it would go on from."""
    async with Container(load_dict(job_settings(directory))) as container:
        task = await container.start_task(TASK, ["counts"])
        return task.input_offsets[INPUT], dict(task.store("counts").scan())


def test_the_job_goes_on_from_the_new_offset_with_the_old_state(
    statekeep: CommandLine, job: Path
) -> None:
    _, content = asyncio.run(offset_and_content(job))
    result = statekeep(f"{OVERWRITE} kafka.orders.v1.0=1 --yes --json")
    assert result.json["input-offsets"] == {"kafka.orders.v1.0": "1"}
    assert asyncio.run(offset_and_content(job)) == ("1", content)
    asyncio.run(commit_numbers(job, [2, 3]))
    assert statekeep(f"verify {LOG}").status == 0


def test_the_markers_stay(statekeep: CommandLine) -> None:
    before = statekeep(f"checkpoints show {LOG} --json").json["tasks"][TASK]
    statekeep(f"{OVERWRITE} kafka.orders.v1.0=1 --yes")
    after = statekeep(f"checkpoints show {LOG} --json").json["tasks"][TASK]
    assert after["markers"] == before["markers"]
    assert after["version"] == before["version"]


def test_a_job_that_still_runs_is_fenced(statekeep: CommandLine, job: Path) -> None:
    async def run() -> None:
        async with Container(load_dict(job_settings(job))) as container:
            task = await container.start_task(TASK, ["counts"])
            await asyncio.to_thread(statekeep, f"{OVERWRITE} kafka.orders.v1.0=1 --yes")
            task.store("counts").put(b"key-1", b"zombie")
            with pytest.raises(TaskFencedError):
                await (await task.commit({INPUT: "99"}, force=True)).wait()

    asyncio.run(run())
    offset, content = asyncio.run(offset_and_content(job))
    assert (offset, content[b"key-1"]) == ("1", b"1")


@pytest.mark.parametrize(
    ("offset", "complaint"),
    [
        ("kafka.other.0=1", "no such input: input=kafka.other.0 inputs=kafka.orders.v1.0"),
        ("kafka=1", "not SYSTEM.STREAM.PARTITION=OFFSET"),
        ("kafka.orders.v1.0", "not SYSTEM.STREAM.PARTITION=OFFSET"),
    ],
)
def test_an_input_that_is_not_there_changes_nothing(
    statekeep: CommandLine, offset: str, complaint: str
) -> None:
    before = statekeep(f"events {LOG} --json").json
    result = statekeep(f"{OVERWRITE} {offset} --yes")
    assert result.status == 2
    assert complaint in result.err
    assert statekeep(f"events {LOG} --json").json == before


def test_without_a_yes_nothing_is_changed(
    statekeep: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    before = statekeep(f"events {LOG} --json").json
    result = statekeep(f"{OVERWRITE} kafka.orders.v1.0=1")
    assert result.status != 0
    assert statekeep(f"events {LOG} --json").json == before
