"""The fault handler of every process of a schedule: it follows a plan that may be replaced.

One Spark session runs many schedules, and its processes outlive each of them; so the plan is read
again whenever its file has changed. The clocks of a process can be off, too.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statekeep.clock import SystemClock
from statekeep.testing.faults.process_faults import ProcessFaults, process_kind
from statekeep.testing.faults.process_plan import ArmedFault, ProcessPlan

HANDLER = "chaos.spark.arming:at_fault_point"
PLAN_VARIABLE = "STATEKEEP_CHAOS_PLAN"
"""Names the file that `write_plan` writes: one a session."""
LOST_ANSWER = "answer.lost"
"""Noted like a fault point once a call has taken effect and answered an error."""


def write_plan(
    path: Path,
    faults: list[ArmedFault],
    claims: Path,
    reached: Path,
    *,
    clock_offset_s: int = 0,
    lost_answers: float = 0.0,
    profile: Path | None = None,
) -> None:
    """Arm the processes of a session, from their next fault point on.

    Args:
        path: The session's plan.
        faults: What shall strike.
        claims: Where processes claim faults.
        reached: Where they note the points that they reach.
        clock_offset_s: How far wall clocks are off.
        lost_answers: Part of the calls to stores that take effect and answer an error.
        profile: What `write_profiles` writes. A file of its own, as the counts of a process begin
            anew with each plan.
    """
    claims.mkdir(parents=True, exist_ok=True)
    plan = ProcessPlan(faults, claims)
    temporary = path.with_suffix(".tmp")
    plan.write(temporary)
    document = json.loads(temporary.read_text())
    document |= {
        "reached": str(reached),
        "clock-offset-s": clock_offset_s,
        "lost-answers": lost_answers,
        "profile": str(profile or ""),
    }
    temporary.write_text(json.dumps(document))
    temporary.replace(path)


def write_profiles(path: Path, profile: Mapping[str, str], until: float) -> None:
    """Let places misbehave in all processes, from their next calls on.

    Args:
        path: See `write_plan`.
        profile: By URI of a place.
        until: By the monotonic clock, which all processes of the machine share.
    """
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"until": until, "profile": dict(profile)}))
    temporary.replace(path)


@dataclass
class _Armed:
    stamp: tuple[int, int] = (0, 0)
    faults: ProcessFaults | None = None
    reached: Path | None = None
    clock_offset_ns: int = 0
    lost_answers: float = 0.0
    profile: Path | None = None


_armed = _Armed()
"""One per process, as the handler is."""


def at_fault_point(point: str) -> None:
    """Record that the point was reached, and strike as the plan says."""
    follow_plan()
    if _armed.faults is None or _armed.reached is None:
        return
    if point not in _armed.faults.reached:
        (_armed.reached / point).touch()
    _armed.faults(point)


def follow_plan() -> None:
    """Take up the plan if it is a new one."""
    path = Path(os.environ[PLAN_VARIABLE])
    status = path.stat()
    stamp = (status.st_ino, status.st_mtime_ns)
    if stamp == _armed.stamp:
        return
    document: dict[str, Any] = json.loads(path.read_text())
    _armed.reached = Path(document["reached"])
    _armed.clock_offset_ns = document["clock-offset-s"] * 1_000_000_000
    _armed.lost_answers = document["lost-answers"]
    _armed.profile = Path(document["profile"]) if document["profile"] else None
    _armed.faults = ProcessFaults(ProcessPlan.read(path), process_kind())
    _armed.stamp = stamp


def is_answer_lost(chance: float) -> bool:
    """Whether a call that has taken effect shall answer an error; notes it if so.

    Args:
        chance: Drawn by the caller, from 0 to 1.
    """
    follow_plan()
    if _armed.reached is None or chance >= _armed.lost_answers:
        return False
    (_armed.reached / LOST_ANSWER).touch()
    return True


def profile_of(uri: str) -> str | None:
    """Return how a place is to misbehave now; None if it is not."""
    follow_plan()
    if _armed.profile is None or not _armed.profile.exists():
        return None
    document: dict[str, Any] = json.loads(_armed.profile.read_text())
    return document["profile"].get(uri) if time.monotonic() < document["until"] else None


def set_clocks_wrong() -> None:
    """Let the wall clock of this process be off by what the plan says, from now on."""
    right = SystemClock.time_ns

    def wrong(self: SystemClock) -> int:
        return right(self) + _armed.clock_offset_ns

    setattr(SystemClock, right.__name__, wrong)  # the one place that all wall time comes from


set_clocks_wrong()
