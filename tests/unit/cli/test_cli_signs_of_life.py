"""What people see while a command runs long: each shows on a terminal what goes on."""

import asyncio
import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Final

import pytest
import typer
from cli_kit import TASK, CommandLine, Result
from spark_job_kit import make_job, settings
from spark_location_kit import make_location
from spark_locations_kit import unpack_location

from statekeep.cli import counting_bar, waiting
from statekeep.cli.app import app
from statekeep.restore import progress_bar

LOG = f"--task '{TASK}'"
LOG_IS_READ = "reading the job log"
STATE_COMES = "restoring state"
STATE_GOES = "uploaded"
THIRD = "--set backends.third.factory=blob --set backends.third.uri=file://{job}/third"

SHOWS: Final[Mapping[str, tuple[str, list[str]]]] = {
    "checkpoints.list_commits": ("checkpoints list", [LOG_IS_READ]),
    "checkpoints.show": ("checkpoints show", [LOG_IS_READ]),
    "checkpoints.diff": ("checkpoints diff {old}", [LOG_IS_READ]),
    "checkpoints.pin": ("checkpoints pin keep", [LOG_IS_READ]),
    "checkpoints.unpin": ("checkpoints unpin kept", [LOG_IS_READ]),
    "checkpoints.remove": ("checkpoints remove {old} --yes", [LOG_IS_READ, "deleting"]),
    "checkpoints.overwrite_offsets": (
        "checkpoints overwrite-offsets 'Partition 0' kafka.orders.v1.0=2 --yes",
        [LOG_IS_READ, "taking the job over"],
    ),
    "stores.show": ("stores show", [LOG_IS_READ, "reading the snapshots"]),
    "savepoints.create": (
        "savepoint create v1 --yes",
        [LOG_IS_READ, "taking the job over", STATE_COMES, STATE_GOES],
    ),
    "savepoints.create --live": ("savepoint create v1 --live", [LOG_IS_READ]),
    "savepoints.list_savepoints": ("savepoint list", [LOG_IS_READ]),
    "savepoints.drop": ("savepoint drop kept", [LOG_IS_READ]),
    "new_jobs.restore_savepoint": (
        "savepoint restore kept --as orders-2",
        [LOG_IS_READ, "beginning the new job", STATE_COMES, STATE_GOES],
    ),
    "new_jobs.rescale_job": (
        "rescale --partitions 2 --as orders-3 --router cli_kit:route",
        [LOG_IS_READ, "beginning the new job", STATE_COMES, "entries routed", STATE_GOES],
    ),
    "spark_state.import_state": (
        "spark-state import {job}/spark --store counts --set job.name=counted",
        ["beginning the new job", "records read", STATE_GOES],
    ),
    "spark_state.export_state": (
        "spark-state export {job}/back --store counts --version 4",
        [LOG_IS_READ, "writing the state", STATE_COMES],
    ),
    "clones.create": ("clone counts --as copy", [LOG_IS_READ, "making the clone"]),
    "clones.promote": (
        "clone promote copy",
        [LOG_IS_READ, "promoting the clone", STATE_COMES, STATE_GOES],
    ),
    "clones.drop": ("clone drop copy --yes", [LOG_IS_READ, "deleting the clone"]),
    "backends.check": ("backends check", ["asking the backends"]),
    "state.read": ("state read count", [LOG_IS_READ, STATE_COMES]),
    "state.get": ("state get count user-7", [LOG_IS_READ, STATE_COMES]),
    **{
        f"state_changes.{line.split()[1]}": (
            f"{line} --reason test --yes",
            [LOG_IS_READ, STATE_COMES, STATE_GOES],
        )
        for line in (
            "state put count user-7 70",
            "state delete count user-7",
            "state edit count {job}/rows.json",
            "state undo",
            "state erase --key user-7",
        )
    },
    "guard.inspect": ("guard inspect {job}/hdfs", ["looking at the checkpoint location"]),
    "guard.run": (
        "guard run {job}/hdfs --once --to file://{job}/copies",
        ["copying the checkpoint location", STATE_GOES],
    ),
    "guard.restore": (
        "guard restore {job}/hdfs --from file://{job}/copies --to {job}/new",
        [LOG_IS_READ, "restoring the checkpoint location", "restored"],
    ),
    "guard.verify": (
        "guard verify {job}/hdfs --from file://{job}/copies",
        ["verifying the copy"],
    ),
    "guard.repair": ("guard repair {job}/hdfs --yes", ["reading the checkpoint location"]),
    "verify.verify": ("verify", [LOG_IS_READ, STATE_COMES]),
    "restore.restore": ("restore {job}/mine", [LOG_IS_READ, STATE_COMES]),
    "migrate.migrate": (
        f"migrate --to third {THIRD} --yes",
        [LOG_IS_READ, "taking the job over", STATE_COMES, STATE_GOES],
    ),
    "migrate.migrate_log": (
        "migrate-log --to far --yes",
        [LOG_IS_READ, "copying the job log"],
    ),
    "clean_up.collect_garbage": ("gc", ["looking for unreachable backups"]),
    "clean_up.reset": (
        "reset --with-savepoints --yes",
        ["looking at the backups", LOG_IS_READ, "deleting"],
    ),
    "events.events": ("events --progress", [LOG_IS_READ, "reading the events"]),
    "report.report": (
        "report {job}/page.html --held",
        ["reading the job log and its events", LOG_IS_READ, "reading the snapshots"],
    ),
    "top.top": ("top", ["reading the job log and its events"]),
    "doctor.doctor": ("doctor", ["asking the backends and reading the job log"]),
}
"""By command: a line that runs it, and what is to be seen then."""

