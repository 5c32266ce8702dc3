"""Spark gives an idle executor away, and takes one again: nothing of the state is lost or repeated."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import elastic_driver
import pytest
from conftest import Stream
from elastic_driver import GIVES, MOST, TAKES
from pyspark.sql import SparkSession
from spark_processes import await_end_of_sidecars

import statekeep as sk

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(500)]

BATCHES = 6


def said_by_driver(root: Path) -> dict[str, object]:
    """Run the driver to its end; return what it said."""
    here = Path(__file__).parent
    python_path = os.pathsep.join(map(str, [here, Path(sk.__file__).parents[1]]))
    log = root / "driver.log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [sys.executable, elastic_driver.__file__, str(root)],
            cwd=here,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": python_path},
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        ) as driver,
    ):
        try:
            answer, _ = driver.communicate(timeout=400)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
    assert driver.returncode == 0, log.read_text()[-4000:]
    said: dict[str, object] = json.loads(answer)
    return said


def test_executors_come_and_go_by_dynamic_allocation(tmp_path: Path) -> None:
    no_session: SparkSession | None = None
    stream = Stream(no_session, tmp_path)  # type: ignore[arg-type] # only its files are needed
    stream.add_batches(BATCHES)
    said = said_by_driver(tmp_path)
    assert said["delivered"] == list(range(BATCHES))
    assert said["received"] == {key: list(row) for key, row in stream.expected(BATCHES).items()}
    assert said["committed"] == BATCHES - 1
    executors = said["executors"]
    assert isinstance(executors, dict)
    assert (executors["0"], executors[str(GIVES)], executors[str(TAKES)]) == (MOST, 1, MOST)
    await_end_of_sidecars(stream.local_dir)
