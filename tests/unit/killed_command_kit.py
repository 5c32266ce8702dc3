"""Commands that are killed at a fault point."""

import os
import signal
import subprocess
import sys

from cli_kit import CommandLine

from statekeep.fault_points import HANDLER_VARIABLE
from statekeep.testing.faults import HANDLER, PLAN_VARIABLE, Action, ArmedFault, ProcessPlan


def kill(statekeep: CommandLine, line: str, point: str) -> None:
    """Give a command in a process of its own, which dies where a fault point is reached."""
    directory = statekeep.config.parent
    plan = ProcessPlan([ArmedFault("kill", point, Action.CRASH)], directory / "claims")
    plan.write(directory / "plan.json")
    done = subprocess.run(
        [sys.executable, "-m", "statekeep.cli", *line.split(), "--config", str(statekeep.config)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            HANDLER_VARIABLE: HANDLER,
            PLAN_VARIABLE: str(directory / "plan.json"),
        },
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
