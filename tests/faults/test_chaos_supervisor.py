"""What the crash harness makes of a job that lies, played by a session that follows a script."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from chaos.backends import places as backup_places
from chaos.fault_profile import FaultProfile
from chaos.spark.level import watch_of
from chaos.spark.places import Places
from chaos.spark.plan import BadDay, Consequence, Damage, Drift, Loss, PlannedFault, Schedule
from chaos.spark.pool import SessionPool
from chaos.spark.supervisor import Setting, Supervisor
from statekeep.checkpoint.records import CommitRecord, JobIdentity, encode_record
from statekeep.testing.faults.process_plan import Action, ArmedFault, ProcessKind, Strike

Event = Mapping[str, Any]
Answer = Callable[[Mapping[str, Any]], list[Event]]

CRASH = PlannedFault(
    ArmedFault("crash", "batch_record.after", Action.STOP, kind=ProcessKind.DRIVER),
    Consequence.GROUP,
)
IN_RECOVERY = PlannedFault(
    ArmedFault("again", "base_record.before", Action.STOP, kind=ProcessKind.DRIVER),
    Consequence.GROUP,
    from_run=2,
)
SCHEDULE = Schedule(
    seed=0,
    source="file",
    partitions=1,
    batches=1,
    rows=1,
    settings={},
    is_every_batch=False,
    clock_offset_s=0,
    faults=[CRASH],
)


@dataclass
class PlayedJob:
    """Stands for pool and session: answers each order with events, and writes what a job would."""

    places: Places
    answers: Sequence[Answer]
    pid: int = 0
    orders: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    told: list[Event] = field(default_factory=list[Event])

    @property
    def plan(self) -> Path:
        return self.places.root / "plan.json"

    def take(self, meanwhile: Callable[[], None]) -> "PlayedJob":
        return self

    def warm_up(self) -> None:
        """Another one need not start."""

    def is_alive(self) -> bool:
        return True

    def kill_all(self) -> int:
        return 0

    def order(self, **order: Any) -> None:
        self.orders.append(order)
        self.told += self.answers[len(self.orders) - 1](order)

    def events(self) -> list[Event]:
        told, self.told = self.told, []
        return told


@pytest.fixture
def places(tmp_path: Path) -> Places:
    found = Places(tmp_path)
    found.prepare()
    return found


def event(kind: str, order: Mapping[str, Any], **facts: object) -> Event:
    return {"kind": kind, "run": order["run"], **facts}


def began(committed: int) -> Answer:
    return lambda order: [
        event("runtime", order, what="job-initialised", committed=committed),
        event("done", order),
    ]


def fails(error: str) -> Answer:
    return lambda order: [event("failed", order, errors=[error])]


def job_of(places: Places, schedule: Schedule, *answers: Answer) -> Supervisor:
    backup = backup_places(["blob", "blob"], places.backups)
    setting = Setting(
        schedule=schedule,
        places=places,
        settings={},
        watch=watch_of(schedule, places, backup),
        pool=cast("SessionPool", PlayedJob(places, answers)),
        log_scope=backup[0].directory / "tally",
        at_rest=list,
        add_input=lambda _: None,
        blob_places=backup,
    )
    return Supervisor(setting)


def commits_and_dies(places: Places, fault: PlannedFault = CRASH) -> Answer:
    """A job that commits batch 4 and is struck after it."""

    def answer(order: Mapping[str, Any]) -> list[Event]:
        del order
        identity = JobIdentity(
            job_uid="77aa",
            job_name="tally",
            partitions=1,
            router="hash",
            key_schema="key string",
            stores={"main": ["state"]},
        )
        record = CommitRecord(
            epoch=1,
            nonce="a",
            attempt_epoch=1,
            attempt=1,
            batch=4,
            checkpoint_id="1-1",
            identity=identity,
        )
        log = places.backup("blob-1") / "tally" / "log"
        log.mkdir(parents=True, exist_ok=True)
        (log / f"{0:020d}.json").write_bytes(encode_record(record))
        for name in ("offsets", "commits"):
            (places.checkpoint / name).mkdir(parents=True, exist_ok=True)
            (places.checkpoint / name / "4").write_text("{}")
        strike(places, fault)
        return []

    return answer


def strike(places: Places, fault: PlannedFault) -> None:
    struck = Strike(fault.fault.name, fault.fault.point, 0, ProcessKind.DRIVER)
    document = {"name": struck.name, "point": struck.point, "pid": 0, "kind": struck.kind}
    (places.claims / struck.name).write_text(json.dumps(document))


def failures_of(supervisor: Supervisor) -> list[str]:
    return [failure.split(":")[0] for failure in supervisor.run().failures]


def test_a_job_that_goes_on_from_its_commit_is_right(places: Places) -> None:
    schedule = replace(SCHEDULE, downtime_s=604_800)
    job = job_of(places, schedule, commits_and_dies(places), began(4))
    assert failures_of(job) == []
    assert 23 in job.history.checked


def test_a_job_that_goes_on_from_an_older_commit_is_reported(places: Places) -> None:
    job = job_of(places, SCHEDULE, commits_and_dies(places), began(3))
    assert failures_of(job) == ["23"]


@pytest.mark.parametrize("loss", [Loss.LOG, Loss.LOG_RECORD])
def test_a_job_that_goes_on_without_its_log_is_reported(places: Places, loss: Loss) -> None:
    schedule = replace(SCHEDULE, losses=[loss])
    job = job_of(places, schedule, commits_and_dies(places), began(4))
    assert "22" in failures_of(job)


@pytest.mark.parametrize(
    ("loss", "error"),
    [
        (Loss.LOG, "CheckpointLocationError: the job log has no commit"),
        (Loss.LOG_RECORD, "CheckpointCorruptError: cannot be read"),
        (Loss.LOCATION, "CheckpointLocationError: is empty"),
    ],
)
def test_a_clear_error_brings_back_what_was_lost(places: Places, loss: Loss, error: str) -> None:
    schedule = replace(SCHEDULE, losses=[loss])
    job = job_of(places, schedule, commits_and_dies(places), fails(error), began(4))
    assert failures_of(job) == []
    assert job.history.strikes[loss] == ["lost", "refused"]
    assert (places.checkpoint / "commits" / "4").exists()


def test_a_recovery_that_touched_the_location_is_reported(places: Places) -> None:
    def touches(order: Mapping[str, Any]) -> list[Event]:
        del order
        (places.checkpoint / "commits" / "4").write_text("{ }")
        strike(places, IN_RECOVERY)
        return []

    schedule = replace(SCHEDULE, faults=[CRASH, IN_RECOVERY])
    job = job_of(places, schedule, commits_and_dies(places), touches, began(4))
    assert failures_of(job) == ["08"]


def changes_the_log(places: Places) -> Answer:
    def answer(order: Mapping[str, Any]) -> list[Event]:
        (places.checkpoint / "metadata").write_text("{}")
        return fails("ConfigError: the job cannot go on with another grouping key")(order)

    return answer


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda _: fails("ConfigError: cannot go on with another grouping key: 3 4"), []),
        (lambda _: began(4), ["21"]),
        (lambda _: fails("ValueError: something else"), ["21"]),
        (changes_the_log, ["21"]),
    ],
    ids=["refused", "started", "another error", "leaves something"],
)
def test_a_changed_job_is_refused_and_leaves_nothing(
    places: Places, answer: Callable[[Places], Answer], expected: list[str]
) -> None:
    (places.checkpoint / "commits").mkdir(parents=True)
    job = job_of(places, SCHEDULE, answer(places))
    job.start_changed(Drift.KEY_TYPE)
    assert [failure.split(":")[0] for failure in job.history.failures] == expected


BAD_DAY = BadDay(FaultProfile.OUTAGE, place=1, after_batch=0, seconds=60.0)


def ends_batch(answer: Answer) -> Answer:
    return lambda order: [event("runtime", order, what="batch", batch=0), *answer(order)]


def test_a_bad_day_excuses_the_runs_that_it_meets(places: Places) -> None:
    schedule = replace(SCHEDULE, bad_day=BAD_DAY)
    job = job_of(places, schedule, ends_batch(fails("down")), fails("still down"), began(-1))
    assert failures_of(job) == []
    assert job.history.strikes == {"fault-profile": ["outage"]}
    told = json.loads(places.profile.read_text())["profile"]
    assert told == {f"file://{places.backup('blob-2')}": "outage"}


def test_nothing_else_excuses_a_run_that_fails(places: Places) -> None:
    schedule = replace(SCHEDULE, bad_day=replace(BAD_DAY, after_batch=1))
    assert failures_of(job_of(places, schedule, ends_batch(fails("down")))) == [
        "run 1 failed, though nothing had struck"
    ]


def test_a_loss_that_a_bad_day_hides_is_judged_when_it_has_passed(places: Places) -> None:
    schedule = replace(SCHEDULE, losses=[Loss.LOG], bad_day=BAD_DAY)
    refuses = fails("CheckpointLocationError: the job log has no commit")
    job = job_of(
        places,
        schedule,
        commits_and_dies(places),
        ends_batch(fails("down")),
        refuses,
        began(4),
    )
    assert failures_of(job) == []
    assert job.history.strikes[Loss.LOG] == ["lost", "refused"]


def test_without_a_bad_day_a_hidden_loss_is_reported(places: Places) -> None:
    schedule = replace(SCHEDULE, losses=[Loss.LOG])
    job = job_of(places, schedule, commits_and_dies(places), fails("down"), began(4))
    assert failures_of(job) == ["22"]


def test_nothing_is_damaged_before_there_is_a_commit_with_two_backups(places: Places) -> None:
    schedule = replace(SCHEDULE, damage=Damage(place=0, blobs=1, is_truncated=False))
    job = job_of(places, schedule, commits_and_dies(places), began(4))
    assert failures_of(job) == []
    assert "backup" not in job.history.strikes
