"""A query that is started with another ``task.count`` takes its state along."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from chained_processors import FIRST, SECOND, Counts, Totals
from conftest import Stream, events_of, state_of
from event_files import EventFiles
from processors import OfEveryKind
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from typer.testing import CliRunner

import statekeep as sk
from statekeep.cli.app import app

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(220)]

VARIABLES = ("count", "seen", "parity", "brief")


def settings_of(stream: Stream) -> dict[str, str]:
    return {
        "job.name": "counts",
        "stores.backup.factories": "blob",
        "blob.store.uri": f"{stream.location}-statekeep",
    }


def run_every_kind(stream: Stream, **settings: Any) -> sk.StatefulStreamingQuery:
    given = {"job.name": "counts", "job.logged.store.base.dir": str(stream.local_dir)}
    given |= {k.replace("__", "."): v for k, v in settings.items()}
    grouped = sk.grouped(stream.frame().groupBy("key"), given)
    output = grouped.transformWithState(OfEveryKind(), stream.output, "Append", "ProcessingTime")
    writer = output.writeStream.foreachBatch(stream.sink)
    writer = writer.option("checkpointLocation", str(stream.location))
    query: sk.StatefulStreamingQuery = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def every_variable(stream: Stream, commit: str | None = None) -> dict[str, list[str]]:
    """Return all that the tasks hold, but for the numbers of the tasks."""

    def rows(**what: Any) -> list[str]:
        table = sk.read_state(settings_of(stream), commit=commit, **what)
        return sorted(map(repr, table.drop_columns(["partition_id"]).to_pylist()))

    return {name: rows(variable=name) for name in VARIABLES} | {"timers": rows(timers=True)}


def tasks_of(stream: Stream, commit: str | None = None) -> int:
    """Return how many tasks have a key at a commit."""
    table = sk.read_state(settings_of(stream), "count", commit=commit)
    return len(set(table.column("partition_id").to_pylist()))


def kept_as(caplog: pytest.LogCaptureFixture) -> str:
    """Return the name under which the commit before is kept."""
    found = re.finditer(r"before-task-count-[0-9]+-commit-[0-9]+", caplog.text)
    (pin,) = {match[0] for match in found}
    return pin


def drop(stream: Stream, pin: str) -> None:
    given = [word for pair in settings_of(stream).items() for word in ("--set", "=".join(pair))]
    done = CliRunner().invoke(app, ["savepoint", "drop", pin, *given], catch_exceptions=False)
    assert done.exit_code == 0


def tasks_with_blobs(stream: Stream) -> set[str]:
    """Return the tasks of which the backend has something."""
    backups = Path(f"{stream.location}-statekeep").glob("counts/state-*/**/Partition_*/**/*")
    return {
        next(part for part in path.parts if part.startswith("Partition_"))
        for path in backups
        if path.is_file()
    }


@pytest.mark.long
def test_all_state_is_as_before_in_each_number_of_tasks(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "statekeep")
    stream.add_batches(2)
    run_every_kind(stream, task__count=4)
    kept: list[tuple[str, dict[str, list[str]], int]] = []
    for count in (7, 3):
        before, tasks = every_variable(stream), tasks_of(stream)
        caplog.clear()
        run_every_kind(stream, task__count=count)  # no new rows
        changed = f"the number of tasks has changed: job=counts before={tasks} now={count}"
        assert changed in caplog.text
        assert every_variable(stream) == before
        assert tasks_of(stream) == count
        kept.append((kept_as(caplog), before, tasks))
        stream.add_batches(2)
        run_every_kind(stream)  # keeps the number that it has, whatever Spark's own setting says
        assert tasks_of(stream) == count
    assert stream.received() == stream.expected(6) == state_of(settings_of(stream))
    batches = [batch for batch, _ in stream.delivered]
    assert batches == list(range(len(batches)))  # some have no rows, where only time has passed
    assert sum(bool(rows) for _, rows in stream.delivered) == 6
    for pin, before, tasks in kept:
        assert every_variable(stream, pin) == before
        assert tasks_of(stream, pin) == tasks

    # Once the savepoints are dropped, nothing stays of the tasks that are no more.
    assert {"Partition_3", "Partition_6"} <= tasks_with_blobs(stream)
    for pin, _, _ in kept:
        drop(stream, pin)
    stream.add_batches(3)
    run_every_kind(stream, task__commit__every__batch="true")
    assert tasks_with_blobs(stream) == {"Partition_0", "Partition_1", "Partition_2"}


class Chained:
    """Two operators with event-time timers."""

    def __call__(self, rows: DataFrame, group: Any) -> Any:
        first = group(rows.withWatermark("t", "3 seconds").groupBy("key")).transformWithState(
            Counts("EventTime"), FIRST, "Append", "EventTime", eventTimeColumnName="at"
        )
        halves = first.withColumn("half", (F.ascii("key") % 5).cast("long"))
        return group(halves.groupBy("half")).transformWithState(
            Totals("EventTime"), SECOND, "Append", "EventTime", eventTimeColumnName="at"
        )


@pytest.mark.long
def test_operators_and_their_timers_go_on_as_if_nothing_had_changed(
    stream: Stream, tmp_path: Path
) -> None:
    batches = [
        [(f"{chr(97 + (b * 7 + i) % 20)}", 10 * b + i % 9) for i in range(12)] for b in range(6)
    ]
    steady = EventFiles(stream.spark, tmp_path / "steady", Chained())
    steady.settings = {"task.count": 4}
    changing = EventFiles(stream.spark, tmp_path / "changing", Chained())
    for number, count in ((0, 4), (2, 7), (4, 3)):
        steady.run(*batches[number : number + 2])
        changing.settings = {"task.count": count}
        changing.run(*batches[number : number + 2])
    # Each run ends with a batch without rows, in which timers fire.
    assert changing.batches == steady.batches
    assert any("at" in what for rows in steady.batches.values() for *_, what in rows)


class StoppedError(Exception):
    """What the sink raises to break a query off."""


def test_what_is_not_committed_is_replayed_in_the_tasks_of_before(stream: Stream) -> None:
    def break_off(batch: int) -> None:
        if batch == 2:
            raise StoppedError

    stream.add_batches(4)
    stream.on_batch = break_off
    with pytest.raises(StreamingQueryException):
        stream.run(task__count=4, task__commit__ms=3_600_000)
    stream.on_batch = lambda batch: None
    query = stream.run(task__count=3)
    assert stream.received() == stream.expected(4) == state_of(settings_of(stream))
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3]
    batches = [event["batch"] for event in events_of(query, "commit")]
    assert batches == [1, 3]
    assert tasks_of(stream) == 3


def test_a_driver_that_restarts_itself_keeps_the_new_number(stream: Stream) -> None:
    stream.add_batches(1)
    stream.run(task__count=4)
    stream.add_batches(3)
    failed: list[int] = []

    def fail_once(batch: int) -> None:
        if batch == 2 and not failed:
            failed.append(batch)
            raise OSError("once")

    stream.on_batch = fail_once
    stream.run(
        task__count=6, job__restart__strategy="fixed-delay", job__restart__backoff__initial__ms=1
    )
    assert failed == [2]
    assert stream.received() == stream.expected(4) == state_of(settings_of(stream))
    assert tasks_of(stream) == 6
