"""The plain-Python level: one schedule, from its seed to its outcome."""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from chaos.backends import Place, fault_points_of, places
from chaos.outcome import Outcome
from chaos.plain.job import JOB, Job
from chaos.plain.processes import Event, JobProcess, start, wait_until_none_runs
from chaos.plain.schedule import Life, Schedule, Step, draw_schedule
from chaos.plain.verifier import Verifier
from chaos.servers import NO_SERVER, Server
from statekeep.fault_points import FAULT_POINTS
from statekeep.testing.faults import Action, ArmedFault, ProcessPlan
from statekeep.testing.faults.process_faults import corrupt_one

LEVEL: Final = "plain"
_TIMEOUT_S: Final = 120.0
"""Of a life, which takes about a second: what is slow on a busy machine does not hang."""
_SERVER_TIMEOUT_S: Final = 180.0
"""Of a life whose places are on servers: a commit takes them most of a second on a busy machine."""


def points(backends: Sequence[str]) -> Sequence[str]:
    """Return what schedules aim at, given the kinds of their places."""
    return (*FAULT_POINTS, *fault_points_of(backends))


def run_schedule(
    seed: int, backends: Sequence[str], directory: Path, servers: Mapping[str, Server]
) -> Outcome:
    """Run one schedule and judge it.

    Called in a process without threads, which has never opened a store: it forks.

    Args:
        seed: All that happens is drawn from it.
        backends: Kinds of places, as in `chaos.backends.KINDS`; the first one holds the job log.
        directory: For everything that the schedule leaves; empty or not there yet.
        servers: Those that the places need, by name.
    """
    directory.mkdir(parents=True, exist_ok=True)
    drawn = places(backends, directory, servers)
    run = _Run(draw_schedule(seed, drawn, directory), drawn, directory)
    began = time.monotonic()
    try:
        run.go()
    finally:
        run.close()
    return replace(run.outcome(backends), seconds=time.monotonic() - began)


class _Run:
    """One schedule under way."""

    def __init__(self, schedule: Schedule, drawn: Sequence[Place], directory: Path) -> None:
        self._schedule = schedule
        self._places = drawn
        self._directory = directory
        self._verifier = Verifier(schedule, drawn, JOB)
        self._processes: list[JobProcess] = []
        self._plans: list[ProcessPlan] = []
        self._outside: dict[str, list[str]] = {}
        self._problems: list[str] = []
        self._servers = {p.server.address: p.server for p in drawn if p.server is not NO_SERVER}

    def go(self) -> None:
        """Run every step, then a last life that nothing stands in the way of, and judge."""
        for step in self._schedule.steps:
            self._run_step(step)
        while any(process.is_stopped for process in self._processes):
            self._wake()
            self._wait()
        self._audit()
        last = Life(name="last", until=self._schedule.records, is_calm=True)
        self._verifier.check_end(self._run_alone(last), self._directory / last.local)
        self._audit()
        self._verifier.check_swept()
        for place in self._places:
            life = Life(
                name=f"restore-{place.name}",
                until=-1,
                local=f"restore-{place.name}",
                restore_from=place.name,
            )
            self._verifier.check_restored(place, self._run_alone(life))
        self._audit()

    def outcome(self, backends: Sequence[str]) -> Outcome:
        """Sum up."""
        strikes = [(strike, plan) for plan in self._plans for strike in plan.strikes()]
        faults: dict[str, list[str]] = {key: [*names] for key, names in self._outside.items()}
        for strike, plan in strikes:
            action = next(f.action for f in plan.faults if f.name == strike.name)
            faults.setdefault(strike.point, []).append(action.value)
        return Outcome(
            seed=self._schedule.seed,
            level=LEVEL,
            backends=tuple(backends),
            faults=faults,
            points=frozenset(strike.point for strike, _ in strikes),
            kills=sum(process.was_killed for process in self._processes)
            + sum(len(names) for names in faults.values() if "stop" in names),
            invariants=frozenset(self._verifier.checked),
            failures=(*self._problems, *self._verifier.failures),
            directory=self._directory,
        )

    def close(self) -> None:
        """Leave no process behind."""
        for process in self._processes:
            process.close()

    def _run_step(self, step: Step) -> None:
        if step.is_disk_wiped:
            shutil.rmtree(self._directory / "local", ignore_errors=True)
            self._note("disk", "wiped")
        elif step.is_disk_damaged:
            self._damage_disk(step.lives[0].name)
        for life in step.lives:
            self._start(life)
        if step.wakes == "with":
            self._wake()
        if self._servers:
            self._fail_servers(step)
        self._wait()
        if step.wakes == "after":
            self._wake()
            self._wait()
        self._audit()

    def _fail_servers(self, step: Step) -> None:
        """Let the servers of all places die and come back, if the step has it so."""
        moments = [life.server_fails_after_ms for life in step.lives]
        due = min((moment for moment in moments if moment is not None), default=None)
        if due is None:
            return
        wait_until_none_runs(self._processes, due / 1000, is_long_wait=True)
        for server in self._servers.values():
            server.fail()
        self._note("server", "restarted")

    def _damage_disk(self, name: str) -> None:
        sealed = self._directory / "local" / "**" / "[0-9]*_*" / "*" / "db" / "*"
        fault = ArmedFault(f"{name}-rot", "disk", Action.CORRUPT, path=str(sealed))
        if corrupt_one(fault) is not None:
            self._note("disk", "damaged")

    def _run_alone(self, life: Life) -> list[Event]:
        process = self._start(life)
        self._wait()
        return process.events

    def _start(self, life: Life) -> JobProcess:
        plan = ProcessPlan(life.faults, self._directory / "claims" / life.name)
        plan.claims.mkdir(parents=True, exist_ok=True)
        self._plans.append(plan)
        self._note_outside(life)
        process = start(
            lambda journal: Job(self._schedule, life, self._places, self._directory, journal),
            plan,
            self._directory / f"{life.name}.log",
        )
        self._processes.append(process)
        return process

    def _note_outside(self, life: Life) -> None:
        for backend, profile in life.profile.items():
            self._note("backend", f"{profile.value}:{backend}")
        if life.clock_days:
            self._note("clock", "off")
            self._verifier.checked.add(17)
        if life.file_limit_bytes is not None:
            self._note("disk", "full")
        if life.kill_after_ms is not None:
            self._note("process", "kill")
        if life.name.startswith("rival"):
            self._note("process", "rival")

    def _note(self, point: str, what: str) -> None:
        self._outside.setdefault(point, []).append(what)

    def _wake(self) -> None:
        for process in self._processes:
            process.wake()

    def _wait(self) -> None:
        timeout_s = _SERVER_TIMEOUT_S if self._servers else _TIMEOUT_S
        self._problems += wait_until_none_runs(self._processes, timeout_s)

    def _audit(self) -> None:
        for plan in self._plans:
            names = {strike.name for strike in plan.strikes()}
            struck = [fault for fault in plan.faults if fault.name in names]
            if any(fault.action is Action.CORRUPT for fault in struck):
                self._verifier.is_victim_damaged = True
        self._verifier.audit([process.events for process in self._processes])
        for process in self._processes:
            problem = process.problem
            if problem is not None and problem not in self._problems:
                self._problems.append(problem)
