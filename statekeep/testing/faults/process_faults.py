"""The handler that lets the faults of a plan strike, in whatever process it is installed.

Set ``STATEKEEP_FAULT_HANDLER`` to `HANDLER` and ``STATEKEEP_FAULT_PLAN`` to the file of a
`ProcessPlan`, and every process that inherits the two is armed.
"""

import errno
import fnmatch
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

from statekeep.errors import RetriableError
from statekeep.testing.faults.process_plan import (
    Action,
    ArmedFault,
    ProcessKind,
    ProcessPlan,
    Strike,
)

HANDLER: Final = "statekeep.testing.faults:at_fault_point"
"""What ``STATEKEEP_FAULT_HANDLER`` is set to."""

PLAN_VARIABLE: Final = "STATEKEEP_FAULT_PLAN"
"""Names the file of the plan."""


class ProcessFaults:
    """Counts the hits of each fault point in one process, and strikes as a plan says.

    An instance is a handler for `statekeep.fault_points.fault_handler`. Threads may share it.
    """

    def __init__(
        self,
        plan: ProcessPlan,
        kind: ProcessKind,
        *,
        sleep: Callable[[float], object] = time.sleep,  # noqa: TID251 - a real process is delayed
    ) -> None:
        """Arm the faults of ``plan`` that are meant for processes of ``kind``."""
        self._plan = plan
        self._kind = kind
        self._sleep = sleep
        self._faults = [fault for fault in plan.faults if fault.kind in {None, kind}]
        self._hits: Counter[str] = Counter()
        self._owned: set[str] = set()
        self._lock = threading.Lock()

    @property
    def reached(self) -> frozenset[str]:
        """The fault points that this process has reached."""
        with self._lock:
            return frozenset(self._hits)

    def __call__(self, point: str) -> None:
        """Count the hit, and let every fault strike whose turn it is."""
        with self._lock:
            self._hits[point] += 1
            due = [fault for fault in self._faults if self._is_due(fault, point)]
        for fault in due:
            self._strike(fault)

    def _is_due(self, fault: ArmedFault, point: str) -> bool:
        if not fnmatch.fnmatchcase(point, fault.point):
            return False
        # The hits of all the points that match, so that "the third of upload.*" has a meaning.
        hit = sum(n for name, n in self._hits.items() if fnmatch.fnmatchcase(name, fault.point))
        if hit < fault.nth or (fault.repeats >= 0 and hit >= fault.nth + fault.repeats):
            return False
        if fault.name in self._owned:
            return True
        strike = Strike(fault.name, point, os.getpid(), self._kind)
        if not self._plan.claim(strike, is_once=fault.is_once):
            return False
        self._owned.add(fault.name)
        return True

    def _strike(self, fault: ArmedFault) -> None:
        match fault.action:
            case Action.CRASH:
                os.kill(os.getpid(), signal.SIGKILL)
            case Action.STOP:
                os.kill(os.getpid(), signal.SIGSTOP)
            case Action.FAIL:
                raise _error(fault)
            case Action.DELAY:
                self._sleep(fault.seconds)
            case Action.CORRUPT:
                corrupt_one(fault)


def at_fault_point(point: str) -> None:
    """Strike as the plan of the environment says: the handler of whole processes."""
    handler = _faults_of_process()
    if handler is not None:
        handler(point)


def process_kind() -> ProcessKind:
    """Return what this process is, from what it was started with."""
    started_as = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", "") or ""
    if started_as.startswith("statekeep.spark.sidecar"):
        return ProcessKind.SIDECAR
    if started_as in {"pyspark.daemon", "pyspark.worker"}:
        return ProcessKind.WORKER
    return ProcessKind.DRIVER if "pyspark" in sys.modules else ProcessKind.PLAIN


def corrupt_one(fault: ArmedFault) -> Path | None:
    """Damage one file that the fault's pattern matches; None if it matches no file.

    Which one, and where in it, is drawn by the fault's name. A file of the same content takes the
    place of the old one first: other links to it stay whole, as on another disk.
    """
    draw = random.Random(fault.name)  # noqa: S311 - the same damage each time is what is wanted
    found = sorted(Path("/").glob(fault.path.lstrip("/")))
    files = [path for path in found if path.is_file() and path.stat().st_size > 0]
    if not files:
        return None
    path = draw.choice(files)
    content = bytearray(path.read_bytes())
    position = draw.randrange(len(content))
    if fault.is_truncated:
        del content[position:]
    else:
        content[position] ^= 1 << draw.randrange(8)
    copy = path.with_name(f"{path.name}.corrupt")
    copy.write_bytes(content)
    copy.replace(path)
    return path


def _error(fault: ArmedFault) -> Exception:
    if fault.error == "retriable":
        return RetriableError(f"failed on purpose: fault={fault.name} point={fault.point}")
    number = getattr(errno, fault.error)
    return OSError(number, f"{os.strerror(number)}, on purpose: fault={fault.name}")


@cache
def _faults_of_process() -> ProcessFaults | None:
    path = os.environ.get(PLAN_VARIABLE)
    return ProcessFaults(ProcessPlan.read(Path(path)), process_kind()) if path else None
