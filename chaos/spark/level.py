"""One schedule of the Spark level, from its seed to its outcome."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from chaos import backends as kinds
from chaos.outcome import Outcome
from chaos.servers import NO_SERVER, Server
from chaos.spark.arming import LOST_ANSWER
from chaos.spark.draw import RESHAPE_POINTS, draw_schedule, every_point, with_task_counts
from chaos.spark.fault_profile import MANAGER
from chaos.spark.history import History
from chaos.spark.ledger import Ledger
from chaos.spark.places import Places
from chaos.spark.plan import Schedule
from chaos.spark.pool import SessionPool
from chaos.spark.supervisor import Setting, Supervisor
from chaos.spark.tally import KEYS
from chaos.spark.verifier import CHECKED, Verifier
from chaos.spark.watch import Watch

JOB = "tally"
_REMOTE_PERIOD_S = 0.4
_FIRST_TIME_S = 1_700_000_000
_MORE_COMMITS = 3
"""Until each commit of the schedule is released: two sidecars may have uploaded for one attempt,
and what the commit does not reach of that goes with it. Tasks sweep what others left as they go."""
_pool = SessionPool()
"""Sessions outlive schedules; they end with the process."""


def points(backends: Sequence[str]) -> Sequence[str]:
    """Return what schedules aim at, given the kinds of their places."""
    return [point for _, point in every_point(kinds.fault_points_of(backends))]


def reshaping_points(_: Sequence[str]) -> Sequence[str]:
    """Return what schedules of another number of tasks aim at besides."""
    return [point for _, point in RESHAPE_POINTS if point.startswith("reshape")]


def run_schedule(
    seed: int,
    backends: Sequence[str],
    directory: Path,
    servers: Mapping[str, Server] = MappingProxyType({}),
) -> Outcome:
    """Run the schedule of a seed and judge it.

    Args:
        seed: Decides everything but the timing of processes.
        backends: Names of `chaos.backends.KINDS`; the job backs up to all of them.
        directory: For the schedule alone; left to the caller.
        servers: Those that the backends need, by name.
    """
    schedule = draw_schedule(seed, kinds.fault_points_of(backends))
    return run(schedule, backends, directory, servers)


def run_reshaping(
    seed: int,
    backends: Sequence[str],
    directory: Path,
    servers: Mapping[str, Server] = MappingProxyType({}),
) -> Outcome:
    """Run the schedule of a seed with another number of tasks at each start; as `run_schedule`.

    Raises:
        ValueError: A backend writes over its older commits, so the runtime refuses another number.
    """
    if any(kinds.KINDS[kind].form == "kafka" for kind in backends):
        raise ValueError(f"a job in Kafka keeps its number of tasks: backends={','.join(backends)}")
    schedule = with_task_counts(draw_schedule(seed, kinds.fault_points_of(backends)))
    return replace(run(schedule, backends, directory, servers), level="reshape")


def run(
    schedule: Schedule,
    backends: Sequence[str],
    directory: Path,
    servers: Mapping[str, Server] = MappingProxyType({}),
) -> Outcome:
    """Run a schedule and judge it; as `run_schedule`."""
    began = time.monotonic()
    places = Places(directory.resolve())
    places.prepare()
    backup = kinds.places(backends, places.backups, servers)
    outcome = _run(schedule, backup, places)
    return replace(outcome, seconds=time.monotonic() - began)


def close() -> None:
    """End the sessions that are kept warm. Idempotent."""
    _pool.close()


def _run(schedule: Schedule, backup: Sequence[kinds.Place], places: Places) -> Outcome:
    settings = settings_of(schedule, backup, places)

    def add_input(batch: int) -> None:
        _add_input(schedule, places, batch)

    for batch in range(schedule.batches):
        add_input(batch)
    watch = watch_of(schedule, places, backup)
    damaged: set[str] = set()

    def verifier(zombies: frozenset[int] = frozenset()) -> Verifier:
        count = schedule.task_count(supervisor.history.runs)
        judged = replace(schedule, partitions=count)
        return Verifier(places, backup, settings, judged, zombies, damaged=damaged)

    supervisor = Supervisor(
        Setting(
            schedule=schedule,
            places=places,
            settings={**settings, **_with_profiles(schedule, backup)},
            watch=watch,
            pool=_pool,
            log_scope=backup[0].directory / JOB if backup[0].is_local else None,
            at_rest=lambda: verifier().at_rest(),
            add_input=add_input,
            servers=list({place.server for place in backup} - {NO_SERVER}),
            blob_places=[place for place in backup if place.kind == "blob"],
            damaged=damaged,
        )
    )
    history = supervisor.run()
    failures = _judge(history, watch, verifier)
    for _ in range(_MORE_COMMITS):
        if not failures or not all(failure.startswith("16") for failure in failures):
            break
        history = supervisor.run_once_more()
        failures = _judge(history, watch, verifier)
    if not failures and schedule.drift is not None:
        supervisor.start_changed(schedule.drift)
        failures = list(history.failures)
    _write_story(places, history, failures)
    reached = _reached(places)
    if LOST_ANSWER in reached:
        history.note(LOST_ANSWER, "error")
    return Outcome(
        seed=schedule.seed,
        level="spark",
        backends=tuple(place.kind for place in backup),
        faults=history.strikes,
        points=frozenset(reached) - {LOST_ANSWER},
        kills=history.kills,
        invariants=CHECKED | history.checked | _by_what_struck(schedule, watch),
        failures=tuple(failures),
        directory=places.root,
    )


def watch_of(schedule: Schedule, places: Places, backup: Sequence[kinds.Place]) -> Watch:
    """Return what looks at a schedule's job all the time."""
    with_files = [place for place in backup if place.form != "kafka"]
    ledgers = [Ledger(place.name, place.files(), JOB) for place in with_files]
    return Watch(
        places,
        backup[0].log(JOB),
        ledgers,
        is_every_batch=schedule.is_every_batch,
        period_s=0.0 if all(place.is_local for place in backup) else _REMOTE_PERIOD_S,
    )


