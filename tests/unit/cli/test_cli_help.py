"""What the help shows on a terminal of 80 columns: every command in one line that is not cut."""

from collections.abc import Iterator

import pytest
import typer
from cli_kit import CommandLine

from statekeep.cli.app import app


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
