"""How long a query stands still when an executor is lost with its disk: with copies on other hosts, and without.

Three executors of this machine have a disk each. One is killed when a batch has been delivered, and its
disk is deleted; the figure is the time to the delivery of the next batch, in which two batches of 100 rows are
replayed. What the restore and the replay took of it stands below. The backups are in a directory of this
machine: without copies, a restore from a service takes longer by its distance.

``make bench-standby ARGS="--megabytes 100 1000"``; it takes three times as much disk.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from rich.console import Console
from typing_extensions import override

import statekeep as sk
from benchmarks.figures import Figure, show, write_json
from statekeep.spark.worker.executor_identity import executor_identity
from statekeep.spark.worker.task_functions import answer

_ROOT: Final = Path(__file__).parents[1]
_EXECUTORS: Final = 3
_TASKS: Final = 6
_VALUE_BYTES: Final = 1_000
_FILLING: Final = 6
"""Batches that write the state. After them one commit is made, and no other one meanwhile."""
_COPIED, _KILLED, _NEXT = _FILLING, _FILLING + 1, _FILLING + 2


class Keep(StatefulProcessor):
    """Keeps the newest value of each key."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("value", "v binary")

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self._state.update((row.v,))
        return iter(())

    @override
    def close(self) -> None: ...


def measure(megabytes: Sequence[int]) -> list[Figure]:
    """Measure states of these sizes."""
    figures: list[Figure] = []
    before = 0.0
    for size in megabytes:
        case = f"{size} MB, kill to next delivery"
        for copies, subject in ((1, "without copies"), (2, "with copies")):
            measured = _measured(size, copies)
            sys.stderr.write(f"{case}, {subject}: {measured}\n")
            seconds = measured["seconds"]
            ratio = seconds / before if copies > 1 else None
            before = seconds
            figures.append(Figure("loss of an executor", case, subject, seconds, "s", ratio))
            figures += [
                Figure("loss of an executor", f"{case}, {part} alone", subject, measured[part], "s")
                for part in ("restore", "replay")
            ]
    return figures


def _measured(megabytes: int, copies: int) -> dict[str, float]:
    """Run the query in a process of its own."""
    path = os.pathsep.join(map(str, [_ROOT / "tests" / "spark" / "disks", _ROOT]))
    with tempfile.TemporaryDirectory(prefix="statekeep-bench-", ignore_cleanup_errors=True) as name:
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": path,
            "LOGGED_STORE_BASE_DIR": f"{name}/driver",
        }
        command = [
            sys.executable,
            "-m",
            "benchmarks.standby",
            "--run",
            name,
            str(megabytes),
            str(copies),
        ]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def _run(root: Path, megabytes: int, copies: int) -> dict[str, float]:
    """Return the seconds from the kill to the next delivery, and those of the recovery's phases."""
    write_input(root / "in", megabytes)
    builder = sk.session_builder(f"local-cluster[{_EXECUTORS},1,2048]")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(_TASKS),
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.executorEnv.DISKS": str(root / "disks"),
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    reader = spark.readStream.schema("key long, v binary").option("maxFilesPerTrigger", 1)
    settings = {
        "job.name": "bench",
        "task.commit.ms": 0,
        "task.replay.max.batches": _FILLING + 2,
        "job.standbytasks.replication.factor": copies,
        "stores.backup.factories": "blob",
        "blob.store.uri": f"file://{root}/blobs",
    }
    grouped = sk.grouped(reader.parquet(str(root / "in")).groupBy("key"), settings)
    frame = grouped.transformWithState(Keep(), "key long", "Append", "None")
    queries: list[Any] = []
    times: dict[str, float] = {}

    def sink(output: DataFrame, batch: int) -> None:
        output.count()
        if batch == _NEXT:
            times.setdefault("delivered", time.perf_counter())
        if batch not in {_COPIED, _KILLED} or "killed" in times:
            return
        _wait_until(lambda: bool(queries))
        job = queries[0]._job._owned  # noqa: SLF001 - what no listener is told at once
        commits, batches, jobs = job.commits, job.batches, job.jobs
        _wait_until(lambda: commits.committed_batch == _FILLING - 1)
        if batch == _KILLED:
            versions = batches.versions(_FILLING - 1)
            _wait_until(lambda: _disks_of(root, versions) == copies)
            places = jobs.placement.run(_place)
            times["killed"] = time.perf_counter()
            os.kill(places[0]["jvm_pid"], signal.SIGKILL)
            lost = root / "disks" / places[0]["executor"]
            lost.rename(
                root / "lost"
            )  # deleting much state takes seconds, which are no part of this

    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", f"{root}/checkpoint")
    queries.append(writer.trigger(availableNow=True).start())
    queries[0].awaitTermination()
    recoveries = [event.details for event in queries[0].events if event.kind == "recovery"]
    losses = [found["phases_ms"] for found in recoveries if found["reason"] == "loss"]
    spark.stop()
    phases = {name: sum(ms[name] for ms in losses) / 1000 for name in ("restore", "replay")}
    return {"seconds": round(times["delivered"] - times["killed"], 3), **phases}


def _place(_tasks: Sequence[int]) -> Iterator[pa.RecordBatch]:
    own = executor_identity()
    yield answer({"executor": own.executor_id, "jvm_pid": own.jvm_pid})


def _disks_of(root: Path, versions: dict[int, str]) -> int:
    """Return on how many disks each task's version lies, of all tasks the least."""
    return min(
        len(list((root / "disks").glob(f"*/*/main/Partition_{task}/{version}")))
        for task, version in versions.items()
    )


def write_input(directory: Path, megabytes: int) -> None:
    """Write a file for each batch: some that fill the state, then small ones."""
    directory.mkdir()
    keys = megabytes * 1_000_000 // _VALUE_BYTES // _FILLING
    for number in range(_NEXT + 2):
        count = keys if number < _FILLING else 100
        first = number * keys if number < _FILLING else 0
        with pq.ParquetWriter(directory / f"{number:03d}.parquet", _SCHEMA) as file:
            for start in range(0, count, 10_000):
                ids = range(first + start, first + min(start + 10_000, count))
                values = [os.urandom(_VALUE_BYTES) for _ in ids]
                file.write_table(pa.table({"key": pa.array(ids), "v": values}, _SCHEMA))
        os.utime(directory / f"{number:03d}.parquet", (1_700_000_000 + number,) * 2)


_SCHEMA: Final = pa.schema({"key": pa.int64(), "v": pa.binary()})


def _wait_until(condition: Callable[[], bool], timeout_s: float = 600) -> None:
    pause, deadline = threading.Event(), time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        pause.wait(0.05)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[100, 1000, 5000])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        root, size, copies = arguments.run
        sys.stdout.write(json.dumps(_run(Path(root), int(size), int(copies))) + "\n")
        return
    figures = measure(arguments.megabytes)
    show(Console(highlight=False), figures)
    if arguments.json is not None:
        write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