def _judge(
    history: History,
    watch: Watch,
    verifier: Callable[[frozenset[int]], Verifier],
) -> list[str]:
    watch.poll(is_location_whole=False, is_last=True)
    watch.check_unbroken()
    history.failures += watch.failures
    watch.failures = []
    if history.failures:
        return list(history.failures)
    told = [event["checkpoint_id"] for event in history.runtime if event["what"] == "commit"]
    judge = verifier(frozenset(history.zombies))
    failures = judge.at_end(told, has_killed=history.kills > 0)
    history.checked |= judge.checked
    return failures


def settings_of(
    schedule: Schedule, backup: Sequence[kinds.Place], places: Places
) -> dict[str, str]:
    """Return all settings of a schedule's job."""
    settings = {
        "job.name": JOB,
        "job.logged.store.base.dir": str(places.local),
        "stores.backup.factories": ",".join(place.name for place in backup),
        **schedule.settings,
    }
    for place in backup:
        settings |= place.settings()
    return settings


def _add_input(schedule: Schedule, places: Places, batch: int) -> None:
    """Write the file of a batch; its modification time has its place, as the source goes by them."""
    if schedule.source != "file":
        return
    numbers = range(batch * schedule.rows, (batch + 1) * schedule.rows)
    rows = [{"key": f"key-{number * 7919 % KEYS}", "v": number} for number in numbers]
    path = places.root / "input.tmp"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(path, (_FIRST_TIME_S + batch, _FIRST_TIME_S + batch))
    path.rename(places.input / f"{batch:03d}.json")


def _reached(places: Places) -> list[str]:
    return [path.name for path in places.reached.iterdir()] if places.reached.exists() else []


def _with_profiles(schedule: Schedule, backup: Sequence[kinds.Place]) -> dict[str, str]:
    """Return the settings of clients that have bad days or lose answers, where they are drawn."""
    if not schedule.lost_answers and schedule.bad_day is None:
        return {}
    places = [place for place in backup if place.kind == "blob"]
    return {f"backends.{place.name}.manager.factory": MANAGER for place in places}


def _by_what_struck(schedule: Schedule, watch: Watch) -> frozenset[int]:
    """Return the invariants that a schedule checks because of what struck it."""
    found: set[int] = set()
    if schedule.clock_offset_s:
        found.add(17)
    if watch.deleted:
        found.add(15)
    return frozenset(found)


def _write_story(places: Places, history: History, failures: Sequence[str]) -> None:
    document = {
        "facts": history.facts(),
        "strikes": history.strikes,
        "errors": history.errors,
        "failures": list(failures),
        "zombies": sorted(history.zombies),
    }
    (places.root / "story.json").write_text(json.dumps(document, indent=1))
