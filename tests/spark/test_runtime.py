"""Whole queries on two executors: state and output equal a plain fold over the input."""

import io
import json
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import PARTITIONS, Stream, events_of, lose_directory, state_of
from processors import (
    MANY_TYPES,
    OUTPUT,
    SIMPLE_TYPES,
    Count,
    CountFrames,
    ManyTypes,
    Silent,
    Unsteady,
)
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from rich.console import Console
from spark_processes import await_end_of_sidecars, executors_of, take_over_beside, wait_until

import statekeep as sk
from chaos.evidence.files import LocalFiles
from chaos.evidence.snapshots import attempt_of, list_blobs, read_snapshot
from statekeep.checkpoint.records import TaskBatch
from statekeep.errors import (
    ConfigError,
    ReplayDivergedError,
    TaskFencedError,
)
from statekeep.spark.driver import opening, task_jobs
from statekeep.spark.driver.job import StatefulJob
from statekeep.spark.placement import BUCKET_COLUMN, Placement
from statekeep.spark.releases import RELEASE

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


class StoppedError(Exception):
    """What a test's sink raises to break a query off."""


def break_off_at(batch: int) -> Any:
    def on_batch(number: int) -> None:
        if number == batch:
            raise StoppedError(f"batch={number}")

    return on_batch


def run_until_broken_off(stream: Stream, batch: int, **settings: Any) -> None:
    """Run the stream until its sink fails at ``batch``, as if the driver had died there."""
    stream.on_batch = break_off_at(batch)
    with pytest.raises(StreamingQueryException):
        stream.run(**settings)
    stream.on_batch = lambda number: None


def test_state_and_output_equal_a_plain_fold(stream: Stream) -> None:
    stream.add_batches(4)
    query = stream.run()
    assert stream.received() == stream.expected(4)
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3]
    assert query.lastCommit is not None
    assert query.lastCommit.batch == 3


def _shuffles(plan: str) -> list[str]:
    """Return the shuffles of a plan, without those by which a table was once cached."""
    found: list[str] = []
    cached: int | None = None
    for line in plan.splitlines():
        depth = len(line) - len(line.lstrip(" :+-"))
        if cached is not None and depth > cached:
            continue
        cached = depth if "InMemoryRelation" in line else None
        if "Exchange" in line:
            found.append(line)
    return found


def test_rows_go_to_their_slots_by_one_shuffle(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames: list[Any] = []
    collect = Placement._collect

    def collected(self: Placement, spark: Any, frame: Any) -> Any:
        frames.append(frame)
        return collect(self, spark, frame)

    columns_made = 0
    make_columns = Placement._routed_columns

    def made(self: Placement, *given: Any) -> Any:
        nonlocal columns_made
        columns_made += 1
        return make_columns(self, *given)

    monkeypatch.setattr(Placement, "_collect", collected)
    monkeypatch.setattr(Placement, "_routed_columns", made)
    stream.add_batches(2)
    stream.run()
    plans = [str(frame._jdf.queryExecution().executedPlan().toString()) for frame in frames]
    processing = [plan for plan in plans if "HashJoin" in plan]
    assert len(processing) == 2
    for plan in processing:
        (shuffle,) = _shuffles(plan)
        assert f"hashpartitioning({BUCKET_COLUMN}" in shuffle
        assert ", 2)" in shuffle  # one partition for each slot: there are two cores
    assert columns_made == 1  # what is equal in every batch


def test_progress_and_status_have_the_habits_of_spark(stream: Stream) -> None:
    stream.add_batches(2)
    query = stream.run()
    (operator,) = query.lastProgress["stateOperators"]
    assert operator["numRowsUpdated"] == 40
    metrics = operator["customMetrics"]
    assert metrics["rowsIn"] == 200
    assert (metrics["localVersionHitCount"], metrics["localVersionMissCount"]) == (PARTITIONS, 0)
    assert metrics["stateOnCurrentVersionSizeBytes"] > 0
    assert metrics["localVersionsSizeBytes"] > 0
    assert metrics["localVersionCount"] >= PARTITIONS
    text = json.loads(query.lastProgress.json)
    assert text["stateOperators"] == [operator]
    assert [source["numInputRows"] for source in text["sources"]] == [200]
    assert '"rowsIn": 200' in str(query.lastProgress)
    assert not query.isActive
    assert query.exception() is None
    assert query.status["isTriggerActive"] is False


def test_a_later_start_goes_on_where_the_last_one_ended(stream: Stream) -> None:
    stream.add_batches(2)
    stream.run()
    stream.add_batches(2)
    stream.run()
    assert stream.received() == stream.expected(4)
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3]


