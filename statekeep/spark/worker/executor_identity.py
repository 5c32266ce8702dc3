"""Which executor this Python worker belongs to, and the JVM that must outlive its container."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ExecutorIdentity:
    """The executor of a Python worker."""

    executor_id: str
    """As Spark numbers executors; ``driver`` in a local master."""
    jvm_pid: int
    """Process id of the executor's JVM; 1 if no JVM is among the ancestors."""


@cache
def executor_identity() -> ExecutorIdentity:
    """Find the executor among the ancestors of this process (worker, daemon, JVM)."""
    pid = os.getppid()
    while pid > 1:
        command = _command(pid)
        if command and Path(command[0]).name == "java":
            return ExecutorIdentity(_argument(command, "--executor-id") or "driver", pid)
        pid = _parent(pid)
    return ExecutorIdentity("driver", 1)


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except FileNotFoundError:
        return []


def _parent(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return 1
    return int(status.rpartition(")")[2].split()[1])


def _argument(command: list[str], name: str) -> str | None:
    if name not in command[:-1]:
        return None
    return command[command.index(name) + 1]
