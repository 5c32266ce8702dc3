"""Drivers that are killed in the middle of a delivery, and what should come of their stream."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import statekeep as sk
from statekeep.fault_points import HANDLER_VARIABLE

IN_THE_WRITE = "in the write"
AT_THE_COMMIT = "at the commit"
AFTER_THE_WRITE = "after the write"
MOMENTS = (IN_THE_WRITE, AFTER_THE_WRITE)

Deliveries = list[tuple[int, int]]
"""Each row that was delivered, of any batch."""

_TESTS = Path(__file__).parent
_DRIVER = _TESTS / "spark" / "sink_driver.py"
_IDS = 20
_BATCHES = 3


class KilledStream:
    """A stream of three batches, whose driver is killed in the second one.

    The first and the third batch make odd totals, the second one makes even ones.
    """

    def __init__(self, root: Path, **job: Any) -> None:
        """Write the input.

        Args:
            root: For all its files.
            **job: See `sink_driver`.
        """
        self.root = root
        self._job = json.dumps(job)
        (root / "in").mkdir()
        for batch in range(_BATCHES):
            table = pa.table({"id": range(_IDS), "v": [2 * i + 1 for i in range(_IDS)]})
            path = root / "in" / f"{batch:03d}.parquet"
            pq.write_table(table, path)
            os.utime(path, (1_700_000_000 + batch,) * 2)

    def run(self) -> int:
        """Run a driver until it ends; return its exit status."""
        folders = [_DRIVER.parent, _TESTS, Path(sk.__file__).parents[1]]
        with (self.root / "driver.log").open("ab") as log:
            driver = subprocess.Popen(
                [sys.executable, _DRIVER, self.root, self._job],
                env={
                    **os.environ,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYTHONPATH": os.pathsep.join(map(str, folders)),
                    HANDLER_VARIABLE: "sink_driver:after_the_sink",
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return driver.wait(200)
            finally:
                if driver.poll() is None:
                    os.killpg(driver.pid, signal.SIGKILL)
                    driver.wait()

    def kill(self, moment: str) -> None:
        """Run a driver that is killed at a moment of its second batch."""
        (self.root / "kill").write_text(moment)
        assert self.run() == -signal.SIGKILL, self.said()
        assert (self.root / "killed").exists()
        # The batch is not on Spark's record.
        assert {path.name for path in self._commits()} == {"0"}

    def recover(self) -> None:
        """Run a driver to the end of the input, and compare the state with it."""
        assert self.run() == 0, self.said()
        assert {path.name for path in self._commits()} == {"0", "1", "2"}
        settings = {
            "job.name": "totals",
            "blob.store.uri": f"file://{self.root}/checkpoint-statekeep",
        }
        rows = sk.read_state({**settings, "stores.backup.factories": "blob"}, "total").to_pylist()
        state = {row["key"]["id"]: row["value"]["total"] for row in rows}
        assert state == dict(self.expected(_BATCHES)[-_IDS:])

    def expected(self, batches: int) -> Deliveries:
        """Return the rows of so many batches, each once, in order."""
        return [(i, n * (2 * i + 1)) for n in range(1, batches + 1) for i in range(_IDS)]

    def said(self) -> str:
        """Return the end of what the drivers have logged."""
        return (self.root / "driver.log").read_text(errors="replace")[-6000:]

    def _commits(self) -> list[Path]:
        return [p for p in (self.root / "checkpoint" / "commits").iterdir() if p.name.isdigit()]


def batch_of(row: tuple[int, int]) -> int:
    """Return in which batch a row was put out."""
    return row[1] // (2 * row[0] + 1) - 1
