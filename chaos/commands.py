"""The command line in processes of its own, of which some are killed at the n-th fault point that they reach."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from statekeep.fault_points import HANDLER_VARIABLE
from statekeep.testing.faults import HANDLER, PLAN_VARIABLE, Action, ArmedFault, ProcessPlan

_WAIT_S: Final = 120.0


@dataclass
class Commands:
    """Commands of one schedule, with the settings of a job."""

    directory: Path
    settings: Mapping[str, str]
    struck: Counter[str] = field(default_factory=Counter[str])
    """Where commands were killed, and how often."""

    def __post_init__(self) -> None:
        self._config = self.directory / "job.properties"
        self._config.write_text("".join(f"{k}={v}\n" for k, v in self.settings.items()))
        self._given = 0

    def give(self, *words: str, nth: int) -> str | None:
        """Give a command; return the fault point that it died at.

        Args:
            words: Without the settings.
            nth: At which fault point it is to die; 0: at none.

        Raises:
            RuntimeError: It failed.
        """
        self._given += 1
        plan = ProcessPlan(
            [ArmedFault("kill", "*", Action.CRASH, nth=nth)] if nth else [],
            self.directory / f"claims-{self._given}",
        )
        plan.write(self.directory / "plan.json")
        done = self.run(*words, is_armed=True)
        if done.returncode not in {0, -signal.SIGKILL}:
            raise RuntimeError(f"{words} ended with {done.returncode}: {done.stderr[-800:]}")
        point = next((strike.point for strike in plan.strikes()), None)
        if point is not None:
            self.struck[point] += 1
        return point

    def run(self, *words: str, is_armed: bool = False) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end, however that is."""
        armed = {HANDLER_VARIABLE: HANDLER, PLAN_VARIABLE: str(self.directory / "plan.json")}
        return subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-m", "statekeep.cli", *words, "--config", str(self._config)],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                **(armed if is_armed else {}),
            },
            check=False,
            capture_output=True,
            text=True,
            timeout=_WAIT_S,
        )

    def json(self, *words: str) -> Any:  # noqa: ANN401 - JSON
        """Return what a command prints.

        Raises:
            RuntimeError: It failed.
        """
        done = self.run(*words, "--json")
        if done.returncode != 0:
            raise RuntimeError(f"{words} ended with {done.returncode}: {done.stderr[-800:]}")
        return json.loads(done.stdout)
