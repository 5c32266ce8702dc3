"""A job of `spark_job_kit` that gets another number of tasks, without Spark.

``python reshaping_kit.py DIRECTORY COUNT`` does it in a process of its own.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import pyarrow as pa
from driver_kit import Driver
from pyspark.sql import SparkSession
from spark_job_kit import BATCH, KEY, settings, task_of
from typing_extensions import override

from statekeep.checkpoint.log_view import LogView
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.spark.driver.reshaping import Reshaper
from statekeep.spark.driver.takeover import new_identity
from statekeep.spark.placement import ROUTER
from statekeep.spark.state_reader import read_state
from statekeep.spark.worker.reshaping import Made, Reshape, make_tasks, parse_made, split_tasks


class FakeLocation:
    """A checkpoint location whose query has ended ``BATCH``."""

    uri = "file:///checkpoint"

    def newest(self, log: str) -> int:
        assert log == "commits"
        return BATCH

    def query_id(self) -> str:
        return "q"

    def check_newest(self) -> None:
        pass

    def names(self, directory: str) -> list[str]:
        assert directory == "state"  # of no operator of Spark's own
        return []


class InProcess(Reshaper):
    """Does what Spark does between the two stages: brings the rows of each task together."""

    @override
    def _run_job(self, reshape: Reshape) -> list[Made]:
        indexes = pa.record_batch({"id": list(range(len(reshape.sources)))})
        rows = pa.Table.from_batches(list(split_tasks(iter([indexes]), reshape)))
        batches: Iterator[pa.RecordBatch] = iter(rows.sort_by("task").to_batches())
        return [
            parse_made(text)
            for batch in make_tasks(batches, reshape)
            for text in batch.column(0).to_pylist()
        ]

    @override
    async def _log_progress(self) -> None:
        """There is no Spark to ask."""


def reshape(directory: Path, partitions: int, **others: str) -> LogView:
    """Start the job with so many tasks, up to the first batch; return the log as it is then."""
    config = load_dict(settings(directory) | others)
    driver = Driver(config, FakeLocation())
    try:
        driver.open(partitions)
        expected = new_identity(config, partitions, ROUTER, KEY.simpleString())
        expected = msgspec.structs.replace(expected, stores=driver.view.stores)
        identity = driver.fence(expected)
        resumption = driver.take_over(identity)
        assert resumption is not None
        assert resumption.head == resumption.committed == BATCH
        if identity.partitions != partitions:
            reshaper(driver).run(partitions)
        return driver.view
    finally:
        driver.close()


def reshaper(driver: Driver) -> Reshaper:
    """Return what changes the number of tasks of a job that the driver owns."""
    return InProcess(
        spark=cast("SparkSession", None),
        thread=driver.thread,
        log=driver.log,
        config=driver.config,
        local_name="counts-test",
        operators=1,
        clock=SystemClock(),
    )


def content(
    directory: Path,
    partitions: int,
    commit: str | None = None,
    variable: str = "count",
    **others: str,
) -> dict[str, int]:
    """Return what the job holds; each key is in the task to which Spark routes it."""
    found: dict[str, int] = {}
    given = settings(directory) | others
    for row in read_state(given, variable, commit=commit).to_pylist():
        user = row["key"]["user"]
        assert user not in found
        assert row["partition_id"] == task_of(user, partitions)
        found[user] = row["value"]["n"]
    return found


def pin_of(view: LogView) -> str:
    """Return the name under which the commit before is kept."""
    (name,) = view.pins
    return name


if __name__ == "__main__":
    reshape(Path(sys.argv[1]), int(sys.argv[2]))
