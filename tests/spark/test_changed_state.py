"""The state of a stopped query, changed: its next start goes on with what was written."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import Stream, state_of

import statekeep as sk
from statekeep.errors import ConfigError
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


def test_a_query_that_runs_is_not_changed(stream: Stream) -> None:
    stream.add_batches(2)
    stream.on_batch = lambda batch: caught.append(refusal(stream)) if batch else None
    caught: list[str] = []
    stream.run(task__commit__every__batch="true")
    assert [str(os.getpid()) in told for told in caught] == [True]
    assert state_of(settings_of(stream)) == stream.expected(2)


def refusal(stream: Stream) -> str:
    with pytest.raises(ConfigError, match="the job may be running") as caught:
        sk.write_state(
            settings_of(stream), "count", pa.table({"key": ["a"]}), reason="r", delete=True
        )
    return str(caught.value)
