"""A query on Spark that moves from a blob store to HDFS's files, step by step, as docs/how-to/move-state.md says."""

import shutil

import pytest
from conftest import Stream, lose_directory, state_of
from typer.testing import CliRunner

from statekeep.cli.app import app
from statekeep.errors import ConfigError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(400)]

BATCHES = 2
"""Of each step."""


def run_command(stream: Stream, *line: str) -> None:
    given = {"job.name": "counts", **stream.settings}
    options = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    result = CliRunner().invoke(app, [*line, *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output


class Migration:
    """A stream, the settings of its job, and what it has delivered so far."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.batches = 0

    def run(self, **settings: str) -> None:
        """Process the batches of a step with these settings and those of `places`."""
        self.stream.settings = {
            "stores.backup.factories": settings["backup"],
            "stores.restore.factories": settings.get("restore", settings["backup"]),
            "job.log.backend": settings["log"],
            **self._places(*settings["backup"].split(","), settings["log"]),
        }
        self.stream.add_batches(BATCHES)
        self.batches += BATCHES
        self.stream.run()
        self.check()

    def check(self) -> None:
        """Compare what was delivered and what is committed with a plain fold over the input."""
        assert [batch for batch, _ in self.stream.delivered] == list(range(self.batches))
        expected = self.stream.expected(self.batches)
        assert self.stream.received() == expected
        assert state_of(self.stream.settings) == expected

    def _places(self, *names: str) -> dict[str, str]:
        factories = {"old": "blob", "new": "hdfs"}
        return {
            f"backends.{name}.{key}": value
            for name in dict.fromkeys(names)
            for key, value in {
                "factory": factories[name],
                "uri": (self.stream.root / name).as_uri(),
            }.items()
        }


def test_a_query_moves_step_by_step_and_delivers_each_batch_once(stream: Stream) -> None:
    job = Migration(stream)
    job.run(backup="old", log="old")
    job.run(backup="old,new", log="old")
    run_command(stream, "verify", "--backend", "new")
    job.run(backup="old,new", restore="new,old", log="old")
    job.run(backup="new", log="old")
    job.run(backup="new", log="old")
    before = dict(stream.settings)
    run_command(stream, "migrate-log", "--to", "new", "--yes")

    job.run(backup="new", log="new")
    run_command(stream, "verify")
    now = stream.settings
    stream.settings = before
    with pytest.raises(ConfigError, match="the job log has moved: backend=new"):
        stream.run()
    stream.settings = now

    shutil.rmtree(stream.root / "old")
    lose_directory(stream.local_dir)
    job.run(backup="new", log="new")


@pytest.mark.parametrize("step", ["dual commit", "new one preferred", "old one dropped"])
def test_there_is_a_way_back_for_a_query(stream: Stream, step: str) -> None:
    job = Migration(stream)
    job.run(backup="old", log="old")
    job.run(backup="old,new", log="old")
    if step != "dual commit":
        job.run(backup="old,new", restore="new,old", log="old")
    if step == "old one dropped":
        job.run(backup="new", log="old")
        job.run(backup="old,new", restore="new,old", log="old")
    shutil.rmtree(stream.root / "new")
    lose_directory(stream.local_dir)
    job.run(backup="old", log="old")
