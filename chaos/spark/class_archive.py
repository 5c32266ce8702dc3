"""Spark's classes, parsed once: each JVM after the first one maps them from a file.

A young JVM spends most of its processor time on reading and linking classes. Tests start hundreds,
and the harness three for each driver that it kills. The file stays in the virtual environment.

``python -m chaos.spark.class_archive FILE`` runs a small query and leaves the file at its end.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark.sql import DataFrame, SparkSession

_ROOT: Final = Path(__file__).resolve().parents[2]
_SMALL: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs that live for a minute and share two cores with others."""


def java_options() -> str:
    """Return what small JVMs are started with; the first call makes the archive, in some seconds.

    Raises:
        CalledProcessError: Spark does not start; ``stderr`` has what it said.
    """
    archive = _archive()
    return _SMALL if archive is None else f"{_SMALL} -XX:SharedArchiveFile={archive}"


def _archive() -> Path | None:
    """Return the archive of this Spark on this JVM; None if the JVM makes none."""
    java = Path(os.environ.get("JAVA_HOME") or "/", "release")
    made_by = f"{pyspark.__version__} {java.read_text() if java.exists() else shutil.which('java')}"
    name = f"spark-classes-{zlib.crc32(made_by.encode()):08x}.jsa"
    archive = Path(sys.prefix, name)
    if archive.exists():
        return archive
    with (
        tempfile.TemporaryDirectory(dir=sys.prefix) as directory,
        Path(sys.prefix, "spark-classes.lock").open("w") as lock,
    ):
        flock(lock, LOCK_EX)  # of several processes the first one makes it
        if archive.exists():
            return archive
        made = Path(directory, name)
        subprocess.run(  # noqa: S603 - our own Python, fixed arguments
            [sys.executable, "-m", "chaos.spark.class_archive", str(made)],
            cwd=_ROOT,
            env={k: v for k, v in os.environ.items() if k != "SPARK_SUBMIT_OPTS"},
            capture_output=True,
            check=True,
        )
        if not made.exists():
            return None
        made.rename(archive)
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
