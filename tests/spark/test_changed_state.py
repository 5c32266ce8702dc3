"""The state of a query, changed between two runs or two batches: it goes on with what was written."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import Stream, events_of, state_of
from pages_kit import block

import statekeep as sk
from statekeep.errors import ConfigError, StateSchemaError
from statekeep.fault_points import HANDLER_VARIABLE
from statekeep.testing.faults import HANDLER, PLAN_VARIABLE, Action, ArmedFault, ProcessPlan

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(220)]

Rows = dict[str, tuple[int, int]]


def settings_of(stream: Stream) -> dict[str, str]:
    return {
        "job.name": "counts",
        "stores.backup.factories": "blob",
        "blob.store.uri": f"{stream.location}-statekeep",
    }


def added(stream: Stream, state: Rows, number: int) -> Rows:
    """Fold one more file into a state."""
    before, after = stream.expected(number), stream.expected(number + 1)
    found = dict(state)
    for key, (n, s) in after.items():
        old = before.get(key, (0, 0))
        if (n, s) != old:
            count, total = found.get(key, (0, 0))
            found[key] = (count + n - old[0], total + s - old[1])
    return found


def put(stream: Stream, directory: Path, key: str, value: str, killed_at: str = "") -> None:
    """Give the command, in a process of its own that may die at a fault point."""
    plan = ProcessPlan(
        [ArmedFault("kill", killed_at or "nowhere", Action.CRASH)], directory / f"claims{killed_at}"
    )
    plan.write(directory / "plan.json")
    given = [word for pair in settings_of(stream).items() for word in ("--set", "=".join(pair))]
    command = ["state", "put", "count", key, value, "--reason", "a correction", "--yes"]
    done = subprocess.run(
        [sys.executable, "-m", "statekeep.cli", *command, *given],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            HANDLER_VARIABLE: HANDLER,
            PLAN_VARIABLE: str(directory / "plan.json"),
        },
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == (-signal.SIGKILL if killed_at else 0), done.stderr.decode()


def test_a_query_goes_on_with_what_was_written(stream: Stream, tmp_path: Path) -> None:
    settings = settings_of(stream)
    stream.add_batches(2)
    stream.run()
    state = stream.expected(2)

    gone, corrected = sorted(state)[:2]
    frame = stream.spark.createDataFrame(
        [((corrected,), (100, 1000)), (("absent",), (7, 7))],
        "key struct<key:string>, value struct<n:long,s:long>",
    )
    sk.write_state(settings, "count", frame, reason="a correction")
    sk.write_state(settings, "count", pa.table({"key": [gone]}), reason="a test", delete=True)
    del state[gone]
    state |= {corrected: (100, 1000), "absent": (7, 7)}
    assert state_of(settings) == state

    stream.add_batches(1)
    stream.run()
    state = added(stream, state, 2)
    assert state_of(settings) == state
    assert stream.received()[corrected] == state[corrected]

    # What a killed command leaves is in no one's way; one killed after its commit has changed the state.
    put(stream, tmp_path, gone, "[5, 5]", killed_at="commit_record.before")
    stream.add_batches(1)
    stream.run()
    state = added(stream, state, 3)
    assert state_of(settings) == state
    put(stream, tmp_path, gone, "[5, 5]", killed_at="commit_record.after")
    stream.add_batches(1)
    stream.run()
    state = added(stream, state | {gone: (5, 5)}, 4)
    assert state_of(settings) == state


def test_a_running_query_is_changed_between_two_batches(stream: Stream) -> None:
    settings = settings_of(stream)
    stream.add_batches(3)
    in_sink, go_on = threading.Event(), threading.Event()

    def wait_in_sink(batch: int) -> None:
        if batch == 1:
            in_sink.set()
            assert go_on.wait(60)

    stream.on_batch = wait_in_sink
    writer = stream.stateful().writeStream.foreachBatch(stream.sink)
    query = writer.option("checkpointLocation", str(stream.location)).start()
    query_id, run_id = query.id, query.runId
    assert in_sink.wait(60)
    key = min(stream.expected(2))
    rows = stream.spark.createDataFrame(
        [((key,), (100, 1000))], "key struct<key:string>, value struct<n:long,s:long>"
    )
    names = {"query": query, "rows": rows}
    program = block("docs/how-to/change-state.md", "While the query runs", "python")
    with ThreadPoolExecutor(2) as threads:
        changing = threads.submit(exec, program, names)
        processing = threads.submit(query.processAllAvailable)
        while not query._job._is_pausing:
            assert not changing.done()
        go_on.set()
        changing.result(120)
        processing.result(120)
    # The batch in the sink ended before the change, and is delivered once; the next one has the change.
    state = added(stream, stream.expected(2) | {key: (100, 1000)}, 2)
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2]
    assert stream.received()[key] == state[key]

    with pytest.raises(StateSchemaError):
        query.write_state("count", pa.table({"key": [key], "value": [{"n": "x"}]}), reason="r")
    query.write_state("count", pa.table({"key": [key]}), reason="a test", delete=True)
    del state[key]
    stream.add_batches(1)
    query.processAllAvailable()
    state = added(stream, state, 3)
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3]
    assert stream.received()[key] == state[key]
    assert (query.id == query_id, query.runId == run_id, query.isActive) == (True, False, True)
    assert (query.status["restarts"], events_of(query, "restart")) == (0, [])
    query.stop()
    assert query.awaitTermination(1) is True
    assert state_of(settings) == state
    with pytest.raises(ConfigError, match=r"use sk\.write_state"):
        query.write_state("count", pa.table({"key": [key]}), reason="r", delete=True)


def test_a_query_that_runs_is_changed_by_its_own_handle_alone_and_not_in_its_sink(
    stream: Stream,
) -> None:
    stream.add_batches(2)
    gone = pa.table({"key": ["a"]})

    def refused(batch: int) -> None:
        if batch:
            caught.append(refusal(stream))
            with pytest.raises(ConfigError, match="the change would wait for this batch"):
                query.write_state("count", gone, reason="r", delete=True)

    stream.on_batch = refused
    caught: list[str] = []
    query = stream.start(settings={"task.commit.every.batch": "true"})
    query.awaitTermination()
    assert [str(os.getpid()) in told for told in caught] == [True]
    assert "query.write_state" in caught[0]
    with pytest.raises(ConfigError, match=r"the query ends by itself.* trigger=availableNow"):
        query.write_state("count", gone, reason="r", delete=True)
    assert state_of(settings_of(stream)) == stream.expected(2)


def refusal(stream: Stream) -> str:
    with pytest.raises(ConfigError, match="the job may be running") as caught:
        sk.write_state(
            settings_of(stream), "count", pa.table({"key": ["a"]}), reason="r", delete=True
        )
    return str(caught.value)
