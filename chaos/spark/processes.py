"""Finds processes by what they are, and ends them as hard as it goes."""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

EXECUTOR_CLASS = "CoarseGrainedExecutorBackend"
SIDECAR_MODULE = "statekeep.spark.sidecar"


def command_of(pid: int) -> str:
    """Return a process's command line, empty once it has gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def session_of(session: int) -> list[int]:
    """Return the processes of a session that still run."""
    return [pid for pid in _all() if (stat := _stat(pid)) and int(stat[3]) == session]


def sidecars_below(directory: Path) -> list[int]:
    """Return the sidecar processes whose place is below a directory."""
    texts = {pid: command_of(pid) for pid in _all()}
    return [pid for pid, text in texts.items() if SIDECAR_MODULE in text and str(directory) in text]


def executor_of(pid: int) -> int | None:
    """Return the executor's JVM among the ancestors of a worker; None if there is none."""
    while pid > 1:
        if EXECUTOR_CLASS in command_of(pid):
            return pid
        stat = _stat(pid)
        pid = int(stat[1]) if stat else 1
    return None


def watched_by(pid: int) -> list[int]:
    """Return the processes whose end a process waits for: those that it has a pidfd of."""
    found: list[int] = []
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
            fields = dict(line.partition(":\t")[::2] for line in entry.read_text().splitlines())
            if "Pid" in fields:
                found.append(int(fields["Pid"]))
    return found


def executors_of(session: int) -> list[int]:
    """Return the executor JVMs of a session."""
    return [pid for pid in session_of(session) if EXECUTOR_CLASS in command_of(pid)]


def descendants_of(pid: int) -> list[int]:
    """Return all children of a process, and theirs."""
    parents = {child: int(stat[1]) for child in _all() if (stat := _stat(child))}
    found: list[int] = []
    pending = [pid]
    while pending:
        parent = pending.pop()
        children = [child for child, its_parent in parents.items() if its_parent == parent]
        found += children
        pending += children
    return found


def kill(pids: Iterable[int]) -> int:
    """SIGKILL processes; return how many were there."""
    return sum(send(pid, signal.SIGKILL) for pid in pids)


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; False if the process has gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def is_alive(pid: int) -> bool:
    """Whether a process still runs."""
    return bool(_stat(pid))


def _all() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _stat(pid: int) -> list[str]:
    """Return state, parent, group, session of a process; nothing once it has gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except OSError:
        return []
    return [] if fields[0] in "ZX" else fields
