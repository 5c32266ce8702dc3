"""The events of copies: beside their log, and to the listeners of the settings."""

from typing import ClassVar

import pytest
from guard_kit import Guard
from spark_locations_kit import truncate
from typing_extensions import override

from statekeep.cli.exit_status import ExitStatus
from statekeep.events import (
    BackendUploaded,
    CleanUpDone,
    CommitDone,
    Event,
    EventSource,
    JobStarted,
    JobStopped,
    Listener,
    RequestDone,
    RequestsCounted,
)
from statekeep.guarding import copy_commit


class Heard(Listener):
    """Keeps what it gets."""

    events: ClassVar[list[tuple[str, Event]]] = []
    closed: ClassVar[list[bool]] = []

    @override
    def on_event(self, event: Event, source: EventSource, /) -> None:
        self.events.append((source.job, event))

    @override
    def close(self) -> None:
        self.closed.append(True)


HEARD = f"--set metrics.listeners={__name__}.Heard"


@pytest.fixture(autouse=True)
def fresh() -> None:
    Heard.events.clear()
    Heard.closed.clear()


def heard() -> list[Event]:
    return [event for _, event in Heard.events if not isinstance(event, RequestDone)]


def test_each_copy_is_a_commit_for_listeners(guard: Guard) -> None:
    guard.commit_until(3)
    made = guard.run(HEARD).json
    assert {job for job, _ in Heard.events} == {made["job"]}
    events = heard()
    (done,) = [event for event in events if isinstance(event, CommitDone)]
    assert (done.batch, done.position, done.tasks_uploaded) == (3, made["commit"], 1)
    (uploaded,) = [event for event in events if isinstance(event, BackendUploaded)]
    assert (uploaded.backend, uploaded.outcome) == ("blob", "done")
    assert uploaded.files == made["new-files"] + 1  # and the catalog
    assert done.bytes_uploaded >= uploaded.files
    assert isinstance(events[-1], JobStopped)
    assert events[-1].error is None
    (counted,) = [event for event in events if isinstance(event, RequestsCounted)]
    before = Heard.events[: Heard.events.index((made["job"], counted))]
    puts = [e for _, e in before if isinstance(e, RequestDone) and e.operation == "put"]
    assert counted.requests["blob"]["put"] == sum(request.count for request in puts)
    assert Heard.closed == [True]


def test_what_happened_is_beside_the_log(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    guard.commit_until(2)
    job = guard.run().json["job"]
    guard.commit_until(4)

    def fail(_: object) -> bytes:
        raise OSError("no such device")

    with monkeypatch.context() as patch:
        patch.setattr(copy_commit, "encode_checkpoint_v2", fail)
        with pytest.raises(OSError, match="no such device"):
            guard.run()
    guard.run("--set checkpoint.clean.up.ms=0")
    kinds = [
        (event["epoch"], event["event"])
        for event in guard.about("events --progress --json", job).json
    ]
    first = [kind for epoch, kind in kinds if epoch == 1]
    assert first[0] == "job-initialised"
    assert "task-uploaded" in first
    assert "commit" in first
    assert first[-1] == "stopped"
    second = [kind for epoch, kind in kinds if epoch == 2]
    assert "commit" not in second
    assert second[-1] == "stopped"
    assert "commit" in [kind for epoch, kind in kinds if epoch == 3]
    shown = guard.about("top --json", job)
    assert shown.status == ExitStatus.FINE


def test_damage_of_the_location_is_the_reason_why_it_ended(guard: Guard) -> None:
    guard.commit_until(0)
    truncate(guard.location / "commits/0")
    assert guard.run(HEARD).status == ExitStatus.DAMAGED
    assert [event for event in heard() if isinstance(event, JobStarted)]
    stopped = heard()[-1]
    assert isinstance(stopped, JobStopped)
    assert stopped.error is not None
    assert stopped.error.startswith("CheckpointCorruptError")


def test_old_copies_are_deleted_and_that_is_an_event(guard: Guard) -> None:
    for batch in (0, 1, 2, 3):
        guard.commit_until(batch)
        guard.run(f"{HEARD} --set checkpoint.retain.commits=2")
    assert [event for event in heard() if isinstance(event, CleanUpDone)]
