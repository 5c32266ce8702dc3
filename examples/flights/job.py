"""The streaming job, as its user would write it; the supervisor starts it, and starts it again.

python -m examples.flights.job WORK FLIGHTS RUN
"""

import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame

import statekeep.spark as sk
from examples.flights.events import EventLog
from examples.flights.places import Places
from examples.flights.processor import OUTPUT_SCHEMA, AircraftHistory

MASTER = "local-cluster[2,1,1024]"
KEY_COLUMNS = ("tail_number", "carrier")
INPUT_SCHEMA = (
    "tail_number STRING, carrier STRING, scheduled BIGINT, flight BIGINT, origin STRING, "
    "destination STRING, departure_delay BIGINT, arrival_delay BIGINT"
)


def settings(places: Places) -> dict[str, str]:
    """Return the settings of Statekeep."""
    return {
        "job.name": "flights",
        "task.commit.ms": "3000",
        "job.logged.store.base.dir": str(places.local),
        "stores.backup.factories": "blob",
        "blob.store.uri": places.backup.as_uri(),
    }


class ParquetSink:
    """Writes batch b into a directory of its own, so that a second delivery replaces the first."""

    def __init__(self, places: Places, events: EventLog) -> None:
        self._places = places
        self._events = events

    def __call__(self, output: DataFrame, batch: int) -> None:
        begin = time.monotonic()
        directory = self._places.sink / f"batch={batch}"
        output.write.mode("overwrite").parquet(str(directory))
        rows, digest = content_of(directory)
        elapsed_ms = round((time.monotonic() - begin) * 1000)
        self._events.write("delivered", batch=batch, rows=rows, digest=digest, sink_ms=elapsed_ms)


def content_of(directory: Path) -> tuple[int, int]:
    """Return the number of rows and a digest of them that does not depend on their order."""
    rows = pd.read_parquet(directory)
    digest = pd.util.hash_pandas_object(rows, index=False).sum()  # modulo 2**64
    return len(rows), int(digest)


def main(work: str, flights: str, run: int) -> None:
    """Run the query until the input is used up."""
    places = Places(Path(work), Path(flights))
    events = EventLog(places.events)
    events.write("starting", run=run)
    spark = sk.session_builder(MASTER).appName("flights").getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    spark.conf.set("spark.sql.shuffle.partitions", 4)
    events.write("session", run=run)
    legs = (
        spark.readStream.schema(INPUT_SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(places.flights))
        .where("tail_number IS NOT NULL")  # cancelled before an aircraft was named
    )
    histories = sk.grouped(legs.groupBy(*KEY_COLUMNS), settings(places)).transformWithState(
        statefulProcessor=AircraftHistory(),
        outputStructType=OUTPUT_SCHEMA,
        outputMode="Update",
        timeMode="None",
    )
    query = (
        histories.writeStream.foreachBatch(ParquetSink(places, events))
        .option("checkpointLocation", str(places.checkpoint))
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
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
