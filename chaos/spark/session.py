"""A driver process with its Spark session, as the harness sees it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chaos.spark import arming, processes

ROOT = Path(__file__).resolve().parents[2]
Event = Mapping[str, Any]


class DriverSession:
    """Started once, told to run queries, killed at will."""

    def __init__(self, directory: Path) -> None:
        """Start the process; `events` tells when it is ready.

        Args:
            directory: Of one session alone; made.
        """
        directory.mkdir(parents=True)
        self.directory = directory
        self.plan = directory / "plan.json"
        arming.write_plan(self.plan, [], directory / "claims", directory)
        self._told = 0
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(directory / "work"),
            "STATEKEEP_FAULT_HANDLER": arming.HANDLER,
            arming.PLAN_VARIABLE: str(self.plan),
        }
        with (directory / "log").open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own Python, fixed arguments
                [sys.executable, "-m", "chaos.spark.driver", str(directory)],
                cwd=directory,
                env=environment,
                stdin=subprocess.PIPE,
                bufsize=0,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The driver's Python process; its session has the same number."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether the driver's Python process runs."""
        return self._process.poll() is None

    def order(self, **order: object) -> None:
        """Tell the driver to run a query."""
        assert self._process.stdin is not None  # noqa: S101 - a pipe, as asked for
        self._process.stdin.write(json.dumps(order).encode() + b"\n")

    def events(self) -> list[Event]:
        """Return what the driver told since the last call; a line cut short is left out."""
        path = self.directory / "events.jsonl"
        if not path.exists():
            return []
        with path.open("rb") as file:
            file.seek(self._told)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._told += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def kill_driver(self) -> int:
        """SIGKILL the driver's Python and its JVM; its executors find out by themselves."""
        jvms = [
            pid
            for pid in processes.descendants_of(self.pid)
            if "SparkSubmit" in processes.command_of(pid)
        ]
        killed = processes.kill([self.pid, *jvms])
        self._process.wait()
        return killed

    def kill_all(self) -> int:
        """SIGKILL everything of the session, sidecars excepted: they have sessions of their own."""
        killed = 0
        while victims := processes.session_of(self.pid):
            killed += processes.kill(victims)
            if self._process.poll() is None:
                self._process.wait()
            time.sleep(0.01)  # noqa: TID251 - the end of other processes is awaited
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        return killed
