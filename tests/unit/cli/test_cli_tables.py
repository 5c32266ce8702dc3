"""What people see: tables that fit a screen, sizes with units, and the next step."""

from pathlib import Path

import pytest
from cli_kit import TASK, CommandLine
from rich.console import Group
from rich.text import Text

from statekeep.cli import output
from statekeep.cli.output import shortened, state_of

LOG = f"--task '{TASK}'"


@pytest.mark.parametrize(
    "command",
    [
        "checkpoints list",
        "checkpoints show",
        "stores show",
        "verify",
        "events",
        "config explain",
    ],
)
def test_a_table_fits_a_screen_until_everything_is_asked_for(
    statekeep: CommandLine, command: str
) -> None:
    line = command if command.startswith("config") else f"{command} {LOG}"
    result = statekeep(line)
    assert result.status == 0
    assert max(map(len, map(str.rstrip, result.out.splitlines()))) <= 100
    full = statekeep(f"{line} --full")
    assert full.status == 0
    assert "…" not in full.out


def test_a_marker_is_shortened_in_the_middle_and_shown_whole_on_demand(
    statekeep: CommandLine,
) -> None:
    (task,) = statekeep(f"checkpoints show {LOG} --json").json["tasks"].values()
    marker = task["markers"]["near"]["counts"]
    short = statekeep(f"checkpoints show {LOG}").out
    assert marker not in short
    assert f"…{marker[-10:]}" in short or marker[-10:] in short
    assert marker in statekeep(f"checkpoints show {LOG} --full").out


def test_rows_of_a_task_stand_below_its_name(statekeep: CommandLine) -> None:
    assert statekeep(f"checkpoints show {LOG}").out.count(TASK) == 1


def test_a_text_is_shortened_to_its_width() -> None:
    assert shortened("abcdefghij", 10) == "abcdefghij"
    assert shortened("abcdefghij", 5) == "ab…ij"


def test_what_records_say_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "a\x1b[2J\x1b]0;title\x07b\x9b31mc\rd\udcff"
    output.print_table(["x", "y"], [[hostile, Text(hostile)]], is_full=True)
    output.print_line(hostile)
    output.console().print(Group(Text(hostile), "z"))
    lines = capsys.readouterr().out.split("\n")
    assert {*"".join(lines)} & {*"\x1b\x07\x9b\r\udcff"} == set()
    assert [line.count("a[2J]0;titleb31mcd�") for line in lines] == [0, 2, 1, 1, 0, 0]


def test_neither_do_errors(statekeep: CommandLine) -> None:
    err = statekeep("checkpoints list --task 'a\x1b[2Jb'").err
    assert "task=a[2Jb" in err
    assert "\x1b" not in err


def test_colours_of_our_own_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = output.console()
    with console.capture() as captured:
        console.print(state_of("\x1b[2Jgone"))
    assert "\x1b[31m[2Jgone\x1b[0m" in captured.get()


def test_fine_and_damaged_have_a_colour() -> None:
    assert state_of(None) == Text("fine", style="green")
    assert state_of("gone").style == "red"
    assert state_of("no answer", is_damaged=False).style == "yellow"


def test_sizes_have_units_and_a_total(statekeep: CommandLine, tmp_path: Path) -> None:
    rows = statekeep(f"verify {LOG} --json").json
    told = statekeep(f"verify {LOG}").out
    assert output.size_of(rows[0]["bytes"]) in told
    total = output.size_of(sum(row["bytes"] for row in rows))
    assert f"total: {total} in 2 copies" in told
    assert "total: " in statekeep(f"stores show {LOG}").out


def test_a_command_that_finds_nothing_says_so(statekeep: CommandLine) -> None:
    last = statekeep(f"checkpoints list {LOG} --json").json[-1]["commit"]
    assert statekeep(f"checkpoints diff {last} {last} {LOG}").out == (
        "the two commits do not differ\n"
    )
    assert statekeep(f"savepoint list {LOG}").out == "no savepoints\n"


def test_a_directory_with_other_files_is_not_restored_into(
    statekeep: CommandLine, tmp_path: Path
) -> None:
    target = tmp_path / "mine"
    target.mkdir()
    (target / "thesis.txt").write_text("mine")
    refused = statekeep(f"restore '{target}' {LOG}")
    assert refused.status == 2
    assert "has other files" in refused.err
    assert [path.name for path in target.iterdir()] == ["thesis.txt"]

    (target / "thesis.txt").unlink()
    restored = statekeep(f"restore '{target}' {LOG}")
    assert restored.status == 0
    assert f"restored below {target}" in restored.out
    assert max(map(len, map(str.rstrip, restored.out.splitlines()[:2]))) <= 100
    assert statekeep(f"restore '{target}' {LOG}").status == 0  # again, over its own files


def test_a_listed_backend_without_state_comes_with_the_next_step(
    statekeep: CommandLine, tmp_path: Path
) -> None:
    listed = (
        f"--set backends.new.factory=blob --set backends.new.uri={(tmp_path / 'new').as_uri()} "
        "--set stores.counts.backup.factories=near,far,new"
    )
    told = statekeep(f"verify {LOG} --backend new {listed}")
    assert told.status == 2
    assert "the settings list the backend" in told.err
    assert "statekeep migrate --to new" in told.err

    migrated = statekeep(f"migrate --to new --yes {LOG} {listed}")
    assert migrated.status == 0
    assert "next: list new in stores.<store>.backup.factories" in migrated.out
    assert statekeep(f"verify {LOG} --backend new {listed}").status == 0


def test_facts_of_a_snapshot_are_values_for_programs(statekeep: CommandLine) -> None:
    (task,) = statekeep(f"stores show {LOG} --json").json["tasks"]
    assert set(task["facts"]) == {"version"}
    assert [store["facts"] for store in task["parts"]] == [{"backend": "far"}, {"backend": "near"}]
