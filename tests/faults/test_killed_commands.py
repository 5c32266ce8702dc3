"""Commands of the command line that are killed: the same command, given again, leaves nothing behind."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_kit import INPUT, TASK, job_settings

from statekeep.config.load import load_dict
from statekeep.container.container import Container
from statekeep.fault_points import HANDLER_VARIABLE
from statekeep.testing.faults import HANDLER, PLAN_VARIABLE, Action, ArmedFault, ProcessPlan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

MAKING = {
    "savepoint restore": ("savepoint", "restore", "v1", "--as", "orders-2"),
    "rescale": ("rescale", "--partitions", "2", "--as", "orders-2", "--router", "cli_kit:route"),
}


class Commands:
    """The command line in processes of its own, against a job of one task with a savepoint."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._config = directory / "job.properties"
        self.settings = job_settings(directory) | {"backends.far.factory": "hdfs"}
        lines = [f"{key}={value}" for key, value in self.settings.items()]
        self._config.write_text("\n".join(lines), encoding="utf-8")

    async def begin(self) -> None:
        async with Container(load_dict(self.settings)) as container:
            task = await container.start_task(TASK, ["counts"])
            for number in range(1, 5):
                task.store("counts").put(b"key-%d" % number, b"%d" % number)
                await (await task.commit({INPUT: str(number)}, force=True)).wait()

    def run(self, *arguments: str, killed_at: str = "", nth: int = 1) -> None:
        """Run a command to its end, or until it dies where a fault point is reached."""
        plan = ProcessPlan(
            [ArmedFault("kill", killed_at or "nowhere", Action.CRASH, nth=nth)],
            self.directory / "claims" / f"{killed_at}-{nth}",
        )
        plan.write(self.directory / "plan.json")
        done = subprocess.run(
            [sys.executable, "-m", "statekeep.cli", *arguments, "--config", str(self._config)],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                HANDLER_VARIABLE: HANDLER,
                PLAN_VARIABLE: str(self.directory / "plan.json"),
            },
            check=False,
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == (-signal.SIGKILL if killed_at else 0), done.stderr.decode()

    def uids(self, job: str) -> set[str]:
        """Return the uids of a job below which some file of a backup lies."""
        return {
            path.relative_to(self.directory / place / job).parts[0]
            for place in ("near", "far")
            for path in (self.directory / place / job).glob("state-*/**/*")
            if path.is_file()
        }

    async def state(self, job: str, task: str = TASK) -> dict[bytes, bytes]:
        """Start a task and return what is in it."""
        async with Container(load_dict(self.settings | {"job.name": job})) as container:
            started = await container.start_task(task, ["counts"])
            return dict(started.store("counts").scan())


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    commands = Commands(tmp_path)
    asyncio.run(commands.begin())
    commands.run("savepoint", "create", "v1", "--live", "--task", TASK)
    return commands


@pytest.mark.parametrize("command", MAKING)
@pytest.mark.parametrize("point", ["upload.before_index", "checkpoint.after_write"])
def test_a_job_that_is_made_again_keeps_nothing_of_the_try_that_was_killed(
    commands: Commands, command: str, point: str
) -> None:
    making = (*MAKING[command], "--task", TASK)
    commands.run(*making, killed_at=point)
    (first,) = commands.uids("orders-2")
    commands.run(*making)
    again = commands.uids("orders-2")
    assert again
    assert first not in again
    tasks = ["Partition 0", "Partition 1"] if command == "rescale" else [TASK]
    states = [asyncio.run(commands.state("orders-2", task)) for task in tasks]
    assert {key: value for state in states for key, value in state.items()} == {
        b"key-%d" % number: b"%d" % number for number in range(1, 5)
    }


def test_a_try_that_is_killed_while_it_deletes_what_another_left_is_made_up_for(
    commands: Commands,
) -> None:
    making = (*MAKING["savepoint restore"], "--task", TASK)
    commands.run(*making, killed_at="checkpoint.after_write")
    (first,) = commands.uids("orders-2")
    commands.run(*making, killed_at="clean_up.before_files")
    assert commands.uids("orders-2") == {first}
    commands.run(*making)
    (last,) = commands.uids("orders-2")
    assert last != first


def test_a_job_that_was_not_made_to_its_end_is_reset_with_all_that_it_has(
    commands: Commands,
) -> None:
    making = (*MAKING["savepoint restore"], "--task", TASK)
    commands.run(*making, killed_at="checkpoint.after_write")
    assert commands.uids("orders-2")
    commands.run("reset", "--yes", "--task", TASK, "--set", "job.name=orders-2")
    assert commands.uids("orders-2") == set()
    assert asyncio.run(commands.state("orders-2")) == {}


def test_a_reset_that_was_killed_is_ended_by_the_same_command(commands: Commands) -> None:
    reset = ("reset", "--yes", "--with-savepoints", "--task", TASK)
    commands.run(*reset, killed_at="clean_up.before_files")
    assert commands.uids("orders")
    commands.run(*reset)
    assert commands.uids("orders") == set()
    assert asyncio.run(commands.state("orders")) == {}


def test_a_savepoint_that_a_killed_reset_has_dropped_does_not_come_back(
    commands: Commands,
) -> None:
    commands.run(
        "reset", "--yes", "--with-savepoints", "--task", TASK, killed_at="clean_up.before_files"
    )
    commands.run("reset", "--yes", "--task", TASK)
    assert commands.uids("orders") == set()
