"""An upsert that an older driver cannot make after a newer one."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame

from statekeep.errors import ConfigError, TaskFencedError
from statekeep.spark.batch_token import BatchToken, current_batch, delivering
from statekeep.spark.fenced_sinks import FENCE_TABLE, fence_transaction, upsert_sink

OLD, NEW = 3, 4


class FakeFrame:
    """The output of a batch."""

    columns = ("key", "n", 'a "sum"')

    def __init__(self, *rows: tuple[str, int, int], error: Exception | None = None) -> None:
        self._rows = rows
        self._error = error

    def toLocalIterator(self) -> Iterator[tuple[str, int, int]]:  # noqa: N802 - Spark's name
        yield from self._rows
        if self._error is not None:
            raise self._error


class Table:
    """A table in SQLite, and the drivers that write to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with sqlite3.connect(path) as connection:
            connection.execute(FENCE_TABLE)
            connection.execute('CREATE TABLE counts (key TEXT PRIMARY KEY, n INT, "a ""sum""" INT)')
        connection.close()

    def connect(self, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = sqlite3.connect(self._path, timeout=0.1, **options)
        return connection

    def deliver(
        self,
        frame: FakeFrame,
        *,
        epoch: int,
        batch: int,
        job: str = "j",
        connect: Callable[[], Any] | None = None,
        keys: Sequence[str] = ("key",),
    ) -> None:
        write = upsert_sink(connect or self.connect, "counts", keys)
        with delivering(BatchToken(job, "q", epoch, batch)):
            write(cast("DataFrame", frame), batch)

    def rows(self) -> list[tuple[str, int, int]]:
        connection = self.connect()
        found = connection.execute("SELECT * FROM counts ORDER BY key").fetchall()
        connection.close()
        return found


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "counts.db")


def test_rows_are_inserted_and_then_updated_by_their_key(table: Table) -> None:
    table.deliver(FakeFrame(("a", 1, 5), ("b", 1, 7)), epoch=OLD, batch=0)
    table.deliver(FakeFrame(("b", 2, 9), ("c", 1, 1)), epoch=OLD, batch=1)
    assert table.rows() == [("a", 1, 5), ("b", 2, 9), ("c", 1, 1)]


def test_an_old_driver_that_wakes_after_its_successor_changes_nothing(table: Table) -> None:
    table.deliver(FakeFrame(("a", 4, 6)), epoch=OLD, batch=1)
    table.deliver(FakeFrame(("a", 8, 30)), epoch=NEW, batch=2)
    table.deliver(FakeFrame(("a", 10, 45)), epoch=NEW, batch=3)
    with pytest.raises(TaskFencedError, match="batch=2 its_batch=3: own_epoch=3 newer_epoch=4"):
        table.deliver(FakeFrame(("a", 8, 30), ("new", 1, 1)), epoch=OLD, batch=2)
    assert table.rows() == [("a", 10, 45)]


def test_the_batch_in_flight_is_written_again_by_the_next_driver(table: Table) -> None:
    for epoch in (OLD, OLD, NEW):
        table.deliver(FakeFrame(("a", 1, 5)), epoch=epoch, batch=7)
    assert table.rows() == [("a", 1, 5)]


def test_batches_of_a_new_query_begin_at_0_under_a_newer_epoch(table: Table) -> None:
    table.deliver(FakeFrame(("a", 1, 5)), epoch=OLD, batch=812)
    table.deliver(FakeFrame(("a", 2, 6)), epoch=NEW, batch=0)
    assert table.rows() == [("a", 2, 6)]


def test_jobs_do_not_fence_each_other(table: Table) -> None:
    table.deliver(FakeFrame(("a", 1, 5)), epoch=NEW, batch=3, job="another")
    table.deliver(FakeFrame(("b", 1, 5)), epoch=OLD, batch=1)
    assert [key for key, _, _ in table.rows()] == ["a", "b"]


def test_a_batch_that_fails_half_way_leaves_nothing_and_fences_no_driver(table: Table) -> None:
    rows = [(f"key-{number:04d}", 1, number) for number in range(1_500)]
    with pytest.raises(ConnectionError):
        table.deliver(FakeFrame(*rows, error=ConnectionError("lost")), epoch=NEW, batch=2)
    assert table.rows() == []
    table.deliver(FakeFrame(*rows), epoch=OLD, batch=1)
    assert table.rows() == rows


def test_a_driver_waits_for_the_transaction_of_an_older_one(table: Table) -> None:
    paused = table.connect()
    fence_transaction(paused, BatchToken("j", "q", OLD, 1))
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        table.deliver(FakeFrame(("a", 1, 5)), epoch=NEW, batch=1)
    paused.rollback()
    paused.close()
    table.deliver(FakeFrame(("a", 1, 5)), epoch=NEW, batch=1)
    assert table.rows() == [("a", 1, 5)]


def test_a_connection_without_transactions_is_refused(table: Table) -> None:
    def connect() -> sqlite3.Connection:
        return table.connect(isolation_level=None)

    with pytest.raises(ConfigError, match="commits each statement"):
        table.deliver(FakeFrame(("a", 1, 5)), epoch=OLD, batch=1, connect=connect)
    assert table.rows() == []


@pytest.mark.parametrize("keys", [[], ["id"]], ids=["none", "another"])
def test_keys_that_the_output_does_not_have_are_refused(table: Table, keys: list[str]) -> None:
    with pytest.raises(ConfigError, match="columns to upsert by"):
        table.deliver(FakeFrame(("a", 1, 5)), epoch=OLD, batch=1, keys=keys)


def test_a_table_of_keys_alone_takes_each_once(table: Table) -> None:
    keys = FakeFrame.columns
    with table.connect() as connection:
        connection.execute('CREATE UNIQUE INDEX whole ON counts (key, n, "a ""sum""")')
    connection.close()
    for batch in range(2):
        table.deliver(FakeFrame(("a", 1, 5)), epoch=OLD, batch=batch, keys=keys)
    assert table.rows() == [("a", 1, 5)]


def test_outside_of_a_sink_there_is_no_batch() -> None:
    with delivering(BatchToken("j", "q", 1, 0)):
        assert current_batch().batch == 0
    with pytest.raises(RuntimeError, match="inside foreachBatch"):
        current_batch()
