"""A query that is stopped in the middle of a batch ends without a word about it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import stopping_driver

import statekeep as sk

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(180)]


@pytest.mark.parametrize("where", ["sink", "processor"])
def test_a_stop_in_a_batch_overflows_no_stack_of_spark(tmp_path: Path, where: str) -> None:
    paths = [Path(__file__).parent, Path(sk.__file__).parents[1]]
    driver = subprocess.run(
        [sys.executable, stopping_driver.__file__, str(tmp_path), where],
        env={
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert driver.stdout.endswith("ended\n"), driver.stderr[-4000:]
    assert "StackOverflowError" not in driver.stderr
