"""Eight drivers that start one job at once: one of them goes on, and nothing is harmed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Rows, Stream, state_of
from driver_processes import Driver, deliveries
from spark_processes import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(400)]

DRIVERS = 8


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[list[Driver]]:
    (tmp_path / "delivered").mkdir()
    started = [Driver(tmp_path, number) for number in range(DRIVERS)]
    yield started
    for driver in started:
        driver.close()


def test_of_eight_drivers_that_start_at_once_one_goes_on_and_the_others_are_fenced(
    tmp_path: Path, drivers: list[Driver]
) -> None:
    stream = Stream(None, tmp_path)  # type: ignore[arg-type]  # its files only
    stream.add_batches(3)
    assert [driver.hear() for driver in drivers] == ["ready"] * DRIVERS
    for driver in drivers:
        driver.tell()
    assert wait_until(lambda: sum(driver.has_ended() for driver in drivers) == DRIVERS - 1, 200)
    stream.add_batches(2)
    is_committed = wait_until((stream.location / "commits" / "4").exists, 200)
    assert is_committed, [driver.hear() for driver in drivers if driver.has_ended()]
    (winner,) = [driver for driver in drivers if not driver.has_ended()]
    losers = [driver for driver in drivers if driver is not winner]
    winner.tell()

    assert winner.hear() == "[]"
    for errors in [json.loads(driver.hear()) for driver in losers]:
        assert any(error.startswith("TaskFencedError") for error in errors), errors
    delivered = deliveries(tmp_path)
    assert sorted(delivered) == [0, 1, 2, 3, 4]
    state: Rows = {}
    for batch, versions in sorted(delivered.items()):
        # The batch in flight when a driver was replaced may be delivered by both, as Spark does.
        assert all(rows == versions[0] for rows in versions)
        state |= versions[0]
        assert state == stream.expected(batch + 1)
    settings = {
        "job.name": "counts",
        "stores.backup.factories": "blob",
        "blob.store.uri": f"{stream.location}-statekeep",
    }
    assert state_of(settings) == stream.expected(5)
