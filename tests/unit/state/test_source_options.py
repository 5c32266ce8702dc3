"""The options of the data source, and its reading of a plan, without a session."""

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cli_kit import commit_numbers, job_settings
from pyspark.sql.datasource import InputPartition
from spark_job_kit import CONTENT, TASKS, make_job, settings, task_of

from statekeep.errors import ConfigError
from statekeep.inspection.commit_choice import CommitChoice
from statekeep.spark.state.options import request_of
from statekeep.spark.state.source import StateSource

NAMED = {"job.name": "counts", "stateVarName": "count"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (CommitChoice(), None)),
        ({"batchId": "3"}, (CommitChoice(batch=3), None)),
        ({"BATCHID": "3"}, (CommitChoice(batch=3), None)),
        ({"commit": "v1"}, (CommitChoice("v1"), None)),
        ({"asOf": "1970-01-01T00:00:01Z"}, (CommitChoice(as_of_ms=1_000), None)),
        (
            {"readChangeFeed": "true", "changeStartCommit": "v1"},
            (CommitChoice(), CommitChoice("v1")),
        ),
        # As in Spark, the changes of the first batch are among them.
        (
            {"readChangeFeed": "true", "changeStartBatchId": "4", "changeEndBatchId": "6"},
            (CommitChoice(batch=6), CommitChoice(batch=3)),
        ),
    ],
)
def test_options_name_commits(options: dict[str, str], expected: Any) -> None:
    request = request_of(NAMED | options)
    assert (request.commit, request.since) == expected
    assert (request.variable, request.config.job.name) == ("count", "counts")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"stateVarNaem": "x"}, "did you mean 'stateVarName'"),
        ({"batchId": "-1"}, "batchId='-1' expected='a number of a batch'"),
        ({"batchId": "1", "commit": "v1"}, "named more than once"),
        ({"readRegisteredTimers": "yes"}, "readRegisteredTimers='yes' expected='true or false'"),
        ({"readRegisteredTimers": "true"}, "either a state variable or the timers"),
        ({"changeStartCommit": "v1"}, "set readChangeFeed to true"),
        ({"readChangeFeed": "true"}, "a change feed needs a start"),
        ({"changeEndBatchId": "1"}, "use batchId"),
        (
            {"readChangeFeed": "true", "changeStartCommit": "v1", "batchId": "1"},
            "use changeEndBatchId",
        ),
        ({"settings": "{secret"}, "the option is not JSON: option=settings"),
        ({"stores.wrong": "x"}, "stores.wrong"),
        ({"config": "nowhere.toml"}, "cannot read the settings: path=nowhere.toml"),
    ],
)
def test_a_wrong_option_is_an_error(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        request_of(NAMED | options)
    assert told in str(caught.value)
    assert "secret" not in str(caught.value)


def test_an_option_goes_over_json_and_that_over_a_file(tmp_path: Path) -> None:
    file = tmp_path / "job.properties"
    file.write_text("job.name=file\ntask.commit.ms=1\ntask.count=1\n")
    options = {
        "stateVarName": "count",
        "config": str(file),
        "settings": '{"task.commit.ms": 2, "task.count": 2, "backends.Near.factory": "blob"}',
        "task.count": "3",
    }
    config = request_of(options).config
    assert (config.job.name, config.task.commit_ms, config.task.count) == ("file", 2, 3)
    assert "backends.Near.factory" in config.settings


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The options of a job of four tasks with one commit."""
    directory = tmp_path_factory.mktemp("job")
    asyncio.run(make_job(directory))
    return settings(directory) | {"stateVarName": "count"}


def copied(sent: Any) -> Any:
    return pickle.loads(pickle.dumps(sent))  # noqa: S301 - as Spark sends it


def rows_of(options: dict[str, str]) -> tuple[int, dict[str, int]]:
    """Read as Spark does, which pickles between the steps; return partitions and content."""
    source = StateSource(options)
    schema = source.schema()
    reader = copied(source).reader(schema)
    partitions = reader.partitions()
    found: dict[str, int] = {}
    for partition in partitions:
        batches = copied(reader).read(copied(partition))
        for row in pa.Table.from_batches(list(batches)).to_pylist():
            assert row["partition_id"] == task_of(row["key"]["user"], TASKS)
            found[row["key"]["user"]] = row["value"]["n"]
    return len(partitions), found


def test_each_task_is_a_partition(job: dict[str, str]) -> None:
    assert rows_of(job) == (TASKS, CONTENT)


def test_each_task_of_a_job_in_plain_python_is_a_partition(tmp_path: Path) -> None:
    for task in ("Partition 0", "totals"):
        asyncio.run(commit_numbers(tmp_path, [1, 2], name=task))
    options = job_settings(tmp_path) | {"stateVarName": "counts"}
    for asked, names in (
        ({}, ["Partition 0", "totals"]),
        ({"task": "totals"}, ["totals"]),
        ({"key": b"key-2".hex()}, ["Partition 0", "totals"]),
    ):
        source = copied(StateSource(options | asked))
        reader = source.reader(source.schema())
        batches = [copied(reader).read(copied(part)) for part in reader.partitions()]
        read = [pa.Table.from_batches(list(found)).to_pylist() for found in batches]
        keys = [b"key-2"] if "key" in asked else [b"key-1", b"key-2"]
        assert read == [
            [{"key": key, "value": key[-1:], "task": name} for key in keys] for name in names
        ]


def test_one_key_is_one_partition(job: dict[str, str]) -> None:
    assert rows_of(job | {"key": "user-42"}) == (1, {"user-42": 42})


def test_a_frame_without_partitions_has_no_rows(job: dict[str, str]) -> None:
    source = StateSource(job | {"readChangeFeed": "true", "changeStartBatchId": "6"})
    reader = source.reader(source.schema())
    assert list(reader.partitions()) == []
    assert list(reader.read(InputPartition(None))) == []
