"""Jobs on Spark that are migrated, saved or reset between two runs."""

import json
import shutil

import pytest
from conftest import Stream, lose_directory, state_of
from typer.testing import CliRunner

from statekeep.cli.app import app
from statekeep.errors import CheckpointLocationError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


def run_command(stream: Stream, *line: str, **settings: str) -> str:
    given = {"job.name": "counts", **stream.settings} | {
        key.replace("__", "."): value for key, value in settings.items()
    }
    options = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    result = CliRunner().invoke(app, [*line, *options], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


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


def test_a_migrated_job_goes_on_from_the_new_backend_alone(job: Stream) -> None:
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
    lose_directory(job.local_dir)
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


def test_the_history_of_a_stopped_job_has_its_commits_and_their_phases(job: Stream) -> None:
    found = json.loads(run_command(job, "report", "--json"))
    commits = [attempt for attempt in found["attempts"] if attempt["outcome"] == "committed"]
    assert commits[-1]["batch"] == found["newest_batch"] == 3
    for commit in commits:
        assert commit["phases"].keys() == {"pause", "wait", "upload", "record"}
        assert commit["phases"]["upload"] <= commit["elapsed_ms"]
        (figures,) = commit["uploads"].values()
        assert figures["bytes"] == commit["bytes_uploaded"] > 0
    assert commits[-1]["state_bytes"] > 0
    (session,) = found["sessions"]
    assert session["has_stopped"]
    assert sum(session["phases_ms"].values()) > 0
    page = job.root / "page.html"
    run_command(job, "report", str(page))
    assert "<h1>counts</h1>" in page.read_text(encoding="utf-8")
    assert "nothing is wrong by the records" in run_command(job, "doctor")
