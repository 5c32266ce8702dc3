"""Which executor this Python worker belongs to, and the JVM that must outlive its sidecar."""

import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from statekeep.spark.sidecar.paths import NO_JVM

_PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class ExecutorIdentity:
    """The executor of a Python worker."""

    executor_id: str
    """As Spark numbers executors; ``driver`` in a local master."""
    jvm_pid: int
    """Process id of the executor's JVM, which is 1 in an image without an init process; `NO_JVM` if
    no JVM is among the ancestors."""


@cache
def executor_identity() -> ExecutorIdentity:
    """Find the executor among the ancestors of this process (worker, daemon, JVM)."""
    return find_executor(os.getppid())


def local_disk(local_dir: Path) -> str:
    """Return what two executors have in common that share a local directory; "" if it is not there.

    It begins with the name of the host and a slash.
    """
    try:
        found = local_dir.stat()
    except FileNotFoundError:
        return ""
    return f"{socket.gethostname()}/{found.st_dev}-{found.st_ino}"


def find_executor(pid: int, proc: Path = _PROC) -> ExecutorIdentity:
    """Find the executor: a process, or one of its ancestors.

    Args:
        pid: Where to begin.
        proc: The kernel's directory of processes.
    """
    while pid > 0:
        command = _command(proc, pid)
        if command and Path(command[0]).name == "java":
            return ExecutorIdentity(_argument(command, "--executor-id") or "driver", pid)
        pid = _parent(proc, pid)
    return ExecutorIdentity("driver", NO_JVM)


def _command(proc: Path, pid: int) -> list[str]:
    try:
        return (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except FileNotFoundError:
        return []


def _parent(proc: Path, pid: int) -> int:
    """Return the parent of a process; 0 for process 1."""
    try:
        status = (proc / str(pid) / "stat").read_text()
    except FileNotFoundError:
        return 1 if pid > 1 else 0  # it has just ended: its children are given to process 1
    return int(status.rpartition(")")[2].split()[1])


def _argument(command: list[str], name: str) -> str | None:
    if name not in command[:-1]:
        return None
    return command[command.index(name) + 1]
