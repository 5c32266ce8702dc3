"""What programs read: every command says in JSON what it did."""

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from cli_kit import TASK, CommandLine, commit_numbers

from statekeep.cli.app import app

LOG = f"--task '{TASK}'"


def without_json(app: typer.Typer) -> Iterator[str]:
    """Yield the name of each command's function that has no parameter for ``--json``."""
    for command in app.registered_commands:
        function = command.callback
        assert function is not None
        if "as_json" not in inspect.signature(function).parameters:
            yield f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from without_json(group.typer_instance)


def test_every_command_takes_json() -> None:
    assert list(without_json(app)) == []


def test_valid_settings_are_reported_to_programs_and_to_people(
    statekeep: CommandLine,
) -> None:
    assert statekeep("config check --json").json == {"ok": True}
    assert statekeep("config check").out == "the settings are valid\n"
    wrong = statekeep("config check --json --set stores.counts.optional.backup.factories=nowhere")
    assert (wrong.status, wrong.out) == (2, "")


@pytest.fixture
def positions(statekeep: CommandLine) -> list[int]:
    return [row["commit"] for row in statekeep(f"checkpoints list {LOG} --json").json]


def test_removed_commits_are_reported_in_order(
    statekeep: CommandLine, positions: list[int]
) -> None:
    line = f"checkpoints remove {positions[2]} {positions[1]} {LOG} --yes --json"
    assert statekeep(line).json == {"removed": [positions[1], positions[2]]}


def test_a_pin_is_reported_with_its_commit_when_it_comes_and_when_it_goes(
    statekeep: CommandLine, positions: list[int]
) -> None:
    pinned = {"pin": "keep", "commit": positions[1]}
    assert statekeep(f"checkpoints pin keep {positions[1]} {LOG} --json").json == pinned
    assert statekeep(f"checkpoints unpin keep {LOG} --json").json == pinned


def test_a_dropped_savepoint_is_reported_for_each_log_that_had_it(
    statekeep: CommandLine, job: Path
) -> None:
    asyncio.run(commit_numbers(job, [1, 2], name="Partition 1"))
    both = f"{LOG} --task 'Partition 1'"
    statekeep(f"savepoint create v1 {both} --yes")
    statekeep(f"savepoint drop v1 {LOG}")
    left = statekeep(f"savepoint list {both} --json").json
    assert [row["log"] for row in left] == ["Partition 1"]
    assert statekeep(f"savepoint drop v1 {both} --json").json == left


def test_a_moved_log_is_reported_with_its_location_and_size(statekeep: CommandLine) -> None:
    count = len(statekeep(f"events {LOG} --json").json)
    moved = statekeep(f"migrate-log --to far {LOG} --yes --json").json
    # The move itself takes the job over, which is one more record.
    assert moved == {"backend": "far", "records": count + 1}
