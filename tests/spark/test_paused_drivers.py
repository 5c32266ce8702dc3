"""A driver that is stopped for a while, and goes on after its successor has delivered more."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import racing_driver
from conftest import Rows, Stream
from driver_processes import Driver, deliveries
from spark_processes import wait_until

from statekeep.fault_points import HANDLER_VARIABLE

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]

OLD, NEW = 0, 1


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int], Driver]]:
    (tmp_path / "delivered").mkdir()
    started: list[Driver] = []

    def start_driver(number: int) -> Driver:
        environment = {
            HANDLER_VARIABLE: "racing_driver:pause",
            racing_driver.LOCAL_DIR_VARIABLE: f"local-{number}",
        }
        driver = Driver(tmp_path, number, **environment)
        started.append(driver)
        assert driver.hear() == "ready"
        driver.tell()
        return driver

    yield start_driver
    for driver in started:
        driver.close()


def delivered_by(root: Path, number: int) -> list[int]:
    """Return the batches that a driver has delivered."""
    names = sorted(path.name.split("-") for path in (root / "delivered").iterdir())
    return [int(batch) for batch, _, who in names if int(who) == number]


def table_of(root: Path) -> Rows:
    """Return what a table holds that takes each row as it comes."""
    table: Rows = {}
    for path in sorted((root / "delivered").iterdir(), key=lambda path: path.name.split("-")[1]):
        table |= {key: (n, s) for key, (n, s) in json.loads(path.read_text()).items()}
    return table


def pause_at(stream: Stream, point: str) -> Callable[[], bool]:
    """Have the driver stop itself in the next batch; return whether it has."""
    order = stream.root / "pause"
    order.write_text(point)
    stream.add_batches(1)
    return order.with_name("paused").exists


def test_a_driver_that_was_stopped_before_its_sink_delivers_nothing_after_its_successor(
    tmp_path: Path, start: Callable[[int], Driver]
) -> None:
    stream = Stream(None, tmp_path)  # type: ignore[arg-type]  # its files only
    stream.add_batches(2)
    old = start(OLD)
    assert wait_until((stream.location / "commits" / "1").exists, 60)
    assert wait_until(pause_at(stream, "sink.before"), 60)

    new = start(NEW)
    stream.add_batches(2)
    assert wait_until((stream.location / "commits" / "4").exists, 100)
    old.resume()

    assert any(error.startswith("TaskFencedError") for error in json.loads(old.hear()))
    new.tell()
    assert new.hear() == "[]"
    assert delivered_by(tmp_path, OLD) == [0, 1]
    assert delivered_by(tmp_path, NEW) == [2, 3, 4]
    assert table_of(tmp_path) == stream.expected(5)


def test_a_driver_whose_predecessor_ends_its_batch_in_the_checkpoint_location_goes_on(
    tmp_path: Path, start: Callable[[int], Driver]
) -> None:
    stream = Stream(None, tmp_path)  # type: ignore[arg-type]  # its files only
    stream.add_batches(2)
    old = start(OLD)
    assert wait_until((stream.location / "commits" / "1").exists, 60)
    assert wait_until(pause_at(stream, "sink.after"), 60)

    hold = tmp_path / f"hold-{NEW}"
    hold.touch()
    new = start(NEW)
    assert wait_until(lambda: delivered_by(tmp_path, NEW) == [2], 100)
    old.resume()
    assert wait_until((stream.location / "commits" / "2").exists, 60)  # and it was not NEW
    hold.unlink()
    assert any(error.startswith("TaskFencedError") for error in json.loads(old.hear()))
    stream.add_batches(2)
    assert wait_until((stream.location / "commits" / "4").exists, 60), new.hear()

    new.tell()
    assert new.hear() == "[]"
    assert delivered_by(tmp_path, OLD) == [0, 1, 2]
    assert set(delivered_by(tmp_path, NEW)) == {2, 3, 4}
    assert all(len({str(rows) for rows in twice}) == 1 for twice in deliveries(tmp_path).values())
    assert table_of(tmp_path) == stream.expected(5)
