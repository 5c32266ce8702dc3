"""One schedule of the Spark level, from its seed to its outcome."""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from chaos import backends as kinds
from chaos.outcome import Outcome
from chaos.spark.places import Places
from chaos.spark.plan import Loss, Schedule, draw_schedule
from chaos.spark.pool import SessionPool
from chaos.spark.supervisor import History, Supervisor, facts
from chaos.spark.tally import KEYS
from chaos.spark.verifier import CHECKED, Verifier
from chaos.spark.watch import Watch

JOB = "tally"
_FIRST_TIME_S = 1_700_000_000
_pool = SessionPool()
"""Sessions outlive schedules; they end with the process."""


def run_schedule(seed: int, backends: Sequence[str], directory: Path) -> Outcome:
    """Run the schedule of a seed and judge it.

    Args:
        seed: Decides everything but the timing of processes.
        backends: Names of `chaos.backends.KINDS`; the job backs up to all of them.
        directory: For the schedule alone; left to whoever asked for it.
    """
    return run(draw_schedule(seed), backends, directory)


def run(schedule: Schedule, backends: Sequence[str], directory: Path) -> Outcome:
    """Run a schedule and judge it; as `run_schedule`."""
    began = time.monotonic()
    return replace(_run(schedule, backends, directory), seconds=time.monotonic() - began)


def close() -> None:
    """End the sessions that are kept warm. Idempotent."""
    _pool.close()


def _run(schedule: Schedule, backends: Sequence[str], directory: Path) -> Outcome:
    directory = directory.resolve()
    places = Places(directory)
    places.prepare()
    backup, settings = layout(schedule, backends, places)

    def add_input(batch: int) -> None:
        _add_input(schedule, places, batch)

    for batch in range(schedule.batches):
        add_input(batch)
    log = backup[0].directory / JOB / "log"
    watch = Watch(places, log, is_every_batch=schedule.is_every_batch)

    def verifier(zombies: frozenset[int] = frozenset()) -> Verifier:
        return Verifier(places, backup, settings, schedule.source, zombies)

    at_rest = verifier().at_rest
    supervisor = Supervisor(
        schedule=schedule,
        places=places,
        settings=settings,
        watch=watch,
        pool=_pool,
        at_rest=at_rest,
        add_input=add_input,
    )
    history = supervisor.run()
    failures = _judge(history, watch, verifier, schedule)
    if failures and all(failure.startswith("16") for failure in failures):
        history = supervisor.run_once_more()
        failures = _judge(history, watch, verifier, schedule)
    (places.root / "story.json").write_text(
        json.dumps(
            {
                "facts": facts(history),
                "errors": history.errors,
                "failures": failures,
                "zombies": sorted(history.zombies),
            },
            indent=1,
        )
    )
    reached = frozenset(_reached(places))
    return Outcome(
        seed=schedule.seed,
        level="spark",
        backends=tuple(backends),
        faults=history.strikes,
        points=reached,
        kills=history.kills,
        invariants=CHECKED | _by_what_struck(schedule, history),
        failures=tuple(failures),
        directory=directory,
    )


def _judge(
    history: History,
    watch: Watch,
    verifier: Callable[[frozenset[int]], Verifier],
    schedule: Schedule,
) -> list[str]:
    watch.look(is_location_whole=False)
    if history.failures:
        return list(history.failures)
    return verifier(frozenset(history.zombies)).at_end(schedule.partitions)


def layout(
    schedule: Schedule, backends: Sequence[str], places: Places
) -> tuple[Sequence[kinds.Place], dict[str, str]]:
    """Return where a schedule's job backs up to, and all of its settings."""
    backup = kinds.places(backends, places.root / "backup")
    settings = {
        "job.name": JOB,
        "job.logged.store.base.dir": str(places.local),
        "task.count": str(schedule.partitions),
        "stores.backup.factories": ",".join(place.name for place in backup),
        **schedule.settings,
    }
    for place in backup:
        settings |= place.settings()
    return backup, settings


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


def _by_what_struck(schedule: Schedule, history: History) -> frozenset[int]:
    """Return the invariants that a schedule checks because of what struck it."""
    found: set[int] = set()
    if any(point.startswith(("recovery", "replay")) for point in history.strikes):
        found.add(8)
    if schedule.clock_offset_s:
        found.add(17)
    if any(loss in history.strikes for loss in map(str, Loss) if loss.startswith("location")):
        found.add(22)
    return frozenset(found)
