"""Runs the job of one schedule to its end, through everything that strikes it."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from chaos.backends import Place
from chaos.evidence.snapshots import read_snapshot
from chaos.servers import Server
from chaos.spark import arming
from chaos.spark.draw import RECOVERY_POINTS
from chaos.spark.history import History
from chaos.spark.location_watch import LocationWatch, fingerprint
from chaos.spark.log_story import LogStory
from chaos.spark.lost_files import REFUSALS, LostFiles
from chaos.spark.places import Places
from chaos.spark.plan import BadDay, Consequence, Drift, Loss, PlannedFault, Schedule
from chaos.spark.pool import SessionPool
from chaos.spark.session import DriverSession
from chaos.spark.victims import Victims
from chaos.spark.watch import Watch, history
from statekeep.testing.faults.process_plan import Action, ArmedFault, ProcessPlan, Strike

_POLL_S = 0.03
_RUN_S = 240.0
"""A run that takes longer is stuck: nothing in a schedule waits longer than some seconds."""
_MAX_RUNS = 10
_BEFORE_QUERY = ("epoch_record", "base_record", "roll_forward")
"""Points of a recovery that are reached before Spark's query starts."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a supervisor works on."""

    schedule: Schedule
    places: Places
    settings: Mapping[str, str]
    """Of the job."""
    watch: Watch
    """Looks at the job all the time."""
    pool: SessionPool
    log_scope: Path | None
    """Directory of the job log; None where it is not in files."""
    at_rest: Callable[[], Sequence[str]]
    """Checks the backups whenever no process of the job lives; returns what is wrong."""
    add_input: Callable[[int], None]
    """Adds the input of one more batch, by its number."""
    servers: Sequence[Server] = ()
    """Of the places; they are among the victims."""
    blob_places: Sequence[Place] = ()
    """Those that can have bad days, and blobs that rot."""
    damaged: set[str] = field(default_factory=set[str])
    """Gets the names of places whose blobs were damaged."""


