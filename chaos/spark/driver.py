"""The driver process: one Spark session that runs one query after the other, as it is told.

``python -m chaos.spark.driver SESSION`` reads runs as JSON lines from its standard input and writes
what happens to ``SESSION/events.jsonl``.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention

import statekeep as sk
from chaos.spark import arming
from chaos.spark.class_archive import java_options
from chaos.spark.places import Places
from chaos.spark.plan import Drift
from chaos.spark.tally import BETWEEN, EVENT_SECOND, KEYS, OUTPUT, Tally
from statekeep.spark.driver import owned_job
from statekeep.spark.placement import router_of

MASTER = "local-cluster[2,1,1024]"
_POLL_S = 1
"""How often a running query is asked what has happened; its end is noticed at once."""


def start_session(directory: Path) -> SparkSession:
    """Start Spark as small and as fast as it goes."""
    passed_on = ("PYTHONPATH", "STATEKEEP_FAULT_HANDLER", arming.PLAN_VARIABLE)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "4",
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.worker.cleanup.enabled": "false",
        # Compiling costs a young JVM more than such small batches ever give back.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.executor.extraJavaOptions": java_options(),
        "spark.driver.extraJavaOptions": java_options(),
        "spark.sql.streaming.stopTimeout": "20s",
        **{f"spark.executorEnv.{name}": os.environ[name] for name in passed_on},
    }
    builder = sk.session_builder(MASTER)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark


def frame(spark: SparkSession, order: Mapping[str, Any], places: Places) -> DataFrame:
    """Return the input: files, one a batch, or a counter that Spark keeps; with an event time."""
    if order["source"] == "rate":
        rate = spark.readStream.format("rate-micro-batch").option("numPartitions", 2)
        counted = rate.option("rowsPerBatch", order["rows"]).load()
        key = F.concat(F.lit("key-"), (F.col("value") * 7919) % KEYS)
        rows = counted.select(key.alias("key"), F.col("value").alias("v"))
    else:
        reader = spark.readStream.schema("key string, v long").option("maxFilesPerTrigger", 1)
        rows = reader.json(str(places.input))
    rows = rows.withColumn("t", F.expr(f"timestamp_seconds({EVENT_SECOND})"))
    return rows.withWatermark("t", "2 seconds") if "EventTime" in order["modes"] else rows


def operators(rows: DataFrame, settings: Mapping[str, str], modes: Sequence[str]) -> Any:  # noqa: ANN401 - ours
    """Return the output of the last operator; each but the first takes what the one before puts out."""
    output: Any = rows
    for number, mode in enumerate(modes):
        column = "at" if "EventTime" in modes[number + 1 :] else ""
        output = sk.grouped(output.groupBy("key"), settings).transformWithState(
            Tally(mode), OUTPUT, "Append", mode, eventTimeColumnName=column
        )
        if number < len(modes) - 1:
            output = output.selectExpr(*BETWEEN)
    return output


def changed(
    rows: DataFrame, settings: Mapping[str, str], drift: str
) -> tuple[DataFrame, Mapping[str, str]]:
    """Return input and settings of a job that was changed, as `Drift` says."""
    match Drift(drift):
        case Drift.KEY_TYPE:
            return rows.withColumn("key", F.crc32(F.col("key").cast("binary"))), settings
        case Drift.ROUTER:
            # As if another release were installed.
            owned_job.__dict__["router_of"] = lambda _: "another"
            return rows, settings


class Sink:
    """Writes each delivery into a file of its own, with what was there at that moment."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self.newest = -1

    def __call__(self, output: DataFrame, batch: int) -> None:
        """Take one batch."""
        rows = [(row.key, row.n, row.total, row.recent) for row in output.collect()]
        checkpoint = self._places.checkpoint
        now_ns = time.monotonic_ns()  # one clock for all processes of the machine
        document = {
            "batch": batch,
            "rows": rows,
            "offsets": (checkpoint / "offsets" / str(batch)).read_text(),
            "is-committed": (checkpoint / "commits" / str(batch)).exists(),
            "pid": os.getpid(),
        }
        target = self._places.sink / f"{now_ns:020d}-{batch}.json"
        temporary = target.with_suffix(".tmp")
        temporary.write_text(json.dumps(document))
        temporary.replace(target)
        self.newest = batch


class Server:
    """Takes orders one by one."""

    def __init__(self, directory: Path) -> None:
        self._events = directory / "events.jsonl"
        self._spark = start_session(directory)

    def serve(self) -> None:
        """Run until standard input ends."""
        self._tell("ready")
        for line in sys.stdin:
            self._run(json.loads(line))
        self._spark.stop()

    def _run(self, order: Mapping[str, Any]) -> None:
        arming.follow_plan()
        number = order["run"]

        def tell(kind: str, **facts: object) -> None:
            self._tell(kind, run=number, **facts)

        try:
            self._query(order, tell)
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is what the schedule came to
            causes = [exc, exc.__cause__, exc.__context__]
            texts = [f"{type(one).__name__}: {one}" for one in causes if one is not None]
            self._tell("failed", run=number, errors=[text[:2000] for text in texts])
        else:
            self._tell("done", run=number)

    def _query(self, order: Mapping[str, Any], tell: Callable[..., None]) -> None:
        places = Places(Path(order["directory"]))
        sink = Sink(places)
        rows, settings = frame(self._spark, order, places), order["settings"]
        owned_job.__dict__["router_of"] = router_of  # see `changed`
        if order["drift"] is not None:
            rows, settings = changed(rows, settings, order["drift"])
        writer = operators(rows, settings, order["modes"]).writeStream
        writer = writer.foreachBatch(sink).option("checkpointLocation", str(places.checkpoint))
        is_endless = order["source"] == "rate"
        if is_endless:
            query = writer.trigger(processingTime="0 seconds").start()
        else:
            query = writer.trigger(availableNow=True).start()
        tell("started")
        told = 0
        is_active = True
        while is_active:
            query.awaitTermination(_POLL_S)
            is_active = query.isActive
            happened = query.events
            for event in happened[told:]:
                tell("runtime", what=event.kind, **event.details)
            told = len(happened)
            if is_endless and is_active and sink.newest >= order["batches"] - 1:
                query.stop()
        query.awaitTermination()

    def _tell(self, kind: str, **facts: object) -> None:
        line = json.dumps({"kind": kind, "at": time.monotonic(), **facts}, default=str)
        with self._events.open("ab", buffering=0) as file:
            file.write(line.encode() + b"\n")


def main(directory: Path) -> None:
    """Serve; die with the parent's end of the pipe."""
    directory.mkdir(parents=True, exist_ok=True)
    threading.current_thread().name = "chaos-driver"
    Server(directory).serve()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
