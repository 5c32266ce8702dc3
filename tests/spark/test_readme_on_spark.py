"""The README from its first program to the last command of its migration, as printed.

Replaced are only the places that this machine does not have: ``/mnt`` and ``s3://``.
"""

import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processors import Totals
from pyspark.sql import DataFrame, SparkSession
from readme_kit import block, commands

import statekeep.spark as sk
from statekeep.cli import app
from statekeep.config.model import Config
from statekeep.spark import writer
from statekeep.spark.query_defaults import with_query_defaults

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

CHOOSE = "Choose where state goes"
READ = "Read state"
MOVE = "Move state to another backend"


class Reader:
    """Somebody who runs what the README prints, in a directory of their own."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.directory = directory
        self.delivered: dict[int, dict[int, int]] = {}
        self.expected: dict[int, int] = {}
        self.names: dict[str, Any] = {
            "sk": sk,
            "Totals": Totals,
            "schema": "id long, total long",
            "write": self.write,
            "path": str(directory / "checkpoint"),
        }
        (directory / "in").mkdir()
        reader = spark.readStream.schema("id long, v long")
        self.names["df"] = reader.option("maxFilesPerTrigger", 1).parquet(str(directory / "in"))

    def write(self, frame: DataFrame, batch: int) -> None:
        assert batch not in self.delivered
        self.delivered[batch] = {row.id: row.total for row in frame.collect()}

    def add_batch(self) -> None:
        number = len(list((self.directory / "in").iterdir()))
        rows = {"id": [0, 1, 2, number + 3], "v": [1, 10, 100, number]}
        pq.write_table(pa.table(rows), self.directory / "in" / f"{number:03d}.parquet")
        for key, value in zip(*rows.values(), strict=True):
            self.expected[key] = self.expected.get(key, 0) + value

    def run(self, program: str) -> Any:
        """Run a program of the README with the places of this machine; return its names."""
        for there, here in {
            "/mnt/disk/statekeep": f"{self.directory}/local",
            "file:///mnt/shared/state": f"file://{self.directory}/near",
            "s3://bucket/state": f"file://{self.directory}/far",
        }.items():
            program = program.replace(there, here)
        exec(compile(program, "README.md", "exec"), self.names)  # noqa: S102
        return self.names

    def process(self, program: str) -> None:
        """Run a program that starts the query on one more batch, and stop the query after it."""
        self.add_batch()
        batch = len(self.delivered)
        query = self.run(program)["query"]
        query.processAllAvailable()
        query.stop()
        assert list(self.delivered) == list(range(batch + 1))
        received = {key: total for rows in self.delivered.values() for key, total in rows.items()}
        assert received == self.expected

    def state(self, capsys: pytest.CaptureFixture[str]) -> dict[int, int]:
        """Return what the README's program prints of the state, read back as numbers."""
        self.run(block(READ, "python"))
        lines = capsys.readouterr().out.splitlines()
        return {int(key): int(total) for key, total in map(str.split, lines)}

    def write_properties(self) -> None:
        lines = [f"{key}={value}\n" for key, value in self.names["settings"].items()]
        (self.directory / "job.properties").write_text("".join(lines))


@pytest.fixture
def reader(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    monkeypatch.chdir(tmp_path)
    return Reader(spark, tmp_path)


def run_command(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    words = shlex.split(line)
    assert words[0] == "statekeep"
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as exit_info:
        app.main()
    captured = capsys.readouterr()
    assert exit_info.value.code == 0, (line, captured)
    return captured.out


def test_a_query_moves_here_by_the_changed_call(reader: Reader) -> None:
    lines = block("", "diff").splitlines()
    program = "\n".join(line[1:] for line in lines if not line.startswith("-"))
    reader.process(program)
    assert (reader.directory / "checkpoint-statekeep").is_dir()


def test_state_is_where_the_settings_say_and_can_be_looked_at(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader.process(block(CHOOSE, "python"))
    assert reader.state(capsys) == reader.expected
    reader.write_properties()
    lines = commands(READ)
    assert [line.split()[1] for line in lines] == [
        "checkpoints", "stores", "verify", "events", "savepoint", "gc",
    ]  # fmt: skip
    for line in lines:
        run_command(line, monkeypatch, capsys)
    assert (reader.directory / "near" / "totals" / "log").is_dir()
    assert not (reader.directory / "far" / "totals" / "log").exists()
    assert not (reader.directory / "checkpoint-statekeep").exists()
    shutil.rmtree(reader.directory / "local")
    shutil.rmtree(reader.directory / "far")
    reader.process(block(CHOOSE, "python"))
    assert reader.state(capsys) == reader.expected


class Mover:
    """Somebody who follows the steps of the README's migration, on a fresh disk at each."""

    def __init__(self, reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
        self.reader = reader
        self._capsys = capsys
        self.steps = reader.run(block(MOVE, "python"))
        _, mark, self._start_of_query = block(CHOOSE, "python").partition("totals =")
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
    (line,) = commands(MOVE)
    run_command(line, monkeypatch, capsys)
    shutil.rmtree(reader.directory / "old")
    mover.go_to("done", {"job.log.backend": "new"})
    assert not (reader.directory / "checkpoint-statekeep").exists()


def as_before(
    config: Config, location: str, query_name: str | None, *, is_every_batch: bool
) -> Config:
    """Return what a query ran with when its default backend came before the store's own list."""
    completed = with_query_defaults(config, location, query_name, is_every_batch=is_every_batch)
    return completed.with_defaults({"stores.backup.factories": "blob"}, source="the query")


def test_a_query_whose_log_is_beside_its_location_goes_on_and_can_move_the_log(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, beside = block(CHOOSE, "python"), reader.directory / "checkpoint-statekeep"
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