class Supervisor:
    """Runs one schedule; used once."""

    def __init__(self, setting: Setting) -> None:
        self._schedule = setting.schedule
        self._places = setting.places
        self._settings = setting.settings
        self._watch = setting.watch
        self._pool = setting.pool
        self._at_rest = setting.at_rest
        self._add_input = setting.add_input
        self._servers = setting.servers
        self._blob_places = setting.blob_places
        self._damaged = setting.damaged
        self._bad_day = self._schedule.bad_day
        self._bad_until = 0.0
        self._damage = self._schedule.damage
        self._more_batches = 0
        self._faults = list(self._schedule.faults)
        self._by_name = {planned.fault.name: planned for planned in self._faults}
        self._handled: set[str] = set()
        self._lost = LostFiles(self._places, self._schedule.seed, setting.log_scope)
        self._location = LocationWatch(self._places.checkpoint)
        self._has_begun_query = False
        """Whether one has, in this run."""
        self._committed_before = -1
        self.history = History()
        self._victims = Victims(self.history, self._places, self._lost, self._pool)

    def run(self) -> History:
        """Run until the input is used up; afterwards nothing of the job lives."""
        if any(planned.ends_driver for planned in self._faults):
            self._pool.warm_up()
        with self._ending_everything():
            self._run()
            if self._victims.has_drivers or self._victims.has_sidecars:
                self._victims.wake_all(self._look)
                self.history.failures += self._at_rest()
        return self.history

    def run_once_more(self) -> History:
        """Process and commit one more batch in peace.

        What woke late, or failed in a clean-up, may leave blobs behind until the next commit.
        """
        self._calm_down()
        self._more_batches += 1
        self._add_input(self._schedule.batches + self._more_batches - 1)
        with self._ending_everything():
            self._run()
        return self.history

    def start_changed(self, drift: Drift) -> None:
        """Start the ended job with something changed that must not be: it is refused (21)."""
        self._calm_down()
        self.history.runs += 1
        session = self._pool.take(self._look)
        self._arm(session)
        before = self._what_decides()
        known = len(self.history.errors)
        with self._ending_everything():
            end = self._one_run(session, drift=drift)
            self._watch.poll(is_location_whole=False, is_last=True)
        errors = self.history.errors[known:]
        del self.history.errors[known:]
        if end != "failed" or not any(f"another {drift}" in error for error in errors):
            text = f"21: the job was started with another {drift}: {end} {errors}"
            self.history.failures.append(text)
        if self._what_decides() != before:
            self.history.failures.append(f"21: a start with another {drift} left something")
        self.history.checked.add(21)
        self.history.note(f"drift.{drift}", "refused")

    def _calm_down(self) -> None:
        """Let nothing strike any more."""
        self._faults, self._bad_day, self._bad_until, self._damage = [], None, 0.0, None
        self._places.profile.unlink(missing_ok=True)

    def _what_decides(self) -> object:
        return fingerprint(self._places.checkpoint), history(self._places)

    @contextmanager
    def _ending_everything(self) -> Generator[None]:
        try:
            yield
            self._victims.await_sidecars()
            self._watch.check_one_winner()
        finally:
            self._victims.end()
            self.history.failures += self._watch.failures
            self._watch.failures = []

    def _run(self) -> None:
        told, last_run = self.history, self.history.runs + _MAX_RUNS
        while told.runs < last_run:
            told.runs += 1
            struck, known_errors = len(self._handled), len(told.errors)
            had_rival, began = self._victims.has_drivers, time.monotonic()
            session = self._pool.take(self._look)
            self._arm(session)
            end = self._one_run(session)
            self._watch.check_one_winner()
            if end == "done":
                if self._lost.must_refuse():
                    told.failures.append(f"22: the job went on with its {self._lost.unanswered}")
                return
            is_bad_day = self._bad_until > began
            has_struck = len(self._handled) > struck or self._lost.unanswered is not None
            has_struck = has_struck or is_bad_day
            if end == "stuck" or not (has_struck or had_rival or end == "fenced"):
                why = "; ".join(told.errors[known_errors:])
                told.failures.append(f"run {told.runs} {end}, though nothing had struck: {why}")
                return
            self._take_refusal(told.errors[known_errors:], is_bad_day=is_bad_day)
            if self._lost.unanswered is None:
                self._between_runs()
        told.failures.append(f"not done after {_MAX_RUNS} runs: {told.errors[-1:]}")

    def _arm(self, session: DriverSession) -> None:
        run, schedule = self.history.runs, self._schedule
        skew_s = schedule.clock_offset_s if run % 2 else 0
        armed: list[ArmedFault] = [p.fault for p in self._faults if p.from_run <= run]
        arming.write_plan(
            session.plan,
            armed,
            self._places.claims,
            self._places.reached,
            clock_offset_s=skew_s + (run - 1) * schedule.downtime_s,
            lost_answers=schedule.lost_answers,
            profile=self._places.profile,
        )

    def _one_run(self, session: DriverSession, *, drift: Drift | None = None) -> str:
        schedule, number = self._schedule, self.history.runs
        self._location.begin()
        self._has_begun_query = False
        newest = LogStory().fold(history(self._places)).last_commit
        self._committed_before = -1 if newest is None else newest["batch"]
        self._victims.expect_race()
        session.events()
        session.order(
            run=number,
            directory=str(self._places.root),
            source=schedule.source,
            rows=schedule.rows,
            batches=schedule.batches + self._more_batches,
            modes=schedule.modes,
            settings={**self._settings, "task.count": str(schedule.task_count(number))},
            drift=drift,
        )
        deadline = time.monotonic() + _RUN_S
        while time.monotonic() < deadline:
            end = self._take_events(session, number)
            self._look()
            end = self._handle_strikes(session) or end
            self._victims.wake_due()
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
        self._watch.poll(is_location_whole=not self._lost.is_location_rebuilt)

    def _take_events(self, session: DriverSession, number: int) -> str:
        for event in session.events():
            if event.get("run") != number:
                continue
            if event["kind"] == "runtime":
                self.history.runtime.append(event)
                if event["what"] == "job-initialised":
                    self._has_begun_query = True
                    self._check_survival(event["committed"])
                if event["what"] == "batch":
                    self._after_batch(event["batch"])
            elif event["kind"] == "failed":
                self.history.errors += event["errors"]
                return "failed"
            elif event["kind"] == "done":
                return "done"
        return ""

    def _after_batch(self, batch: int) -> None:
        if Loss.LOCATION_OLDER in self._schedule.losses:
            self._lost.keep_location()
        bad_day = self._bad_day
        if bad_day is not None and self._blob_places and batch >= bad_day.after_batch:
            self._begin(bad_day)
        if self._servers and batch == self._schedule.servers_fail_after:
            for server in self._servers:
                server.fail()
            self._servers = ()
            self.history.note("server", "restarted")

    def _begin(self, bad_day: BadDay) -> None:
        place = self._blob_places[bad_day.place % len(self._blob_places)]
        uri = place.settings()[f"backends.{place.name}.uri"]
        self._bad_day, self._bad_until = None, time.monotonic() + bad_day.seconds
        arming.write_profiles(self._places.profile, {uri: bad_day.profile}, self._bad_until)
        self.history.note("fault-profile", str(bad_day.profile))

    def _check_survival(self, committed: int) -> None:
        """However long the job lay still, it goes on from a commit that it had made (23)."""
        if self.history.runs > 1 and committed < self._committed_before:
            self.history.failures.append(
                f"23: run {self.history.runs} goes on from a commit of batch {committed},"
                f" one of {self._committed_before} was made before"
            )
        if self.history.runs > 1 and self._schedule.downtime_s and self._committed_before >= 0:
            self.history.checked.add(23)

    # What strikes.

    def _handle_strikes(self, session: DriverSession) -> str:
        """Let follow what must on faults that struck; return how the run ended by that, if so."""
        for strike in ProcessPlan([], self._places.claims).strikes():
            if strike.name in self._handled:
                continue
            self._handled.add(strike.name)
            planned = self._by_name[strike.name]
            self._count(strike, planned)
            self._check_untouched(strike)
            end = self._victims.follow(strike, planned.consequence, session)
            if end:
                return end
        return ""

    def _count(self, strike: Strike, planned: PlannedFault) -> None:
        action = planned.fault.action
        is_alone = planned.consequence is Consequence.NONE
        self.history.note(strike.point, str(action if is_alone else planned.consequence))
        if action in {Action.CRASH, Action.STOP}:
            self.history.kills += 1

    def _check_untouched(self, strike: Strike) -> None:
        """A recovery that was struck has left the checkpoint location as it was (08).

        A query of this run that was there before, and was started again or raced, may have added to it.
        """
        if strike.point not in RECOVERY_POINTS or self.history.runs == 1:
            return
        self.history.checked.add(8)
        touched = self._location.changed()
        if strike.point.startswith(_BEFORE_QUERY) and not self._has_begun_query:
            touched += self._location.added()
        if touched:
            self.history.failures.append(f"08: {strike.point} after the location was: {touched}")

    def _take_refusal(self, errors: Sequence[str], *, is_bad_day: bool) -> None:
        """Put back what was lost after a clear error: the other answer that is allowed.

        On a bad day the job may not even have got so far as to see the loss.
        """
        loss = self._lost.unanswered
        if loss is None:
            return
        if any(REFUSALS[loss] in error for error in errors):
            self.history.note(str(loss), "refused")
            self._lost.put_back()
        elif is_bad_day:
            return
        elif self._lost.must_refuse():
            self.history.failures.append(f"22: no clear error of {loss}: {errors}")
            self._lost.put_back()
        self._lost.unanswered = None

    def _between_runs(self) -> None:
        """Check what the dead job left, then lose what the schedule says."""
        if self._victims.has_drivers:
            return
        self.history.failures += self._at_rest()
        if self._schedule.downtime_s:
            self._lost.age(self._schedule.downtime_s)
            self.history.note("downtime", f"{self._schedule.downtime_s // 604_800}-weeks")
        self._damage_backup()
        number = self.history.runs - 1
        losses = self._schedule.losses
        loss = losses[number] if number < len(losses) else None
        if loss is None or not self._lost.lose(loss):
            return
        self.history.note(str(loss), "lost")
        if loss in REFUSALS:
            self.history.checked.add(22)
        if loss is Loss.LOG_RECORD and self._lost.damaged_position is not None:
            self._watch.damaged.add(self._lost.damaged_position)

    def _damage_backup(self) -> None:
        """Damage what one of several places needs for the newest commit, if there is one."""
        commit = LogStory().fold(history(self._places)).last_commit
        if self._damage is None or not self._blob_places or commit is None:
            return
        place = self._blob_places[self._damage.place % len(self._blob_places)]
        blobs: set[str] = set()
        for checkpoint in commit.get("checkpoints", {}).values():
            markers = checkpoint["state-checkpoint-markers"]
            for marker in markers.get(place.name, {}).values() if len(markers) > 1 else ():
                with suppress(ValueError):  # told as 14
                    blobs |= read_snapshot(place.files(), marker).blobs
        if not blobs:
            return
        self._damaged.add(place.name)
        self._lost.damage(self._damage, place.directory, blobs)
        self._damage = None
        self.history.note("backup", "damaged")
