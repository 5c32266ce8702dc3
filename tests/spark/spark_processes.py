"""What runs and what lies around on this machine because of a test's query."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame

from statekeep.spark.driver.job import StatefulJob
from statekeep.spark.driver.progress import EventList
from statekeep.spark.worker.executor_identity import executor_identity
from statekeep.spark.worker.task_functions import answer

_DRIVER = 1
"""The driver is among those that hold blocks."""


def sidecar_processes(local_dir: Path) -> dict[int, str]:
    """Return the command lines of the sidecars below a local directory, by process id."""
    found: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if "statekeep.spark.sidecar" in command and f"{local_dir}/" in command:
            found[int(entry.parent.name)] = command
    return found


def await_end_of_sidecars(local_dir: Path) -> None:
    """Wait until no sidecar is left below a local directory, also none that still boots.

    Raises:
        AssertionError: One is, after a minute; it has what the sidecars said.
    """
    if not wait_until(lambda: sidecar_processes(local_dir) == {}):
        said = [path.read_text()[-3000:] for path in local_dir.rglob("container.log")]
        held = [str(path) for path in local_dir.rglob("container-*/*")]
        text = "\n".join([*sidecar_processes(local_dir).values(), *held, *said])
        raise AssertionError(f"sidecars are left:\n{text}")


def wait_until(condition: Callable[[], bool], timeout_s: float = 60) -> bool:
    """Look every 50 ms until the condition holds; False after the time-out."""
    pause = threading.Event()  # never set: other processes tell us nothing
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        pause.wait(0.05)
    return condition()


def take_executor_away(context: SparkContext, executor: str) -> None:
    """Let the cluster manager end one of two executors, and no other one take its place.

    It takes tasks until its end, which may be some seconds later: see `await_loss`.
    """
    spark: Any = context._jsc.sc()
    jvm: Any = context._jvm
    # Its end takes one off the total that is wanted, which earlier tests may have left at any number.
    assert spark.requestTotalExecutors(1, 0, jvm.PythonUtils.toScalaMap({}))
    assert spark.killExecutor(executor)


def await_loss(context: SparkContext, executor: str) -> None:
    """Wait until the driver has seen the end of an executor."""
    spark: Any = context._jsc.sc()
    assert wait_until(lambda: not spark.getExecutorIds().contains(executor))


def ask_for_executor(context: SparkContext) -> None:
    """Ask for one beside the one that was left, and wait until it has come."""
    spark: Any = context._jsc.sc()
    # The end of the other one has set the total that is wanted to none.
    assert spark.requestExecutors(2)
    assert wait_until(lambda: spark.getExecutorMemoryStatus().size() == 2 + _DRIVER)


def take_over_beside(job: StatefulJob, frame: DataFrame) -> None:
    """Let a second driver take over the job of a running query, and leave again."""
    first = job._definition
    events = EventList()
    second = StatefulJob(replace(first, frame=frame, events=events, reporter=None, ticks=None))
    second.open()
    second.close()


def executors_of(job: StatefulJob) -> dict[int, dict[str, Any]]:
    """Return the executor and the process of its JVM of each task of a running job."""

    def executor_location(tasks: Sequence[int]) -> Iterator[pa.RecordBatch]:
        own = executor_identity()
        yield answer({"tasks": list(tasks), "executor": own.executor_id, "jvm_pid": own.jvm_pid})

    found = job._owned.jobs.placement.run(executor_location)
    return {task: place for place in found for task in place["tasks"]}
