"""Jobs on Spark that somebody has migrated, saved or reset between two runs."""

import shutil

import pytest
from conftest import Stream, state_of
from typer.testing import CliRunner

from statekeep.cli.app import app
from statekeep.errors import CheckpointLocationError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


def run_command(stream: Stream, *line: str, **settings: str) -> None:
    given = {"job.name": "counts", **stream.settings} | {
        key.replace("__", "."): value for key, value in settings.items()
    }
    options = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    result = CliRunner().invoke(app, [*line, *options], catch_exceptions=False)
    assert result.exit_code == 0


@pytest.fixture
def job(stream: Stream) -> Stream:
    """A job that has processed four batches and was stopped."""
    stream.settings = {
        "stores.backup.factories": "blob",
        "blob.store.uri": (stream.root / "backups").as_uri(),
    }
    stream.add_batches(4)
    stream.run()
    return stream


def test_a_migrated_job_goes_on_from_the_new_place_alone(job: Stream) -> None:
    third = {
        "backends.third.factory": "hdfs",
        "backends.third.uri": (job.root / "third").as_uri(),
    }
    run_command(
        job,
        *("migrate", "--to", "third", "--yes"),
        **{key.replace(".", "__"): value for key, value in third.items()},
    )
    job.settings |= third | {"stores.backup.factories": "third", "job.log.backend": "blob"}
    shutil.rmtree(job.local_dir)
    shutil.rmtree(next((job.root / "backups").rglob("state-*")))
    job.add_batches(3)
    job.run()
    assert [batch for batch, _ in job.delivered] == list(range(7))
    assert state_of(job.settings) == job.expected(7)


def test_a_savepoint_between_two_runs_changes_nothing_for_the_job(job: Stream) -> None:
    run_command(job, "savepoint", "create", "v1", "--yes")
    job.add_batches(3)
    job.run()
    assert [batch for batch, _ in job.delivered] == list(range(7))
    assert state_of(job.settings) == job.expected(7)
    run_command(job, "verify", "v1")


def test_a_reset_job_starts_anew_at_a_new_checkpoint_location_only(job: Stream) -> None:
    run_command(job, "reset", "--yes")
    left = (job.root / "backups").rglob("state-*/**/*")
    assert [path for path in left if path.is_file()] == []
    with pytest.raises(CheckpointLocationError, match="the job log has no commit"):
        job.run()
    shutil.rmtree(job.location)
    job.delivered.clear()
    job.run()
    assert [batch for batch, _ in job.delivered] == [0, 1, 2, 3]
    assert state_of(job.settings) == job.expected(4)
