"""A backend that answers nothing for longer than a query waits: optional, and required."""

import pytest
from conftest import Stream, events_of, lose_directory
from outage_manager import away
from pyspark.errors import StreamingQueryException
from spark_processes import wait_until
from typer.testing import CliRunner

from statekeep.cli.app import app
from statekeep.errors import RetriableError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def job(stream: Stream) -> Stream:
    """A stream that is backed up to two places, of which ``far`` may be away."""
    stream.settings = {
        "stores.backup.factories": "near,far",
        "backends.near.factory": "blob",
        "backends.near.uri": (stream.root / "near").as_uri(),
        "backends.far.factory": "blob",
        "backends.far.uri": (stream.root / "far").as_uri(),
        "backends.far.manager.factory": "outage_manager:make_manager",
        "job.log.backend": "near",
        "task.commit.every.batch": "true",
        "blob.store.start.timeout.ms": "500",
        "blob.store.retry.policy.max.retry.duration.millis": "500",
    }
    return stream


def verify(stream: Stream, backend: str) -> int:
    given = {"job.name": "counts", **stream.settings}
    options = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    return CliRunner().invoke(app, ["verify", "--backend", backend, *options]).exit_code


def check(stream: Stream, batches: int) -> None:
    """Compare what was delivered with a plain fold over the input."""
    assert [batch for batch, _ in stream.delivered] == list(range(batches))
    assert stream.received() == stream.expected(batches)


def test_an_optional_backend_that_is_away_is_left_out_and_comes_back_whole(job: Stream) -> None:
    optional = {"stores__backup__optional": "far"}
    job.add_batches(1)
    assert job.run(**optional).lastCommit is not None
    away(job.root / "far").touch()
    job.add_batches(4)
    last = job.run(**optional).lastCommit
    assert last is not None
    assert (last.batch, list(last.left_out)) == (4, ["far"])
    check(job, 5)

    away(job.root / "far").unlink()
    job.add_batches(2)
    last = job.run(**optional).lastCommit
    assert last is not None
    assert (last.batch, list(last.left_out)) == (6, [])
    assert verify(job, "far") == 0

    lose_directory(job.local_dir)
    job.add_batches(1)
    job.run(stores__restore__factories="far,near")
    check(job, 8)


def test_a_required_backend_that_is_away_ends_the_query_which_then_goes_on_exactly(
    job: Stream,
) -> None:
    job.settings |= {"task.commit.every.batch": "false", "task.commit.ms": "1"}

    def go_away(batch: int) -> None:
        if batch == 2:
            assert wait_until(lambda: query.lastCommit is not None)
            away(job.root / "far").touch()
        if batch == 4:
            assert wait_until(lambda: bool(events_of(query, "void")))

    job.on_batch = go_away
    job.add_batches(8)
    query = job.start()
    with pytest.raises(StreamingQueryException, match="backend=far"):
        query.awaitTermination()
    assert len(job.delivered) < 8

    job.on_batch = lambda _: None
    with pytest.raises(RetriableError, match="the place is away"):  # it is not started without
        job.run()
    away(job.root / "far").unlink()
    job.run()
    check(job, 8)
    assert verify(job, "far") == 0
