"""The malice level: one schedule, from its seed to its outcome."""

import random
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from chaos.backends import Place, fault_points_of, places
from chaos.evidence.remote import Reader
from chaos.malice.attacker import Attack, Attacker, TopicAttacker
from chaos.malice.judge import Judge
from chaos.malice.prey import LocalPrey, Topics, prey_of
from chaos.malice.schedule import KEYS, MaliceSchedule, Round, draw_malice, plain
from chaos.outcome import Outcome
from chaos.plain.job import JOB, Job
from chaos.plain.processes import JobProcess, start, wait_until_none_runs
from chaos.plain.schedule import Life, Schedule
from chaos.plain.verifier import Verifier
from chaos.servers import NO_SERVER, Server
from statekeep.fault_points import FAULT_POINTS
from statekeep.testing.faults import ProcessPlan

LEVEL: Final = "malice"
_OTHER: Final = "other"
_TIMEOUT_S: Final = 90.0
_SERVER_TIMEOUT_S: Final = 240.0
_MOST_BYTES: Final = 1 << 30
"""Of a process of the job, which counts to a dozen: what it takes beyond some 150 MB is for damage."""

_HAND: Final = Reader("chaos.malice.hand")


def points(backends: Sequence[str]) -> Sequence[str]:
    """Return where schedules strike, given the kinds of their places."""
    return (*FAULT_POINTS, *fault_points_of(backends))


def close() -> None:
    """End the process that writes to servers. Idempotent."""
    _HAND.close()


def run_schedule(
    seed: int, backends: Sequence[str], directory: Path, servers: Mapping[str, Server]
) -> Outcome:
    """Run one schedule and judge it; as `chaos.plain.level.run_schedule`."""
    directory.mkdir(parents=True, exist_ok=True)
    drawn = places(backends, directory, servers)
    run = _Run(draw_malice(seed, drawn, directory), drawn, directory)
    began = time.monotonic()
    try:
        run.go()
    finally:
        run.close()
    return replace(run.outcome(backends), seconds=time.monotonic() - began)


