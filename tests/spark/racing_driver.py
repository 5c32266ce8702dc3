"""One of several drivers that start one job at once.

``python racing_driver.py ROOT NUMBER`` says ``ready`` once Spark runs, starts the stream in ROOT when
told so by a line, and runs it until the next line or its end. Then it says what it ended with: the
names of the errors, outermost first.

A file ``hold-NUMBER`` in ROOT keeps its sink from returning. A file ``pause`` there names a fault point
at which a driver stops itself, if `pause` is its fault handler.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from conftest import Stream
from pyspark.sql import DataFrame
from spark_processes import wait_until
from typing_extensions import override

import statekeep as sk

PARTITIONS = 2
LOCAL_DIR_VARIABLE = "RACING_DRIVER_LOCAL_DIR"
"""Where a driver keeps its state below ROOT, for drivers as if on different hosts."""
SETTINGS = {"task.count": PARTITIONS, "task.commit.ms": 200}


class RacingStream(Stream):
    """Notes each delivery in a file of its own."""

    number: int = 0

    @property
    @override
    def local_dir(self) -> Path:
        return self.root / os.environ.get(LOCAL_DIR_VARIABLE, "local")

    @override
    def sink(self, frame: DataFrame, batch: int) -> None:
        rows = {row.key: (row.n, row.s) for row in frame.collect()}
        name = f"{batch:03d}-{time.monotonic_ns()}-{self.number}"
        temporary = self.root / f"{name}.tmp"
        temporary.write_text(json.dumps(rows))
        temporary.rename(self.root / "delivered" / name)
        assert wait_until(lambda: not (self.root / f"hold-{self.number}").exists(), 120)


def pause(point: str) -> None:
    """Stop this driver and its JVM at a fault point, once."""
    order = Path(sys.argv[1]) / "pause"
    if order.exists() and order.read_text() == point:
        order.rename(order.with_name("paused"))
        os.killpg(0, signal.SIGSTOP)
        # This thread may run on for a moment before it is stopped.
        assert wait_until(order.with_name("resumed").exists)


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main(root: Path, number: int) -> None:
    builder = sk.session_builder("local[1]")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    stream = RacingStream(spark, root, SETTINGS)
    stream.number = number
    say("ready")
    sys.stdin.readline()
    error: BaseException | None = None
    try:
        writer = stream.stateful().writeStream.foreachBatch(stream.sink)
        writer = writer.option("checkpointLocation", str(stream.location))
        query = writer.trigger(processingTime="100 milliseconds").start()
        threading.Thread(target=lambda: (sys.stdin.readline(), query.stop()), daemon=True).start()
        query.awaitTermination()
    except Exception as exc:  # noqa: BLE001 - whatever it is, it is what the driver came to
        error = exc
    names = []
    while error is not None:
        names.append(f"{type(error).__name__}: {error}"[:2000].replace("\n", " "))
        error = error.__cause__
    say(json.dumps(names))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
