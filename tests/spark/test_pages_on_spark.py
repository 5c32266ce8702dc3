"""The how-to pages on a query that has run: their commands in the order of the pages, and new jobs."""

import json
import logging
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from conftest import conf
from pages_kit import block, blocks, commands
from pyspark.sql import DataFrame, SparkSession
from reader_kit import START, Reader, run_command

import statekeep as sk

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

READ = "docs/how-to/read-state.md"
SINKS = "docs/how-to/sinks.md"
ARROW = "docs/how-to/arrow.md"
IMPORT = "docs/how-to/import-from-spark.md"
REPLAY = "docs/how-to/replay-a-batch.md"
LINK = "look at the job on a page: "
PANDAS = "docs/coming-from/apply-in-pandas-with-state.md"
ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}


@pytest.fixture
def reader(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    monkeypatch.chdir(tmp_path)
    return Reader(spark, tmp_path)


def goes_on(reader: Reader, capsys: pytest.CaptureFixture[str], **settings: str) -> None:
    """Start the query of a new job at its own location, and compare state with input."""
    before = reader.names
    name = settings["job.name"]
    reader.names = before | {
        "settings": before["settings"] | settings,
        "path": str(reader.directory / "checkpoints" / name),
    }
    _, mark, start_of_query = START.partition("totals = sk")
    delivered, expected = dict(reader.delivered), dict(reader.expected)
    reader.process(mark + start_of_query)
    assert reader.state(capsys) == reader.expected
    number = len(list((reader.directory / "in").iterdir())) - 1
    (reader.directory / "in" / f"{number:03d}.parquet").unlink()  # the old job has not seen it
    reader.names, reader.delivered, reader.expected = before, delivered, expected


def look_at_page(line: str) -> None:
    """Run the command that serves a page until it is ended, on a port of its own, and load the page."""
    command = [sys.executable, "-m", "statekeep.cli", *shlex.split(line)[1:], "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[0]
        with urllib.request.urlopen(address, timeout=20) as answer:  # noqa: S310
            assert "<h1>totals</h1>" in answer.read().decode()
        process.terminate()
        assert process.wait(20) == 0


def test_a_job_is_watched_kept_copied_and_rescaled_as_the_pages_say(
    reader: Reader,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    reader.names["path"] = str(reader.directory / "checkpoints" / "totals")
    with caplog.at_level(logging.INFO, logger="statekeep"):
        reader.process(START)
    reader.run(block("docs/how-to/operate.md", "Watch", "python"))
    assert "CommitSummary" in capsys.readouterr().out
    reader.write_properties()
    (logged, *_) = [text for text in caplog.messages if text.startswith(LINK)]
    look_at_page(logged.removeprefix(LINK).replace("FILE", "job.properties"))

    def run(page: str, heading: str | None = None) -> None:
        for line in commands(f"docs/how-to/{page}.md", heading):
            if line.startswith("statekeep "):
                here = line.replace("/mnt/checkpoints", str(reader.directory / "checkpoints"))
                if line.startswith("statekeep ui"):
                    look_at_page(here)
                else:
                    run_command(here, monkeypatch, capsys)

    run("choose-a-backend")
    run("operate")
    run("savepoints", "While the job runs")
    run("savepoints", "While the job is stopped")
    run("savepoints", "A new job from a savepoint")
    run("rescale")
    goes_on(reader, capsys, **{"job.name": "totals-copy"})
    goes_on(reader, capsys, **{"job.name": "totals-8", "task.count": "8"})
    run("savepoints", "Drop it")


def test_a_query_takes_its_state_to_another_number_of_tasks_as_the_page_says(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader.process(START)
    reader.process(block("docs/how-to/rescale.md", "A query on Spark", "python"))
    assert reader.state(capsys) == reader.expected
    reader.write_properties()
    (line,) = commands("docs/how-to/rescale.md", "A query on Spark")
    assert "before-task-count-8-commit-" in run_command(line, monkeypatch, capsys)


def test_the_state_of_a_query_without_settings_is_read(
    reader: Reader, capsys: pytest.CaptureFixture[str]
) -> None:
    reader.names["path"] = str(reader.directory / "checkpoints" / "totals")
    lines = block("docs/coming-from/transform-with-state.md", "", "diff").splitlines()
    program = "\n".join(line[1:] for line in lines if not line.startswith("-"))
    reader.process(program.replace(".option(", '.queryName("totals").option('))
    reader.run(block(READ, "A query without settings", "python"))
    assert reader.state(capsys) == reader.expected


def test_state_is_read_in_parts_as_it_was_and_as_a_frame_as_printed(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader.process(START)
    reader.write_properties()
    (pin,) = commands(READ, "As it was")
    run_command(pin, monkeypatch, capsys)
    before = dict(reader.expected)
    reader.process(START)
    capsys.readouterr()

    def said(heading: str) -> list[list[str]]:
        reader.run(block(READ, heading, "python"))
        return [line.split() for line in capsys.readouterr().out.splitlines()]

    count = len(reader.expected)
    assert said("A part of it") == [["1", str(count), "['key']"]]
    assert said("As it was") == [[str(len(before))]]
    changes = {
        key: ("update" if key in before else "insert", total)
        for key, total in reader.expected.items()
        if before.get(key) != total
    }
    found = {int(key): (kind, int(total)) for kind, key, total in said("What has changed")}
    assert found == changes
    reader.names["spark"] = reader.spark
    table = said("As a DataFrame")
    assert str(sum(reader.expected.values())) in "".join(table[3])

    for line in commands(READ, "Read from a shell"):
        run_command(line, monkeypatch, capsys)
    assert (reader.directory / "changes.parquet").is_file()
    csv = (reader.directory / "totals.csv").read_text().splitlines()
    assert len(csv) == count + 1


def test_a_batch_runs_again_as_printed(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        reader.process(START)
    program = block(REPLAY, "The program", "python")
    program = program.replace("/mnt/shared/in", str(reader.directory / "in"))
    own = {name: reader.names[name] for name in ("settings", "path")}
    head = "".join(f"{name} = {value!r}\n" for name, value in own.items())
    head += "from processors import Totals\nwrite = print\n"
    (reader.directory / "job.py").write_text(head + program)
    reader.run(program)
    reader.names["spark"] = reader.spark
    capsys.readouterr()
    reader.run(block(REPLAY, "In a notebook", "python"))
    assert capsys.readouterr().out.splitlines() == [
        "(1,) [{'id': 1, 'v': 10}] [{'id': 1, 'total': 30}]",
        "total get {'total': 20} {'total': 20}",
        "total update {'total': 20} {'total': 30}",
        "True []",
    ]
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "job", None)
    del sys.modules["job"]  # it is forgotten again at the end
    one, whole = commands(REPLAY, "From a shell")
    lines = [line.rstrip() for line in run_command(one, monkeypatch, capsys).splitlines()]
    assert max(map(len, lines)) <= 100
    assert lines[-1] == "as recorded"
    assert any("update" in line and '{"total": 30}' in line for line in lines)
    found = json.loads(run_command(whole, monkeypatch, capsys))
    assert found["matches"] is True
    assert sorted(trace["key"][0] for trace in found["keys"]) == [0, 1, 2, 5]
    assert list(reader.delivered) == [0, 1, 2]


@pytest.mark.parametrize("heading", ["", "As a class"])
def test_a_function_of_pandas_frames_runs_as_printed_or_as_a_class(
    reader: Reader, heading: str
) -> None:
    rows: dict[int, int] = {}

    def write(frame: DataFrame, _: int) -> None:
        rows.update({row.id: row.n for row in frame.collect()})

    reader.add_batch()
    reader.names["write"] = write
    for program in blocks(PANDAS, heading, "python"):
        reader.run(program)
    query: Any = reader.names["query"]
    query.processAllAvailable()
    query.stop()
    assert rows == dict.fromkeys([0, 1, 2, 3], 1)


@pytest.mark.parametrize(
    ("heading", "share"), [("", 1), ("Fewer rows in the shuffle", 1), ("State", 0.1)]
)
def test_a_function_of_record_batches_runs_as_printed(
    reader: Reader, heading: str, share: float
) -> None:
    rows: dict[int, float] = {}

    def write(frame: DataFrame, _: int) -> None:
        rows.update({row[0]: row[1] for row in frame.collect()})

    reader.add_batch()
    reader.names["write"] = write
    reader.run("import pyarrow as pa\nimport pyarrow.compute as pc\n")
    for program in blocks(ARROW, heading, "python"):
        reader.run(program)
    query: Any = reader.names["query"]
    query.processAllAvailable()
    query.stop()
    assert rows == pytest.approx({key: share * v for key, v in reader.expected.items()})


@pytest.mark.parametrize("heading", ["A driver that was paused", "A directory for each batch"])
def test_the_functions_for_foreach_batch_run_as_printed(
    reader: Reader, capsys: pytest.CaptureFixture[str], heading: str
) -> None:
    program = block(SINKS, heading, "python").replace("hdfs:///data", str(reader.directory))
    reader.run(program)
    reader.add_batch()
    query = reader.run(START)["query"]
    query.processAllAvailable()
    query.stop()
    if heading == "A driver that was paused":
        assert capsys.readouterr().out.split()[2:] == ["1", "0"]
    else:
        assert list((reader.directory / "totals" / "batch=0").glob("*.parquet"))


@pytest.mark.parametrize("is_command", [False, True], ids=["program", "command"])
def test_a_query_of_sparks_own_operator_is_taken_over_as_printed(
    reader: Reader,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    is_command: bool,
) -> None:
    reader.names["path"] = str(reader.directory / "checkpoints" / "totals")
    program = block(IMPORT, "Start it here", "python")
    with conf(reader.spark, ROCKSDB):
        on_spark = program.replace('sk.grouped(df.groupBy("id"), settings)', 'df.groupBy("id")')
        reader.process(on_spark)
    if is_command:
        (line,) = commands(IMPORT, "Import")
        line = line.replace("/mnt/checkpoints", str(reader.directory / "checkpoints"))
        run_command(line, monkeypatch, capsys)
        reader.names["settings"] = {"job.name": "totals"}
    else:
        reader.run(block(IMPORT, "Import", "python"))
        assert capsys.readouterr().out.split()[-2:] == ["0", "total"]
    reader.process(program)


def test_a_query_goes_back_to_sparks_own_operator_as_printed(reader: Reader) -> None:
    reader.names["settings"] = {"job.name": "totals"}
    reader.names["path"] = str(reader.directory / "checkpoints" / "totals")
    for _ in range(2):
        reader.process(block(IMPORT, "Start it here", "python"))
    for path in (reader.directory / "in").iterdir():
        path.unlink()
    reader.add_batch()
    reader.delivered.clear()
    reader.names |= {"spark": reader.spark, "fresh": str(reader.directory / "fresh")}
    program = block(IMPORT, "Back to Spark", "python").replace("self.total", "self._total")
    with conf(reader.spark, ROCKSDB):
        query = reader.run(program)["query"]
        query.processAllAvailable()
        query.stop()
    assert not isinstance(query, sk.StatefulStreamingQuery)
    assert reader.delivered == {0: {key: reader.expected[key] for key in (0, 1, 2, 3)}}
    assert reader.expected[2] == 300
