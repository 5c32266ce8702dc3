"""Queries on Spark's own state stores, copied while they run, put back elsewhere, and gone on with."""

import shutil
from pathlib import Path

import pytest
from guarded_kit import FORMS, Guarded
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(280)]


@pytest.fixture(params=FORMS)
def guarded(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Guarded:
    return Guarded(spark, tmp_path, FORMS[request.param])


def test_a_query_goes_on_from_each_copy_as_if_nothing_had_happened(guarded: Guarded) -> None:
    location, whole = guarded.root / "location", guarded.root / "whole"
    guarded.add(2)
    guarded.start(location)
    first = guarded.copy(location)
    guarded.add(2)
    guarded.start(location)
    second = guarded.copy(location)
    assert [first["batch"], second["batch"]] == [1, 3]
    assert guarded.command(f"inspect {location} --deep")["newest-sound"] == 3
    shutil.rmtree(location)
    guarded.add(2)
    guarded.start(whole)
    # The newest one, and the one before, from which two more batches are processed again.
    for number, copy in ((3, ""), (1, str(first["commit"]))):
        new = guarded.root / f"new-{number}"
        assert guarded.restore(location, new, copy)["batch"] == number
        guarded.start(new)
        again = guarded.delivered[new]
        expected = {b: r for b, r in guarded.delivered[whole].items() if b > number}
        assert again == expected
        assert guarded.command(f"inspect {new} --deep")["damage"] == []
    # Maintenance of Spark's stores, which are loaded still, may write there; a restore would write this.
    assert not (location / "metadata").exists()


@pytest.mark.parametrize("guarded", ["hdfs", "rocksdb changelog, two operators"], indirect=True)
def test_each_copy_of_a_query_that_runs_is_one_batch_whole(guarded: Guarded) -> None:
    location, whole = guarded.root / "location", guarded.root / "whole"
    guarded.add(8)
    copied: dict[int, int] = {}

    def copy(batch: int) -> None:
        if batch in {2, 3, 5, 7}:  # while the batch is open
            made = guarded.copy(location)
            copied[made["batch"]] = made["commit"]

    guarded.start(location, copy)
    guarded.start(whole)
    assert sorted(copied) == [1, 2, 4, 6]
    new = guarded.root / "new"
    assert guarded.restore(location, new, str(copied[4]))["batch"] == 4
    guarded.start(new)
    assert guarded.delivered[new] == {b: r for b, r in guarded.delivered[whole].items() if b > 4}


@pytest.mark.parametrize("guarded", ["hdfs", "rocksdb"], indirect=True)
def test_spark_cannot_go_on_where_damage_is_found_and_can_after_the_copy(guarded: Guarded) -> None:
    location, new = guarded.root / "location", guarded.root / "new"
    guarded.add(3)
    guarded.start(location)
    assert guarded.copy(location)["batch"] == 2
    for lost in ("3.delta", "3.snapshot", "3.zip"):
        (location / "state/0/1" / lost).unlink(missing_ok=True)
    assert guarded.command(f"inspect {location}")["newest-sound"] == 1
    guarded.add(1)
    # In the session of these tests the stores are still in memory: another location has nothing to hide behind.
    moved = location.rename(guarded.root / "moved")
    with pytest.raises(StreamingQueryException):
        guarded.start(moved)
    guarded.restore(location, new)
    guarded.start(new)
    assert list(guarded.delivered[new]) == [3]
