"""``statekeep guard verify --load``: Spark itself opens all state of a copy."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark_locations_kit import FORMS, flip, unpack_location, without_hadoop
from typer.testing import CliRunner

from statekeep.cli.app import app
from statekeep.errors import CheckpointCorruptError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


ROWS = {
    "join-format-2": [3, 25, 3, 25],
    "transform-format-2": [3, 25],  # a value and a list of five items for each batch
}
"""Of each store, or each variable; the others have three keys in one store."""


def guard(line: str) -> Any:
    done = CliRunner().invoke(app, f"guard {line} --json", catch_exceptions=False)
    return json.loads(done.stdout)


@pytest.mark.parametrize("form", FORMS)
def test_spark_opens_each_store_of_a_copy(spark: SparkSession, tmp_path: Path, form: str) -> None:
    location = unpack_location(form, tmp_path)
    copies = (tmp_path / "copies").as_uri()
    guard(f"run {location} --once --to {copies}")
    shutil.rmtree(location)
    found = guard(f"verify {location} --from {copies} --load")
    assert [store["rows"] for store in found["loaded"]] == ROWS.get(form, [3])
    assert [one["damage"] for one in found["backends"]] == [None]
    assert not location.exists()


def test_what_no_checksum_shows_is_damage_that_spark_finds(
    spark: SparkSession, tmp_path: Path
) -> None:
    location = unpack_location("rocksdb-zip", tmp_path)
    without_hadoop(location)
    for file in location.rglob("*.sst"):
        flip(file)
    copies = (tmp_path / "copies").as_uri()
    guard(f"run {location} --once --to {copies}")
    found = guard(f"verify {location} --from {copies}")
    assert [one["damage"] for one in found["backends"]] == [None]
    with pytest.raises(CheckpointCorruptError, match=r"operator=0 .*block checksum mismatch"):
        guard(f"verify {location} --from {copies} --load")