def test_a_restart_on_kept_disks_fetches_nothing(stream: Stream) -> None:
    stream.add_batches(2)
    stream.run()
    stream.add_batches(1)
    query = stream.run()
    (recovery,) = events_of(query, "recovery")
    assert (recovery["bytes_fetched"], recovery["restored"]) == (0, {})


def test_a_query_without_commits_replays_what_was_delivered(stream: Stream) -> None:
    stream.add_batches(4)
    run_until_broken_off(stream, 3, task__commit__ms=0)
    lose_directory(stream.local_dir)
    query = stream.run()
    (recovery,) = events_of(query, "recovery")
    assert recovery["replayed"] == [0, 1, 2]
    assert recovery["rows_replayed"] == 600
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3]
    assert stream.received() == stream.expected(4)


def test_commits_come_by_changed_bytes_where_none_comes_by_time(stream: Stream) -> None:
    stream.add_batches(3)
    by_bytes = stream.run(task__commit__ms=0, task__commit__changed__bytes=1)
    first, *_ = events_of(by_bytes, "commit")
    assert first["batch"] == 0
    stream.add_batches(3)
    by_request = stream.run(task__commit__ms=0)
    (last,) = events_of(by_request, "commit")
    assert last["batch"] == 5
    assert stream.received() == stream.expected(6)


