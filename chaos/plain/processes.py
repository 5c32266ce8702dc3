"""Processes of the job, forked from the harness, which has imported everything already.

A fork takes some milliseconds where a new interpreter takes half a second. It is safe as long as
the harness itself has no threads and never opens a store.
"""

import asyncio
import faulthandler
import json
import logging
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from chaos.plain.job import Job
from statekeep.fault_points import fault_handler
from statekeep.testing.faults import ProcessFaults, ProcessKind, ProcessPlan

_POLL_S: Final = 0.01
_READ_BYTES: Final = 1 << 16

Event = Mapping[str, Any]


@dataclass(slots=True)
class JobProcess:
    """One process of the job, seen from outside."""

    name: str
    pid: int
    pipe: int
    log: Path
    kill_at: float | None
    is_stopped: bool = False
    status: int | None = None
    """As `os.waitpid` gave it; None while it lives."""
    peak_bytes: int = 0
    """Of its memory, once it has ended."""
    _journal: bytearray = field(default_factory=bytearray)

    @property
    def events(self) -> list[Event]:
        """What it has claimed so far; a line that its death cut short counts for nothing."""
        return [json.loads(line) for line in self._journal.split(b"\n")[:-1]]

    @property
    def is_running(self) -> bool:
        """Whether it lives and does not sleep."""
        return self.status is None and not self.is_stopped

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.status is not None and os.waitstatus_to_exitcode(self.status) == -signal.SIGKILL

    @property
    def problem(self) -> str | None:
        """What is wrong with its end, if anything: only SIGKILL and a clean end are right."""
        if self.status is None or self.was_killed or self.status == 0:
            return None
        tail = self.log.read_text(errors="replace")[-2000:]
        return f"{self.name} ended with status {self.status}: {tail}"

    def poll(self) -> None:
        """Take in what it has written and what has become of it; never blocks."""
        while select.select([self.pipe], [], [], 0)[0]:
            chunk = os.read(self.pipe, _READ_BYTES)
            if not chunk:
                break
            self._journal += chunk
        if self.status is not None:
            return
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            os.kill(self.pid, signal.SIGKILL)
            self.kill_at = None
        flags = os.WNOHANG | os.WUNTRACED | os.WCONTINUED
        pid, status, used = os.wait4(self.pid, flags)
        if pid == 0:
            return
        if os.WIFSTOPPED(status):
            self.is_stopped = True
        elif os.WIFCONTINUED(status):
            self.is_stopped = False
        else:
            self.status, self.is_stopped = status, False
            self.peak_bytes = used.ru_maxrss * 1024
            self.poll()

    def wake(self) -> None:
        """Let it go on if it sleeps."""
        if self.status is None and self.is_stopped:
            self.is_stopped = False
            os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it, and release it."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            _, self.status = os.waitpid(self.pid, 0)
        os.close(self.pipe)


def start(
    job: Callable[[Callable[[Event], None]], Job], plan: ProcessPlan, log: Path
) -> JobProcess:
    """Fork a process that runs a job.

    Args:
        job: Builds the job, given the function that writes its journal.
        plan: The faults that strike in it.
        log: Where its output goes.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _be_a_job(job, writer, plan, log)
    os.close(writer)
    life = job(_discard).life
    kill_at = None
    if life.kill_after_ms is not None:
        kill_at = time.monotonic() + life.kill_after_ms / 1000
    return JobProcess(life.name, pid, reader, log, kill_at)


def wait_until_none_runs(
    processes: Iterable[JobProcess], timeout_s: float, *, is_long_wait: bool = False
) -> list[str]:
    """Wait until every process has ended or sleeps; return what is wrong.

    One that goes on for longer than the time-out is made to write down where it hangs, and killed,
    unless it is a long wait.
    """
    deadline = time.monotonic() + timeout_s
    problems: list[str] = []
    while True:
        for process in processes:
            process.poll()
        running = [process for process in processes if process.is_running]
        if not running:
            return problems
        if time.monotonic() > deadline:
            if not is_long_wait:
                problems += [_end_hanging(process) for process in running]
            return problems
        select.select([p.pipe for p in running], [], [], _POLL_S)


def _end_hanging(process: JobProcess) -> str:
    os.kill(process.pid, signal.SIGUSR1)
    select.select([], [], [], 0.2)
    os.kill(process.pid, signal.SIGKILL)
    _, process.status = os.waitpid(process.pid, 0)
    return f"{process.name} does not end; its log has the stacks of its threads: {process.log}"


def _be_a_job(
    job: Callable[[Callable[[Event], None]], Job], writer: int, plan: ProcessPlan, log: Path
) -> None:
    """Run the job in the forked process, and never return."""
    output = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.register(signal.SIGUSR1, file=output, all_threads=True)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, force=True, format="%(asctime)s %(message)s"
    )

    def journal(event: Event) -> None:
        os.write(writer, json.dumps(event).encode() + b"\n")

    status = 1
    try:
        life = job(journal)
        _limit_files(life.life.file_limit_bytes)
        with fault_handler(ProcessFaults(plan, ProcessKind.PLAIN)):
            asyncio.run(life.run())
        journal({"event": "ended"})
        status = 0
    except BaseException:  # noqa: BLE001 - the process ends here, and its log says why
        traceback.print_exc()
    finally:
        with suppress(OSError):  # the log may not grow any further either, where the disk is "full"
            sys.stderr.flush()
        os._exit(status)


def _limit_files(limit_bytes: int | None) -> None:
    if limit_bytes is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))


def _discard(event: Event) -> None:
    """Write nothing down."""
