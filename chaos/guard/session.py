"""A Spark session in a process of its own that runs the queries of the guard level, and can be killed.

``python -m chaos.guard.session DIRECTORY INPUT [ARCHIVE]`` reads commands from stdin, a JSON document a line, and
answers each with one on stdout: ``{"start": LOCATION, "form": NAME}``, if wanted with ``"partitions"`` of state,
``{"stop": true}``, and ``{"finish": LOCATION, "form": NAME}``, which runs a query on what there is and waits
for its end. What a batch delivers is appended to ``delivered`` in the location's parent, a line for each batch.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from chaos.guard.forms import FORMS, SCHEMA, SETTINGS
from chaos.spark.class_archive import java_options

_ROOT = Path(__file__).resolve().parents[2]


class WriterSession:
    """The process, as the harness sees it."""

    def __init__(self, directory: Path, source: Path) -> None:
        """Start it; the first command waits until it is ready."""
        directory.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "PYTHONPATH": str(_ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with (directory / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own Python, fixed arguments
                [sys.executable, "-m", "chaos.guard.session", str(directory), str(source)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def tell(self, command: Mapping[str, object]) -> Mapping[str, Any]:
        """Send a command and wait for its answer.

        Raises:
            RuntimeError: The process has ended, or the command has failed.
        """
        assert self._process.stdin is not None  # noqa: S101 - a pipe
        assert self._process.stdout is not None  # noqa: S101 - as above
        self._process.stdin.write(f"{json.dumps(command)}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the session has ended: command={command}")
        answer: Mapping[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{command}: {answer['error']}")
        return answer

    def kill(self) -> None:
        """Kill it with its JVM, as an out-of-memory killer does with both. Idempotent."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _serve(directory: Path, source: Path) -> None:
    builder = SparkSession.builder.master("local[2]")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": java_options(),
        "spark.local.dir": str(directory / "local"),
        **SETTINGS,
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    running: StreamingQuery | None = None
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, object] = {}
        try:
            if "partitions" in command:
                spark.conf.set("spark.sql.shuffle.partitions", command["partitions"])
            if "start" in command:
                running = _start(spark, source, command["start"], command["form"])
            elif "finish" in command:
                query = _start(spark, source, command["finish"], command["form"], is_finishing=True)
                query.awaitTermination()
            elif running is not None:
                running.stop()
                running = None
        except Exception as exc:  # noqa: BLE001 - the harness judges it
            answer["error"] = f"{type(exc).__name__}: {exc}"[:2000]
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


def _start(
    spark: SparkSession, source: Path, location: str, form: str, *, is_finishing: bool = False
) -> StreamingQuery:
    chosen = FORMS[form]
    for key, value in chosen.settings.items():
        spark.conf.set(key, value)
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    frame = chosen.operate(reader.json(str(source)), reader.json(str(source)))
    writer = frame.select(*chosen.columns).writeStream.outputMode(chosen.mode)
    writer = writer.foreachBatch(_journal(Path(location).parent / "delivered"))
    writer = writer.option("checkpointLocation", location)
    return (writer.trigger(availableNow=True) if is_finishing else writer).start()


def _journal(path: Path) -> Callable[[DataFrame, int], None]:
    def write(batch: DataFrame, number: int) -> None:
        rows = [list(row) for row in batch.collect()]
        with path.open("a") as journal:
            journal.write(f"{json.dumps({'batch': number, 'rows': rows})}\n")

    return write


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), Path(sys.argv[2]))
