"""What shall happen at which fault point of which process, as a file that all of them read."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

import msgspec


class Action(StrEnum):
    """What a fault does to the process that reaches it."""

    CRASH = "crash"
    """SIGKILL, as hard as a process can die."""
    STOP = "stop"
    """SIGSTOP: the process sleeps until it gets SIGCONT, and then goes on as a zombie."""
    FAIL = "fail"
    """Raise an error."""
    DELAY = "delay"
    """Sleep on the thread that reached the point; on the event loop everything sleeps with it."""
    CORRUPT = "corrupt"
    """Flip bits of a file, or cut it short."""


class ProcessKind(StrEnum):
    """What a process is to a job."""

    DRIVER = "driver"
    """Spark's driver."""
    WORKER = "worker"
    """A Python worker of Spark."""
    SIDECAR = "sidecar"
    """The sidecar process beside an executor."""
    PLAIN = "plain"
    """A program without Spark."""


@dataclass(frozen=True, slots=True)
class ArmedFault:
    """One fault of a plan."""

    name: str
    """Unique in the plan; the seed of whatever the fault has to choose."""
    point: str
    """Fault point, or a pattern as in a shell: ``upload.*``."""
    action: Action
    nth: int = 1
    """Strikes at this hit of the point in one process, counted from 1."""
    repeats: int = 1
    """Strikes at so many hits in a row from the n-th on; -1: at all of them."""
    kind: ProcessKind | None = None
    """Strikes in processes of this kind alone; None: in any."""
    is_once: bool = True
    """Strikes in one process alone, the first that claims it, also after it was restarted."""
    error: str = "retriable"
    """For ``fail``: ``retriable``, or the name of an errno such as ``ENOSPC``."""
    seconds: float = 0.0
    """For ``delay``."""
    path: str = ""
    """For ``corrupt``: the files to choose one from, as an absolute pattern of ``glob``."""
    is_truncated: bool = False
    """For ``corrupt``: cut the file short instead of flipping a bit."""


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that has struck, according to its claim."""

    name: str
    point: str
    """The fault point itself, also where the fault had a pattern."""
    pid: int
    kind: ProcessKind


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """The faults of one schedule, shared by all its processes through a directory.

    Attributes:
        faults: Those that are armed.
        claims: Directory in which a process claims a fault before it strikes, by a file that it
            creates exclusively. It outlives every crash, so ``is_once`` holds across processes.
    """

    faults: Sequence[ArmedFault]
    claims: Path

    def write(self, path: Path) -> None:
        """Write the plan to a file, and make the directory of claims."""
        self.claims.mkdir(parents=True, exist_ok=True)
        document = _Document(claims=str(self.claims), faults=list(self.faults))
        path.write_bytes(msgspec.json.format(msgspec.json.encode(document)))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a plan; what is not one raises."""
        document = _plans.decode(path.read_bytes())
        return cls(document.faults, Path(document.claims))

    def claim(self, strike: Strike, *, is_once: bool) -> bool:
        """Claim a fault for this process, durably; False if another process has it.

        A fault that strikes in many processes is claimed by each under its own number.
        """
        name = strike.name if is_once else f"{strike.name}-{strike.pid}"
        try:
            file = os.open(self.claims / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            return not is_once
        with os.fdopen(file, "wb") as claim:
            claim.write(msgspec.json.encode(strike))
        return True

    def strikes(self) -> Sequence[Strike]:
        """Return what has struck so far, in the order of the faults' names."""
        contents = [path.read_bytes() for path in sorted(self.claims.glob("*"))]
        return [_strikes.decode(content) for content in contents if content]


class _Document(msgspec.Struct):
    """A plan as it stands in its file."""

    claims: str
    faults: list[ArmedFault]


_plans: Final = msgspec.json.Decoder(_Document)
_strikes: Final = msgspec.json.Decoder(Strike)