SHOWS_NOTHING: Final[Mapping[str, str]] = {
    "backends.list_backends": "reads settings, and reaches no backend",
    "import_query.import_query": "Spark shows how its jobs get on",
    "replay.replay": "Spark shows how its jobs get on",
    "report.ui": "begins as `report`, and then lasts until it is interrupted",
    "config.explain": "reads settings",
    "config.check": "reads settings",
}
"""By command: why it cannot last long."""

GUARD = {"guard.inspect", "guard.repair", "guard.restore", "guard.run", "guard.verify"}
"""Those that take a checkpoint location, and no settings."""

WITHOUT_LOG = {
    *("backends.check", "checkpoints.overwrite_offsets", "spark_state.import_state"),
    *GUARD,
    *(name for name in SHOWS if name.startswith(("state", "clones"))),
}
"""Those that have no --task of their own."""

_COLOURS = re.compile(r"\x1b\[[\d;]*m")


def commands(app: typer.Typer) -> Iterator[str]:
    for command in app.registered_commands:
        function = command.callback
        assert function is not None
        yield f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance)


def test_every_command_shows_what_goes_on_or_cannot_last_long() -> None:
    told = {name.partition(" ")[0] for name in SHOWS} | SHOWS_NOTHING.keys()
    assert set(commands(app)) == told


@pytest.fixture
def old(statekeep: CommandLine) -> int:
    """A commit that is kept by name, beside which there is another that is not."""
    positions = [row["commit"] for row in statekeep(f"checkpoints list {LOG} --json").json]
    assert statekeep(f"checkpoints pin kept {positions[-2]} {LOG}").status == 0
    make_location(statekeep.config.parent / "spark")
    unpack_location("hdfs", statekeep.config.parent)
    return int(positions[1])


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, old: int) -> None:
    """Make stderr a terminal for what follows, and of everything something that lasts long."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setattr(waiting, "_SHOWN_AFTER_S", 0)
    for bar in (counting_bar, progress_bar):
        monkeypatch.setattr(bar, "_SHOWN_AFTER_NS", 0)
        monkeypatch.setattr(bar, "_REDRAWN_EVERY_NS", 0)


@pytest.mark.parametrize("command", SHOWS)
@pytest.mark.usefixtures("terminal")
def test_a_command_that_lasts_long_says_what_it_does_and_its_tables_fit_100_columns(
    statekeep: CommandLine, old: int, command: str
) -> None:
    line, signs = SHOWS[command]
    log = "" if command in WITHOUT_LOG else LOG
    if command.startswith(("state.", "state_changes.", "clones.")):
        place = statekeep.config.parent / "on spark"
        asyncio.run(make_job(place))
        log = " ".join(f"--set '{key}={text}'" for key, text in settings(place).items())
        rows = [{"key": {"user": "user-8"}, "value": {"n": 0}}]
        (statekeep.config.parent / "rows.json").write_text(json.dumps(rows))
    if command in {"guard.restore", "guard.verify"}:
        copied = SHOWS["guard.run"][0].format(job=statekeep.config.parent)
        assert statekeep(copied, has_config=False).status == 0
    if command == "state_changes.undo":  # there is something to undo
        assert statekeep(f"state put count user-7 0 --reason test --yes {log}").status == 0
    if command in {"clones.promote", "clones.drop"}:
        assert statekeep(f"clone counts --as copy {log}").status == 0
    line = f"{line.format(old=old, job=statekeep.config.parent)} {log}"
    result = statekeep(line, has_config=command not in GUARD)
    assert result.status == 0
    assert [sign for sign in signs if sign not in result.err] == []
    check_width(statekeep, result)


@pytest.mark.parametrize("line", ["backends list", "config check", "config explain"])
@pytest.mark.usefixtures("terminal")
def test_the_tables_of_settings_fit_too(statekeep: CommandLine, line: str) -> None:
    check_width(statekeep, statekeep(line))


def check_width(statekeep: CommandLine, result: Result) -> None:
    """Check that tables fit on a wide terminal too; lines of prose are broken by the terminal."""
    assert result.status == 0
    shown = _COLOURS.sub("", result.out).replace(str(statekeep.config.parent), "")
    assert shown
    rows = [row.rstrip() for row in shown.splitlines() if not row.startswith("next: ")]
    assert [row for row in rows if len(row) > 100] == []


@pytest.fixture
def as_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command line take itself for one that was started as a program, not by ``python -m``."""
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("statekeep che", "checkpoints"),
        ("statekeep savepoint cr", "create"),
        ("statekeep restore --back", "--backend"),
    ],
)
@pytest.mark.usefixtures("as_program")
def test_the_shell_completes_commands_and_options(
    statekeep: CommandLine, monkeypatch: pytest.MonkeyPatch, words: str, completed: str
) -> None:
    monkeypatch.setenv("_STATEKEEP_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    assert statekeep("", has_config=False).out.split() == [completed]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.usefixtures("as_program")
def test_the_completion_of_a_shell_is_printed(
    statekeep: CommandLine, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    result = statekeep(f"--show-completion {shell}", has_config=False)
    assert result.status == 0
    assert f"_STATEKEEP_COMPLETE=complete_{shell}" in result.out
