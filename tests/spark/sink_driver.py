"""A driver that delivers the totals of a stream into a sink, and is killed in its second batch.

``python sink_driver.py ROOT JOB`` runs the stream of the files in ROOT to their end. JOB is JSON:

    heading    of the program in docs/how-to/sinks.md that makes the sink
    replaced   what stands on the page, and what it is on this machine
    format     of the sink, where there is no heading, with its options
    options    see ``format``
    columns    what is written, as SQL; without it all columns
    conf       of the Spark session

A file ``kill`` in ROOT names the moment at which the driver is killed, with its JVM:

    in the write       one partition of the batch is written, the other one is not
    at the commit      of the transaction that a database or Kafka has of the batch
    after the write    the sink has returned; Spark has not recorded the batch
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pages_kit import blocks
from processors import Totals
from pyspark import TaskContext
from typing_extensions import override

import statekeep as sk

PAGE = "docs/how-to/sinks.md"
_reached: list[str] = []


def strike(root: Path, group: int, moment: str) -> None:
    """Kill the driver, once, if this is the moment."""
    order = root / "kill"
    if order.exists() and order.read_text() == moment:
        order.rename(root / "killed")
        os.killpg(group, signal.SIGKILL)
        threading.Event().wait()  # until it strikes, where this process is not of the group


def strike_at_second(moment: str) -> None:
    """Kill this driver when it reaches the moment for the second time: in its second batch."""
    _reached.append(moment)
    if _reached.count(moment) == 2:
        strike(Path(sys.argv[1]), os.getpgrp(), moment)


def after_the_sink(point: str) -> None:
    """Handle fault points, in whatever process."""
    if point == "sink.after":
        strike_at_second("after the write")


def passing(root: Path) -> Any:
    """Return a function of batches that kills the driver in the second half of the second batch."""
    group, kill = os.getpgrp(), strike

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            is_second = any(total % 2 == 0 for total in batch["total"].to_pylist())
            if is_second and TaskContext.get().partitionId() == 1:  # type: ignore[union-attr]
                kill(root, group, "in the write")
            yield batch

    return pass_on


def strike_connections() -> None:
    """Let PostgreSQL's client kill this driver at a commit."""
    import psycopg  # noqa: PLC0415 - not every driver needs it

    class Connection(psycopg.Connection[Any]):
        @override
        def commit(self) -> None:
            strike_at_second("at the commit")
            super().commit()

    psycopg.connect = Connection.connect


def strike_producers() -> None:
    """Let Kafka's client kill this driver at a commit, when all records have been sent."""
    import confluent_kafka  # noqa: PLC0415 - not every driver needs it

    class Producer(confluent_kafka.Producer):
        @override
        def commit_transaction(self, *given: Any) -> None:
            self.flush()
            strike_at_second("at the commit")
            super().commit_transaction(*given)

    confluent_kafka.Producer = Producer  # type: ignore[misc]


def main(root: Path, job: dict[str, Any]) -> None:
    builder = sk.session_builder("local[1]")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.shuffle.partitions": "2",
        **job.get("conf", {}),
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    frame = spark.readStream.schema("id long, v long").option("maxFilesPerTrigger", 1)
    settings = {
        "job.name": "totals",
        "job.logged.store.base.dir": f"{root}/local",
        "task.count": 2,
    }
    grouped = sk.grouped(frame.parquet(f"{root}/in").groupBy("id"), settings)
    totals = grouped.transformWithState(Totals(), "id long, total long", "Update", "None")
    totals = totals.repartition(2, "id").mapInArrow(passing(root), "id long, total long")
    names: dict[str, Any] = {"spark": spark, "totals": totals, "path": f"{root}/checkpoint"}
    if "heading" in job:
        program, *_ = blocks(PAGE, job["heading"], "python")
        if "import psycopg" in program:
            strike_connections()
        if "import confluent_kafka" in program:
            strike_producers()
        for there, here in job.get("replaced", {}).items():
            assert there in program
            program = program.replace(there, here)
        exec(compile(program, PAGE, "exec"), names)  # noqa: S102
        writer = totals.writeStream.foreachBatch(names["write"])
    else:
        rows = totals.selectExpr(*job["columns"]) if "columns" in job else totals
        writer = rows.writeStream.format(job["format"]).options(**job.get("options", {}))
    query = names.get("query") or writer.option("checkpointLocation", names["path"]).start()
    query.processAllAvailable()
    query.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
