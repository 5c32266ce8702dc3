"""What a driver finds of a rescaled job: its log, its identity, the state of every new task."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from driver_kit import Driver
from spark_job_kit import BATCH, CONTENT, IN_STORES, KEY, make_job, settings, task_of
from typer.testing import CliRunner

from statekeep.cli.app import app
from statekeep.config.load import load_dict
from statekeep.errors import CheckpointLocationError
from statekeep.spark.driver.takeover import new_identity, resolved_identity
from statekeep.spark.placement import ROUTER
from statekeep.spark.state_reader import read_state


class FakeLocation:
    """A checkpoint location whose query has ended ``BATCH``."""

    uri = "file:///checkpoint"

    def __init__(self, query_id: str, newest: int = BATCH) -> None:
        self._query_id = query_id
        self._newest = newest

    def newest(self, log: str) -> int:
        assert log == "commits"
        return self._newest

    def query_id(self) -> str:
        return self._query_id

    def check_newest(self) -> None:
        pass

    def names(self, directory: str) -> list[str]:
        assert directory == "state"  # of no operator of Spark's own
        return []


def open_driver(directory: Path, name: str, *, newest: int = BATCH) -> Driver:
    return Driver(load_dict(settings(directory, name)), FakeLocation("q", newest))


def rescale(directory: Path, partitions: int) -> Any:
    options = [part for k, v in settings(directory).items() for part in ("--set", f"{k}={v}")]
    line = ["rescale", "--partitions", str(partitions), "--as", "rescaled", *options]
    return CliRunner().invoke(app, line, catch_exceptions=False)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    asyncio.run(make_job(tmp_path))
    return tmp_path


@pytest.mark.parametrize("partitions", [1, 3, 7])
def test_every_key_is_in_the_task_to_which_spark_will_route_it(job: Path, partitions: int) -> None:
    assert rescale(job, partitions).exit_code == 0
    found = read_state(settings(job, "rescaled"), "count").to_pylist()
    assert {row["key"]["user"]: row["value"]["n"] for row in found} == CONTENT
    assert len(found) == len(CONTENT)
    for row in found:
        assert row["partition_id"] == task_of(row["key"]["user"], partitions)
    before = read_state(settings(job), "count").to_pylist()
    assert {row["key"]["user"]: row["value"]["n"] for row in before} == CONTENT


def test_every_store_is_rescaled(tmp_path: Path) -> None:
    asyncio.run(make_job(tmp_path, IN_STORES))
    assert rescale(tmp_path, 3).exit_code == 0
    for variable in IN_STORES.values():
        found = read_state(settings(tmp_path, "rescaled"), variable).to_pylist()
        assert {row["key"]["user"]: row["value"]["n"] for row in found} == CONTENT
        assert all(row["partition_id"] == task_of(row["key"]["user"], 3) for row in found)


def test_a_driver_takes_the_rescaled_job_for_its_own(job: Path) -> None:
    rescale(job, 3)
    driver = open_driver(job, "rescaled")
    try:
        commit = driver.open(3)
        config = load_dict(settings(job, "rescaled"))
        expected = new_identity(config, 3, ROUTER, KEY.simpleString())
        assert resolved_identity(commit, expected).partitions == 3
        driver.check_location()
        assert driver.view.last_commit is not None
        assert (driver.view.last_commit.batch, len(driver.view.last_commit.versions)) == (BATCH, 3)
        assert not driver.view.batches
        assert not driver.view.open_attempts
    finally:
        driver.close()


def test_a_location_that_has_gone_on_meanwhile_is_refused(job: Path) -> None:
    rescale(job, 3)
    driver = open_driver(job, "rescaled", newest=BATCH + 1)
    try:
        driver.open(3)
        with pytest.raises(CheckpointLocationError, match="are of different times"):
            driver.check_location()
    finally:
        driver.close()
