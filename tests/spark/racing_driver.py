"""One of several drivers that start one job at once.

``python racing_driver.py ROOT NUMBER`` says ``ready`` once Spark runs, starts the stream in ROOT when
told so by a line, and runs it until the next line or its end. Then it says what it ended with: the
names of the errors, outermost first.
"""

import json
import sys
import threading
import time
from pathlib import Path

from conftest import Stream
from pyspark.sql import DataFrame
from typing_extensions import override

import statekeep.spark as sk

PARTITIONS = 2
SETTINGS = {"task.count": PARTITIONS, "task.commit.ms": 200}


class RacingStream(Stream):
    """Notes each delivery in a file of its own."""

    number: int = 0

    @override
    def sink(self, frame: DataFrame, batch: int) -> None:
        rows = {row.key: (row.n, row.s) for row in frame.collect()}
        name = f"{batch:03d}-{time.monotonic_ns()}-{self.number}"
        temporary = self.root / f"{name}.tmp"
        temporary.write_text(json.dumps(rows))
        temporary.rename(self.root / "delivered" / name)


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main(root: Path, number: int) -> None:
    builder = sk.session_builder("local[1]")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
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
