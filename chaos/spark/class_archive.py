"""Spark's classes, parsed once: each JVM after the first one maps them from a file.

A young JVM spends most of its processor time on reading and linking classes, and the harness starts
three for each driver that it kills.

``python -m chaos.spark.class_archive FILE`` runs a small query and leaves the file at its end.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

_ROOT: Final = Path(__file__).resolve().parents[2]
_SMALL: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs that live for a minute and share two cores with others."""


def java_options(archive: str | None) -> str:
    """Return what the JVMs of a session are started with.

    Args:
        archive: A file that `make_archive` returned. A JVM that cannot use it goes without.
    """
    return _SMALL if archive is None else f"{_SMALL} -XX:SharedArchiveFile={archive}"


def make_archive(directory: Path) -> Path:
    """Make the archive of this Spark on this JVM; takes a few seconds.

    Raises:
        CalledProcessError: Spark does not start; ``stderr`` has what it said.
    """
    archive = directory / "spark-classes.jsa"
    subprocess.run(  # noqa: S603 - our own Python, fixed arguments
        [sys.executable, "-m", "chaos.spark.class_archive", str(archive)],
        cwd=_ROOT,
        capture_output=True,
        check=True,
    )
    return archive


def main(archive: str) -> None:
    """Load what a session loads, and have the JVM write it down when it ends."""
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"{_SMALL} -XX:ArchiveClassesAtExit={archive}")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")

    def count(rows: DataFrame, _batch: int) -> None:
        rows.groupBy("value").count().collect()

    with tempfile.TemporaryDirectory() as location:
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 9).load()
        writer = rows.writeStream.foreachBatch(count).option("checkpointLocation", location)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - its JVM has to end before this process
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


if __name__ == "__main__":
    main(sys.argv[1])
