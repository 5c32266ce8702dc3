"""Locks between processes: they end with their holder, and each wait has an end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from statekeep.errors import RetriableError
from statekeep.stores.locks import locked

HOLDER = """
import sys
from pathlib import Path
from statekeep.stores.locks import locked

with locked(Path(sys.argv[1]), shared=False):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_shared_holders_do_not_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path, shared=True), locked(path, shared=True, timeout_s=0):
        pass


def test_a_process_that_is_stopped_with_the_lock_is_named_instead_of_awaited(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        os.kill(holder.pid, signal.SIGSTOP)
        try:
            with (
                pytest.raises(RetriableError, match=rf"path={path} pids={holder.pid}\b") as caught,
                locked(path, shared=True, timeout_s=0.05),
            ):
                pytest.fail("the lock was given twice")
            assert "kill -CONT" in caught.value.hints[0]
        finally:
            holder.kill()
    with locked(path, shared=False, timeout_s=0):
        pass
