"""Eight drivers that start one job at once: one of them goes on, and nothing is harmed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import racing_driver
from conftest import Rows, Stream
from spark_processes import wait_until

import statekeep.spark as sk

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(400)]

DRIVERS = 8


class Driver:
    """A driver process of the race."""

    def __init__(self, root: Path, number: int) -> None:
        self._log = (root / f"driver-{number}.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, racing_driver.__file__, str(root), str(number)],
            cwd=Path(__file__).parent,
            env={
                **os.environ,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYTHONPATH": str(Path(sk.__file__).parents[2]),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )

    def hear(self) -> str:
        """Return the next word of the driver; "" once it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def tell(self) -> None:
        """Let the driver start its query, or stop it."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        if not self.has_ended():
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._log.close()


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[list[Driver]]:
    (tmp_path / "delivered").mkdir()
    started = [Driver(tmp_path, number) for number in range(DRIVERS)]
    yield started
    for driver in started:
        driver.close()


def deliveries(root: Path) -> dict[int, list[Rows]]:
    """Return what was delivered of each batch, by whomever."""
    found: dict[int, list[Rows]] = {}
    for path in sorted((root / "delivered").iterdir()):
        rows = {key: (n, s) for key, (n, s) in json.loads(path.read_text()).items()}
        found.setdefault(int(path.name.split("-")[0]), []).append(rows)
    return found


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
    assert wait_until((stream.location / "commits" / "4").exists, 60)
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
    committed = {entry.key[0]: entry.value for entry in sk.read_state(settings, "count")}
    assert committed == stream.expected(5)
