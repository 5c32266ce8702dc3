"""Executors with disks of their own: one is lost with its disk, another one joins."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import joining_driver
import pytest
import standby_driver
from conftest import Stream, state_of
from pyspark.sql import SparkSession
from standby_driver import BATCHES, COMMITS, KILLS

import statekeep as sk

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]


def said_by(program: str, root: Path, *given: str) -> dict[str, Any]:
    """Run a driver to its end; return what it said."""
    here = Path(__file__).parent
    python_path = os.pathsep.join(map(str, [here / "disks", here, Path(sk.__file__).parents[1]]))
    log = root / "driver.log"
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": python_path,
        "LOGGED_STORE_BASE_DIR": str(root / "driver"),
    }
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [sys.executable, program, str(root), *given],
            cwd=here,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        ) as driver,
    ):
        try:
            answer, _ = driver.communicate(timeout=250)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
    assert driver.returncode == 0, log.read_text()[-6000:]
    said: dict[str, Any] = json.loads(answer)
    return said


@pytest.mark.parametrize("copies", [2, 1], ids=["with-copies", "without"])
def test_tasks_of_a_lost_disk_go_on_from_their_copies(tmp_path: Path, copies: int) -> None:
    no_session: SparkSession | None = None
    stream = Stream(no_session, tmp_path)  # type: ignore[arg-type] # only its files are needed
    stream.add_batches(BATCHES)
    said = said_by(standby_driver.__file__, tmp_path, str(copies))
    assert said["delivered"] == list(range(BATCHES))
    expected = stream.expected(BATCHES)
    assert said["received"] == {key: list(row) for key, row in expected.items()}
    settings = {"stores.backup.factories": "blob", "blob.store.uri": said["uri"]}
    assert state_of(settings) == expected
    assert len(said["lost"]) == 2
    assert said["reasons"] == ["loss"]
    assert said["replayed"] == list(range(COMMITS + 1, KILLS + 1))
    if copies == 2:
        assert (said["reads"], said["restored"]) == (0, [])
        # The driver never learns what the sidecar of the lost executor had made.
        assert sum(found["tasks"] for found in said["copies"]) >= 4
        assert not any(found["failures"] for found in said["copies"])
    else:
        assert said["reads"] > 0
        assert said["restored"] == said["lost"]


def test_no_batch_waits_for_the_state_of_tasks_that_move(tmp_path: Path) -> None:
    no_session: SparkSession | None = None
    stream = Stream(no_session, tmp_path)  # type: ignore[arg-type] # only its files are needed
    stream.add_batches(joining_driver.BATCHES)
    said = said_by(joining_driver.__file__, tmp_path)
    assert said["delivered"] == list(range(joining_driver.BATCHES))
    expected = stream.expected(joining_driver.BATCHES)
    assert said["received"] == {key: list(row) for key, row in expected.items()}
    settings = {"stores.backup.factories": "blob", "blob.store.uri": said["uri"]}
    assert state_of(settings) == expected
    # While nothing could be fetched, batches were delivered; and what was fetched then was enough.
    assert len(said["meanwhile"]) == joining_driver.MEANWHILE
    half = standby_driver.TASKS // 2
    executors = said["executors"]
    assert list(executors[str(joining_driver.JOINED)].values()) == [2 * half]
    assert sorted(executors[str(joining_driver.BATCHES - 1)].values()) == [half, half]
    assert (said["moved"], said["restored"]) == ([half], [])
