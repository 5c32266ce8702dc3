"""``statekeep state put``, ``delete``, ``edit``, ``undo`` and ``erase``, and the page about them."""

import asyncio
import io
import shlex
import shutil
from pathlib import Path
from typing import Any

import every_kind_kit
import pytest
from cli_kit import CommandLine, Result
from killed_command_kit import kill
from pages_kit import block, commands
from spark_job_kit import CONTENT, make_job, settings

import statekeep as sk

PAGE = "docs/how-to/change-state.md"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made")
    asyncio.run(make_job(directory))
    return directory


@pytest.fixture
def job(made: Path, tmp_path: Path) -> dict[str, str]:
    """The settings of a copy of the job, which one test may change."""
    shutil.copytree(made / "place", tmp_path / "place")
    return settings(tmp_path)


@pytest.fixture
def statekeep(
    job: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> CommandLine:
    config = tmp_path / "job.properties"
    config.write_text("".join(f"{key}={text}\n" for key, text in job.items()))
    monkeypatch.chdir(tmp_path)
    return CommandLine(config, monkeypatch, capsys)


def counts(job: dict[str, str]) -> dict[str, int]:
    rows = sk.read_state(job, "count").to_pylist()
    return {row["key"]["user"]: row["value"]["n"] for row in rows}


def given(statekeep: CommandLine, line: str) -> Result:
    """Give a command as the page prints it, in the directory of the settings."""
    words = shlex.split(line.replace("--config job.properties", ""))[1:]
    return statekeep(shlex.join(words))


def test_the_page_does_what_it_says(statekeep: CommandLine, job: dict[str, str]) -> None:
    names: dict[str, Any] = {}
    exec(block(PAGE, "", "python"), names)  # noqa: S102 - a page of ours
    assert names["settings"].keys() == job.keys() - {"job.logged.store.base.dir"}
    names["settings"] = job
    exec(block(PAGE, "Put values", "python"), names)  # noqa: S102 - a page of ours
    exec(block(PAGE, "Delete keys", "python"), names)  # noqa: S102 - a page of ours
    expected = CONTENT | {"user-7": 70, "user-8": 80}
    del expected["user-9"]
    assert counts(job) == expected

    for line in commands(PAGE, "From a shell"):
        assert given(statekeep, line).status == 0
    assert counts(job) == expected
    assert statekeep("state put count user-7 71 --reason wrong --yes").status == 0
    for line in commands(PAGE, "Take a change back"):
        assert given(statekeep, line).status == 0
    assert counts(job) == expected

    (line,) = commands(PAGE, "See who changed what")
    shown = " ".join(given(statekeep, line).out.split())
    assert "put 2 keys count by" in shown
    assert "two users were counted twice" in shown
    assert "undo by" in shown

    (line,) = commands(PAGE, "Erase a person's data")
    erased = given(statekeep, line)
    assert erased.status == 0
    assert "soft delete" in " ".join(erased.out.split())
    del expected["user-7"]
    assert counts(job) == expected
    assert len(statekeep("checkpoints list --json").json) == 1


def test_programs_get_json(statekeep: CommandLine, job: dict[str, str]) -> None:
    done = statekeep("state put count user-7 70 --reason r --yes --json").json
    assert (done["tasks"], done["keys"]) == (1, 1)
    again = statekeep("state put count user-7 70 --reason r --yes --json").json
    assert again == {"commit": done["commit"], "tasks": 0, "keys": 1}
    assert statekeep("state put count user-7 70 --reason r --yes").out.startswith("nothing differs")
    erased = statekeep("state erase --key user-7 --reason r --yes --json").json
    assert (erased["entries"], len(erased["released"])) == (1, 2)
    assert "blob" in erased["remains"]
    assert "user-7" not in counts(job)


@pytest.mark.parametrize(
    ("line", "status", "shown"),
    [
        ("put cuont user-7 1 --reason r", 2, "did you mean 'count'?"),
        ("put count user-7 one --reason r", 2, "the value cannot be read: value='one'"),
        ('put count user-7 "[1, 2]" --reason r', 6, "field=n declared=bigint found=list"),
        ("put count user-7 1 --map-key 1 --reason r", 2, "is needed for a map, and only for a map"),
        ("put count user-7 1 --ttl-ms 5 --reason r", 2, "has no time to live"),
        ("put count user-7 1 --operator mian --reason r", 2, "did you mean 'main'?"),
        ("put count user-7 1 --reason ''", 2, "needs a reason"),
        ("edit count rows.txt --reason r", 2, "of an unknown kind: file=rows.txt"),
        ("edit count rows.json --reason r", 2, "the file cannot be read: file=rows.json"),
        ("undo --reason r", 2, "does not come from a change of the state"),
        ("erase --key user-7 --operator mian --reason r", 2, "did you mean 'main'?"),
    ],
)
def test_what_is_wrong_changes_nothing(
    statekeep: CommandLine, job: dict[str, str], line: str, status: int, shown: str
) -> None:
    done = statekeep(f"state {line} --yes")
    assert shown in " ".join(done.err.split())
    assert (done.status, done.out) == (status, "")
    assert len(statekeep("events --json").json) == EVENTS


EVENTS = 3
"""Of the job as it was made: a takeover, an attempt and its commit."""


def test_nothing_is_changed_without_a_yes(
    statekeep: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\nn\n"))
    assert statekeep("state put count user-7 1 --reason r").status == 1
    assert statekeep("state erase --key user-7 --reason r").status == 1
    assert len(statekeep("events --json").json) == EVENTS


@pytest.fixture
def kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    """The command line on a job with variables of every kind."""
    asyncio.run(every_kind_kit.make_job(tmp_path))
    job = every_kind_kit.settings(tmp_path)
    config = tmp_path / "job.properties"
    config.write_text("".join(f"{key}={text}\n" for key, text in job.items()))
    return CommandLine(config, monkeypatch, capsys)


KEY = """'[1, "bert-vkz"]'"""


def test_lists_and_maps_are_typed_as_json(kinds: CommandLine, tmp_path: Path) -> None:
    how = "--reason r --yes"
    assert kinds(f"state put items {KEY} '[7, 8]' {how}").status == 0
    empty = kinds(f"state put items {KEY} '[]' {how}")
    assert (empty.status, "for an empty list, delete" in " ".join(empty.err.split())) == (2, True)
    items = kinds(f"state get items {KEY} --json").json
    assert [row["list_element"]["n"] for row in items] == [7, 8]

    value = """'{"n": 5, "tags": {"b": 2}}'"""
    assert kinds(f"state put by_day {KEY} {value} --map-key 2026-02-01 {how}").status == 0
    assert kinds(f"state delete by_day {KEY} --map-key 2026-01-30 {how}").status == 0
    by_day = {
        row["user_map_key"]["day"]: row["user_map_value"]
        for row in kinds(f"state get by_day {KEY} --json").json
    }
    assert by_day.keys() == {"2026-01-31", "2026-02-01"}
    assert by_day["2026-02-01"] == {"n": 5, "tags": {"b": 2}}

    # What `read` prints can be written back, dates included.
    rows = tmp_path / "rows.json"
    assert kinds(f"state read by_day --format json --output {rows}").status == 0
    assert kinds(f"state edit by_day {rows} {how}").out.startswith("nothing differs")
    rows.write_text(rows.read_text().replace("2026-02-01", "the first"))
    wrong = kinds(f"state edit by_day {rows} {how}")
    assert wrong.status == 2
    assert "the value cannot be read" in wrong.err

    assert kinds(f"state put brief {KEY} 5 --ttl-ms 1000 {how}").status == 0
    (row,) = kinds(f"state get brief {KEY} --json").json
    assert row["expiration_timestamp_ms"] == every_kind_kit.NOW_MS + 1000


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["put", "undo"])
@pytest.mark.parametrize(
    "point",
    [
        "restore.before_fetch",
        "attempt_record.after",
        "upload.before_index",
        "commit_record.before",
        "commit_record.after",
    ],
)
def test_a_change_that_was_killed_leaves_the_old_commit_or_the_new_one(
    statekeep: CommandLine, job: dict[str, str], kind: str, point: str
) -> None:
    line, old, new = "state put count user-7 70 --reason r --yes", CONTENT, CONTENT | {"user-7": 70}
    if kind == "undo":
        assert statekeep(line).status == 0
        line, old, new = "state undo --reason r --yes", new, old
    kill(statekeep, line, point)
    assert counts(job) == (new if point == "commit_record.after" else old)
    if point != "commit_record.after":
        assert statekeep(line).status == 0
        assert counts(job) == new


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "point",
    ["attempt_record.after", "upload.before_index", "commit_record.before", "release.before"],
)
def test_an_erasure_that_was_killed_is_ended_by_the_same_command(
    statekeep: CommandLine, job: dict[str, str], point: str
) -> None:
    line = "state erase --key user-7 --reason r --yes"
    kill(statekeep, line, point)
    left = dict(CONTENT)
    if point == "release.before":
        del left["user-7"]
    assert counts(job) == left
    assert statekeep(line).status == 0
    left.pop("user-7", None)
    assert counts(job) == left
    assert len(statekeep("checkpoints list --json").json) == 1
