"""A driver whose executors come and go by themselves: Spark's dynamic allocation.

``python elastic_driver.py ROOT`` runs the stream in ROOT. The sink of one batch waits until Spark has
given an idle executor away, that of a later one until Spark has taken one again for other work. It
says at the end what was delivered, and how many executors there were at each batch.
"""

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from conftest import Stream
from pyspark.sql import SparkSession
from spark_processes import wait_until

import statekeep as sk

MOST = 2
IDLE = "8s"
GIVES, TAKES = 1, 3
"""The batches whose sinks wait."""


def session() -> SparkSession:
    builder = sk.session_builder(f"local-cluster[{MOST},1,1024]")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "4",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.timeout": IDLE,
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.initialExecutors": str(MOST),
        "spark.dynamicAllocation.maxExecutors": str(MOST),
        "spark.dynamicAllocation.executorIdleTimeout": IDLE,
        # Unset, an executor that caches a part of the placement table is never released.
        "spark.dynamicAllocation.cachedExecutorIdleTimeout": IDLE,
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


class Cluster:
    """The executors of a session."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    def size(self) -> int:
        """Return how many there are."""
        return int(self._context._jsc.sc().getExecutorMemoryStatus().size()) - 1

    def wait_for(self, size: int) -> None:
        if not wait_until(lambda: self.size() == size, 120):
            raise TimeoutError(f"executors={self.size()} expected={size}")

    def wait_with_work_for(self, size: int, done: Path) -> None:
        """Wait for so many executors while more tasks are there than a single one can run."""

        def occupy(_rows: Iterator[int]) -> None:
            wait_until(done.exists, 120)

        work = self._context.parallelize(range(2 * size), 2 * size)
        working = threading.Thread(target=work.foreachPartition, args=[occupy])
        working.start()
        try:
            self.wait_for(size)
        finally:
            done.touch()
            working.join()


def main(root: Path) -> None:
    spark = session()
    cluster = Cluster(spark)
    cluster.wait_for(MOST)
    stream = Stream(spark, root, {"task.commit.ms": 200})
    sizes: dict[int, int] = {}

    def look(batch: int) -> None:
        # A sink is called again when its rows were on the executor that is gone.
        if batch in sizes:
            return
        if batch == GIVES:
            cluster.wait_for(1)
            sizes[batch] = 1
        elif batch == TAKES:
            cluster.wait_with_work_for(MOST, root / "done")
            sizes[batch] = MOST  # on a slow machine, one may have been idle for long by now
        else:
            sizes[batch] = cluster.size()

    stream.on_batch = look
    query = stream.run()
    committed = None if query.lastCommit is None else query.lastCommit.batch
    said = {
        "delivered": [batch for batch, _ in stream.delivered],
        "received": stream.received(),
        "executors": sizes,
        "committed": committed,
    }
    sys.stdout.write(json.dumps(said) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
