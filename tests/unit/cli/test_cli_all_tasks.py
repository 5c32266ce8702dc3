"""Commands that need every task of a job in plain Python, however the tasks are called."""

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_kit import TASK, CommandLine, commit_numbers, job_settings

from statekeep.backends.memory import forget_place
from statekeep.config.load import load_dict
from statekeep.container.container import Container

LOG = f"--task '{TASK}'"
TOTALS = "totals.of day/1"
"""A name that is not a number, and nowhere stands as it is."""
LINES = [
    "rescale --partitions 2 --as orders-2 --router cli_kit:route",
    "savepoint restore v1 --as orders-2",
    "migrate-log --to far --yes",
]


@pytest.fixture
def with_totals(statekeep: CommandLine, job: Path) -> CommandLine:
    """A job of one numbered task and one that is not."""
    asyncio.run(commit_numbers(job, [1], name=TOTALS))
    return statekeep


@pytest.mark.parametrize("line", LINES)
def test_a_task_without_a_number_is_not_left_out(
    with_totals: CommandLine, job: Path, line: str
) -> None:
    result = with_totals(f"{line} {LOG}")
    assert result.status == 2
    assert f"tasks of the job are left out: tasks={TOTALS}" in result.err
    assert "hint: name every task" in result.err
    assert not list(job.rglob("*orders-2*"))


@pytest.mark.parametrize("line", LINES)
def test_a_task_without_a_number_is_not_named_twice(with_totals: CommandLine, line: str) -> None:
    result = with_totals(f"{line} {LOG} --task '{TOTALS}' --task '{TOTALS}'")
    assert (result.status, f"tasks are named twice: tasks={TOTALS}" in result.err) == (2, True)


def test_all_tasks_are_enough_also_if_numbers_are_missing(
    statekeep: CommandLine, job: Path
) -> None:
    asyncio.run(commit_numbers(job, [2], name="Partition 5"))
    assert statekeep(f"migrate-log --to far --yes {LOG} --task 'Partition 5'").status == 0


def test_a_task_that_was_reset_need_not_be_named(statekeep: CommandLine, job: Path) -> None:
    asyncio.run(commit_numbers(job, [1], name="Partition 1"))
    assert statekeep("reset --yes --task 'Partition 1'").status == 0
    assert statekeep(f"migrate-log --to far --yes {LOG}").status == 0


@pytest.fixture
def unlisted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[CommandLine]:
    """A job of one task whose log is in a backend that cannot list logs."""
    settings = job_settings(tmp_path) | {"backends.near.factory": "memory", "job.name": "unlisted"}
    del settings["backends.near.uri"]
    config = tmp_path / "job.properties"
    config.write_text("\n".join(f"{k}={v}" for k, v in settings.items()), encoding="utf-8")

    async def commit() -> None:
        async with Container(load_dict(settings)) as container:
            for name in (TASK, "Partition 1"):
                task = await container.start_task(name, ["counts"])
                task.store("counts").put(name.replace(" ", "-").encode(), b"1")
                await (await task.commit({}, force=True)).wait()

    asyncio.run(commit())
    yield CommandLine(config, monkeypatch, capsys)
    forget_place("near")


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 1)])
def test_where_logs_cannot_be_listed_the_command_asks(
    unlisted: CommandLine, monkeypatch: pytest.MonkeyPatch, answer: str, status: int
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    tasks = f"{LOG} --task 'Partition 1'"
    result = unlisted(f"rescale --partitions 1 --as other --router cli_kit:route {tasks}")
    assert result.status == status
    assert (
        "Backend near cannot say which tasks there are, and the state of one that is not named is "
        "lost. Are these all of job unlisted: Partition 0, Partition 1?" in result.out
    )


def test_where_logs_cannot_be_listed_the_command_need_not_ask(unlisted: CommandLine) -> None:
    tasks = f"{LOG} --task 'Partition 1'"
    line = f"rescale --partitions 1 --as other --router cli_kit:route {tasks} --yes --json"
    assert [row["entries"] for row in unlisted(line).json] == [2]


@pytest.mark.parametrize("task", [TASK, "Partition 1"])
def test_a_numbered_task_is_missed_where_logs_cannot_be_listed(
    unlisted: CommandLine, task: str
) -> None:
    result = unlisted(
        f"rescale --partitions 1 --as other --router cli_kit:route --task '{task}' --yes"
    )
    assert (result.status, "tasks of the job are left out" in result.err) == (2, True)
