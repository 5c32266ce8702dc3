"""What a new driver makes of the checkpoint location and of the attempt left open by the old one."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import cast

import msgspec
import pytest
from log_kit import (
    attempt_record,
    base_record,
    batch_record,
    commit_record,
    driver_on,
    log_on,
    new_blobs,
)
from newer_frames import of_next_format

from statekeep.backends.storage.checkpoint_store import BlobCheckpointStore
from statekeep.backends.storage.memory import MemoryBlobStoreManager
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    VersionId,
)
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import AttemptRecord, JobIdentity, QueryState, Record
from statekeep.checkpoint.serde import AttemptEntry, FailedTask, FinishedTask, encode_attempt_entry
from statekeep.commit.gate import CommitGate
from statekeep.config.load import load_dict
from statekeep.errors import CheckpointLocationError, ConfigError, StateBackupError
from statekeep.events import CommitSummary
from statekeep.spark.driver.job_commits import JobCommits
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.takeover import Resumption, check_stores, find_resumption, roll_forward
from statekeep.spark.tasks import STATE_STORE, task_name
from statekeep.spark.worker.job_spec import SubmitPlan
from statekeep.testing.clock import FakeClock

VERSION = "2_0123456789abcdef"


class FakeLocation:
    """A checkpoint location of query ``q``, or of another one."""

    uri = "file:///checkpoint"

    def __init__(self, newest_commit: int, query_id: str | None = "q") -> None:
        self._newest_commit = newest_commit
        self._query_id = query_id
        self.files: dict[str, str | None] = {}

    def newest(self, log: str) -> int:
        assert log == "commits"
        return self._newest_commit

    def query_id(self) -> str | None:
        return self._query_id

    def check_newest(self) -> None:
        pass

    def names(self, directory: str) -> list[str]:
        assert directory == "state"  # of no operator of Spark's own
        return []

    def read(self, name: str) -> str | None:
        return self.files.get(name, f"offsets of {name.removeprefix('offsets/')}")


def resumption_of(view: LogView, newest_commit: int, query_id: str | None = "q") -> int | None:
    location = cast("CheckpointLocation", FakeLocation(newest_commit, query_id))
    found = find_resumption(location, view)
    return None if found is None else found.head


async def view_after_batches(last: int) -> LogView:
    writer = await driver_on(new_blobs())
    await writer.append(commit_record(1, -1))
    for batch in range(last + 1):
        await writer.append(batch_record(batch))
    return writer.view


async def driver_after(*records: Record) -> LogSession:
    """Return a driver that has taken over a log whose first commit is followed by some records."""
    blobs = new_blobs()
    old = await driver_on(blobs)
    await old.append(commit_record(1, -1))
    for record in records:
        await old.append(record)
    return await driver_on(blobs)


@pytest.mark.asyncio
async def test_a_recorded_batch_counts_once_spark_has_ended_it() -> None:
    view = await view_after_batches(2)
    assert resumption_of(view, 2) == 2
    assert resumption_of(view, 1) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("newest_commit", "query_id", "text"),
    [
        (0, "q", "are of different times: commits=0 logged=2"),
        (-1, "q", "are of different times: commits=-1 logged=2"),
        (3, "q", "are of different times: commits=3 logged=2"),
        (2, "other", "is of another query: query_id=other"),
        (-1, None, "is empty"),
    ],
    ids=["older", "truncated", "newer", "of another query", "lost"],
)
async def test_a_location_that_does_not_fit_the_log_is_refused(
    newest_commit: int, query_id: str | None, text: str
) -> None:
    view = await view_after_batches(2)
    with pytest.raises(CheckpointLocationError, match=text):
        resumption_of(view, newest_commit, query_id)


@pytest.mark.asyncio
async def test_a_batch_whose_record_is_damaged_counts_once_spark_has_ended_it() -> None:
    view = await view_after_batches(1)
    view.fold_unreadable_batch(view.next_position)
    assert resumption_of(view, 2) == 2


@pytest.mark.asyncio
async def test_a_batch_that_a_fenced_driver_ended_late_counts() -> None:
    new = await driver_after(*map(batch_record, range(3)))
    await new.append(base_record(1))
    assert resumption_of(new.view, 1) == 1
    assert resumption_of(new.view, 2) == 2
    with pytest.raises(CheckpointLocationError):
        resumption_of(new.view, 3)


@pytest.mark.asyncio
async def test_a_batch_that_was_begun_says_that_the_one_before_it_was_done() -> None:
    new = await driver_after(*map(batch_record, range(3)))
    await new.append(base_record(1))
    with pytest.raises(CheckpointLocationError, match="commits=0 logged=1 committed=-1 done=1"):
        resumption_of(new.view, 0)


@pytest.mark.asyncio
async def test_a_location_older_than_a_driver_has_seen_it_is_refused() -> None:
    new = await driver_after(*map(batch_record, range(2)))
    assert resumption_of(new.view, 0) == 0
    await new.append(base_record(1))
    assert resumption_of(new.view, 1) == 1
    with pytest.raises(CheckpointLocationError, match="commits=0 logged=1 committed=-1 done=1"):
        resumption_of(new.view, 0)


@pytest.mark.asyncio
async def test_a_commit_made_inside_its_batch_does_not_say_that_spark_took_it_for_done() -> None:
    new = await driver_after(batch_record(0), batch_record(1), commit_record(2, 1))
    await new.append(base_record(1))
    assert resumption_of(new.view, 0) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("found", [None, "offsets of another time"])
@pytest.mark.parametrize("is_overtaken", [False, True])
async def test_a_batch_that_was_run_must_have_its_boundaries(
    found: str | None, *, is_overtaken: bool
) -> None:
    new = await driver_after(*map(batch_record, range(3)))
    if is_overtaken:
        await new.append(base_record(1))
    location = FakeLocation(1)
    find_resumption(cast("CheckpointLocation", location), new.view)
    location.files["offsets/2"] = found
    with pytest.raises(
        CheckpointLocationError, match="lacks the offsets of a batch that was run: batch=2"
    ):
        find_resumption(cast("CheckpointLocation", location), new.view)


@pytest.mark.asyncio
async def test_a_job_that_a_tool_has_made_half_is_refused() -> None:
    blobs = new_blobs()
    owner = await LogSession.of_tool(log_on(blobs), "tool")
    await owner.begin_attempt(3, CheckpointId(1, 1), {}, [])
    driver = await driver_on(blobs)
    with pytest.raises(ConfigError, match="only partly made"):
        resumption_of(driver.view, -1, None)


class Sessions:
    """A log whose first driver died with an attempt for batch 2 open, and its successor."""

    def __init__(self, blobs: MemoryBlobStoreManager, successor: LogSession) -> None:
        self._successor = successor
        self.checkpoints = BlobCheckpointStore(blobs, "job")
        self.clock = FakeClock()
        self.abandoned: set[int] = set()
        self.on_asked: Callable[[], Awaitable[None]] | None = None
        self.asked: list[SubmitPlan] = []
        self.identity = JobIdentity(job_uid="u", job_name="job", partitions=2)

    async def enter(self, partition: int, entry: AttemptEntry | bytes) -> None:
        data = entry if isinstance(entry, bytes) else encode_attempt_entry(entry)
        await self.checkpoints.write("1-1", task_name(partition), data)

    async def roll_forward(self, head: int = 2) -> CommitSummary | None:
        committer = JobCommits(
            log=self._successor,
            checkpoints=self.checkpoints,
            gate=CommitGate(load_dict({"job.name": "job"}).task),
            clock=self.clock,
            identity=self.identity,
            query_state=query_state,
            on_commit=lambda summary: None,
        )
        resumption = Resumption("q", -1, head)
        return await roll_forward(
            resumption,
            self._successor.view,
            self.checkpoints,
            committer,
            identity=self.identity,
            clock=self.clock,
            find_abandoned=self._find_abandoned,
        )

    async def _find_abandoned(self, plan: SubmitPlan) -> set[int]:
        self.asked.append(plan)
        if self.on_asked is not None:
            await self.on_asked()
        return self.abandoned


async def query_state(batch: int) -> QueryState:
    return QueryState(query_id="q", metadata="{}", offsets=f"offsets of {batch}")


async def new_sessions(*, partitions: int = 2) -> Sessions:
    blobs = new_blobs()
    first = await driver_on(blobs)
    identity = JobIdentity(job_uid="u", job_name="job", partitions=partitions)
    empty = msgspec.structs.replace(
        commit_record(1, -1), checkpoints={}, versions={}, identity=identity
    )
    await first.append(empty)
    attempt = AttemptRecord(
        attempt=1,
        batch=2,
        checkpoint_id="7-1",
        versions={task_name(0): VERSION, task_name(1): VERSION},
        uploads=[task_name(0), task_name(1)],
    )
    await first.append(attempt)
    return Sessions(blobs, await driver_on(blobs))


def finished() -> FinishedTask:
    markers = {BackendName("blob"): {STATE_STORE: Marker("m")}}
    return FinishedTask(CheckpointV2(CheckpointId(7, 1), {}, markers), VersionId.parse(VERSION))


@pytest.mark.asyncio
async def test_an_attempt_whose_uploads_are_all_there_is_committed() -> None:
    sessions = await new_sessions()
    await sessions.enter(0, finished())
    await sessions.enter(1, finished())
    summary = await sessions.roll_forward()
    assert summary is not None
    assert (summary.batch, summary.was_rolled_forward) == (2, True)
    assert (sessions.clock.slept, sessions.asked) == ([], [])


@pytest.mark.asyncio
async def test_an_attempt_from_before_the_job_got_a_store_is_not_completed() -> None:
    """Its record would list the store, of which no task has uploaded anything."""
    sessions = await new_sessions()
    await sessions.enter(0, finished())
    await sessions.enter(1, finished())
    stores = {"main": ["state", "large"]}
    sessions.identity = msgspec.structs.replace(sessions.identity, stores=stores)
    assert await sessions.roll_forward() is None


UNSAID: Mapping[str, list[str]] = {}
ONE: Mapping[str, list[str]] = {"main": ["state"]}
TWO: Mapping[str, list[str]] = {"main": ["state", "large"]}


async def sessions_with(*sessions: Mapping[str, list[str]], head: int = -1) -> LogView:
    """Return a log whose commit is of the first stores; each session since has those that follow."""
    driver = await driver_on(new_blobs())
    commit = commit_record(1, -1)
    identity = msgspec.structs.replace(commit.identity, stores=sessions[0])
    await driver.append(msgspec.structs.replace(commit, identity=identity))
    for stores in sessions[1:]:
        await driver.go_on_from("q", head, stores)
    return driver.view


def check(view: LogView, stores: Mapping[str, list[str]], head: int) -> None:
    identity = JobIdentity(job_uid="u", job_name="job", partitions=1, stores=stores)
    check_stores(identity, view, Resumption("q", committed=-1, head=head))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("sessions", "now"),
    [((ONE,), TWO), ((ONE, TWO), ONE), ((TWO, ONE), TWO), ((ONE, TWO, UNSAID), ONE)],
    ids=["another store", "taken back", "given up and back", "by an older release"],
)
async def test_stores_change_only_where_all_state_is_committed(
    sessions: Sequence[Mapping[str, list[str]]], now: Mapping[str, list[str]]
) -> None:
    view = await sessions_with(*sessions)
    check(view, now, head=-1)
    with pytest.raises(ConfigError, match=r"cannot change now, .*before=.* now=.* head=0") as error:
        check(view, now, head=0)
    assert any("start once with the former settings" in hint for hint in error.value.hints)
    view.open_attempts[1, 2] = attempt_record(2)
    with pytest.raises(ConfigError, match="cannot change now"):
        check(view, now, head=-1)


@pytest.mark.asyncio
async def test_a_session_that_crashed_before_its_first_commit_goes_on_with_its_stores() -> None:
    view = await sessions_with(ONE, TWO)
    check(view, TWO, head=3)


@pytest.mark.asyncio
async def test_a_copy_of_the_newest_commit_says_nothing_of_what_came_after_it() -> None:
    """As a tool makes one, of a job that crashed before its first commit with another store."""
    driver = await driver_on(new_blobs())
    commit = commit_record(1, 2)
    commit = msgspec.structs.replace(
        commit, identity=msgspec.structs.replace(commit.identity, stores=ONE)
    )
    await driver.append(commit)
    await driver.go_on_from("q", 2, TWO)
    await driver.append(msgspec.structs.replace(commit, attempt=2))
    check(driver.view, TWO, head=5)
    with pytest.raises(ConfigError, match="cannot change now"):
        check(driver.view, ONE, head=5)


@pytest.mark.asyncio
async def test_an_attempt_of_some_tasks_alone_is_not_completed() -> None:
    sessions = await new_sessions(partitions=3)
    await sessions.enter(0, finished())
    await sessions.enter(1, finished())
    assert await sessions.roll_forward() is None


@pytest.mark.asyncio
async def test_an_attempt_is_waited_for_until_a_deadline() -> None:
    sessions = await new_sessions()
    await sessions.enter(0, finished())
    sessions.abandoned = {0}  # done, and forgotten by its sidecar
    assert await sessions.roll_forward() is None
    assert 10 <= sum(sessions.clock.slept) <= 11
    assert [(plan.epoch, plan.attempt) for plan in sessions.asked] == [(1, 1)]


@pytest.mark.asyncio
async def test_where_no_host_can_be_asked_the_uploads_are_waited_for() -> None:
    sessions = await new_sessions()
    await sessions.enter(0, finished())

    async def lost_executor() -> None:
        await sessions.enter(1, finished())
        raise StateBackupError("tasks did not answer")

    sessions.on_asked = lost_executor
    summary = await sessions.roll_forward()
    assert summary is not None
    assert summary.was_rolled_forward


@pytest.mark.asyncio
async def test_an_attempt_that_no_process_can_finish_is_given_up_at_once_with_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sessions = await new_sessions()
    await sessions.enter(0, finished())
    sessions.abandoned = {1}
    assert await sessions.roll_forward() is None
    assert sessions.clock.slept == []
    assert "no sidecar is left to finish a task's backup: task=Partition 1" in caplog.text


@pytest.mark.asyncio
async def test_an_entry_that_was_written_while_the_hosts_were_asked_counts() -> None:
    sessions = await new_sessions()
    await sessions.enter(0, finished())
    sessions.abandoned = {1}
    sessions.on_asked = lambda: sessions.enter(1, finished())
    assert await sessions.roll_forward() is not None
    assert sessions.clock.slept == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "entry",
    [
        FailedTask("upload", "backend is down"),
        b"nonsense",
        of_next_format(encode_attempt_entry(FailedTask("upload", "down"))),
    ],
    ids=["a task that failed", "a damaged entry", "an entry of a newer release"],
)
async def test_an_attempt_that_cannot_be_completed_is_given_up_at_once_and_loudly(
    entry: AttemptEntry | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    sessions = await new_sessions()
    await sessions.enter(0, entry)
    assert await sessions.roll_forward() is None
    assert sessions.clock.slept == []
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.asyncio
async def test_an_attempt_for_a_batch_that_was_not_delivered_is_given_up() -> None:
    sessions = await new_sessions()
    await sessions.enter(0, finished())
    await sessions.enter(1, finished())
    assert await sessions.roll_forward(head=1) is None
