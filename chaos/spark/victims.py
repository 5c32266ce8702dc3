"""What follows on a strike: processes are killed, left asleep, or woken at a bad moment."""

import signal
import time
from collections.abc import Callable

from chaos.spark import processes
from chaos.spark.history import History
from chaos.spark.lost_files import LostFiles
from chaos.spark.places import Places
from chaos.spark.plan import Consequence
from chaos.spark.pool import SessionPool
from chaos.spark.session import DriverSession
from statekeep.testing.faults.process_plan import Strike

_POLL_S = 0.03
_SLEEP_S = 3.0
_ZOMBIE_S = 40.0
_SIDECARS_S = 15.0
_RACE_BEGINS = "epoch_record.before"
"""Where a rival is woken: its successor is about to fence it."""


class Victims:
    """The processes of one schedule that were struck. `failures` of the history may grow."""

    def __init__(
        self, history: History, places: Places, lost: LostFiles, pool: SessionPool
    ) -> None:
        self._history = history
        self._places = places
        self._lost = lost
        self._pool = pool
        self._zombies: list[DriverSession] = []
        self._rivals: list[DriverSession] = []
        self._sidecars: list[int] = []
        self._sleeping: list[tuple[float, int]] = []

    @property
    def has_sidecars(self) -> bool:
        """Whether a sidecar is asleep until the end."""
        return bool(self._sidecars)

    @property
    def has_drivers(self) -> bool:
        """Whether an older driver is asleep, or was woken and may still run."""
        return bool(self._zombies or self._rivals)

    def follow(self, strike: Strike, consequence: Consequence, session: DriverSession) -> str:
        """Do what follows on a strike; return how the run ended by that, if it did."""
        match consequence:
            case Consequence.EXECUTOR:
                self._kill_executor(strike)
            case Consequence.HOST:
                self._kill_executor(strike, is_host=True)
            case Consequence.DRIVER:
                self._history.kills += session.kill_driver()
                _await(lambda: not processes.executors_of(session.pid), _SLEEP_S)
                session.kill_all()
                return "died"
            case Consequence.GROUP:
                session.kill_all()
                self._kill_sidecars()
                return "died"
            case Consequence.ZOMBIE_DRIVER | Consequence.RIVAL_DRIVER:
                is_rival = consequence is Consequence.RIVAL_DRIVER
                (self._rivals if is_rival else self._zombies).append(session)
                self._pool.drop()
                self._pool.warm_up()
                return "fenced"
            case Consequence.ZOMBIE_SIDECAR:
                self._sidecars.append(strike.pid)
                self._kill_executor(strike)
            case Consequence.SLEEPY_SIDECAR:
                self._sleeping.append((time.monotonic() + _SLEEP_S, strike.pid))
            case Consequence.NONE:
                pass
        return ""

    def expect_race(self) -> None:
        """Record that a successor is about to begin: `wake_due` wakes the rivals when it does."""
        (self._places.reached / _RACE_BEGINS).unlink(missing_ok=True)

    def wake_due(self) -> None:
        """Wake what has slept long enough."""
        now = time.monotonic()
        for _, pid in [entry for entry in self._sleeping if entry[0] <= now]:
            processes.send(pid, signal.SIGCONT)
        self._sleeping = [entry for entry in self._sleeping if entry[0] > now]
        asleep = [rival for rival in self._rivals if rival.pid not in self._history.zombies]
        if asleep and (self._places.reached / _RACE_BEGINS).exists():
            for rival in asleep:
                self._wake_driver(rival)

    def wake_all(self, look: Callable[[], None]) -> None:
        """Let what was stopped go on after its successor has ended the job, to its end."""
        for pid in self._sidecars:
            processes.send(pid, signal.SIGCONT)
        for session in [*self._zombies, *self._rivals]:
            self._wake_driver(session)
            self._await_zombie(session, look)
        for session in [*self._zombies, *self._rivals]:
            session.kill_all()
        self._sidecars.clear()
        self._zombies.clear()
        self._rivals.clear()
        self.await_sidecars()

    def await_sidecars(self) -> None:
        """Sidecars end by themselves, once their executors have gone or the job told them to."""
        if not _await(lambda: not self._running_sidecars(), _SIDECARS_S):
            texts = [processes.command_of(pid) for pid in self._running_sidecars()]
            self._history.failures.append(f"a sidecar outlives its job: {texts}")

    def end(self) -> None:
        """End whatever is left."""
        for session in [*self._zombies, *self._rivals]:
            session.kill_all()
        for _, pid in self._sleeping:
            processes.send(pid, signal.SIGCONT)
        self._kill_sidecars()

    def _running_sidecars(self) -> list[int]:
        return processes.sidecars_below(self._places.root)

    def _kill_sidecars(self) -> None:
        self._history.kills += processes.kill(self._running_sidecars())

    def _kill_executor(self, strike: Strike, *, is_host: bool = False) -> None:
        executor = processes.executor_of(strike.pid) or _executor_of_sidecar(strike.pid)
        if executor is not None:
            victims = [executor, *processes.descendants_of(executor)]
            self._history.kills += processes.kill(victims)
        if is_host:
            if processes.SIDECAR_MODULE in processes.command_of(strike.pid):
                processes.kill([strike.pid])
            self._lost.wipe(is_in_part=True)

    def _wake_driver(self, session: DriverSession) -> None:
        self._history.zombies.add(session.pid)
        for pid in processes.session_of(session.pid):
            processes.send(pid, signal.SIGCONT)

    def _await_zombie(self, session: DriverSession, look: Callable[[], None]) -> None:
        def has_ended() -> bool:
            look()
            kinds = [event["kind"] for event in session.events()]
            if "done" in kinds:
                self._history.errors.append("a woken driver ended well")
            return bool({"done", "failed"} & {*kinds}) or not session.is_alive()

        if not _await(has_ended, _ZOMBIE_S):
            self._history.failures.append("a woken driver does not end")


def _executor_of_sidecar(pid: int) -> int | None:
    watched = processes.watched_by(pid)
    executors = [one for one in watched if processes.EXECUTOR_CLASS in processes.command_of(one)]
    return executors[0] if executors else None


def _await(is_so: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until something is so; False if it is not in time."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)  # noqa: TID251 - other processes are awaited
    return True
