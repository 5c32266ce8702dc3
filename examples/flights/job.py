"""The streaming job, as its user would write it; the supervisor starts it, and starts it again.

python -m examples.flights.job WORK FLIGHTS RUN
spark-submit --master URL ... examples/flights/job.py WORK FLIGHTS RUN submitted
"""

import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame

import statekeep as sk
from examples.flights.events import EventLog
from examples.flights.paths import Paths
from examples.flights.processor import OUTPUT_SCHEMA, AircraftHistory

MASTER = "local-cluster[2,1,1024]"
KEY_COLUMNS = ("tail_number", "carrier")
INPUT_SCHEMA = (
    "tail_number STRING, carrier STRING, scheduled BIGINT, flight BIGINT, origin STRING, "
    "destination STRING, departure_delay BIGINT, arrival_delay BIGINT"
)


def settings(paths: Paths) -> dict[str, str]:
    """Return the settings of Statekeep.

    The local directory is that of each host: its environment has it in ``LOGGED_STORE_BASE_DIR``.
    """
    return {
        "job.name": "flights",
        "task.commit.ms": "3000",
        "stores.backup.factories": "blob",
        "blob.store.uri": paths.backup.as_uri(),
    }


class ParquetSink:
    """Writes batch b into a directory of its own, so that a second delivery replaces the first."""

    def __init__(self, paths: Paths, events: EventLog) -> None:
        self._paths = paths
        self._events = events

    def __call__(self, output: DataFrame, batch: int) -> None:
        begin = time.monotonic()
        directory = self._paths.sink / f"batch={batch}"
        output.write.mode("overwrite").parquet(str(directory))
        rows, digest = content_of(directory)
        elapsed_ms = round((time.monotonic() - begin) * 1000)
        self._events.write("delivered", batch=batch, rows=rows, digest=digest, sink_ms=elapsed_ms)


def content_of(directory: Path) -> tuple[int, int]:
    """Return the number of rows and a digest of them that does not depend on their order."""
    rows = pd.read_parquet(directory)
    digest = pd.util.hash_pandas_object(rows, index=False).sum()  # modulo 2**64
    return len(rows), int(digest)


def main(work: str, flights: str, run: int, master: str | None) -> None:
    """Run the query until the input is used up; None is the master of ``spark-submit``."""
    paths = Paths(Path(work), Path(flights))
    events = EventLog(paths.events)
    events.write("starting", run=run)
    spark = sk.session_builder(master).appName("flights").getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    spark.conf.set("spark.sql.shuffle.partitions", 4)
    events.write("session", run=run)
    legs = (
        spark.readStream.schema(INPUT_SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(paths.flights))
        .where("tail_number IS NOT NULL")  # cancelled before an aircraft was named
    )
    histories = sk.grouped(legs.groupBy(*KEY_COLUMNS), settings(paths)).transformWithState(
        statefulProcessor=AircraftHistory(),
        outputStructType=OUTPUT_SCHEMA,
        outputMode="Update",
        timeMode="None",
    )
    query = (
        histories.writeStream.foreachBatch(ParquetSink(paths, events))
        .option("checkpointLocation", str(paths.checkpoint))
        .trigger(availableNow=True)
        .queryName("flights")
        .start()
    )
    tell_until_end(query, events)
    events.write("finished", run=run)
    spark.stop()


def tell_until_end(query: Any, events: EventLog) -> None:
    """Write what the runtime says of itself into the event log, until the query ends."""
    told = 0
    is_active = True
    while is_active:
        query.awaitTermination(0.2)
        is_active = query.isActive  # asked first, so that the last events are not missed
        happened = query.events
        for event in happened[told:]:
            events.write("runtime", what=event.kind, **event.details)
        told = len(happened)
    query.awaitTermination()


if __name__ == "__main__":
    is_submitted = sys.argv[4:] == ["submitted"]
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), None if is_submitted else MASTER)