def test_a_job_without_a_number_of_tasks_has_32_and_keeps_them(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_SHUFFLE_PARTITIONS", "not.set.by.the.user")
    stream.add_batches(2)
    first = stream.run(task__commit__ms=1)
    assert events_of(first, "job-initialised")[0]["partitions"] == 32
    monkeypatch.setattr(opening, "DEFAULT_TASKS", 5)
    stream.add_batches(1)
    second = stream.run()
    assert events_of(second, "job-initialised")[0]["partitions"] == 32
    assert stream.received() == stream.expected(3)


def test_lost_disks_are_restored_from_the_backup(stream: Stream) -> None:
    stream.add_batches(3)
    stream.run()
    lose_directory(stream.local_dir)
    stream.add_batches(1)
    query = stream.run()
    (recovery,) = events_of(query, "recovery")
    assert set(recovery["restored"].values()) == {"blob"}
    assert len(recovery["restored"]) == PARTITIONS
    assert recovery["replayed"] == []
    assert recovery["bytes_fetched"] > 0
    assert stream.received() == stream.expected(4)


def test_a_task_whose_disk_is_kept_replays_nothing(stream: Stream) -> None:
    stream.add_batches(3)
    run_until_broken_off(stream, 2, task__commit__ms=0)
    (job_directory,) = stream.local_dir.iterdir()
    shutil.rmtree(job_directory / "main" / "Partition_1")
    query = stream.run()
    (recovery,) = events_of(query, "recovery")
    assert recovery["replayed"] == [0, 1]
    assert 0 < recovery["rows_replayed"] < 200
    assert stream.received() == stream.expected(3)


@pytest.mark.parametrize("inline_bytes", [0, 1 << 20], ids=["in files", "with the receipts"])
def test_an_executor_killed_between_receipts_and_sink_is_healed(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    monkeypatch.setattr(task_jobs, "_INLINE_BYTES", inline_bytes)
    stream.add_batches(4)
    places: dict[int, int] = {}

    def kill(batch: int) -> None:
        if batch == 2 and not places:
            places.update(_executors(stream))
            victim = min(places.values())
            for partition in [p for p, pid in places.items() if pid == victim]:
                for task in stream.local_dir.glob(f"*/main/Partition_{partition}"):
                    lose_directory(task)
            os.kill(victim, signal.SIGKILL)

    stream.on_batch = kill
    query = stream.run()
    assert places
    assert events_of(query, "recovery")
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3]
    assert stream.received() == stream.expected(4)


def _executors(stream: Stream) -> dict[int, int]:
    """Return the JVM of each partition of the running job."""
    (job,) = _open_jobs
    return {task: place["jvm_pid"] for task, place in executors_of(job).items()}


_open_jobs: list[StatefulJob] = []


@pytest.fixture(autouse=True)
def _watch_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests get at the job behind a query."""
    _open_jobs.clear()
    before = StatefulJob.open

    def opened(job: StatefulJob, *given: Any) -> None:
        _open_jobs.append(job)
        before(job, *given)

    monkeypatch.setattr(StatefulJob, "open", opened)


def _tasks_of_open_batch() -> list[TaskBatch]:
    """Return what the tasks did in the newest recorded batch, as the log has it."""
    storage = _open_jobs[0]._owned.storage
    assert storage is not None
    records = list(storage.log.view.batches.values())
    return [task for record in records[-1:] for task in record.tasks.values()]


@pytest.mark.parametrize("columns", [MANY_TYPES, SIMPLE_TYPES], ids=["by files", "both ways"])
def test_output_is_the_same_by_way_of_files_and_with_the_receipts(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    delivered: list[tuple[Any, list[Any]]] = []

    def sink(frame: Any, batch: int) -> None:
        delivered.append((frame.schema, sorted(map(str, frame.collect()))))

    stream.spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    try:
        for name, inline_bytes in (("files", 0), ("receipts", 1 << 20)):
            monkeypatch.setattr(task_jobs, "_INLINE_BYTES", inline_bytes)
            run = Stream(stream.spark, tmp_path / name, output=columns)
            run.root.mkdir()
            run.sink = sink  # type: ignore[method-assign]
            run.add_batches(1)
            run.start(ManyTypes()).awaitTermination()
    finally:
        stream.spark.conf.unset("spark.sql.session.timeZone")
    by_file, by_receipt = delivered
    assert len(by_file[1]) == 80
    is_inline = all(task_jobs._is_simple(field.dataType) for field in by_file[0].fields)
    assert is_inline is (columns == SIMPLE_TYPES)
    assert by_receipt == by_file


def test_rows_beyond_the_bound_are_sorted_by_spark(stream: Stream) -> None:
    stream.add_batches(2)
    seen = []
    stream.on_batch = lambda batch: seen.append(_tasks_of_open_batch())
    stream.run(task__grouping__max__bytes=100)
    assert stream.received() == stream.expected(2)
    assert [task.is_sorted for tasks in seen for task in tasks] == [True] * 2 * PARTITIONS


def test_a_processor_on_pandas_frames_gives_the_same(stream: Stream) -> None:
    stream.add_batches(2)
    settings = {"job.name": "frames", "job.logged.store.base.dir": str(stream.local_dir)}
    grouped = sk.grouped(stream.frame().groupBy("key"), settings)
    out = grouped.transformWithStateInPandas(CountFrames(), OUTPUT, "Append", "None")
    writer = out.writeStream.foreachBatch(stream.sink)
    writer = writer.option("checkpointLocation", str(stream.location))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert stream.received() == stream.expected(2)


def test_stateless_transformations_follow_and_expressions_may_be_keys(stream: Stream) -> None:
    stream.add_batches(2)
    settings = {"job.name": "upper", "job.logged.store.base.dir": str(stream.local_dir)}
    grouped = sk.grouped(stream.frame().groupBy(F.upper("key").alias("key_upper")), settings)
    out = grouped.transformWithState(Count(), OUTPUT, "Append", "None")
    out = out.where(out.n > 5).select("key", "n", (out["s"] * 1).alias("s"))
    writer = out.writeStream.foreachBatch(stream.sink)
    writer = writer.option("checkpointLocation", str(stream.location))
    writer.trigger(availableNow=True).start().awaitTermination()
    expected = {k.upper(): v for k, v in stream.expected(2).items() if v[0] > 5}
    assert stream.received() == expected


def test_files_of_a_batch_are_written_once(stream: Stream) -> None:
    stream.add_batches(2)
    target = str(stream.root / "out")
    writer = stream.stateful().writeStream.format("parquet").partitionBy("n")
    writer = writer.option("checkpointLocation", str(stream.location)).trigger(availableNow=True)
    writer.start(target).awaitTermination()
    assert (Path(target) / "_spark_metadata" / "1").exists()
    rows = stream.spark.read.parquet(target).collect()
    assert len(rows) == 80
    latest = {row.key: (row.n, row.s) for row in sorted(rows, key=lambda row: row.n)}
    assert latest == stream.expected(2)


def test_a_table_is_made_and_filled(stream: Stream) -> None:
    stream.add_batches(1)
    location = stream.root / "table"
    stream.spark.sql(
        f"CREATE TABLE counted (key string, n long, s long) USING parquet LOCATION '{location}'"
    )
    try:
        writer = stream.stateful().writeStream.option("checkpointLocation", str(stream.location))
        writer.trigger(availableNow=True).toTable("counted").awaitTermination()
        rows = {row.key: (row.n, row.s) for row in stream.spark.table("counted").collect()}
        assert rows == stream.expected(1)
    finally:
        stream.spark.sql("DROP TABLE counted")


def test_two_backends_and_the_second_restores_when_the_first_is_damaged(stream: Stream) -> None:
    stream.settings = {
        "stores.state.backup.factories": "first,second",
        "backends.first.factory": "blob",
        "backends.first.uri": str(stream.root / "first"),
        "backends.second.factory": "blob",
        "backends.second.uri": str(stream.root / "second"),
        "job.log.backend": "second",
    }
    stream.add_batches(2)
    stream.run()
    lose_directory(stream.local_dir)
    packs = list((stream.root / "first").rglob("*.pack"))
    assert packs
    for path in packs:
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    stream.add_batches(1)
    query = stream.run()
    (recovery,) = events_of(query, "recovery")
    assert set(recovery["restored"].values()) == {"second"}
    assert len(recovery["failures"]) == PARTITIONS
    assert stream.received() == stream.expected(3)


def test_every_batch_mode_commits_inside_the_batch(stream: Stream) -> None:
    stream.add_batches(3)
    query = stream.run(task__commit__every__batch=True)
    assert [commit["batch"] for commit in events_of(query, "commit")] == [0, 1, 2]
    assert stream.received() == stream.expected(3)


def test_the_backup_holds_the_retained_commits_and_nothing_else(stream: Stream) -> None:
    backup = stream.root / "backup"
    stream.add_batches(5)
    stream.run(task__commit__every__batch=True, blob__store__uri=str(backup))
    there = set(list_blobs(LocalFiles(backup), "counts"))
    retained = [n for n in there if "snapshot-index-" in n and attempt_of(n) in {(1, 4), (1, 5)}]
    assert len(retained) == 2 * PARTITIONS
    reached = [read_snapshot(LocalFiles(backup), marker).blobs for marker in retained]
    assert there == set().union(*reached)
    assert len(list((backup / "counts" / "log").iterdir())) < 12


def test_an_idle_stream_completes_its_commit(stream: Stream) -> None:
    stream.add_batches(2)
    writer = stream.stateful(settings={"task.commit.ms": 200}).writeStream
    writer = writer.foreachBatch(stream.sink).option("checkpointLocation", str(stream.location))
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        query.processAllAvailable()
        assert wait_until(lambda: query.status["lastCommittedBatch"] == 1)
        assert query.isActive
    finally:
        query.stop()
    assert stream.received() == stream.expected(2)


@pytest.mark.parametrize("changed", [{}, {"task.count": PARTITIONS + 1}])
def test_a_processor_that_is_not_deterministic_is_caught_in_the_replay(
    stream: Stream, changed: Mapping[str, int]
) -> None:
    stream.add_batches(3)
    stream.on_batch = break_off_at(2)
    settings = {"task.commit.ms": 0, "task.replay.on.divergence": "error"}
    with pytest.raises(StreamingQueryException):
        stream.start(Unsteady(), settings).awaitTermination()
    lose_directory(stream.local_dir)
    with pytest.raises(ReplayDivergedError, match="batch=0"):
        stream.start(Unsteady(), {**settings, **changed})
    # One that still boots is not waited for.
    await_end_of_sidecars(stream.local_dir)


def test_a_second_driver_fences_the_first(stream: Stream) -> None:
    stream.add_batches(3)
    seen: list[BaseException] = []

    def take_over(batch: int) -> None:
        if batch == 1:
            take_over_beside(_open_jobs[0], stream.frame())

    stream.on_batch = take_over
    with pytest.raises(StreamingQueryException) as caught:
        stream.run()
    seen.append(caught.value.__cause__ or caught.value)
    assert isinstance(seen[0], TaskFencedError)


@pytest.mark.parametrize("chosen", [None, "FileContextBasedCheckpointFileManager"])
def test_a_query_renames_files_of_a_local_location_itself_unless_the_program_says_how(
    stream: Stream, chosen: str | None
) -> None:
    key = "spark.sql.streaming.checkpointFileManagerClass"
    package = "org.apache.spark.sql.execution.streaming."
    if RELEASE >= (4, 1):
        package += "checkpointing."
    if chosen is not None:
        stream.spark.conf.set(key, package + chosen)
    try:
        stream.add_batches(1)
        query = stream.run()
        of_query = query._query._jsq.streamingQuery().sparkSessionForStream().conf()
        assert of_query.get(key) == package + (chosen or "FileSystemBasedCheckpointFileManager")
        assert (stream.spark.conf.get(key, None) is None) == (chosen is None)
    finally:
        stream.spark.conf.unset(key)


def test_committed_state_is_read_from_the_backup(stream: Stream) -> None:
    stream.settings = {
        "stores.backup.factories": "blob",
        "blob.store.uri": str(stream.root / "backup"),
    }
    stream.add_batches(2)
    stream.run()
    assert state_of(stream.settings) == stream.expected(2)
    with pytest.raises(ConfigError, match="variables=count"):
        state_of(stream.settings, "counts")


def test_the_environment_goes_over_what_the_program_says_for_the_job_and_its_readers(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.settings = {
        "stores.backup.factories": "blob",
        "blob.store.uri": str(stream.root / "of the program"),
    }
    monkeypatch.setenv("STATEKEEP__BLOB__STORE__URI", str(stream.root / "backup"))
    stream.add_batches(1)
    stream.run()
    assert not (stream.root / "of the program").exists()
    assert state_of(stream.settings) == stream.expected(1)


def test_a_bar_counts_the_tasks_of_a_long_restore(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=True, width=80)
    monkeypatch.setattr(task_jobs, "Console", lambda **options: console)
    monkeypatch.setattr(task_jobs, "_SHOWN_AFTER_S", 0.0)
    stream.add_batches(2)
    stream.run()
    lose_directory(stream.local_dir)
    stream.add_batches(1)
    stream.run()
    assert f"restoring {PARTITIONS} tasks" in drawn.getvalue()


def test_a_sink_that_coalesces_gets_every_row_once(stream: Stream) -> None:
    stream.add_batches(2)
    plain = stream.sink

    def sink(frame: Any, batch: int) -> None:
        empty = stream.spark.createDataFrame([], OUTPUT)
        plain(empty.union(frame.coalesce(1)).coalesce(2), batch)

    stream.sink = sink  # type: ignore[method-assign]
    stream.run()
    assert stream.received() == stream.expected(2)
    assert [len(rows) for _, rows in stream.delivered] == [40, 40]


def test_a_batch_without_output_whose_columns_are_nested_goes_to_the_sink(
    stream: Stream,
) -> None:
    stream.output = "key string, numbers array<int>"
    delivered: list[tuple[int, list[Any]]] = []
    stream.sink = lambda frame, batch: delivered.append((batch, frame.collect()))  # type: ignore[method-assign]
    stream.add_batches(2)
    stream.start(Silent()).awaitTermination()
    assert delivered == [(0, []), (1, [])]
