"""A task whose newest backup is damaged everywhere starts from an older commit, alone (R11)."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import PARTITIONS, Stream, events_of, lose_directory, state_of
from typer.testing import CliRunner

from statekeep.cli.app import app

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]

TASK = "Partition 1"


def newest_markers(stream: Stream) -> dict[str, Any]:
    """Return the markers of the task in the current commit."""
    given = {"job.name": "counts", **stream.settings}
    options = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    result = CliRunner().invoke(app, ["checkpoints", "show", "--json", *options])
    markers: dict[str, Any] = json.loads(result.stdout)["tasks"][TASK]["markers"]
    return markers


def damage(place: Path, marker: str) -> None:
    """Overwrite the index that a marker names."""
    (index,) = place.rglob(marker.rpartition("/")[2])
    index.write_bytes(b"damaged")


def test_only_the_task_without_a_good_backup_goes_back_and_catches_up(stream: Stream) -> None:
    stream.settings = {
        "stores.backup.factories": "near,far",
        "backends.near.factory": "blob",
        "backends.near.uri": (stream.root / "near").as_uri(),
        "backends.far.factory": "blob",
        "backends.far.uri": (stream.root / "far").as_uri(),
        "task.commit.every.batch": "true",
    }
    stream.add_batches(4)
    stream.run()
    markers = newest_markers(stream)
    for backend in ("near", "far"):
        damage(stream.root / backend, markers[backend]["state"])
    lose_directory(stream.local_dir)

    stream.add_batches(2)
    query = stream.run()
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3, 4, 5]
    assert stream.received() == stream.expected(6)
    assert state_of(stream.settings) == stream.expected(6)

    (recovery,) = events_of(query, "recovery")
    assert len(recovery["restored"]) == PARTITIONS
    assert recovery["replayed"] == [3]
    assert {failure.partition(":")[0].rpartition(" ")[0] for failure in recovery["failures"]} == {
        TASK
    }
