"""What people read about the commands: the help, on a terminal of 80 columns, and docs/reference/cli.md."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from cli_kit import CommandLine

from statekeep.cli.app import app
from statekeep.cli.exit_status import ExitStatus

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")


def groups(app: typer.Typer, *path: str) -> Iterator[str]:
    """Yield the words that lead to each group of commands, from the first on."""
    yield " ".join(path)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from groups(group.typer_instance, *path, str(group.typer_instance.info.name))


@pytest.mark.parametrize("group", list(groups(app)))
def test_no_line_about_a_command_is_cut(
    statekeep: CommandLine, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    told = statekeep(f"{group} --help", has_config=False).out
    lines = told.split("Commands:")[1].splitlines()
    assert len(lines) > 1
    assert [line for line in lines if line.endswith("...")] == []


def names(app: typer.Typer, *path: str) -> Iterator[str]:
    """Yield the words of each command."""
    for command in app.registered_commands:
        assert command.callback is not None
        yield " ".join((*path, command.name or command.callback.__name__))
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from names(group.typer_instance, *path, str(group.typer_instance.info.name))


@pytest.mark.parametrize("command", list(names(app)))
def test_the_page_describes_every_command(command: str) -> None:
    group, _, last = command.rpartition(" ")
    # Several commands of a group may stand in one row.
    assert re.search(rf"`(statekeep )?({group} )?{last}\b", PAGE) is not None


def test_the_page_lists_every_exit_status() -> None:
    listed = [int(number) for number in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)]
    assert listed == [*ExitStatus, 130]
