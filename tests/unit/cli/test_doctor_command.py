"""What the doctor says: each thing that was looked at, and what to do."""

import os
from pathlib import Path
from typing import Any

import pytest
from cli_kit import TASK, CommandLine

from statekeep.inspection import doctor

LOG = f"--task '{TASK}'"


def by_name(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["what"]: row for row in rows}


def test_each_check_of_a_sound_job_has_a_line(
    statekeep: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_LEAST_FREE", 0.0)
    result = statekeep(f"doctor --json {LOG}")
    rows = by_name(result.json)
    assert result.status == 0
    assert list(rows) == [
        "settings",
        "proof",
        "versions",
        "Java",
        "local directory",
        "local disk",
        "backend near",
        "backend far",
        "job log in near",
        "job",
    ]
    assert {row["status"] for name, row in rows.items() if name != "Java"} == {"ok"}
    assert "4 commits to restore from" not in rows["settings"]["found"]
    text = statekeep(f"doctor {LOG}").out
    assert "nothing is wrong by the records" in text


def test_it_changes_nothing(statekeep: CommandLine, job: Path) -> None:
    def files() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in job.rglob("*") if path.is_file()}

    before = files()
    statekeep(f"doctor {LOG}")
    assert files() == before


def test_a_wrong_setting_is_a_line_with_its_remedy(statekeep: CommandLine) -> None:
    result = statekeep("doctor --json --set no.such.key=1")
    (row,) = result.json
    assert (result.status, row["status"], row["what"]) == (2, "fail", "settings")
    assert row["remedy"] == "docs/reference/settings.md lists every setting"
    wrong = statekeep("doctor --json --set stores.counts.optional.backup.factories=nowhere")
    assert wrong.status == 2
    assert by_name(wrong.json)["settings"]["status"] == "fail"


def test_a_directory_that_cannot_be_used_is_reported(
    statekeep: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    place = f"--set job.logged.store.base.dir={tmp_path}/file/below"
    result = statekeep(f"doctor --json {LOG} {place}")
    row = by_name(result.json)["local directory"]
    assert (result.status, row["status"]) == (4, "fail")
    assert "job.logged.store.base.dir" in row["remedy"]


def test_a_disk_that_is_nearly_full_is_a_warning(
    statekeep: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_LEAST_FREE", 1.0)
    result = statekeep(f"doctor --json {LOG}")
    assert by_name(result.json)["local disk"]["status"] == "warn"
    assert result.status == 0


def test_a_job_that_has_no_log_yet_is_a_warning(statekeep: CommandLine) -> None:
    result = statekeep("doctor --json --set job.name=another")
    row = by_name(result.json)["job log in near"]
    assert (result.status, row["status"], row["found"]) == (0, "warn", "there is none here")
    assert "it comes with the first start of the job" in row["remedy"]
    assert "name it with --task" in row["remedy"]
    named = by_name(statekeep("doctor --json --task 'Partition 9'").json)["job log in near"]
    assert "a job on Spark has one log for all tasks: name none" in named["remedy"]


def test_the_tasks_are_named_that_have_a_log_each(statekeep: CommandLine) -> None:
    row = by_name(statekeep("doctor --json").json)["job log in near"]
    assert (row["status"], row["found"]) == (
        "warn",
        f"a log for each task, as in plain Python: {TASK}",
    )
    assert row["remedy"] == "look at one of them with --task"


def test_a_backend_that_refuses_is_reported_and_the_others_are_checked_all_the_same(
    statekeep: CommandLine, job: Path
) -> None:
    (job / "blocked").write_text("no directory")
    place = f"--set backends.far.uri={(job / 'blocked' / 'far').as_uri()}"
    result = statekeep(f"doctor --json {LOG} {place}")
    rows = by_name(result.json)
    assert rows["backend far"]["status"] == "fail"
    assert rows["backend near"]["status"] == "ok"
    assert result.status in {2, 4}


@pytest.mark.parametrize(
    ("said", "status"),
    [('openjdk version "17.0.9"', "ok"), ('java version "1.8.0_392"', "warn"), ("what?", "warn")],
)
def test_the_java_that_spark_would_start_is_asked(
    statekeep: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    status: str,
) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    result = statekeep(f"doctor --json {LOG}")
    assert (by_name(result.json)["Java"]["status"], result.status) == (status, 0)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert by_name(statekeep(f"doctor --json {LOG}").json)["Java"]["status"] == "warn"
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    assert by_name(statekeep(f"doctor --json {LOG}").json)["Java"]["status"] == "warn"