class _Run:
    """One schedule under way."""

    def __init__(self, schedule: MaliceSchedule, drawn: Sequence[Place], directory: Path) -> None:
        self._schedule = schedule
        self._places = drawn
        self._directory = directory
        expected = Verifier(schedule.job, drawn, JOB).expected_content
        self._judge = Judge(expected, [place.name for place in drawn])
        self._processes: list[JobProcess] = []
        self._heard: dict[str, int] = {}
        self._plans: list[ProcessPlan] = []
        self._attacks: list[Attack] = []
        self._problems: list[str] = []
        self._attackers: list[Attacker | TopicAttacker] = []
        is_remote = any(place.server is not NO_SERVER for place in drawn)
        self._timeout_s = _SERVER_TIMEOUT_S if is_remote else _TIMEOUT_S

    def go(self) -> None:
        """Run every round, then a calm life on an empty disk, and judge."""
        (self._directory / "keys").write_text(KEYS)
        (self._directory / "keys").chmod(0o600)
        self._attackers = self._make_attackers()
        for number, each in enumerate(self._schedule.rounds, 1):
            if not self._run_round(number, each):
                return
        last = Life(name="last", until=self._schedule.job.records, is_calm=True, local="last")
        if not self._live(last, 0):
            self._live_again(last)

    def outcome(self, backends: Sequence[str]) -> Outcome:
        """Sum up."""
        faults: dict[str, list[str]] = {}
        for attack in self._attacks:
            faults.setdefault(attack.act, []).append("strike")
        strikes = [strike for plan in self._plans for strike in plan.strikes()]
        for strike in strikes:
            faults.setdefault(strike.point, []).append("stop")
        return Outcome(
            seed=self._schedule.job.seed,
            level=LEVEL,
            backends=tuple(backends),
            faults=faults,
            points=frozenset(strike.point for strike in strikes),
            verdicts=dict(self._judge.verdicts),
            kills=sum(process.was_killed for process in self._processes),
            invariants=frozenset({10, 14, 20}),
            failures=(*self._problems, *self._judge.failures),
            directory=self._directory,
        )

    def close(self) -> None:
        """Leave no process behind."""
        for process in self._processes:
            process.close()
        story = [f"{attack.act} {attack.subject}" for attack in self._attacks]
        (self._directory / "attacks").write_text("\n".join([*story, ""]))

    def _make_attackers(self) -> list[Attacker | TopicAttacker]:
        """Let another job leave something in the places, and give the attacker a place of its own."""
        self._live_beside(self._schedule.other, self._places, _OTHER)
        files = [place for place in self._places if place.form != "kafka"]
        theirs: dict[str, bytes] = {}
        if self._schedule.is_encrypted:
            spare = places(["blob"], self._directory / "theirs")
            self._live_beside(plain(self._schedule.other), spare, JOB)
            theirs = dict(LocalPrey(spare[0].directory).contents())
        preys = {place.name: prey_of(place, _HAND) for place in files}
        local = LocalPrey(self._directory / "local")
        topics = [Topics(place, _HAND) for place in self._places if place.form == "kafka"]
        return [Attacker(preys, local, theirs, JOB), *(TopicAttacker(each, JOB) for each in topics)]

    def _live_beside(self, schedule: Schedule, drawn: Sequence[Place], name: str) -> None:
        life = Life(
            name=f"beside-{name}", until=schedule.records, is_calm=True, local=f"{name}-disk"
        )
        process = self._start(life, Job(schedule, life, drawn, self._directory, _ignore, name))
        self._wait(process)
        if not any(event["event"] == "ended" for event in process.events):
            self._problems.append(f"{life.name} did not come to its end: {process.events[-3:]}")

    def _run_round(self, number: int, each: Round) -> bool:
        """Run one life and what comes before it; return whether the job can go on."""
        if each.is_disk_wiped:
            shutil.rmtree(self._directory / "local", ignore_errors=True)
        self._look()
        draw = random.Random(f"{self._schedule.job.seed}/{number}")  # noqa: S311 - replayable
        for _ in range(each.strikes_while_down):
            self._strike(draw)
        return self._live(each.life, number) or self._live_again(each.life)

    def _live(self, life: Life, number: int) -> bool:
        """Run one life, and strike where it sleeps; return whether it did without an error."""
        draw = random.Random(f"{self._schedule.job.seed}/{number}/running")  # noqa: S311
        job = Job(self._schedule.job, life, self._places, self._directory, _ignore)
        process = self._start(life, job)
        self._wait(process)
        while process.is_stopped:
            self._look()
            self._strike(draw)
            process.wake()
            self._wait(process)
        return not self._hear(process)

    def _live_again(self, life: Life) -> bool:
        """Put back what was there, as a person does who reads the error, and start again."""
        if any(attack.undo is None for attack in self._attacks):
            return False
        for attack in reversed(self._attacks):
            if attack.undo is not None:
                attack.undo()
        shutil.rmtree(self._directory / "local", ignore_errors=True)
        again = replace(life, name=f"{life.name}-again", faults=())
        self._judge.verdicts["put back"] += 1
        return self._live(again, 0)

    def _start(self, life: Life, job: Job) -> JobProcess:
        plan = ProcessPlan(life.faults, self._directory / "claims" / life.name)
        plan.claims.mkdir(parents=True, exist_ok=True)
        self._plans.append(plan)
        log = self._directory / f"{life.name}.log"
        process = start(lambda journal: replace(job, journal=journal), plan, log)
        self._processes.append(process)
        return process

    def _wait(self, process: JobProcess) -> None:
        self._problems += wait_until_none_runs([process], self._timeout_s)
        if process.problem is not None and process.problem not in self._problems:
            self._problems.append(process.problem)
        if process.peak_bytes > _MOST_BYTES:
            self._problems.append(f"{process.name} took {process.peak_bytes >> 20} MiB of memory")

    def _hear(self, process: JobProcess) -> bool:
        """Have a life judged; return whether it ended by an error."""
        for event in process.events:
            self._judge.hear(process.name, event)
        return any(event["event"] in {"failed", "fenced"} for event in process.events)

    def _look(self) -> None:
        for attacker in self._attackers:
            attacker.poll()

    def _strike(self, draw: random.Random) -> None:
        weights = [attacker.weight for attacker in self._attackers]
        for _ in range(10):
            attack = draw.choices(self._attackers, weights)[0].strike(draw)
            if attack is not None:
                self._attacks.append(attack)
                return


def _ignore(event: Mapping[str, object]) -> None:
    """Write nothing down."""
