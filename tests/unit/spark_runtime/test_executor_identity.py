"""A Python worker finds its executor among its ancestors, process 1 included."""

from pathlib import Path

import pytest

from statekeep.spark.sidecar.paths import NO_JVM
from statekeep.spark.worker.executor_identity import ExecutorIdentity, find_executor

JAVA = ["/opt/java/bin/java", "-cp", "jars", "Backend", "--executor-id", "7"]
DAEMON = ["python3", "-m", "pyspark.daemon"]


def processes(proc: Path, *commands: tuple[int, int, list[str]]) -> Path:
    """Write down (pid, parent, command) as the kernel does."""
    for pid, parent, command in commands:
        (proc / str(pid)).mkdir()
        (proc / str(pid) / "cmdline").write_bytes("\0".join(command).encode() + b"\0")
        (proc / str(pid) / "stat").write_text(f"{pid} (a (name) S) S {parent} 1 1 0")
    return proc


@pytest.mark.parametrize("jvm", [1, 40], ids=["without an init process", "with one"])
def test_the_jvm_is_found_behind_the_daemon(tmp_path: Path, jvm: int) -> None:
    init = [(1, 0, ["/sbin/tini"])] if jvm > 1 else []
    proc = processes(tmp_path, *init, (jvm, min(jvm - 1, 1), JAVA), (50, jvm, DAEMON))

    assert find_executor(50, proc) == ExecutorIdentity("7", jvm)


def test_a_worker_whose_daemon_has_ended_belongs_to_the_jvm_that_is_process_1(
    tmp_path: Path,
) -> None:
    assert find_executor(50, processes(tmp_path, (1, 0, JAVA))) == ExecutorIdentity("7", 1)


def test_without_a_jvm_there_is_no_executor(tmp_path: Path) -> None:
    proc = processes(tmp_path, (1, 0, ["/sbin/init"]), (50, 1, ["bash"]))

    assert find_executor(50, proc) == ExecutorIdentity("driver", NO_JVM)
