"""A query that runs is cloned: both go on, each with a sink of its own."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from conftest import Rows, Stream, state_of
from pyspark.sql import DataFrame

import statekeep as sk
from statekeep.checkpoint.log_view import LogView
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.inspection.job import open_job

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


class CloneOf:
    """The clone of a stream's query, with a sink of its own."""

    def __init__(self, stream: Stream, name: str) -> None:
        self.stream = stream
        self.name = name
        self.location = stream.root / f"checkpoint-of-{name}"
        self.delivered: list[tuple[int, Rows]] = []

    def make(self) -> sk.Clone:
        return sk.clone(
            {"job.name": "counts", **self.stream.settings},
            self.name,
            from_location=str(self.stream.location),
            to_location=str(self.location),
        )

    def sink(self, frame: DataFrame, batch: int) -> None:
        self.delivered.append((batch, {row.key: (row.n, row.s) for row in frame.collect()}))

    def start(self, **settings: str) -> Any:
        given = {key.replace("__", "."): text for key, text in settings.items()}
        writer = self.stream.stateful(settings={"job.name": self.name, **given}).writeStream
        writer = writer.foreachBatch(self.sink).option("checkpointLocation", str(self.location))
        return writer.trigger(availableNow=True).start()

    def state(self) -> Rows:
        return state_of({"job.name": self.name, **self.stream.settings})

    def files(self) -> list[Path]:
        """Return its own backups of state."""
        found = (self.stream.root / "backups" / self.name).glob("state-*/**/*")
        return [path for path in found if path.is_file()]

    def received(self) -> Rows:
        """Return the newest row of each key that its sink got."""
        state: Rows = {}
        for _, rows in self.delivered:
            state |= rows
        return state


def view_of(stream: Stream, name: str) -> LogView:
    async def read() -> LogView:
        config = load_dict({"job.name": name, **stream.settings})
        async with open_job(config, SystemClock()) as job:
            return job.view

    return asyncio.run(read())


def test_a_live_query_and_its_clone_go_on_each_for_itself(stream: Stream) -> None:
    stream.settings = {
        "stores.backup.factories": "blob",
        "blob.store.uri": (stream.root / "backups").as_uri(),
        "checkpoint.clean.up.ms": "0",
        "checkpoint.retain.commits": "2",
    }
    copy = CloneOf(stream, "copy")
    made: list[sk.Clone] = []
    stream.on_batch = lambda batch: made.append(copy.make()) if batch == 4 else None
    stream.add_batches(6)
    stream.run(task__commit__every__batch="true")
    (clone,) = made
    assert (clone.job, clone.origin, clone.batch) == ("copy", "counts", 3)
    assert copy.files() == []
    assert copy.state() == stream.expected(4)
    assert state_of({"job.name": "counts", **stream.settings}) == stream.expected(6)

    copy.start().awaitTermination()
    assert copy.delivered[0][0] == 4
    assert copy.state() == stream.expected(6)
    before = {key: row for key, row in stream.received().items() if key in copy.received()}
    assert copy.received() == before
    assert copy.files()

    stream.on_batch = lambda batch: None
    stream.add_batches(2)
    both = [stream.start(), copy.start(task__commit__every__batch="true")]
    for query in both:
        query.awaitTermination()
    for name in ("counts", "copy"):
        assert state_of({"job.name": name, **stream.settings}) == stream.expected(8)

    # All tasks of the clone have changed, and it retains no older commit: it has dropped the pin.
    assert view_of(stream, "counts").clones == {}
    stream.add_batches(1)
    copy.start().awaitTermination()
    newest = view_of(stream, "copy").last_commit
    assert newest is not None
    assert newest.identity.shares == []
    with pytest.raises(sk.ConfigError, match="the job is no clone, or uses nothing of another"):
        sk.promote_clone(stream.settings, "copy")

    third = CloneOf(stream, "third")
    assert third.make().batch == 7
    sk.promote_clone(stream.settings, "third")
    assert third.files()
    fourth = CloneOf(stream, "fourth")
    fourth.make()
    third.start().awaitTermination()
    assert third.state() == stream.expected(9)
    assert [batch for batch, _ in third.delivered] == [8]
    fourth.start().awaitTermination()
    assert fourth.files()
    sk.drop_clone(stream.settings, "fourth")
    assert fourth.files() == []
    stream.run()
    assert state_of({"job.name": "counts", **stream.settings}) == stream.expected(9)
