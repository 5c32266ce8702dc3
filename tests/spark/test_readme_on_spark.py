"""The README's program and migration as printed, and the pages that go on from it.

Replaced are only the places that this machine does not have: ``/mnt`` and ``s3://``.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
from pages_kit import block, commands
from pyspark.sql import SparkSession
from reader_kit import START, Reader, run_command

from statekeep.config.model import Config
from statekeep.config.query_defaults import with_query_defaults
from statekeep.spark import writer

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

READ = "docs/how-to/read-state.md"
MOVE = ("docs/how-to/move-state.md", "In short, on Spark")


@pytest.fixture
def reader(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    monkeypatch.chdir(tmp_path)
    return Reader(spark, tmp_path)


def test_a_query_moves_here_by_the_changed_call(reader: Reader) -> None:
    lines = block("docs/coming-from/transform-with-state.md", "", "diff").splitlines()
    program = "\n".join(line[1:] for line in lines if not line.startswith("-"))
    reader.process(program)
    assert (reader.directory / "checkpoint-statekeep").is_dir()


def test_state_is_where_the_settings_say_and_can_be_looked_at(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader.process(START)
    reader.write_properties()
    reader.run(block(READ, "", "python"))
    assert reader.state(capsys) == reader.expected
    lines = commands(READ, "Look at a job from a shell")
    assert [line.split()[1] for line in lines] == [
        "checkpoints", "checkpoints", "stores", "verify", "events",
    ]  # fmt: skip
    for line in lines:
        run_command(line, monkeypatch, capsys)
    assert (reader.directory / "near" / "totals" / "log").is_dir()
    assert not (reader.directory / "far" / "totals" / "log").exists()
    assert not (reader.directory / "checkpoint-statekeep").exists()
    shutil.rmtree(reader.directory / "local")
    shutil.rmtree(reader.directory / "far")
    reader.process(START)
    assert reader.state(capsys) == reader.expected


class Mover:
    """A reader who follows the steps of the README's migration, on a fresh disk at each."""

    def __init__(self, reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
        self.reader = reader
        self._capsys = capsys
        self.steps = reader.run(block(*MOVE, "python"))
        _, mark, self._start_of_query = START.partition("totals = sk")
        self._start_of_query = mark + self._start_of_query

    def go_to(self, *parts: str | dict[str, str]) -> None:
        """Restart the query with the settings of a step, and compare state with input."""
        shutil.rmtree(self.reader.directory / "local", ignore_errors=True)
        lines: dict[str, str] = {}
        for part in parts:
            lines |= self.steps[part] if isinstance(part, str) else part
        named = {name for value in lines.values() for name in value.split(",")}
        places = {
            f"backends.{name}.{key}": value
            for name in sorted(named)
            for key, value in {
                "factory": "blob",
                "uri": (self.reader.directory / name).as_uri(),
            }.items()
        }
        self.reader.names["settings"] = {
            "job.name": "totals",
            "job.logged.store.base.dir": str(self.reader.directory / "local"),
            **lines,
            **places,
        }
        self.reader.process(self._start_of_query)
        assert self.reader.state(self._capsys) == self.reader.expected


@pytest.mark.long
@pytest.mark.timeout(600)
def test_state_moves_to_another_backend_and_back_at_each_step(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mover = Mover(reader, capsys)
    mover.go_to("start")
    mover.go_to("start", "log")
    mover.go_to("both", "log")
    mover.go_to("start", "log")  # the way back from step 1
    mover.go_to("both", "log")
    mover.go_to("moved", "log")
    mover.go_to("both", "log")  # the way back from step 2
    mover.go_to("moved", "log")
    mover.go_to("done", "log")
    mover.go_to("moved", "log")  # the way back from step 3, and further back
    mover.go_to("start", "log")
    mover.go_to("start")
    mover.go_to("both", "log")
    mover.go_to("moved", "log")
    mover.go_to("done", "log")
    reader.names["settings"] |= {
        "backends.old.factory": "blob",
        "backends.old.uri": (reader.directory / "old").as_uri(),
    }
    reader.write_properties()
    (line,) = commands(*MOVE)
    run_command(line, monkeypatch, capsys)
    shutil.rmtree(reader.directory / "old")
    mover.go_to("done", {"job.log.backend": "new"})
    assert not (reader.directory / "checkpoint-statekeep").exists()


def as_before(config: Config, location: str, query_name: str | None, **given: Any) -> Config:
    """Return what a query ran with when its default backend came before the store's own list."""
    completed = with_query_defaults(config, location, query_name, **given)
    return completed.with_defaults({"stores.backup.factories": "blob"}, source="the query")


def test_a_query_whose_log_is_beside_its_location_goes_on_and_can_move_the_log(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, beside = START, reader.directory / "checkpoint-statekeep"
    with monkeypatch.context() as before:
        before.setattr(writer, "with_query_defaults", as_before)
        reader.process(program)
    assert (beside / "totals" / "log").is_dir()
    shutil.rmtree(reader.directory / "local")
    reader.process(program)
    assert not (reader.directory / "near" / "totals" / "log").exists()
    reader.write_properties()
    place = f"--set job.log.backend=blob --set blob.store.uri={beside.as_uri()}"
    run_command(
        f"statekeep migrate-log --to near --yes --config job.properties {place}",
        monkeypatch,
        capsys,
    )
    shutil.rmtree(reader.directory / "local")
    reader.process(program)
    assert reader.state(capsys) == reader.expected
