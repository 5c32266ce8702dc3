"""Processes of this machine: below another one, or that name a directory."""

from contextlib import suppress
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Return the processes below one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def processes_that_name(directory: Path) -> list[int]:
    """Return the processes with a directory in their command line: sidecars leave the tree of their parents."""
    entries = Path("/proc").glob("[0-9]*")
    return [int(e.name) for e in entries if str(directory) in command_of(int(e.name))]


def command_of(pid: int) -> str:
    """Return the command line of a process; empty once it has gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
