"""Runs the job of one schedule to its end, through everything that strikes it."""

import signal
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.spark import arming, processes
from chaos.spark.lost_files import LostFiles
from chaos.spark.places import Places
from chaos.spark.plan import Consequence, Loss, PlannedFault, Schedule
from chaos.spark.pool import SessionPool
from chaos.spark.session import DriverSession, Event
from chaos.spark.watch import Watch
from statekeep.testing.faults.process_plan import Action, ProcessPlan, Strike

_POLL_S = 0.03
_RUN_S = 100.0
"""A run that takes longer is stuck: nothing in a schedule waits longer than some seconds."""
_MAX_RUNS = 8
_SLEEP_S = 3.0


@dataclass
class History:
    """What happened, for the verifier and the table."""

    runs: int = 0
    kills: int = 0
    strikes: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Actions by fault point."""
    runtime: list[Event] = field(default_factory=list[Event])
    errors: list[str] = field(default_factory=list[str])
    """What queries failed with."""
    zombies: set[int] = field(default_factory=set[int])
    """Drivers that were woken after their successor ended."""
    failures: list[str] = field(default_factory=list[str])


class Supervisor:
    """Runs one schedule; used once."""

    def __init__(
        self,
        *,
        schedule: Schedule,
        places: Places,
        settings: Mapping[str, str],
        watch: Watch,
        pool: SessionPool,
        at_rest: Callable[[], Sequence[str]],
        add_input: Callable[[int], None],
    ) -> None:
        """Take what the schedule needs.

        Args:
            schedule: What shall happen.
            places: Where.
            settings: Of the job.
            watch: Looks at the job all the time.
            pool: Gives sessions.
            at_rest: Checks the backups whenever no process of the job lives; returns what is wrong.
            add_input: Adds the input of one more batch, by its number.
        """
        self._schedule = schedule
        self._places = places
        self._settings = settings
        self._watch = watch
        self._pool = pool
        self._at_rest = at_rest
        self._add_input = add_input
        self._more_batches = 0
        self._faults = [planned.fault for planned in schedule.faults]
        self._lost = LostFiles(places, schedule.seed)
        self._by_name = {planned.fault.name: planned for planned in schedule.faults}
        self._handled: set[str] = set()
        self._stopped_drivers: list[DriverSession] = []
        self._stopped_containers: list[int] = []
        self._sleeping: list[tuple[float, int]] = []
        self.history = History()

    def run(self) -> History:
        """Run until the input is used up; afterwards nothing of the job lives."""
        if any(planned.ends_driver for planned in self._schedule.faults):
            self._pool.warm_up()
        with self._ending_everything():
            self._run()
            if self._stopped_drivers or self._stopped_containers:
                self._wake_zombies()
        return self.history

    def run_once_more(self) -> History:
        """Process and commit one more batch in peace.

        What woke late, or failed in a clean-up, may leave blobs behind until the next commit.
        """
        self._faults = []
        self._more_batches += 1
        self._add_input(self._schedule.batches + self._more_batches - 1)
        with self._ending_everything():
            self._run()
        return self.history

    @contextmanager
    def _ending_everything(self) -> Generator[None]:
        try:
            yield
            self._await_containers()
        finally:
            self._end_everything()
            self.history.failures += self._watch.failures
            self._watch.failures = []

    def _run(self) -> None:
        history, last_run = self.history, self.history.runs + _MAX_RUNS
        while history.runs < last_run:
            history.runs += 1
            struck, known_errors = len(self._handled), len(history.errors)
            session = self._pool.take()
            self._arm(session)
            end = self._one_run(session)
            if end == "done":
                return
            is_excused = len(self._handled) > struck or self._lost.location_loss is not None
            if not is_excused and end != "fenced":
                history.failures.append(f"run {history.runs} {end}, though nothing had struck")
                return
            if end == "stuck":
                return
            self._take_refusal(history.errors[known_errors:])
            self._between_runs()
        history.failures.append(f"not done after {_MAX_RUNS} runs: {history.errors[-1:]}")

    def _arm(self, session: DriverSession) -> None:
        arming.write_plan(
            session.plan,
            self._faults,
            self._places.claims,
            self._places.reached,
            self._schedule.clock_offset_s if self.history.runs % 2 else 0,
        )

    def _one_run(self, session: DriverSession) -> str:
        schedule, number = self._schedule, self.history.runs
        session.events()
        session.order(
            run=number,
            directory=str(self._places.root),
            source=schedule.source,
            rows=schedule.rows,
            batches=schedule.batches + self._more_batches,
            settings=dict(self._settings),
        )
        deadline = time.monotonic() + _RUN_S
        while time.monotonic() < deadline:
            end = self._take_events(session, number)
            self._look()
            end = self._handle_strikes(session) or end
            self._wake_sleepers()
            if end:
                return end
            if not session.is_alive():
                session.kill_all()
                self._look()
                return "died"
            time.sleep(_POLL_S)  # noqa: TID251 - other processes are awaited
        log = (session.directory / "log").read_text(errors="replace")[-3000:]
        self.history.failures.append(f"run {number} is stuck: {log}")
        session.kill_all()
        return "stuck"

    def _look(self) -> None:
        self._watch.look(is_location_whole=not self._lost.is_location_rebuilt)

    def _take_events(self, session: DriverSession, number: int) -> str:
        for event in session.events():
            if event.get("run") != number:
                continue
            if event["kind"] == "runtime":
                self.history.runtime.append(event)
                if event["what"] == "batch" and Loss.LOCATION_OLDER in self._schedule.losses:
                    self._lost.keep_location()
            elif event["kind"] == "failed":
                self.history.errors += event["errors"]
                return "failed"
            elif event["kind"] == "done":
                return "done"
        return ""

    # What strikes.

    def _handle_strikes(self, session: DriverSession) -> str:
        """Let follow what must on faults that struck; return how the run ended by that, if so."""
        for strike in ProcessPlan([], self._places.claims).strikes():
            if strike.name in self._handled:
                continue
            self._handled.add(strike.name)
            planned = self._by_name[strike.name]
            self._count(strike, planned)
            end = self._follow(strike, planned, session)
            if end:
                return end
        return ""

    def _count(self, strike: Strike, planned: PlannedFault) -> None:
        action = planned.fault.action
        name = str(action) if planned.consequence is Consequence.NONE else planned.consequence
        self.history.strikes.setdefault(strike.point, []).append(str(name))
        if action in {Action.CRASH, Action.STOP}:
            self.history.kills += 1

    def _follow(self, strike: Strike, planned: PlannedFault, session: DriverSession) -> str:
        match planned.consequence:
            case Consequence.EXECUTOR:
                self._kill_executor(strike)
            case Consequence.HOST:
                self._kill_executor(strike, is_host=True)
            case Consequence.DRIVER:
                self.history.kills += session.kill_driver()
                self._await_executors(session)
                session.kill_all()
                return "died"
            case Consequence.GROUP:
                session.kill_all()
                self._kill_containers()
                return "died"
            case Consequence.ZOMBIE_DRIVER:
                self._stopped_drivers.append(session)
                self._pool.drop()
                self._pool.warm_up()
                return "fenced"
            case Consequence.ZOMBIE_CONTAINER:
                self._stopped_containers.append(strike.pid)
                self._kill_executor(strike)
            case Consequence.SLEEPY_CONTAINER:
                self._sleeping.append((time.monotonic() + _SLEEP_S, strike.pid))
            case Consequence.NONE:
                pass
        return ""

    def _await_executors(self, session: DriverSession) -> None:
        """Executors end by themselves once their driver has gone."""
        deadline = time.monotonic() + _SLEEP_S
        while processes.executors_of(session.pid) and time.monotonic() < deadline:
            time.sleep(_POLL_S)  # noqa: TID251 - other processes are awaited

    def _kill_executor(self, strike: Strike, *, is_host: bool = False) -> None:
        executor = processes.executor_of(strike.pid) or self._executor_of_container(strike.pid)
        if executor is not None:
            self.history.kills += processes.kill([executor, *processes.descendants_of(executor)])
        if is_host:
            if processes.CONTAINER_MODULE in processes.command_of(strike.pid):
                processes.kill([strike.pid])
            self._lost.wipe(is_in_part=True)

    def _executor_of_container(self, pid: int) -> int | None:
        command = processes.command_of(pid).split()
        if not command:
            return None
        document = Path(command[-1], "spec.json").read_text()
        executor = int(document.split('"jvm-pid":')[1].split(",")[0].strip(" }"))
        return executor if processes.EXECUTOR_CLASS in processes.command_of(executor) else None

    def _kill_containers(self) -> None:
        containers = processes.containers_below(self._places.root)
        self.history.kills += processes.kill(containers)

    def _wake_sleepers(self) -> None:
        now = time.monotonic()
        due = [pid for at, pid in self._sleeping if at <= now]
        for pid in due:
            processes.send(pid, signal.SIGCONT)
        self._sleeping = [(at, pid) for at, pid in self._sleeping if at > now]

    def _wake_zombies(self) -> None:
        """Let what was stopped go on after its successor has ended the job."""
        for pid in self._stopped_containers:
            processes.send(pid, signal.SIGCONT)
        for session in self._stopped_drivers:
            self.history.zombies.add(session.pid)
            for pid in processes.session_of(session.pid):
                processes.send(pid, signal.SIGCONT)
            self._await_zombie(session)
        self._stopped_containers.clear()
        for session in self._stopped_drivers:
            session.kill_all()
        self._stopped_drivers.clear()
        self._await_containers()
        self.history.failures += self._at_rest()

    def _await_zombie(self, session: DriverSession) -> None:
        deadline = time.monotonic() + 40
        while session.is_alive() and time.monotonic() < deadline:
            self._look()
            for event in session.events():
                if event["kind"] == "failed":
                    return
                if event["kind"] == "done":
                    self.history.errors.append("a woken driver ended well")
                    return
            time.sleep(_POLL_S)  # noqa: TID251 - another process is awaited
        self.history.failures.append("a woken driver does not end")

    def _await_containers(self) -> None:
        """Containers end by themselves, once their executors have gone or the job told them to."""
        deadline = time.monotonic() + 15
        while processes.containers_below(self._places.root) and time.monotonic() < deadline:
            time.sleep(_POLL_S)  # noqa: TID251 - other processes are awaited
        if processes.containers_below(self._places.root):
            self.history.failures.append("a container outlives its job")

    def _end_everything(self) -> None:
        for session in self._stopped_drivers:
            session.kill_all()
        for _, pid in self._sleeping:
            processes.send(pid, signal.SIGCONT)
        self._kill_containers()

    def _take_refusal(self, errors: Sequence[str]) -> None:
        """Put the right location back after a clear error: the other answer that is allowed."""
        loss = self._lost.location_loss
        is_refused = any("CheckpointLocationError" in error for error in errors)
        if loss is not None and is_refused:
            self._lost.put_location_back()
            self.history.strikes.setdefault(str(loss), []).append("refused")
        self._lost.location_loss = None

    def _between_runs(self) -> None:
        """Check what the dead job left, then lose what the schedule says."""
        if self._stopped_drivers:
            return
        self.history.failures += self._at_rest()
        number = self.history.runs - 1
        losses = self._schedule.losses
        loss = losses[number] if number < len(losses) else None
        if loss is not None and self._lost.lose(loss):
            self.history.strikes.setdefault(str(loss), []).append("lost")


def facts(history: History) -> dict[str, Any]:
    """Return what the runtime told of its recoveries, summed up."""
    recoveries = [event for event in history.runtime if event["what"] == "recovery"]
    commits = [event for event in history.runtime if event["what"] == "commit"]
    return {
        "runs": history.runs,
        "replayed": sum(len(event["replayed"]) for event in recoveries),
        "restored": sum(len(event["restored"]) for event in recoveries),
        "rolled-forward": sum(event["was_rolled_forward"] for event in commits),
    }
