"""A driver that loses an executor with its disk: ``python standby_driver.py ROOT COPIES``.

It runs the stream in ROOT on three executors, each with a disk of its own. The sink of one batch waits
for the copies of the newest commit, where there are to be some, and kills an executor. It says at the
end what was delivered, and what the
tasks of that executor had to read from the backend before they could go on.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conftest import Stream
from processors import Count
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StatefulProcessor
from spark_processes import executors_of, wait_until
from traced_manager import restores_between
from typing_extensions import override

import statekeep as sk
from statekeep.clock import SystemClock

EXECUTORS = 3
TASKS = 6
COMMITS, KILLS = 3, 5
"""The batch that is committed, and the one whose sink kills: the batches in between are replayed."""
BATCHES = 8


def session(disks: Path, executors: int) -> SparkSession:
    builder = sk.session_builder(f"local-cluster[{executors},1,1024]")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": str(TASKS),
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
        "spark.executorEnv.DISKS": str(disks),
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


class OnDisks(Stream):
    """A stream whose executors have disks of their own."""

    @override
    def stateful(
        self, processor: StatefulProcessor | None = None, settings: Mapping[str, Any] | None = None
    ) -> Any:
        grouped = sk.grouped(
            self.frame().groupBy(self.key), {"job.name": "counts", **self.settings}
        )
        return grouped.transformWithState(processor or Count(), self.output, "Append", "None")


def hosts_of(disks: Path, task: int, version: str) -> set[str]:
    """Return the disks on which a version of a task lies."""
    found = disks.glob(f"*/*/main/Partition_{task}/{version}")
    return {path.relative_to(disks).parts[0] for path in found}


def main(root: Path, copies: int) -> None:
    disks = root / "disks"
    spark = session(disks, EXECUTORS)
    spark.sparkContext.setLogLevel("ERROR")
    stream = OnDisks(
        spark,
        root,
        {
            # No commit by time: one once there are so many batches without any.
            "task.commit.ms": 0,
            "task.replay.max.batches": COMMITS + 3,
            "job.standbytasks.replication.factor": copies,
            "stores.backup.factories": "blob",
            "blob.store.uri": f"file://{root}/blobs",
            "blob.store.manager.factory": "traced_manager.make_manager",
        },
    )
    query: list[sk.StatefulStreamingQuery] = []
    times: dict[str, int] = {}
    lost: list[int] = []

    def look(batch: int) -> None:
        if batch == KILLS + 1:
            times.setdefault("delivered", SystemClock().time_ns() // 1_000_000)
        if batch not in {COMMITS + 1, KILLS} or "killed" in times:
            return
        assert wait_until(lambda: bool(query))
        job = query[0]._job
        assert wait_until(lambda: job._owned.commits.committed_batch == COMMITS)
        if batch < KILLS:
            return
        versions = job._owned.batches.versions(COMMITS)
        assert wait_until(
            lambda: all(len(hosts_of(disks, *found)) == copies for found in versions.items()), 30
        )
        places = executors_of(job)
        victim = places[0]
        lost.extend(t for t, place in places.items() if place["executor"] == victim["executor"])
        times["killed"] = SystemClock().time_ns() // 1_000_000
        os.kill(int(victim["jvm_pid"]), signal.SIGKILL)
        shutil.rmtree(disks / str(victim["executor"]), ignore_errors=True)

    # The sink kills when it has its rows: they may come from the executor that is killed.
    deliver = stream.sink

    def sink(frame: object, batch: int) -> None:
        deliver(frame, batch)  # type: ignore[arg-type]
        look(batch)

    stream.sink = sink  # type: ignore[method-assign]
    query.append(stream.start())
    query[0].awaitTermination()
    recovered = [e for e in query[0].events if e.kind == "recovery"]
    recoveries = [e.details for e in recovered]
    said = {
        "delivered": [batch for batch, _ in stream.delivered],
        "received": stream.received(),
        "lost": sorted(lost),
        "restored": sorted(int(task) for found in recoveries for task in found["restored"]),
        "replayed": sorted({b for found in recoveries for b in found["replayed"]}),
        "reasons": [found["reason"] for found in recoveries],
        "reads": restores_between(root / "blobs", times["killed"], recovered[-1].time_ms),
        "ms": times["delivered"] - times["killed"],
        "copies": [e.details for e in query[0].events if e.kind == "copies-made"],
        "uri": f"file://{root}/blobs",
    }
    sys.stdout.write(json.dumps(said) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
