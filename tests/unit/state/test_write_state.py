"""The state of a whole job, changed without Spark: what is written, recorded, refused and taken back."""

import asyncio
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from socket import gethostname
from threading import Thread
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import spark_job_kit
from golden_kit import unpack
from spark_job_kit import (
    CONTENT,
    IN_STORES,
    LARGE,
    ONE_STORE,
    TASKS,
    make_job,
    settings,
    task_of,
    version_of,
)

import statekeep as sk
from statekeep.checkpoint.checkpoints import BackendName, CheckpointId, CheckpointV2, TaskName
from statekeep.checkpoint.event_log import KEPT_SESSIONS
from statekeep.checkpoint.job_log import JobLog
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.records import CommitRecord, ReleaseRecord
from statekeep.checkpoint.serde import encode_checkpoint_v2
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.errors import (
    CommitFailedError,
    ConfigError,
    RetriableError,
    StateBackupError,
    StateSchemaError,
)
from statekeep.fault_points import fault_handler
from statekeep.inspection.job import open_job
from statekeep.inspection.state_change import Changing, undo_change
from statekeep.inspection.state_copy import CommitBackups
from statekeep.inspection.task_restore import checkpoint_in
from statekeep.spark.state.erasing import Erased, EraseRequest, erase_keys, remains_of
from statekeep.spark.state_writer import write_between_runs, write_request

BLOB = BackendName("blob")
FAR = {
    "stores.backup.factories": "blob,far",
    "backends.far.factory": "hdfs",
}


