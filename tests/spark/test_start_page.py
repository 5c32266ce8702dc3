"""The page Start from its first program to its last command: a job that is killed and loses its disk."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pages_kit import block, commands
from spark_processes import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

PAGE = "docs/start.md"
THERE = "/tmp/first-job"  # noqa: S108 - replaced by the test's own directory
Totals = dict[str, int]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    programs = {
        "job.properties": block(PAGE, "A first job", "properties"),
        "job.py": block(PAGE, "A first job", "python"),
        "read.py": block(PAGE, "Look at the state", "python"),
    }
    for name, text in programs.items():
        assert THERE in text or name == "read.py"
        (tmp_path / name).write_text(text.replace(THERE, str(tmp_path)))
    return tmp_path


@contextmanager
def running_job(directory: Path) -> Iterator[Iterator[Totals]]:
    """Run job.py; yield the totals of each batch that it prints, and kill all of it at the end."""
    assert "python job.py" in commands(PAGE, "A first job")
    with subprocess.Popen(
        [sys.executable, "job.py"],
        cwd=directory,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield (
                {key: int(total) for key, total in re.findall(r"(\d)=(\d+)", line)}
                for line in process.stdout
                if line.startswith("batch ")
            )
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def read_state(directory: Path) -> Totals:
    assert "python read.py" in commands(PAGE, "Look at the state")
    done = subprocess.run(
        [sys.executable, "read.py"], cwd=directory, capture_output=True, text=True, check=True
    )
    return {key: int(total) for key, total in map(str.split, done.stdout.splitlines())}


def newest_commit(directory: Path) -> int:
    """Return the batch of the job's newest commit; -1: none has state."""
    line = ["checkpoints", "list", "--config", "job.properties", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "statekeep.cli", *line],
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
    )
    return max(int(commit["batch"]) for commit in json.loads(done.stdout))


def follow(batches: Iterator[Totals], seen: Totals, enough: int) -> None:
    """Take in batches until every total has reached so much; none may be wrong on the way."""
    for totals in batches:
        for key, total in totals.items():
            # Equal: the batch in flight when the job was killed comes again.
            assert total >= seen.get(key, 0), (seen, totals)
        seen |= totals
        if not seen:  # The source had no row yet when the first batch began.
            continue
        assert max(seen.values()) - min(seen.values()) <= 1 or len(seen) < 3, seen
        if len(seen) == 3 and min(seen.values()) >= enough:
            return
    pytest.fail(f"the job has ended: {seen}")


def test_the_state_is_exact_after_a_crash_and_the_loss_of_the_disk(directory: Path) -> None:
    seen: Totals = {}
    with running_job(directory) as batches:
        follow(batches, seen, enough=200)
    assert commands(PAGE, "A first crash") == [
        "pkill -9 -f job.py",
        f"rm -r {THERE}/local",
        "python job.py",
    ]
    shutil.rmtree(directory / "local")
    with running_job(directory) as batches:
        follow(batches, seen, enough=min(seen.values()) + 200)
        assert wait_until(
            lambda: newest_commit(directory) >= 0
        )  # on a slow machine it takes a while
    for line in commands(PAGE, "Look at the state"):
        if line.startswith("statekeep "):
            command = [sys.executable, "-m", "statekeep.cli", *shlex.split(line)[1:]]
            subprocess.run(command, cwd=directory, check=True)
    state = read_state(directory)
    assert set(state) == set(seen)
    assert min(state.values()) > 0
    assert max(state.values()) - min(state.values()) <= 1
