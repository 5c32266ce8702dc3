"""What the log and the events of a job add up to: each fact once, and nothing that is not on record."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_kit import batch_record, commit_record
from secret_kit import SECRET, TEXTS

from benchmarks.report_page import BACKENDS, made_events
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
)
from statekeep.checkpoint.event_log import Event
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import (
    AbortRecord,
    AttemptRecord,
    BadMarkerRecord,
    BaseRecord,
    EpochRecord,
    JobIdentity,
    KeptRecord,
    PinRecord,
    Record,
)
from statekeep.checkpoint.serde import encode_checkpoint_v2
from statekeep.cli.page.page import page
from statekeep.inspection.findings import findings_of
from statekeep.inspection.history import ABORTED, COMMITTED, OPEN, JobHistory
from statekeep.inspection.history_fold import HistoryFold

NOW_MS = 1_800_000_000_000
KINDS = [*HistoryFold()._events, "of a newer release"]


def event(
    kind: str, *, sequence: int = 0, time_ms: int = NOW_MS, epoch: int = 1, **d: Any
) -> Event:
    return Event(epoch=epoch, sequence=sequence, time_ms=time_ms, kind=kind, details=d)


def history_of(events: Sequence[Event], records: Sequence[Record] = ()) -> JobHistory:
    fold, view = HistoryFold(), LogView()
    for position, record in enumerate(records):
        view.fold(position, record)
        fold.take_record(position, record)
    for each in events:
        fold.take_event(each)
    return fold.history("flights", view, NOW_MS)


def committed(number: int, *, epoch: int = 1, **details: Any) -> Event:
    given: dict[str, Any] = {
        "batch": number,
        "checkpoint_id": f"{NOW_MS - 1000 + number}-000000",
        "position": 2 + number,
        "elapsed_ms": 300,
        "tasks_uploaded": 1,
        "bytes_uploaded": 70,
        "left_out": [],
    }
    return event("commit", epoch=epoch, **(given | details))


def uploaded(attempt: int, task: str, **details: Any) -> Event:
    given: dict[str, Any] = {
        "task": task,
        "attempt": attempt,
        "batch": attempt,
        "bytes": 70,
        "elapsed_ms": 40,
    }
    return event("task-uploaded", **(given | details))


def test_a_commit_has_its_phases_its_backends_and_its_slowest_task() -> None:
    (commit,) = history_of(
        [
            event("batch", batch=0, rows_in=4, max_pause_ms=2.5),
            event("batch", batch=1, rows_in=6, max_pause_ms=1.5),
            uploaded(
                1,
                "Partition 0",
                uploads={
                    "near": {"bytes": 30, "elapsed_ms": 10},
                    "far": {"bytes": 40, "elapsed_ms": 39},
                },
                changed_bytes=20,
                state_bytes=500,
            ),
            uploaded(
                1,
                "Partition 1",
                elapsed_ms=90,
                uploads={"near": {"bytes": 70, "elapsed_ms": 80}},
                changed_bytes=0,
                state_bytes=400,
            ),
            committed(1, wait_ms=60, upload_ms=200, record_ms=40, skipped=3, blocked_ms=7),
        ]
    ).attempts
    assert commit.outcome == COMMITTED
    assert commit.phases == {"pause": 2.5, "wait": 60, "upload": 200, "record": 40}
    assert {name: (f.bytes, f.slowest_ms) for name, f in commit.uploads.items()} == {
        "near": (100, 80),
        "far": (40, 39),
    }
    assert (commit.slowest_task, commit.slowest_ms) == ("Partition 1", 90)
    assert (commit.changed_bytes, commit.state_bytes, commit.rows_in) == (20, 900, 10)
    assert (commit.skipped, commit.blocked_ms) == (3, 7)


def test_a_commit_of_an_idle_query_has_waited_and_nothing_stood_still_for_it() -> None:
    on_spark = committed(1, pause_ms=0, wait_ms=60, upload_ms=200, record_ms=40)
    plain = committed(2, pause_ms=2.5, wait_ms=2, upload_ms=200, record_ms=40)
    first, second = history_of([on_spark, plain]).attempts
    assert first.phases == {"wait": 60, "upload": 200, "record": 40}
    assert second.phases == {"pause": 2.5, "wait": 0, "upload": 200, "record": 40}


def test_what_an_older_release_did_not_record_is_unknown_and_not_zero() -> None:
    history = history_of([uploaded(1, "Partition 0"), committed(1)])
    (commit,) = history.attempts
    assert (commit.phases, commit.uploads) == ({}, {})
    assert (commit.changed_bytes, commit.state_bytes) == (None, None)
    assert history.days[0].bytes == {"": 70}


def test_a_record_and_its_event_are_one_commit() -> None:
    record = commit_record(1, 0)
    attempt = AttemptRecord(
        epoch=1, nonce="a", attempt=1, batch=0, checkpoint_id=record.checkpoint_id, versions={}
    )
    records: list[Record] = [EpochRecord(epoch=1, nonce="e", owner="host:1"), attempt]
    records.append(msgspec.structs.replace(record, epoch=1, nonce="c"))
    told = committed(0, checkpoint_id=record.checkpoint_id, position=2)
    history = history_of([told], records)
    (commit,) = history.attempts
    assert (commit.key, commit.outcome, commit.position, commit.elapsed_ms) == (
        (1, 1),
        COMMITTED,
        2,
        300,
    )
    assert [(each.position, each.is_current) for each in history.retained] == [(2, True)]
    # Without its event it is known all the same, but not how long it took.
    (alone,) = history_of([], records).attempts
    assert (alone.outcome, alone.elapsed_ms, alone.ended_ms) == (COMMITTED, None, None)
    assert alone.began_ms is not None


def test_an_attempt_is_open_until_it_is_aborted_by_a_record_an_event_or_a_new_driver() -> None:
    def attempt(number: int) -> AttemptRecord:
        return AttemptRecord(
            epoch=1,
            nonce="a",
            attempt=number,
            batch=0,
            checkpoint_id=f"{number}-000000",
            versions={},
        )

    start: Record = EpochRecord(epoch=1, nonce="e", owner="host:1")
    abort = AbortRecord(epoch=1, nonce="v", attempt_epoch=1, attempt=1, reason="timed out")
    told = event("void", attempt_epoch=1, attempt=2, batch=0, reason="no room")
    history = history_of([told], [start, attempt(1), abort, attempt(2), attempt(3)])
    assert [(each.outcome, each.reason) for each in history.attempts] == [
        (ABORTED, "timed out"),
        (OPEN, ""),
        (ABORTED, "no room"),
    ]
    taken_over: list[Record] = [
        start,
        attempt(1),
        EpochRecord(epoch=2, nonce="f", owner="host:2"),
        BaseRecord(epoch=2, nonce="b", query_id="q", commit_position=-1, head=-1),
    ]
    (lost,) = history_of([], taken_over).attempts
    assert (lost.outcome, lost.reason) == (ABORTED, "its driver was gone")


@pytest.mark.parametrize("text", TEXTS)
def test_secrets_that_older_releases_have_stored_are_not_shown(text: str) -> None:
    records: list[Record] = [
        EpochRecord(epoch=1, nonce="e", owner="host:1"),
        AttemptRecord(
            epoch=1, nonce="a", attempt=1, batch=0, checkpoint_id="1-000000", versions={}
        ),
        AbortRecord(epoch=1, nonce="v", attempt_epoch=1, attempt=1, reason=text),
    ]
    events = [
        event("void", attempt_epoch=1, attempt=2, batch=0, reason=text),
        event("restart", number=1, reason=text),
        event("recovery", failures=[text]),
        event("clean-up-failing", minutes=90, error=text),
        event("verify-failed", is_damaged=True, position=3, error=text),
        event("stopped", error=text),
    ]
    for each in events:
        assert "***" in str(history_of([each]))
        assert SECRET not in str(history_of([each]))
    assert "***" in str(history_of([], records))
    assert SECRET not in str(history_of([], records))


def test_uploads_of_an_aborted_attempt_are_not_those_of_the_next_commit() -> None:
    history = history_of(
        [
            uploaded(1, "Partition 0", uploads={"near": {"bytes": 70, "elapsed_ms": 40}}, batch=5),
            event("void", attempt_epoch=1, attempt=1, batch=5, reason="x"),
            uploaded(2, "Partition 0", uploads={"near": {"bytes": 1, "elapsed_ms": 9}}, batch=5),
            committed(5),
        ]
    )
    aborted, commit = history.attempts
    assert (aborted.bytes_uploaded, commit.uploads["near"].bytes) == (70, 1)
    assert (history.days[0].bytes, history.days[0].task_uploads) == ({"near": 71}, 2)


def test_requests_are_added_up_by_day_and_backend() -> None:
    day_ms = 86_400_000
    history = history_of(
        [
            event("requests", time_ms=10, requests={"near": {"put": 3, "get": 1}}),
            event("requests", time_ms=20, requests={"near": {"put": 2}, "far": {"list": 1}}),
            event("requests", time_ms=day_ms + 1, requests={"near": {"put": 7, "get": "x"}}),
            event("requests", time_ms=day_ms + 2, requests=[4]),
        ]
    )
    days = [dataclasses.asdict(day) for day in history.days]
    assert [(day["date_ms"], day["requests"]) for day in days] == [
        (0, {"near": {"put": 5, "get": 1}, "far": {"list": 1}}),
        (day_ms, {"near": {"put": 7, "get": 0}}),
    ]


def test_a_backend_that_is_left_out_is_behind_by_its_newest_whole_commit() -> None:
    start = event("job-initialised", backends=["near", "far"], partitions=1)
    lag = [committed(n, left_out=["far"] if n > 1 else []) for n in range(4)]
    near, far = history_of([start, *lag]).backends
    assert (near.is_left_out, near.behind_commits, near.behind_ms) == (False, 0, 0)
    assert (far.is_left_out, far.behind_commits) == (True, 2)
    levels = [(each.level, each.text) for each in findings_of(history_of([start, *lag]))]
    assert levels[0] == ("bad", "the newest commit lacks state in backend far")


def test_nothing_is_known_of_a_backend_without_a_commit_that_names_it() -> None:
    both = event("job-initialised", backends=["near", "far"], partitions=1)
    assert states_of(history_of([both])) == {"near": None, "far": None}
    # One that was added since, and one whose commits tell nothing.
    added = event("job-initialised", backends=["near", "new"], epoch=2)
    old_release = committed(2, epoch=2)
    del old_release.details["left_out"]
    assert states_of(history_of([both, committed(1), added])) == {
        "near": 0,
        "new": None,
        "far": None,
    }
    assert states_of(history_of([both, committed(1), old_release])) == {"near": None, "far": None}


def test_only_the_backends_of_the_newest_session_are_current() -> None:
    before = event("job-initialised", backends=["old", "near"], partitions=1)
    after = event("job-initialised", backends=["near"], epoch=2)
    uploads = {name: {"bytes": 1, "elapsed_ms": 1} for name in ("old", "near")}
    events = [before, uploaded(1, "Partition 0", uploads=uploads, batch=1), committed(1), after]
    history = history_of([*events, committed(2, epoch=2)])
    assert [(each.name, each.is_current) for each in history.backends] == [
        ("near", True),
        ("old", False),
    ]
    assert states_of(history) == {"near": 0, "old": None}
    assert [each.level for each in findings_of(history)] == ["warn"]  # no commit is retained


def test_the_markers_of_a_commit_without_an_event_say_where_it_is() -> None:
    began = event("job-initialised", backends=["near", "far"], partitions=2)
    whole = recorded_commit({"Partition 0": ["near", "far"], "Partition 1": ["near", "far"]})
    assert states_of(history_of([began], whole)) == {"near": 0, "far": 0}
    partly = recorded_commit({"Partition 0": ["near", "far"], "Partition 1": ["near"]})
    near, far = history_of([began], partly).backends
    assert (near.is_left_out, near.behind_commits) == (False, 0)
    assert (far.is_left_out, far.behind_commits) == (True, None)
    # A marker that was found bad is none; without markers, and without the settings, nothing is known.
    bad = BadMarkerRecord(
        epoch=1,
        nonce="m",
        backend="far",
        task="Partition 0",
        store="s",
        marker="m",
        reason="damaged",
    )
    assert history_of([began], [*whole, bad]).backends[1].is_left_out
    assert states_of(history_of([began], recorded_commit({}))) == {"near": None, "far": None}
    assert states_of(history_of([], partly)) == {"near": 0}


def states_of(history: JobHistory) -> dict[str, int | None]:
    return {each.name: each.behind_commits for each in history.backends}


def recorded_commit(held: dict[str, list[str]]) -> list[Record]:
    """Return a log of one commit, with the backends that hold each task."""
    began = EpochRecord(epoch=1, nonce="e", owner="host:1")
    checkpoints = {
        task: msgspec.Raw(
            encode_checkpoint_v2(
                CheckpointV2(
                    CheckpointId.parse("1700000000123-456789"),
                    {},
                    {BackendName(backend): {StoreName("s"): Marker("m")} for backend in backends},
                )
            )
        )
        for task, backends in held.items()
    }
    commit = commit_record(1, 0)
    return [began, msgspec.structs.replace(commit, epoch=1, nonce="c", checkpoints=checkpoints)]


def test_sessions_say_why_they_began_and_how_they_ended() -> None:
    history = history_of(
        [
            event("restart", epoch=2, number=1, delay_ms=5, reason="RetriableError: down"),
            event("job-initialised", epoch=2, backends=["near"], commit_position=4, head=9),
            event("started", epoch=2, phases_ms={"log": 12, "replay": 900}),
            event(
                "recovery",
                epoch=2,
                head=9,
                restored={"0": "near"},
                replayed=[8, 9],
                elapsed_ms=5,
                reason="loss",
                phases_ms={"restore": 2, "replay": 3},
            ),
            event("stopped", epoch=2, error="TaskFencedError: gone"),
        ]
    )
    (session,) = history.sessions
    assert (session.restart, session.restart_number) == ("RetriableError: down", 1)
    assert (session.from_commit, session.head) == (4, 9)
    assert session.phases_ms == {"log": 12, "replay": 900}
    assert (session.has_stopped, session.error) == (True, "TaskFencedError: gone")
    (recovery,) = history.recoveries
    assert (recovery.restored, recovery.sources, recovery.replayed) == (1, ("near",), 2)
    assert (recovery.reason, recovery.phases_ms) == ("loss", {"restore": 2, "replay": 3})
    assert findings_of(history)[0].level == "bad"


def test_a_session_that_fell_silent_without_an_end_is_not_fine() -> None:
    records: list[Record] = [EpochRecord(epoch=1, nonce="e", owner="host:1")]
    records.append(msgspec.structs.replace(commit_record(1, 0), epoch=1, nonce="c"))
    # As a tool takes the log over: without an event.
    records.append(EpochRecord(epoch=2, nonce="t", owner="tool:1"))

    def found(*events: Event) -> list[tuple[str, str]]:
        return [(each.level, each.text) for each in findings_of(history_of(events, records))]

    fine = [("good", "nothing is wrong by the records")]
    day_old, hours_old = (event("batch", time_ms=NOW_MS - n * 3_600_000) for n in (24, 2))
    assert found(day_old) == [
        ("warn", "the newest driver session has told of no end, and of nothing else for 24 h")
    ]
    assert found(hours_old)[0][0] == "warn"
    assert found(event("batch", time_ms=NOW_MS - 3_000_000)) == fine
    assert found(day_old, event("stopped", time_ms=NOW_MS - 80_000_000)) == fine
    assert found(day_old, committed(1, epoch=2)) == fine


def test_stores_that_are_there_are_not_reported_as_restored() -> None:
    restored = {"counts": "local", "names": "near", "sums": "local"}
    (some,) = history_of([event("recovery", restored=restored)]).recoveries
    assert (some.restored, some.sources) == (1, ("near",))
    (none,) = history_of([event("recovery", restored={"counts": "local"})]).recoveries
    assert (none.restored, none.sources) == (0, ())


def test_the_newest_batch_goes_back_only_with_the_job() -> None:
    start = EpochRecord(epoch=1, nonce="e", owner="host:1")
    batch = msgspec.structs.replace(batch_record(7), epoch=1, nonce="b")
    assert history_of([event("batch", batch=5)], [start, batch]).newest_batch == 7
    assert history_of([event("batch", batch=9)], [start, batch]).newest_batch == 9
    reset = EpochRecord(epoch=2, nonce="r", owner="tool:1", is_reset=True)
    records: list[Record] = [start, batch, reset]
    assert history_of([event("batch", batch=9)], records).newest_batch is None
    assert history_of([event("batch", batch=0, epoch=3)], records).newest_batch == 0


def test_a_damaged_copy_is_an_alarm_until_a_proof_finds_none() -> None:
    failed = event(
        "verify-failed",
        position=4,
        task="Partition 0",
        backend="far",
        is_damaged=True,
        error="gone",
    )
    away = event("verify-failed", position=4, task="Partition 0", backend="near", is_damaged=False)
    good = event("verified", position=5, batch=3, task="Partition 0", backends=["near", "far"])
    history = history_of([failed, away])
    assert history.verify_errors == ["commit 4, Partition 0 in far: gone"]
    assert findings_of(history)[0].text.endswith("commit 4, Partition 0 in far: gone")
    history = history_of([failed, good])
    assert history.verify_errors == []
    assert history.last_verified is not None
    assert (history.last_verified.batch, history.last_verified.time_ms) == (3, NOW_MS)
    assert history.last_verified.commit_ms is None


def test_a_proof_says_how_old_its_commit_is() -> None:
    first = msgspec.structs.replace(committed(1), time_ms=NOW_MS - 90_000)
    second = msgspec.structs.replace(committed(2), time_ms=NOW_MS - 60_000)
    proven = event("verified", time_ms=NOW_MS - 5_000, position=3, batch=1, task="Partition 0")
    history = history_of([first, second, proven])
    assert history.last_verified is not None
    assert history.last_verified.commit_ms == NOW_MS - 90_000
    assert "<dd>1 min 30 s ago, proven 5 s ago</dd>" in page(history)


def test_pins_are_reported_with_their_commits() -> None:
    records: list[Record] = [
        EpochRecord(epoch=1, nonce="e", owner="host:1"),
        msgspec.structs.replace(commit_record(1, 0), epoch=1, nonce="c"),
        PinRecord(epoch=1, nonce="p", name="before", position=1, expires_ms=7),
    ]
    (commit,) = history_of([], records).retained
    assert commit.pins == {"before": 7}


def test_events_that_are_not_there_are_counted() -> None:
    events = [event("batch", sequence=n) for n in (0, 1, 4, 5)]
    assert history_of(events).missing_events == 2
    assert history_of([event("batch", sequence=3, epoch=2)]).missing_events == 3


def test_a_job_adds_up() -> None:
    events = list(made_events(400, tasks=3))
    history = history_of(events)
    commits = history.commits
    assert len(commits) == sum(each.kind == "commit" for each in events) == 398
    assert sum(len(each.uploads) for each in commits) == 398 * len(BACKENDS)
    assert sum(day.commits for day in history.days) == 398
    assert sum(day.aborted for day in history.days) == 2
    sent = sum(each.details["bytes"] for each in events if each.kind == "task-uploaded")
    assert sum(sum(day.bytes.values()) for day in history.days) == sent
    assert sum(task.times_slowest for task in history.tasks) == 398
    assert [backend.uploads for backend in history.backends] == [398, 398]
    assert all(each.failures == 0 for each in history.backends[:1])
    assert history.backends[1].failures == 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
NAMES = st.sampled_from(
    [
        "task",
        "attempt",
        "batch",
        "bytes",
        "elapsed_ms",
        "uploads",
        "changed_bytes",
        "state_bytes",
        "checkpoint_id",
        "position",
        "left_out",
        "skipped",
        "blocked_ms",
        "pause_ms",
        "attempt_epoch",
        "reason",
        "head",
        "replayed",
        "restored",
        "phases_ms",
        "max_pause_ms",
        "rows_in",
        "backends",
        "partitions",
        "error",
        "minutes",
    ]
)


@settings(deadline=None)
@given(
    st.lists(
        st.builds(
            event,
            st.sampled_from(KINDS),
            sequence=st.integers(0, 9),
            time_ms=st.integers(0, 2**42),
            epoch=st.integers(1, 3),
        ).flatmap(
            lambda made: st.dictionaries(NAMES, JSON).map(
                lambda details: msgspec.structs.replace(made, details=details)
            )
        ),
        max_size=12,
    )
)
def test_events_of_any_form_are_no_error(events: list[Event]) -> None:
    history = history_of(events)
    assert len(history.attempts) <= len(events)
    assert findings_of(history)
    assert dataclasses.asdict(history)


def test_the_identity_is_that_of_the_newest_commit() -> None:
    record = msgspec.structs.replace(commit_record(1, 0), epoch=1, nonce="c")
    start = EpochRecord(epoch=1, nonce="e", owner="host:1")
    assert history_of([], [start, record]).identity == record.identity


def test_a_pinned_commit_that_is_written_again_is_reported_among_those_to_restore_from_only() -> (
    None
):
    start = EpochRecord(epoch=1, nonce="e", owner="host:1")
    record = msgspec.structs.replace(commit_record(2, 5), epoch=1, nonce="c")
    pinned = msgspec.structs.replace(
        commit_record(1, 0),
        epoch=1,
        nonce="k",
        checkpoint_id="1600000000000-000000",
        identity=JobIdentity(job_uid="u", job_name="before", partitions=1),
    )
    kept = KeptRecord(epoch=1, nonce="w", position=-5, commit=pinned, pins={"year": 0})
    history = history_of([], [start, record, kept])
    assert [each.batch for each in history.attempts] == [5]  # else the page spans years
    assert [(each.batch, dict(each.pins)) for each in history.retained] == [
        (0, {"year": 0}),
        (5, {}),
    ]
    assert history.identity == record.identity
    assert history_of([], [start, kept]).identity == pinned.identity
