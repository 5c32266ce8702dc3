"""The walk-through in docs/how-to/move-state.md: its code, settings and commands, run step by step."""

import runpy
import shlex
import sys
from pathlib import Path

import pytest
from migration_kit import STEPS, Reader

from statekeep.cli import app
from statekeep.errors import ConfigError

PLACES = {
    "blob": {"factory": "blob", "uri": "file:///srv/{name}"},
    "hdfs": {"factory": "hdfs", "uri": "file:///srv/{name}"},
}


def make_reader(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *kinds: str,
) -> Reader:
    places = {name: PLACES[kind] for name, kind in zip(["old", "new"], kinds, strict=True)}
    reader = Reader(directory, monkeypatch, capsys, places)
    reader.follow("A job to try it with")
    return reader


@pytest.mark.parametrize(("old", "new"), [("blob", "hdfs"), ("hdfs", "blob"), ("blob", "blob")])
def test_the_page_leads_from_one_backend_to_another_without_losing_a_commit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    old: str,
    new: str,
) -> None:
    reader = make_reader(tmp_path, monkeypatch, capsys, old, new)
    reader.follow(*STEPS)
    reader.follow("A job that is stopped anyway")
    assert reader.runs == 7


def test_the_old_backend_is_not_needed_after_the_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = make_reader(tmp_path, monkeypatch, capsys, "blob", "hdfs")
    reader.follow(*STEPS)
    (tmp_path / "old").rename(tmp_path / "gone")
    (tmp_path / "local").rename(tmp_path / "other-disk")
    reader.run("python job.py")


@pytest.mark.parametrize("step", [1, 2, 3])
def test_there_is_a_way_back_from_every_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    step: int,
) -> None:
    reader = make_reader(tmp_path, monkeypatch, capsys, "blob", "hdfs")
    reader.go_back(step)
    (tmp_path / "new").rename(tmp_path / "gone")
    (tmp_path / "local").rename(tmp_path / "other-disk")
    reader.run("python job.py")


def test_there_is_a_way_back_for_the_log_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = make_reader(tmp_path, monkeypatch, capsys, "blob", "hdfs")
    reader.follow(*STEPS)
    again = {
        "backends.again.factory": "blob",
        "backends.again.uri": "file:///srv/old-again",
        "stores.counts.backup.factories": "new,again",
    }
    reader.set(**again)
    reader.run("python job.py")
    line = '--yes --config job.properties --task "Partition 0"'
    reader.run(f"statekeep migrate-log --to again {line}")
    reader.set(**{"job.log.backend": "again"})
    reader.run("python job.py")


def test_a_start_with_the_old_settings_is_refused_once_the_log_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = make_reader(tmp_path, monkeypatch, capsys, "blob", "hdfs")
    reader.follow("Step 1")
    before = dict(reader.settings)
    reader.follow("Step 2", "Step 3", "Step 4")
    reader.set(**before)
    with pytest.raises(ConfigError, match="the job log has moved: backend=new"):
        runpy.run_path("job.py", run_name="__main__")
    for command in ("checkpoints list", "reset --yes"):
        words = f'statekeep {command} --config job.properties --task "Partition 0"'
        monkeypatch.setattr(sys, "argv", shlex.split(words))
        with pytest.raises(SystemExit) as exit_info:
            app.main()
        assert exit_info.value.code == 2
        assert "the job log has moved" in capsys.readouterr().err
    reader.set(**{"job.log.backend": "new"})
    reader.run("python job.py")


def make_reader_without_a_place_of_the_log(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Reader:
    reader = make_reader(directory, monkeypatch, capsys, "blob", "hdfs")
    del reader.settings["job.log.backend"]
    reader.set()
    reader.run("python job.py")
    return reader


def test_a_job_that_did_not_say_where_its_log_is_takes_all_steps_after_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = make_reader_without_a_place_of_the_log(tmp_path, monkeypatch, capsys)
    reader.follow("Before step 1", *STEPS)
    assert reader.runs == 8


def test_a_start_without_that_step_is_refused_instead_of_beginning_with_empty_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = make_reader_without_a_place_of_the_log(tmp_path, monkeypatch, capsys)
    reader.follow("Step 1", "Step 2")
    with pytest.raises(ConfigError, match="the job log is empty, but there is state of the task"):
        reader.follow("Step 3")
    reader.runs -= 1  # that one has counted nothing
    reader.follow("Before step 1")


@pytest.mark.parametrize("target", ["old", "new"])
def test_the_log_does_not_move_to_where_it_was_or_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    target: str,
) -> None:
    reader = make_reader(tmp_path, monkeypatch, capsys, "blob", "blob")
    reader.follow(*STEPS)
    reader.set(**{"stores.counts.backup.factories": "new,old"})
    words = (
        f'statekeep migrate-log --to {target} --yes --config job.properties --task "Partition 0"'
    )
    monkeypatch.setattr(sys, "argv", shlex.split(words))
    with pytest.raises(SystemExit) as exit_info:
        app.main()
    assert exit_info.value.code == 2
    capsys.readouterr()
    reader.run("python job.py")
