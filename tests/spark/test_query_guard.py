"""`sk.guard`: copies of a native query's location, made by the program that runs it."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import Stream, conf
from guarded_kit import ALWAYS, FORMS, Guarded
from pages_kit import block
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from spark_processes import wait_until

import statekeep as sk
from statekeep.errors import CheckpointLocationError, ConfigError
from statekeep.spark import query_guard

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def guarded(spark: SparkSession, tmp_path: Path) -> Guarded:
    return Guarded(spark, tmp_path, FORMS["rocksdb"])


def ignore(batch: DataFrame, _: int) -> None:
    batch.collect()


@contextmanager
def running(guarded: Guarded, location: Path) -> Iterator[StreamingQuery]:
    """Run the query until the end of the block."""
    with conf(guarded.spark, {**ALWAYS, **guarded.form.settings}):
        query = guarded.writer(location, ignore).trigger(processingTime="200 milliseconds").start()
        try:
            yield query
        finally:
            query.stop()


def test_batches_are_copied_while_the_query_runs_and_its_last_one_after_its_end(
    guarded: Guarded,
) -> None:
    location, whole, new = (guarded.root / name for name in ("location", "whole", "new"))
    guarded.add(2)
    with running(guarded, location) as query:
        guard = sk.guard(query, guarded.copies)
        assert wait_until(lambda: batch_of(guard) == 1)
        guarded.add(1)
        assert wait_until(lambda: batch_of(guard) == 2)
        guarded.add(1)
        query.processAllAvailable()
    assert guard.awaitTermination(60)
    assert (batch_of(guard), guard.exception()) == (3, None)
    shutil.rmtree(location)
    guarded.add(1)
    guarded.start(whole)
    guarded.restore(location, new)
    guarded.start(new)
    assert guarded.delivered[new] == {4: guarded.delivered[whole][4]}


def batch_of(guard: sk.QueryGuard) -> int:
    return -1 if guard.lastCopy is None else guard.lastCopy.batch


def test_a_guard_that_is_stopped_copies_once_more_and_the_query_goes_on(guarded: Guarded) -> None:
    guarded.add(1)
    with running(guarded, guarded.root / "location") as query:
        guard = sk.guard(query, guarded.copies, every_s=3600)
        assert wait_until(lambda: batch_of(guard) == 0 or not guard.isActive)
        guarded.add(1)
        query.processAllAvailable()
        guard.stop()
        assert batch_of(guard) == 1
        assert not guard.isActive
        assert query.isActive
        guarded.add(1)
        query.processAllAvailable()
    assert batch_of(guard) == 1


def test_an_outage_of_the_copies_is_logged_once_and_harms_no_batch(
    guarded: Guarded, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    settings = {
        "blob.store.s3.endpoint": "http://127.0.0.1:1",
        "blob.store.s3.region": "r",
        "backends.blob.start.timeout.ms": "500",
    }
    guarded.add(1)
    with running(guarded, guarded.root / "location") as query:
        with caplog.at_level(logging.WARNING, "statekeep.spark.query_guard"):
            guard = sk.guard(query, "s3://bucket/copies", settings=settings)
        guarded.add(2)
        query.processAllAvailable()
        assert query.lastProgress is not None
        assert query.lastProgress["batchId"] == 2
        assert guard.isActive
        assert guard.exception() is None
    assert guard.awaitTermination(60)
    told = [r for r in caplog.records if "cannot be reached" in r.getMessage()]
    assert len(told) == 1
    assert batch_of(guard) == -1


def test_the_last_copy_is_given_up_after_a_while_also_where_nothing_was_ever_reached(
    guarded: Guarded, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setattr(query_guard, "_OPEN_S", 0.1)
    monkeypatch.setattr(query_guard, "_LAST_S", 0.1)
    settings = {
        "blob.store.s3.endpoint": "http://127.0.0.1:1",
        "blob.store.s3.region": "r",
        "blob.store.start.timeout.ms": "600000",
    }
    guarded.add(1)
    with running(guarded, guarded.root / "location") as query:
        guard = sk.guard(query, "s3://bucket/copies", settings=settings)
        query.processAllAvailable()
    with caplog.at_level(logging.WARNING, "statekeep.spark.query_guard"):
        assert guard.awaitTermination(30)
    assert "the last copy takes too long" in caplog.text
    assert guard.exception() is None


def test_the_copies_of_another_query_are_left_alone(guarded: Guarded) -> None:
    guarded.add(1)
    for name in ("first", "second"):
        with running(guarded, guarded.root / name) as query:
            query.processAllAvailable()
            if name == "first":
                sk.guard(query, guarded.copies, job_name="copies").stop()
                continue
            with pytest.raises(CheckpointLocationError, match="of another query"):
                sk.guard(query, guarded.copies, job_name="copies")
            assert query.isActive


def test_what_cannot_be_guarded_is_refused(
    guarded: Guarded, stream: Stream, tmp_path: Path
) -> None:
    stream.add_batches(1)
    own: Any = stream.start()
    with pytest.raises(ConfigError, match="backed up by statekeep already"):
        sk.guard(own, guarded.copies)
    own.awaitTermination()
    frame = guarded.spark.readStream.format("rate").load()
    query = frame.writeStream.format("noop").start()
    try:
        with pytest.raises(ConfigError, match="temporary checkpoint location"):
            sk.guard(query, guarded.copies)
        with pytest.raises(ConfigError, match="every_s"):
            sk.guard(query, guarded.copies, every_s=-1)
    finally:
        query.stop()
    guarded.add(1)
    with running(guarded, guarded.root / "location") as query:
        with pytest.raises(ConfigError, match="unknown setting"):
            sk.guard(query, guarded.copies, settings={"checkpoint.retain.comits": "3"})
        occupied = tmp_path / "occupied"
        occupied.write_text("a file")
        with pytest.raises(ConfigError):
            sk.guard(query, (occupied / "copies").as_uri())
        assert query.isActive


def test_the_program_of_the_page_runs_as_printed(guarded: Guarded) -> None:
    location = guarded.root / "totals"
    program = block("docs/how-to/guard.md", "Copy", "python")
    program = program.replace("/mnt/checkpoints/totals", str(location))
    guarded.add(1)
    with conf(guarded.spark, {**ALWAYS, **guarded.form.settings}):
        names: dict[str, Any] = {"sk": sk, "totals": guarded.frame(), "write": ignore}
        exec(program.replace("file:///mnt/copies", guarded.copies), names)  # noqa: S102 - that of the page
        names["query"].processAllAvailable()
        names["query"].stop()
    assert names["guard"].awaitTermination(60)
    assert batch_of(names["guard"]) == 0