def far(directory: Path) -> dict[str, str]:
    return {**FAR, "backends.far.uri": (directory / "far").as_uri()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of four tasks with one commit, in two backends."""
    directory = tmp_path_factory.mktemp("made")
    asyncio.run(make_job(directory, ONE_STORE, **far(directory)))
    return directory


@pytest.fixture
def job(made: Path, tmp_path: Path) -> dict[str, str]:
    """A copy of it."""
    for place in ("place", "far"):
        shutil.copytree(made / place, tmp_path / place)
    return settings(tmp_path) | far(tmp_path)


def rows(**counts: int) -> pa.Table:
    keys = [{"user": name.replace("_", "-")} for name in counts]
    return pa.table({"key": keys, "value": [{"n": n} for n in counts.values()]})


def counts(job: Mapping[str, Any], **which: Any) -> dict[str, int]:
    found = sk.read_state(job, "count", **which).to_pylist()
    return {row["key"]["user"]: row["value"]["n"] for row in found}


def newest(job: Mapping[str, str]) -> tuple[int, CommitRecord]:
    async def find() -> tuple[int, CommitRecord]:
        async with open_job(load_dict(job), SystemClock()) as opened:
            return opened.find_commit()

    return asyncio.run(find())


def undo(job: Mapping[str, str], directory: Path) -> None:
    async def run() -> None:
        async with open_job(load_dict(job), SystemClock()) as opened:
            await undo_change(opened, "a mistake", Changing(directory / "undo", "test"))

    asyncio.run(run())


async def take_over(job: Mapping[str, str], owner: str = "driver") -> int:
    async with open_job(load_dict(job), SystemClock()) as opened:
        driver = LogSession(opened.log)
        await driver.open()
        return await driver.take_over(owner)


def test_rows_take_the_place_of_values_in_every_backend(job: dict[str, str]) -> None:
    before, old = newest(job)
    position = sk.write_state(job, "count", rows(user_7=70, newcomer=1), reason="a correction")
    expected = CONTENT | {"user-7": 70, "newcomer": 1}
    for backend in ("blob", "far"):
        assert counts(job, backend=backend) == expected
    assert counts(job, commit=before) == CONTENT
    at, commit = newest(job)
    assert at == position
    assert (commit.batch, commit.query) == (old.batch, old.query)
    assert commit.change is not None
    assert (commit.change.kind, commit.change.reason) == ("put", "a correction")
    assert (commit.change.variable, commit.change.keys) == ("count", 2)
    changed = {task for task in commit.versions if commit.versions[task] != old.versions[task]}
    assert changed == {f"Partition {task_of(user, TASKS)}" for user in ("user-7", "newcomer")}


def test_keys_are_deleted_and_others_stay(job: dict[str, str]) -> None:
    sk.write_state(job, "count", pa.table({"key": ["user-7", "absent"]}), reason="r", delete=True)
    assert counts(job) == {user: n for user, n in CONTENT.items() if user != "user-7"}


def test_what_was_read_can_be_written_back(job: dict[str, str]) -> None:
    before, _ = newest(job)
    table = sk.read_state(job, "count")
    assert sk.write_state(job, "count", table, reason="nothing differs") == before
    sk.write_state(job, "count", table, reason="all of it", delete=True)
    assert counts(job) == {}
    sk.write_state(job, "count", table, reason="back")
    assert counts(job) == CONTENT


def test_a_change_is_taken_back_until_the_job_goes_on(job: dict[str, str], tmp_path: Path) -> None:
    sk.write_state(job, "count", rows(user_7=70), reason="r")
    undo(job, tmp_path)
    assert counts(job) == CONTENT
    _, commit = newest(job)
    assert commit.change is not None
    assert commit.change.kind == "undo"
    undo(job, tmp_path / "again")  # the undo is a change too
    assert counts(job)["user-7"] == 70


def test_an_undo_takes_the_commit_that_was_changed_and_no_other(
    job: dict[str, str], tmp_path: Path
) -> None:
    pin(job, "early")
    sk.write_state(job, "count", rows(user_7=70), reason="r")
    sk.write_state(job, "count", rows(user_7=71), reason="r")

    async def release() -> None:
        async with open_job(load_dict(job), SystemClock()) as opened:
            log = await LogSession.of_tool(opened.log, "test")
            *_, between, _ = log.view.commits
            await log.append(ReleaseRecord(positions=[between]))

    asyncio.run(release())
    assert len(retained(job)) == 2
    with pytest.raises(ConfigError, match="the commit before the change is not retained"):
        undo(job, tmp_path)
    assert counts(job)["user-7"] == 71


def test_an_erasure_is_not_taken_back(job: dict[str, str], tmp_path: Path) -> None:
    erase(job, tmp_path, "user-7")
    with pytest.raises(ConfigError, match="what was erased cannot be taken back"):
        undo(job, tmp_path)


def test_a_secret_in_a_reason_is_not_stored(job: dict[str, str]) -> None:
    sk.write_state(job, "count", rows(user_7=70), reason="as https://bob:hunter2@host/x says")
    change = newest(job)[1].change
    assert change is not None
    assert change.reason.startswith("as https://")
    assert "hunter2" not in change.reason


def test_only_a_change_is_taken_back(job: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not come from a change of the state"):
        undo(job, tmp_path)


def test_no_task_goes_back_past_a_change(job: dict[str, str]) -> None:
    sk.write_state(job, "count", rows(user_7=70), reason="r")

    async def find() -> list[bool]:
        async with open_job(load_dict(job), SystemClock()) as opened:
            return [commit.change is not None for commit in opened.view.comparable_commits]

    assert asyncio.run(find()) == [True]


@pytest.mark.parametrize(
    ("variable", "table", "told"),
    [
        ("cuont", rows(a=1), "did you mean 'count'"),
        ("count", pa.table({"key": ["a"]}), "a column is missing: column=value"),
        ("count", pa.table({"key": ["a"], "vaule": [1]}), "did you mean 'value'"),
        ("count", pa.table({"key": ["a", "a"], "value": [1, 2]}), "the key is given twice"),
        (
            "count",
            pa.table({"key": [{"name": "a"}], "value": [1]}),
            "the key does not fit the grouping key: .* missing=user unknown=name",
        ),
        (
            "count",
            pa.table({"key": [1], "value": [1]}),
            "the key does not fit the grouping key: .* field=user declared=string found=int",
        ),
        (
            "count",
            pa.table({"key": ["a"], "value": [{"m": 1}]}),
            "variable=count field=m expected=struct<n:bigint> missing=n unknown=m",
        ),
        (
            "count",
            pa.table({"key": ["a"], "value": ["one"]}),
            r"variable=count key=\('a',\) field=n declared=bigint found=str",
        ),
    ],
)
def test_what_does_not_fit_changes_nothing(
    job: dict[str, str], variable: str, table: pa.Table, told: str
) -> None:
    before = newest(job)[1].epoch
    with pytest.raises((ConfigError, StateSchemaError), match=told):
        sk.write_state(job, variable, table, reason="r")
    at, commit = newest(job)
    assert (commit.change, commit.epoch) == (None, before)
    assert next_position(job) == at + 1


def next_position(job: Mapping[str, str]) -> int:
    async def find() -> int:
        async with open_job(load_dict(job), SystemClock()) as opened:
            return opened.view.next_position

    return asyncio.run(find())


def test_a_change_has_a_reason_and_rows(job: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="needs a reason"):
        sk.write_state(job, "count", rows(a=1), reason=" ")
    with pytest.raises(
        ConfigError, match="rows are an Arrow table or a Spark DataFrame: found=list"
    ):
        sk.write_state(job, "count", [{"key": "a"}], reason="r")
    with pytest.raises(ConfigError, match="has no time to live"):
        sk.write_state(job, "count", rows(a=1), reason="r", ttl_ms=1)


def test_a_variable_in_another_store_is_written_there(tmp_path: Path) -> None:
    asyncio.run(make_job(tmp_path, IN_STORES))
    job = settings(tmp_path)
    sk.write_state(job, "seen", rows(user_7=70, newcomer=1), reason="r")
    seen = sk.read_state(job, "seen").to_pylist()
    assert {r["key"]["user"]: r["value"]["n"] for r in seen} == CONTENT | {
        "user-7": 70,
        "newcomer": 1,
    }
    assert counts(job) == CONTENT


@pytest.fixture
def golden(tmp_path: Path) -> dict[str, str]:
    """A job that an earlier release wrote, whose driver has ended."""
    unpack("queries/query-1.tar.gz", tmp_path)
    return {
        "job.name": "counts",
        "stores.backup.factories": "blob",
        "blob.store.uri": (tmp_path / "backups").as_uri(),
    }


def test_the_job_of_a_real_query_is_changed_once_it_has_stopped(golden: dict[str, str]) -> None:
    table = sk.read_state(golden, "count")
    (name,) = [field.name for field in table.schema.field("key").type]
    change = pa.table({"key": [{name: "key-1"}], "value": table.column("value").slice(0, 1)})
    sk.write_state(golden, "count", change, reason="r")
    found = sk.read_state(golden, "count", key="key-1").column("value").to_pylist()
    assert found == change.column("value").to_pylist()


def test_a_job_stays_stopped_however_often_it_is_changed(golden: dict[str, str]) -> None:
    table = sk.read_state(golden, "count").slice(0, 1)

    async def take_over() -> None:
        async with open_job(load_dict(golden), SystemClock()) as opened:
            for _ in range(KEPT_SESSIONS):
                await LogSession.of_tool(opened.log, "tool")

    asyncio.run(take_over())
    sk.write_state(golden, "count", table.select(["key"]), reason="r", delete=True)
    assert newest(golden)[1].change is not None


def without_its_end(golden: Mapping[str, str], directory: Path) -> None:
    """Leave the job as a driver that still runs does: no event says that it has stopped."""
    for path in (directory / "backups").rglob("*"):
        if path.is_file() and "/events-" in str(path):
            path.unlink()


def test_a_job_that_may_run_names_its_holder(golden: dict[str, str], tmp_path: Path) -> None:
    without_its_end(golden, tmp_path)
    before = next_position(golden)
    key = sk.read_state(golden, "count", columns=["key"]).slice(0, 1)
    with pytest.raises(ConfigError, match=r"may be running, .* holder=\S+:\d+ epoch=\d+"):
        sk.write_state(golden, "count", key, reason="r", delete=True)
    assert next_position(golden) == before
    sk.write_state(golden, "count", key, reason="r", delete=True, take_over=True)
    assert newest(golden)[1].change is not None


def test_a_job_that_is_started_while_it_is_changed_is_left_alone(job: dict[str, str]) -> None:
    def at(name: str) -> None:
        if name == "seal.after_rename":  # the change is made, and not yet uploaded
            with fault_handler(lambda _: None):
                started.append(asyncio.run(take_over(job)))

    started: list[int] = []
    with (
        fault_handler(at),
        pytest.raises(ConfigError, match="was started while its state was read"),
    ):
        sk.write_state(job, "count", rows(user_7=70), reason="r")
    assert started
    assert counts(job) == CONTENT


POINTS = (
    "restore.before_fetch",
    "seal.before_rename",
    "seal.after_rename",
    "attempt_record.before",
    "attempt_record.after",
    "upload.before",
    "upload.before_index",
    "upload.after_index",
    "commit_record.before",
    "commit_record.after",
)


class StoppedError(StateBackupError):
    """What a step ends with."""


@pytest.mark.parametrize("point", POINTS)
def test_a_change_that_is_cut_off_counts_for_all_rows_or_none(
    job: dict[str, str], point: str
) -> None:
    reached: list[str] = []

    def stop(name: str) -> None:
        reached.append(name)
        if name == point:
            raise StoppedError(name)

    users = {f"user-{n}": -1 for n in range(20)}  # of all four tasks
    table = rows(**{user.replace("-", "_"): n for user, n in users.items()})
    with fault_handler(stop), suppress(StateBackupError, ExceptionGroup):
        sk.write_state(job, "count", table, reason="r")
    assert point in reached
    expected = CONTENT | (users if point == "commit_record.after" else {})
    for backend in ("blob", "far"):
        assert counts(job, backend=backend) == expected
    sk.write_state(job, "count", table, reason="again")
    assert counts(job) == CONTENT | users


def erase(job: Mapping[str, str], directory: Path, *keys: str, **how: Any) -> Erased:
    request = EraseRequest(load_dict(job), keys, "asked to", **how)
    return asyncio.run(erase_keys(request, Changing(directory / "erasing", "test")))


def pin(job: Mapping[str, str], name: str) -> None:
    async def run() -> None:
        async with open_job(load_dict(job), SystemClock()) as opened:
            await opened.pin_writer.pin(name, opened.view.last_commit_position)

    asyncio.run(run())


def retained(job: Mapping[str, str]) -> list[int]:
    async def find() -> list[int]:
        async with open_job(load_dict(job), SystemClock()) as opened:
            return list(opened.view.commits)

    return asyncio.run(find())


def test_a_savepoint_that_never_held_the_key_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = task_of("user-7", TASKS)
    monkeypatch.setattr(
        spark_job_kit,
        "version_of",
        lambda directory, number, stores: (
            None if number == absent else version_of(directory, number, stores)
        ),
    )
    asyncio.run(make_job(tmp_path))
    job = settings(tmp_path)
    before, _ = newest(job)
    pin(job, "early")
    between = sk.write_state(job, "count", rows(user_7=7), reason="r")
    erased = erase(job, tmp_path, "user-7")
    assert (erased.released, erased.dropped) == ([between], [])
    assert retained(job) == [before, erased.position]
    assert erase(job, tmp_path, "user-7").released == [erased.position]


@pytest.mark.parametrize("point", ["seal.after_rename", "upload.before"])
def test_a_commit_that_is_pinned_while_a_key_is_erased_is_named(
    job: dict[str, str], tmp_path: Path, point: str
) -> None:
    before, _ = newest(job)

    def at(name: str) -> None:
        if name == point:
            with fault_handler(lambda _: None):
                thread = Thread(target=pin_before)
                thread.start()
                thread.join()

    def pin_before() -> None:
        async def run() -> None:
            async with open_job(load_dict(job), SystemClock()) as opened:
                await opened.pin_writer.pin("monday", before)

        asyncio.run(run())

    with fault_handler(at), pytest.raises(ConfigError, match="under names: names=monday"):
        erase(job, tmp_path, "user-7")
    assert ("user-7" in counts(job)) == (point == "seal.after_rename")
    assert counts(job, commit=before) == CONTENT
    assert erase(job, tmp_path, "user-7", is_dropping_savepoints=True).dropped == ["monday"]
    assert len(retained(job)) == 1


def test_a_mistyped_key_costs_no_commit(job: dict[str, str], tmp_path: Path) -> None:
    before = retained(job)
    with pytest.raises(ConfigError, match="does not have the key: key='User-7'"):
        erase(job, tmp_path, "User-7")
    assert retained(job) == before


def test_a_backend_that_only_older_commits_name_is_listed(
    job: dict[str, str], tmp_path: Path
) -> None:
    async def leave_far() -> None:
        async with open_job(load_dict(job), SystemClock()) as opened:
            commit, log = opened.find_commit()[1], await LogSession.of_tool(opened.log, "test")
            made = CheckpointId.at(SystemClock().time_ns())
            attempt = await log.begin_attempt(commit.batch, made, commit.versions, [])
            kept = {
                task: replace(found, state_markers={BLOB: found.markers_of(BLOB)})
                for task in map(TaskName, commit.checkpoints)
                if (found := checkpoint_in(commit, task)) is not None
            }
            await log.append(
                msgspec.structs.replace(
                    commit,
                    attempt_epoch=log.epoch,
                    attempt=attempt,
                    checkpoint_id=made.serialize(),
                    checkpoints={t: msgspec.Raw(encode_checkpoint_v2(c)) for t, c in kept.items()},
                )
            )

    asyncio.run(leave_far())
    erased = erase(settings(tmp_path), tmp_path, "user-7")
    assert erased.unreached == ["far"]
    assert "far" in remains_of(load_dict(settings(tmp_path)), erased.unreached)


def test_what_may_still_hold_a_key_is_said_of_each_place() -> None:
    backends = {"topic": "kafka", "files": "hdfs", "objects": "blob", "own": "memory"}
    named = {f"backends.{name}.factory": factory for name, factory in backends.items()}
    config = load_dict({"job.name": "j", "stores.backup.factories": ",".join(backends), **named})
    said = remains_of(config)
    told = {
        "topic": "until the broker compacts it",
        "files": "snapshots of the directory",
        "objects": "versions, soft delete or replication",
        "own": "whatever the backend keeps",
        "local disks": "until the job has started and committed",
        "other jobs": "a copy of its own",
        "outside": "source, sink, checkpoint location and log files",
    }
    assert said.keys() == told.keys()
    assert [place for place, text in told.items() if text not in said[place]] == []


def test_settings_that_list_no_backend_for_a_store_change_nothing(tmp_path: Path) -> None:
    asyncio.run(make_job(tmp_path, IN_STORES))
    job = settings(tmp_path)
    sk.write_state(job, "count", rows(user_7=70), reason="r")
    before = next_position(job)
    less = job | {"stores.large.backup.factories": "", "stores.large.restore.factories": "blob"}
    told = "store=large held_by=none"
    with pytest.raises(ConfigError, match=told):
        sk.write_state(less, "count", rows(user_7=71), reason="r")
    with pytest.raises(ConfigError, match=told):
        undo(less, tmp_path)
    with pytest.raises(ConfigError, match=told):
        erase(less, tmp_path, "user-7")
    assert next_position(job) == before


def test_settings_that_lack_a_backend_of_the_job_change_nothing(
    job: dict[str, str], tmp_path: Path
) -> None:
    before = next_position(job)
    one = settings(tmp_path)
    told = "store=state held_by=far listed=blob"
    with pytest.raises(ConfigError, match=told):
        sk.write_state(one, "count", rows(user_7=70), reason="r")
    with pytest.raises(ConfigError, match=told):
        erase(one, tmp_path, "user-7")
    assert next_position(job) == before


def test_a_changed_task_of_which_no_backend_took_a_store_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(make_job(tmp_path, IN_STORES))
    job = settings(tmp_path)
    back_up = CommitBackups.back_up

    async def without_large(self: CommitBackups, *given: Any) -> CheckpointV2:
        made = await back_up(self, *given)
        markers = {
            backend: {store: marker for store, marker in found.items() if store != LARGE}
            for backend, found in made.state_markers.items()
        }
        return replace(made, state_markers=markers)

    monkeypatch.setattr(CommitBackups, "back_up", without_large)
    with pytest.raises(CommitFailedError, match=r"no backend has a store .* store=large"):
        sk.write_state(job, "count", rows(user_7=70), reason="r")
    assert newest(job)[1].change is None


def test_a_driver_that_takes_over_just_before_the_change_is_seen(
    job: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_tool = LogSession.of_tool

    async def late(log: JobLog, owner: str) -> LogSession:
        await take_over(job)
        return await of_tool(log, owner)

    monkeypatch.setattr(LogSession, "of_tool", late)
    with pytest.raises(ConfigError, match="was started while its state was read"):
        sk.write_state(job, "count", rows(user_7=70), reason="r")
    assert newest(job)[1].change is None


@pytest.mark.parametrize("is_closed", [True, False], ids=["known", "unknown"])
def test_a_change_whose_answer_is_lost_is_not_called_a_failure(
    job: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    is_closed: bool,  # noqa: FBT001 - parametrized
) -> None:
    append, close = LogSession._append_record, LogSession.close_attempt
    landed: list[int] = []

    async def lossy(log: LogSession, appended: Any) -> int:
        position = await append(log, appended)
        if isinstance(appended.asked, CommitRecord):
            landed.append(position)
            raise RetriableError("the answer was lost")
        return position

    async def away(log: LogSession, reason: str) -> bool:
        if landed:
            raise RetriableError("the log does not answer")
        return await close(log, reason)

    monkeypatch.setattr(LogSession, "_append_record", lossy)
    if is_closed:
        assert sk.write_state(job, "count", rows(user_7=70), reason="r") == newest(job)[0]
    else:
        monkeypatch.setattr(LogSession, "close_attempt", away)
        with pytest.raises(RetriableError, match="answer was lost") as caught:
            sk.write_state(job, "count", rows(user_7=70), reason="r")
        assert "shows whether the state was changed" in str(caught.value)
    assert counts(job)["user-7"] == 70


def test_versions_of_an_unchanged_task_stay(job: dict[str, str]) -> None:
    old = newest(job)[1]
    sk.write_state(job, "count", rows(user_7=70), reason="r")
    new = newest(job)[1]
    for task in old.versions:
        if new.versions[task] == old.versions[task]:
            assert bytes(new.checkpoints[task]) == bytes(old.checkpoints[task])
    assert TaskName(f"Partition {task_of('user-7', TASKS)}") in new.versions


def between_runs(job: Mapping[str, str], epoch: int, **values: Any) -> tuple[Future[int], int]:
    """Write for a query whose run had this epoch; return the answer, and what the next run follows."""
    request = write_request(
        load_dict(job),
        "count",
        rows(**values),
        reason="r",
        delete=False,
        ttl_ms=None,
        operator=None,
    )
    answer: Future[int] = Future()
    return answer, write_between_runs(request, epoch, answer)


def test_the_next_run_follows_the_change_or_its_own_run_where_nothing_was_changed(
    job: dict[str, str],
) -> None:
    epoch = asyncio.run(take_over(job))
    answer, follows = between_runs(job, epoch, user_7=70)
    assert answer.result(0) == newest(job)[0]
    assert counts(job) == CONTENT | {"user-7": 70}
    assert follows == epoch + 1
    answer, same = between_runs(job, follows, user_7=70)
    assert (answer.result(0), same) == (newest(job)[0], follows)
    answer, same = between_runs(job, follows, user_7="many")
    assert isinstance(answer.exception(0), StateSchemaError)
    assert same == follows


@pytest.mark.parametrize("point", ["attempt_record.before", "upload.before"])
def test_the_next_run_follows_a_change_that_failed_after_it_took_the_log_over(
    job: dict[str, str], point: str
) -> None:
    def stop(name: str) -> None:
        if name == point:
            raise StoppedError(name)

    epoch = asyncio.run(take_over(job))
    with fault_handler(stop):
        answer, follows = between_runs(job, epoch, user_7=70)
    assert answer.exception(0) is not None
    assert counts(job) == CONTENT
    assert follows == epoch + 1
    assert asyncio.run(take_over(job)) == epoch + 2


def test_the_next_run_does_not_follow_another_driver(job: dict[str, str]) -> None:
    epoch = asyncio.run(take_over(job))
    newer: list[int] = []
    owner = f"{gethostname()}:{os.getpid()}"  # as a query of this process has it

    def at(name: str) -> None:
        if name == "seal.after_rename":
            with fault_handler(lambda _: None):
                newer.append(asyncio.run(take_over(job, owner)))

    with fault_handler(at):
        answer, follows = between_runs(job, epoch, user_7=70)
    assert isinstance(answer.exception(0), ConfigError)
    assert (newer, follows) == ([epoch + 1], epoch)
