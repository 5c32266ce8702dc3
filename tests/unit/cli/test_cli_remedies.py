"""Mistakes on the command line and in the settings: the error says what is wrong and what to do."""

import io
import logging
from pathlib import Path

import pytest
from cli_kit import TASK, CommandLine

from statekeep.config.model import Config

LOG = f"--task '{TASK}'"


@pytest.mark.parametrize(
    ("command", "wrong", "remedy"),
    [
        ("checkpoints list", "the job has no log here", "name it with --task"),
        (
            "checkpoints list",
            "the job has no log here",
            "job.log.backend=blob and blob.store.uri=<checkpoint location>-statekeep",
        ),
        (
            "checkpoints list --task 'Partition 9'",
            "the job has no log here: job=orders task=Partition 9",
            "a job on Spark has one log for all tasks",
        ),
        (f"checkpoints show 99 {LOG}", "no such commit: commit=99", "`statekeep checkpoints list`"),
        (
            f"checkpoints unpin nope {LOG}",
            "name=nope names=keep,weekly",
            "`statekeep checkpoints list` shows what is pinned",
        ),
        (
            f"checkpoints overwrite-offsets '{TASK}' orders=1 --yes",
            "not SYSTEM.STREAM.PARTITION=OFFSET: orders=1",
            "`statekeep checkpoints show`",
        ),
        (f"savepoint drop nope {LOG}", "name=nope names=keep,weekly", "shows what is pinned"),
        (
            f"savepoint restore keep --as copy --from-location /a --to-location /b {LOG}",
            "the commit is not of a Spark query",
            "leave out --from-location and --to-location",
        ),
        (
            f"rescale --partitions 2 --as copy {LOG}",
            "only the program knows which task a key belongs to",
            "--router package.module:function",
        ),
        (
            f"rescale --partitions 2 --as copy --router route {LOG}",
            "not a dotted path: --router='route'",
            "write package.module:name",
        ),
        (
            f"migrate --to nowhere --yes {LOG}",
            "unknown backend: name=nowhere",
            "say what kind it is by backends.nowhere.factory",
        ),
        (
            "backends list --set stores.counts.backup.factories=naer",
            "unknown backend: name=naer",
            "say what kind it is by backends.naer.factory",
        ),
        ("config check --set job.nam=x", "unknown setting: key=job.nam", "did you mean job.name?"),
    ],
)
def test_an_error_says_what_is_wrong_and_what_to_do(
    statekeep: CommandLine, command: str, wrong: str, remedy: str
) -> None:
    for name in ("keep", "weekly"):
        statekeep(f"checkpoints pin {name} {LOG}")
    result = statekeep(command)
    assert result.status == 2
    assert wrong in result.err
    assert "hint: " in result.err
    assert remedy in result.err


@pytest.mark.parametrize("command", ["verify", "restore {directory}"])
def test_a_backend_without_the_commit_is_reported_with_those_that_have_it(
    statekeep: CommandLine, tmp_path: Path, command: str
) -> None:
    line = command.format(directory=tmp_path / "mine")
    result = statekeep(f"{line} --backend elsewhere {LOG}")
    assert result.status == 2
    assert "backend=elsewhere backends=far,near" in result.err


@pytest.mark.parametrize("answer", ["n\n", ""], ids=["no", "no answer"])
def test_a_question_that_is_not_answered_with_yes_changes_nothing(
    statekeep: CommandLine, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    before = statekeep(f"events {LOG} --json").json
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    result = statekeep(f"savepoint create v1 {LOG}")
    assert result.status == 1
    assert statekeep(f"events {LOG} --json").json == before


def test_warnings_are_shown_as_lines_and_those_of_clients_are_not(
    statekeep: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(_: Config) -> None:
        logging.getLogger("statekeep.backends.retry").warning("request failed, retrying")
        logging.getLogger("client").error("what it tried", exc_info=OSError("refused"))

    monkeypatch.setattr(Config, "check", check)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    before = list(logging.getLogger("statekeep").handlers)
    result = statekeep("config check")
    assert (result.status, result.err) == (0, "WARNING: request failed, retrying\n")
    assert logging.getLogger("statekeep").handlers == before
