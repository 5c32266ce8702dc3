"""Faults that strike in processes: who is struck, when, and what is left of it."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from statekeep.errors import RetriableError
from statekeep.fault_points import HANDLER_VARIABLE
from statekeep.testing.faults import (
    HANDLER,
    PLAN_VARIABLE,
    Action,
    ArmedFault,
    ProcessFaults,
    ProcessKind,
    ProcessPlan,
)

PROGRAM = "from statekeep.fault_points import fault_point; fault_point('here'); print('went on')"


def faults(
    tmp_path: Path, *armed: ArmedFault, kind: ProcessKind = ProcessKind.PLAIN
) -> ProcessFaults:
    plan = ProcessPlan(armed, tmp_path / "claims")
    plan.claims.mkdir(exist_ok=True)
    return ProcessFaults(plan, kind)


def failing(name: str = "f", **settings: object) -> ArmedFault:
    return ArmedFault(name=name, point="here", action=Action.FAIL, **settings)  # type: ignore[arg-type]  # the tests' own keywords


def run_program(tmp_path: Path, plan: ProcessPlan) -> subprocess.CompletedProcess[bytes]:
    path = tmp_path / "plan.json"
    plan.write(path)
    environment = {**os.environ, HANDLER_VARIABLE: HANDLER, PLAN_VARIABLE: str(path)}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        check=False,
        capture_output=True,
        timeout=20,
    )


def test_a_process_that_inherits_the_plan_is_killed_once_and_its_successor_is_not(
    tmp_path: Path,
) -> None:
    plan = ProcessPlan([ArmedFault("kill", "here", Action.CRASH)], tmp_path / "claims")
    assert run_program(tmp_path, plan).returncode == -signal.SIGKILL
    assert run_program(tmp_path, plan).stdout == b"went on\n"
    assert [strike.point for strike in plan.strikes()] == ["here"]


def test_a_process_that_is_stopped_goes_on_when_it_is_woken(tmp_path: Path) -> None:
    plan, path = ProcessPlan([ArmedFault("doze", "here", Action.STOP)], tmp_path / "c"), "plan.json"
    plan.write(tmp_path / path)
    environment = {**os.environ, HANDLER_VARIABLE: HANDLER, PLAN_VARIABLE: str(tmp_path / path)}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE
    ) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=20)[0] == b"went on\n"
    assert process.returncode == 0


def test_a_fault_strikes_at_its_nth_hit_and_as_often_as_it_repeats(tmp_path: Path) -> None:
    handler = faults(tmp_path, failing(nth=2, repeats=2))
    struck: list[bool] = []
    for _ in range(5):
        try:
            handler("here")
        except RetriableError:
            struck.append(True)
        else:
            struck.append(False)
    assert struck == [False, True, True, False, False]


def test_a_pattern_counts_the_hits_of_all_points_that_it_matches(tmp_path: Path) -> None:
    fault = ArmedFault("f", "upload.*", Action.FAIL, nth=2)
    handler = faults(tmp_path, fault)
    handler("upload.before")
    handler("commit_record.before")
    with pytest.raises(RetriableError):
        handler("upload.before_blob")


def test_a_fault_for_one_kind_of_process_leaves_the_others_alone(tmp_path: Path) -> None:
    faults(tmp_path, failing(kind=ProcessKind.WORKER))("here")


def test_a_fault_that_may_strike_twice_strikes_in_each_process(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(RetriableError):
            faults(tmp_path, failing(is_once=False))("here")


def test_a_full_disk_is_the_error_that_the_system_would_raise(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        faults(tmp_path, failing(error="ENOSPC"))("here")
    assert caught.value.errno == errno.ENOSPC


def test_a_delay_sleeps_for_its_seconds(tmp_path: Path) -> None:
    slept: list[float] = []
    plan = ProcessPlan([ArmedFault("d", "here", Action.DELAY, seconds=3.5)], tmp_path)
    ProcessFaults(plan, ProcessKind.PLAIN, sleep=slept.append)("here")
    assert slept == [3.5]


@pytest.mark.parametrize("is_truncated", [False, True])
def test_corrupting_damages_one_file_and_leaves_its_other_links_whole(
    tmp_path: Path, *, is_truncated: bool
) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "a").write_bytes(b"content")
    os.link(tmp_path / "blobs" / "a", tmp_path / "other")
    fault = ArmedFault(
        "c",
        "here",
        Action.CORRUPT,
        path=str(tmp_path / "blobs" / "*"),
        is_truncated=is_truncated,
    )
    faults(tmp_path, fault)("here")
    damaged = (tmp_path / "blobs" / "a").read_bytes()
    assert damaged != b"content"
    assert len(damaged) < len(b"content") if is_truncated else len(damaged) == len(b"content")
    assert (tmp_path / "other").read_bytes() == b"content"


def test_a_plan_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    plan = ProcessPlan(
        [failing(kind=ProcessKind.SIDECAR, nth=3), ArmedFault("b", "x.*", Action.STOP)],
        tmp_path / "claims",
    )
    plan.write(tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["faults"][0]["kind"] == "sidecar"
    assert ProcessPlan.read(tmp_path / "plan.json") == plan
