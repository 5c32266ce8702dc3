"""Temporary directories go with the block, or with the next one after a kill."""

import fcntl
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from statekeep.stores.temporary_directory import temporary_directory

_HOLD = """
import pathlib, sys
from statekeep.stores.temporary_directory import temporary_directory
with temporary_directory("mine-", pathlib.Path(sys.argv[1])) as directory:
    (directory / "file").write_text("content")
    print("held", flush=True)
    sys.stdin.read()
"""


def test_it_is_gone_after_the_block(tmp_path: Path) -> None:
    with temporary_directory("mine-", tmp_path) as directory:
        (directory / "file").write_text("content")
    assert list(tmp_path.iterdir()) == []


def test_that_of_a_killed_process_is_swept_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "mine-of-another-program").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with temporary_directory("mine-", tmp_path):
            assert len(list(tmp_path.rglob("file"))) == 1
        holder.send_signal(signal.SIGKILL)
    with temporary_directory("mine-", tmp_path):
        assert list(tmp_path.rglob("file")) == []
    assert [path.name for path in tmp_path.iterdir()] == ["mine-of-another-program"]


def test_one_that_is_just_being_made_is_not_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of one host begin at once, and each sweeps what others have left."""
    lock, others = fcntl.flock, [1]

    def lock_late(descriptor: int, operation: int) -> None:
        if others:
            others.pop()
            with temporary_directory("mine-", tmp_path):
                pass
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    with temporary_directory("mine-", tmp_path) as directory:
        (directory / "file").write_text("content")
    assert not others
