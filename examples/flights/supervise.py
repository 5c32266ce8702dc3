"""Starts the job, kills an executor, then everything, deletes the local state, starts it again."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from examples.flights.events import Event, EventLog, EventReader
from examples.flights.paths import Paths

ROOT = Path(__file__).resolve().parents[2]
EXECUTOR_CLASS = "CoarseGrainedExecutorBackend"
POLL_SECONDS = 0.1


class JobFailedError(Exception):
    """Raised when the job ended by itself with an error."""


class Supervisor:
    """Runs the job twice; tells ``on_event`` everything that the jobs and itself do."""

    def __init__(self, paths: Paths, batch_count: int, on_event: Callable[[Event], None]) -> None:
        self._paths = paths
        self._kill_executor_at = batch_count // 2
        self._kill_all_at = batch_count * 3 // 4
        self._on_event = on_event
        self._reader = EventReader(paths.events)
        self._own = EventLog(paths.events)
        self.events: list[Event] = []

    def run(self) -> None:
        """Run to the end of the input, through both kills.

        Raises:
            JobFailedError: A job failed for another reason than our signal.
        """
        self._paths.local.mkdir()
        self._first_run()
        shutil.rmtree(self._paths.local)
        self._own.write("local state deleted", directory=str(self._paths.local))
        self._second_run()

    def _first_run(self) -> None:
        job = self._start(1)
        is_executor_killed = False
        try:
            for event in self._follow(job, 1):
                if event["kind"] != "delivered":
                    continue
                if not is_executor_killed and event["batch"] >= self._kill_executor_at:
                    is_executor_killed = True
                    self._kill_one_executor(job)
                if event["batch"] >= self._kill_all_at:
                    return
            raise JobFailedError("the job ended before it was killed")
        finally:
            self._kill_all(job)

    def _second_run(self) -> None:
        job = self._start(2)
        try:
            for _ in self._follow(job, 2):
                pass
        finally:
            kill_session(job.pid, self._paths.work)
            job.wait()

    def _start(self, run: int) -> "subprocess.Popen[bytes]":
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self._paths.work / "spark"),
            "LOGGED_STORE_BASE_DIR": str(self._paths.local),
        }
        paths = self._paths
        with paths.log(f"job-{run}").open("wb") as log:
            return subprocess.Popen(  # noqa: S603  # our own Python, fixed arguments
                [
                    sys.executable,
                    "-m",
                    "examples.flights.job",
                    str(paths.work),
                    str(paths.flights),
                    str(run),
                ],
                cwd=paths.work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _follow(self, job: "subprocess.Popen[bytes]", run: int) -> Iterator[Event]:
        """Yield the job's events until it ends well."""
        while True:
            try:
                code: int | None = job.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                code = None
            yield from self._news()
            if code == 0:
                return
            if code is not None:
                log = self._paths.log(f"job-{run}").read_text(errors="replace")
                raise JobFailedError(f"the job ended with {code}:\n{log[-4000:]}")

    def _news(self) -> list[Event]:
        news = self._reader.read()
        self.events += news
        for event in news:
            self._on_event(event)
        return news

    def _kill_one_executor(self, job: "subprocess.Popen[bytes]") -> None:
        executors = [pid for pid in session_of(job.pid) if EXECUTOR_CLASS in command_of(pid)]
        os.kill(executors[0], signal.SIGKILL)
        self._own.write("executor killed", pid=executors[0], left=len(executors) - 1)

    def _kill_all(self, job: "subprocess.Popen[bytes]") -> None:
        killed = kill_session(job.pid, self._paths.work)
        job.wait()
        self._own.write("everything killed", processes=killed)


def kill_session(session: int, work: Path) -> int:
    """SIGKILL a session, and the daemons of Statekeep that left it; wait until they are gone."""
    killed: set[int] = set()
    while victims := {*session_of(session), *_daemons(work)}:
        for pid in victims - killed:
            _kill(pid)
        killed |= victims
    return len(killed)


def session_of(session: int) -> list[int]:
    """Return the processes of a session."""
    return [pid for pid in _processes() if _session_id(pid) == session]


def command_of(pid: int) -> str:
    """Return a process's command line, empty once it has gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def _daemons(work: Path) -> list[int]:
    commands = {pid: command_of(pid) for pid in _processes() if _session_id(pid) is not None}
    return [pid for pid, text in commands.items() if "statekeep" in text and str(work) in text]


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _session_id(pid: int) -> int | None:
    """Return the session of a process that still runs."""
    try:
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except OSError:
        return None
    return None if state in "ZX" else int(session)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it was quicker
