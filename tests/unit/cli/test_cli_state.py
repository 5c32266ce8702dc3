"""``statekeep state``: rows for people and for programs."""

import asyncio
import csv
import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_kit import TASK, CommandLine, commit_numbers, job_settings
from spark_job_kit import CONTENT, IN_STORES, TASKS, make_job, settings, task_of

import statekeep as sk
from statekeep.spark.state.export import WRITERS


@pytest.fixture(scope="module")
def settings_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The settings of a job of four tasks with one commit."""
    directory = tmp_path_factory.mktemp("job")
    asyncio.run(make_job(directory))
    config = directory / "job.properties"
    config.write_text("".join(f"{key}={text}\n" for key, text in settings(directory).items()))
    return config


@pytest.fixture
def statekeep(
    settings_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    return CommandLine(settings_file, monkeypatch, capsys)


def test_one_key_is_shown_to_people_and_to_programs(statekeep: CommandLine) -> None:
    shown = statekeep("state get count user-7").out.splitlines()
    assert shown[0].split() == ["key.user", "value.n", "partition_id"]
    task = task_of("user-7", TASKS)
    assert shown[1].split() == ["user-7", "7", str(task)]
    row = {"key": {"user": "user-7"}, "value": {"n": 7}, "partition_id": task}
    assert statekeep("state get count user-7 --json").json == [row]


def test_a_key_without_state_has_no_rows(statekeep: CommandLine) -> None:
    assert statekeep("state get count absent").out == "no rows\n"
    assert statekeep("state get count absent --json").json == []


def test_a_table_has_the_first_rows_and_says_that_there_are_more(statekeep: CommandLine) -> None:
    lines = statekeep("state read count").out.splitlines()
    assert len(lines) == 102
    assert lines[-1].startswith("the first 100 rows")


@pytest.mark.parametrize("form", ["json", "csv", "arrow", "parquet"])
def test_every_format_holds_every_row(statekeep: CommandLine, tmp_path: Path, form: str) -> None:
    path = tmp_path / f"rows.{form}"
    done = statekeep(f"state read count --format {form} --output {path}")
    assert (done.status, done.out) == (0, "")
    assert [found.name for found in tmp_path.iterdir()] == [path.name]
    match form:
        case "json":
            rows = json.loads(path.read_text())
        case "csv":
            with path.open(newline="") as file:
                flat = list(csv.DictReader(file))
            rows = [
                {"key": {"user": row["key.user"]}, "value": {"n": int(row["value.n"])}}
                for row in flat
            ]
        case "arrow":
            rows = pa.ipc.open_stream(path.read_bytes()).read_all().to_pylist()
        case _:
            rows = pq.read_table(path).to_pylist()
    assert {row["key"]["user"]: row["value"]["n"] for row in rows} == CONTENT
    assert len(rows) == len(CONTENT)


def test_columns_are_left_out(statekeep: CommandLine) -> None:
    rows = statekeep("state read count --columns key --json").json
    assert {row["key"]["user"] for row in rows} == set(CONTENT)
    assert {tuple(row) for row in rows} == {("key",)}


def test_one_key_is_read_in_every_format(statekeep: CommandLine) -> None:
    lines = statekeep("state read count --key user-7 --format csv").out.splitlines()
    assert [line.split(",")[:2] for line in lines[1:]] == [["user-7", "7"]]
    changed = statekeep("state read count --key user-7 --since 2 --commit 2 --json")
    assert changed.json == []
    assert "no timers" in statekeep("state read --timers --key user-7").err


def test_a_program_reads_a_pipe(statekeep: CommandLine) -> None:
    lines = statekeep("state read count --format csv").out.splitlines()
    assert lines[0] == "key.user,value.n,partition_id"
    assert len(lines) == len(CONTENT) + 1


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("state read cuont", "did you mean 'count'?"),
        ("state read", "either a state variable or the timers"),
        ("state read --timers", "the state has no timers"),
        ("state read count --commit 99", "no such commit: commit=99"),
        ("state read count --since 99", "no such commit: commit=99"),
        ("state read count --as-of noon", "not a time: found='noon'"),
        ("state read count --columns vale", "did you mean 'value'?"),
        ("state read count --format parquet", "name a file: --output"),
        ("state read count --output rows", "a table is not written to a file"),
        ("state read count --format csv --output /dev/null", "the file is there already"),
        (
            "state read count --format csv --output /no-such-directory/rows",
            "the file cannot be written",
        ),
        ("state read count --format csv --backend far", "backend=far"),
        ("state get other user-7", "no such state variable"),
    ],
)
def test_a_mistake_is_an_error_with_a_remedy(statekeep: CommandLine, line: str, told: str) -> None:
    done = statekeep(line)
    assert (done.status, done.out) == (2, "")
    assert told in " ".join(done.err.split())


def test_a_reading_that_fails_leaves_no_file(statekeep: CommandLine, tmp_path: Path) -> None:
    line = f"state read cuont --format csv --output {tmp_path}/rows.csv"
    assert statekeep(line).status == 2
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    """A job of two tasks in plain Python."""
    for task in (TASK, "totals"):
        asyncio.run(commit_numbers(tmp_path, [1, 2, 3], name=task))
    config = tmp_path / "job.properties"
    config.write_text("".join(f"{key}={text}\n" for key, text in job_settings(tmp_path).items()))
    return CommandLine(config, monkeypatch, capsys)


@pytest.mark.parametrize("form", ["json", "csv", "arrow", "parquet"])
def test_a_store_in_plain_python_is_read_in_every_format(plain: CommandLine, form: str) -> None:
    path = plain.config.with_name(f"rows.{form}")
    done = plain(f"state read counts --format {form} --output {path}")
    assert (done.status, done.out, done.err) == (0, "", "")
    rows = [(b"key-%d" % n, b"%d" % n, task) for task in (TASK, "totals") for n in (1, 2, 3)]
    as_text = [[key.hex(), value.hex(), task] for key, value, task in rows]
    match form:
        case "json":
            assert [list(row.values()) for row in json.loads(path.read_text())] == as_text
        case "csv":
            with path.open(newline="") as file:
                assert list(csv.reader(file)) == [["key", "value", "task"], *as_text]
        case "arrow":
            read = pa.ipc.open_stream(path.read_bytes()).read_all().to_pylist()
            assert [tuple(row.values()) for row in read] == rows
        case _:
            assert [tuple(row.values()) for row in pq.read_table(path).to_pylist()] == rows


def test_one_key_of_a_store_in_plain_python_is_shown(plain: CommandLine) -> None:
    key = b"key-2".hex()
    shown = plain(f"state get counts {key} --task totals").out.splitlines()
    assert [line.split() for line in shown] == [["key", "value", "task"], [key, "32", "totals"]]
    row = {"key": key, "value": "32"}
    tasks = [row | {"task": TASK}, row | {"task": "totals"}]
    assert plain(f"state get counts {key} --json").json == tasks
    assert plain("state get counts 00").out == "no rows\n"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("state read cuonts", "did you mean 'counts'?"),
        ("state read counts --task total", "did you mean 'totals'?"),
        ("state get counts key-1", "bytes in hexadecimal"),
        ("state read counts --commit 3", "name one task"),
        ("state read --timers", "a job in plain Python has no timers"),
        ("state put counts 00 01 --reason test --yes", "let the program change its stores"),
        ("state delete counts 00 --reason test --yes", "let the program change its stores"),
    ],
)
def test_a_mistake_about_plain_python_is_an_error_with_a_remedy(
    plain: CommandLine, line: str, told: str
) -> None:
    done = plain(line)
    assert (done.status, done.out) == (2, "")
    assert told in " ".join(done.err.split())


def test_values_of_every_type_are_json_and_csv() -> None:
    noon = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    value = {
        "f": float("nan"),
        "x": b"\x00\xff",
        "d": Decimal("1.50"),
        "t": noon,
        "names": {"a": [1, None]},
        "numbers": [(1, "x")],
        "text": 'a,"b"',
    }
    schema = pa.schema(
        [
            (
                "value",
                pa.struct(
                    [
                        ("f", pa.float64()),
                        ("x", pa.binary()),
                        ("d", pa.decimal128(9, 2)),
                        ("t", pa.timestamp("us", "UTC")),
                        ("names", pa.map_(pa.string(), pa.list_(pa.int64()))),
                        ("numbers", pa.map_(pa.int64(), pa.string())),
                        ("text", pa.string()),
                    ]
                ),
            )
        ]
    )
    given = value | {"names": list(value["names"].items())}  # type: ignore[attr-defined]
    batch = pa.RecordBatch.from_pylist([{"value": given}, {"value": None}], schema)
    written = {}
    for form in ("json", "csv"):
        target = io.BytesIO()
        WRITERS[form](schema, iter([batch]), target)
        written[form] = target.getvalue().decode()
    expected = {
        "f": "nan",
        "x": "00ff",
        "d": "1.50",
        "t": "2026-01-31T12:00:00+00:00",
        "names": {"a": [1, None]},
        "numbers": [[1, "x"]],
        "text": 'a,"b"',
    }
    assert json.loads(written["json"]) == [{"value": expected}, {"value": None}]
    first, second, third = csv.reader(io.StringIO(written["csv"]))
    assert first == [f"value.{name}" for name in expected]
    assert second == [
        text if isinstance(text, str) else json.dumps(text) for text in expected.values()
    ]
    assert third == [""] * len(expected)


def test_the_table_of_the_program_is_that_of_the_command(
    statekeep: CommandLine, settings_file: Path
) -> None:
    rows = statekeep("state read count --json").json
    assert rows == sk.read_state(settings(settings_file.parent), "count").to_pylist()


def test_a_store_that_a_commit_lists_and_no_backend_holds_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the settings say of it: a job on Spark lists what it has to have again."""
    nowhere = {"stores.large.backup.factories": ""}
    asyncio.run(make_job(tmp_path, IN_STORES, **nowhere))
    config = tmp_path / "job.properties"
    lines = (f"{key}={text}\n" for key, text in (settings(tmp_path) | nowhere).items())
    config.write_text("".join(lines))
    result = CommandLine(config, monkeypatch, capsys)("verify --json")
    assert [row["is-damaged"] for row in result.json] == [True] * TASKS
    assert "no backend holds a store that the commit lists: stores=large" in result.json[0]["error"]
    assert result.status == 3
