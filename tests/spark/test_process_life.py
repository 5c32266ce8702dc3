"""What begins and ends beside a query: sidecars, placement tables, shadow locations, executors."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest
from conftest import PARTITIONS, Stream, events_of, lose_directory
from newcomer_kit import without_daemon
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from sidecar_process_kit import VERSION, submit_versions
from spark_processes import (
    ask_for_executor,
    await_end_of_sidecars,
    await_loss,
    executors_of,
    sidecar_processes,
    take_executor_away,
    wait_until,
)

import statekeep as sk
from statekeep.errors import ConfigError, StateBackupError
from statekeep.spark.driver.batch_loop import BatchLoop
from statekeep.spark.driver.job import StatefulJob
from statekeep.spark.driver.query_watch import StopDeadline
from statekeep.spark.driver.task_moves import TaskMoves
from statekeep.spark.placement import Placement, spread
from statekeep.spark.sidecar.launch import take_lock
from statekeep.spark.sidecar.outbox import Outbox
from statekeep.spark.sidecar.paths import SidecarPaths, sidecar_paths
from statekeep.spark.worker.job_spec import SubmitPlan

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def open_jobs(monkeypatch: pytest.MonkeyPatch) -> list[StatefulJob]:
    """The jobs behind the queries of a test, in order of their start."""
    jobs: list[StatefulJob] = []
    before = StatefulJob.open

    def opened(job: StatefulJob, *given: Any) -> None:
        jobs.append(job)
        before(job, *given)

    monkeypatch.setattr(StatefulJob, "open", opened)
    return jobs


def test_nothing_is_left_behind_after_a_stop(stream: Stream) -> None:
    cached_before = stream.spark.sparkContext._jsc.getPersistentRDDs().size()
    stream.add_batches(2)
    writer = stream.stateful().writeStream.foreachBatch(stream.sink)
    query = writer.option("checkpointLocation", str(stream.location)).start()
    query.processAllAvailable()
    query.stop()
    assert sidecar_processes(stream.local_dir) == {}
    sidecars = [SidecarPaths(path) for path in stream.local_dir.glob("*/container-*")]
    assert sidecars
    for paths in sidecars:
        left = {path.name.partition("-")[0] for path in paths.directory.iterdir()}
        assert left == {"container.log", "ended"}
        assert not paths.socket.exists()
    assert list(stream.local_dir.rglob("work-*")) == []
    assert {path.name for path in stream.root.iterdir()} == {
        "in",
        "checkpoint",
        "checkpoint-statekeep",
        "local",
    }
    cached = stream.spark.sparkContext._jsc.getPersistentRDDs().size()
    assert cached == cached_before


def test_a_start_runs_no_more_spark_jobs_than_it_needs_and_copies_no_settings(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = stream.spark.sparkContext
    scheduler = context._jsc.sc().dagScheduler()
    jobs: list[int] = []
    before = StatefulJob.open

    def counted(job: StatefulJob, *given: Any) -> None:
        began = scheduler.numTotalJobs()
        before(job, *given)
        jobs.append(scheduler.numTotalJobs() - began)

    def refused(_: SparkContext) -> None:
        pytest.fail("all settings are copied, by hundreds of calls into the JVM")

    monkeypatch.setattr(StatefulJob, "open", counted)
    monkeypatch.setattr(SparkContext, "getConf", refused)
    stream.add_batches(1)
    stream.run()
    stream.run()
    assert jobs == [0, 1]  # nothing to be found at first; then each task looks for its version


def test_placement_needs_no_python_workers_of_its_own(spark: SparkSession) -> None:
    placement = Placement(spark, spread(PARTITIONS, 2), "test")
    try:
        plan = str(placement._frame._jdf.queryExecution().logical().toString())
    finally:
        placement.close()
    assert "Range" in plan
    assert "RDD" not in plan  # what a list becomes: Spark sends it through workers of another kind


def test_a_sidecar_is_there_before_anything_is_submitted(stream: Stream) -> None:
    stream.add_batches(1)
    stream.settings = {"task.commit.ms": 600_000}
    writer = stream.stateful().writeStream.foreachBatch(stream.sink)
    query = writer.option("checkpointLocation", str(stream.location)).start()
    query.processAllAvailable()
    assert query.status["lastCommittedBatch"] == -1

    def places() -> list[str]:
        """Where they live: one for each executor that has begun anything."""
        return [command.split()[-2] for command in sidecar_processes(stream.local_dir).values()]

    # Until it has ended, the process that launches one is another one of its name.
    assert wait_until(lambda: len(set(places())) == len(places()) > 0)
    query.stop()
    assert query.lastCommit is not None
    assert query.lastCommit.batch == 0
    assert sidecar_processes(stream.local_dir) == {}


def test_a_start_sees_which_uploads_of_an_older_driver_are_in_progress(
    stream: Stream, open_jobs: list[StatefulJob]
) -> None:
    stream.add_batches(1)
    writer = stream.stateful().writeStream.foreachBatch(stream.sink)
    query = writer.option("checkpointLocation", str(stream.location)).start()
    jobs = open_jobs[0]._owned.jobs
    plan = SubmitPlan(
        epoch=1,
        attempt=1,
        checkpoint_id="7-1",
        batch=0,
        versions=dict.fromkeys(range(PARTITIONS), VERSION),
        bases={},
        checkpoints={},
    )
    assert jobs.abandoned(plan) == set(range(PARTITIONS))
    paths = sidecar_paths(stream.local_dir, jobs._spec.local_name, "older", "1")
    paths.prepare()
    sidecar = take_lock(paths)  # without it, the sidecars of this query would sweep the directory
    assert sidecar is not None
    Outbox(paths.outbox).replace([submit_versions(partition=1)])
    assert jobs.abandoned(plan) == set(range(PARTITIONS)) - {1}
    sidecar.pass_on()  # to a process that has died
    assert jobs.abandoned(plan) == set(range(PARTITIONS))
    query.stop()


def test_a_stop_that_comes_just_before_a_batch_returns(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_batch, job_ended_early = threading.Event(), threading.Event()
    run_batch, end = StatefulJob.run_batch, StatefulJob._end

    def late_batch(job: StatefulJob, rows: DataFrame, batch: int) -> None:
        if batch == 2:
            before_batch.set()
            wait_until(lambda: not query._query.isActive)
            job_ended_early.wait(2)
        run_batch(job, rows, batch)

    def noted_end(job: StatefulJob, deadline: StopDeadline, *, is_committing: bool) -> None:
        end(job, deadline, is_committing=is_committing)
        job_ended_early.set()

    monkeypatch.setattr(StatefulJob, "run_batch", late_batch)
    monkeypatch.setattr(StatefulJob, "_end", noted_end)
    stream.add_batches(4)
    writer = stream.stateful().writeStream.foreachBatch(stream.sink)
    query = writer.option("checkpointLocation", str(stream.location)).start()
    assert before_batch.wait(60)
    query.stop()
    assert query.exception() is None
    committed = query.lastCommit
    assert committed is not None
    assert committed.batch == max(batch for batch, _ in stream.delivered)


@pytest.mark.parametrize("is_late", [False, True], ids=["at once", "once jobs are refused"])
def test_a_stop_ends_the_wait_of_a_batch_for_a_commit(
    stream: Stream,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_late: bool,
) -> None:
    given_up = threading.Event()
    give_up, commit_now = Placement.give_up, BatchLoop._commit_now

    def noted_give_up(placement: Placement) -> None:
        give_up(placement)
        given_up.set()

    def late_commit(loop: BatchLoop, batch: int) -> str:
        checkpoint_id = commit_now(loop, batch)
        assert given_up.wait(60)  # the batch thread is slow to see that its commit has ended
        return checkpoint_id

    if is_late:
        monkeypatch.setattr(Placement, "give_up", noted_give_up)
        monkeypatch.setattr(BatchLoop, "_commit_now", late_commit)
    stream.settings = {
        "stores.state.backup.factories": "slow",
        "backends.slow.factory": "blob",
        "backends.slow.uri": f"file://{stream.root / 'backup'}",
        "backends.slow.manager.factory": "hanging_manager:make_manager",
        "job.container.grace.ms": 1000,
        "task.commit.ms": 1,
        "task.replay.max.batches": 2,
        "task.shutdown.ms": 1000,
    }
    stream.add_batches(4)
    writer = stream.stateful().writeStream.foreachBatch(stream.sink)
    with caplog.at_level(logging.WARNING, "statekeep"):
        query = writer.option("checkpointLocation", str(stream.location)).start()
        assert wait_until(lambda: "processing waits for a commit" in caplog.text)
        query.stop()
    with pytest.raises(StateBackupError):  # the last commit fails as well, in one way or another
        query.awaitTermination()
    reasons = [details["reason"] for details in events_of(query, "void")]
    assert "the query was told to stop" in reasons
    assert [batch for batch, _ in stream.delivered] == [0, 1]
    await_end_of_sidecars(stream.local_dir)  # jobs of batches are given up by then, this one is not


def test_shadow_locations_of_earlier_drivers_are_swept_at_the_next_start(stream: Stream) -> None:
    stream.add_batches(1)
    stream.run()
    left, newer = (
        stream.root / f"checkpoint-statekeep-shadow-{name}" for name in ("1-0123", "9-0123")
    )
    for directory in (left, newer):
        (directory / "offsets").mkdir(parents=True)
    stream.add_batches(1)
    stream.run()
    assert not left.exists()
    assert newer.exists()


def test_bytes_of_a_commit_are_reported(stream: Stream) -> None:
    stream.add_batches(2)
    query = stream.run(task__commit__every__batch=True)
    assert query.lastCommit is not None
    assert query.lastCommit.bytes_uploaded > 0
    sizes = [commit["bytes_uploaded"] for commit in events_of(query, "commit")]
    assert all(size > 0 for size in sizes)
    (operator,) = query.lastProgress["stateOperators"]
    assert operator["customMetrics"]["lastCommitBytes"] == sizes[-1]


@pytest.mark.parametrize(("kept", "versions"), [(1, 1), (3, 3)], ids=["one", "three"])
def test_local_versions_of_the_newest_commits_stay(
    stream: Stream, kept: int, versions: int
) -> None:
    stream.add_batches(6)
    settings: dict[str, Any] = {
        "checkpoint__retain__commits": 4,
        "task__commit__every__batch": True,
    }
    stream.run(**settings, checkpoint__local__retain__versions=kept)
    (task,) = stream.local_dir.glob("*/main/Partition_0")
    batches = sorted(int(path.name.split("_")[0]) for path in task.glob("[0-9]*_*[0-9a-f]"))
    # When batch 5 was tidied up, batches 0 to 4 were committed.
    assert batches == list(range(5 - versions, 6))


def test_the_job_log_may_be_in_a_backend_that_no_store_lists(stream: Stream) -> None:
    backup, log = stream.root / "backup", stream.root / "log"
    stream.settings = {
        "stores.state.backup.factories": "blob",
        "blob.store.uri": str(backup),
        "job.log.backend": "journal",
        "backends.journal.factory": "blob",
        "backends.journal.uri": str(log),
    }
    stream.add_batches(2)
    stream.run()
    lose_directory(stream.local_dir)
    stream.add_batches(1)
    stream.run()
    assert stream.received() == stream.expected(3)
    assert not (backup / "counts" / "log").exists()
    assert (log / "counts" / "log").exists()


def test_a_backend_of_one_process_is_refused(stream: Stream) -> None:
    stream.add_batches(1)
    with pytest.raises(ConfigError, match="one process, and Spark has many: backend=memory"):
        stream.run(job__log__backend="memory")


@pytest.mark.long
def test_executors_may_be_taken_away_and_given(
    stream: Stream, open_jobs: list[StatefulJob]
) -> None:
    stream.add_batches(5)
    context = stream.spark.sparkContext
    hosts: dict[int, dict[int, str]] = {}

    def change(batch: int) -> None:
        # A sink is called again when its rows were on the executor that is gone.
        if batch == 1 and batch not in hosts:
            hosts[1] = _executors(open_jobs[0])
            take_executor_away(context, min(hosts[1].values()))
        if batch == 2:
            await_loss(context, min(hosts[1].values()))
        if batch == 3 and batch not in hosts:
            hosts[3] = _executors(open_jobs[0])

    stream.on_batch = change
    query = stream.run(task__commit__ms=200)
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3, 4]
    assert stream.received() == stream.expected(5)
    taken = min(hosts[1].values())
    assert taken not in hosts[3].values()
    assert query.lastCommit is not None
    assert query.lastCommit.batch == 4
    await_end_of_sidecars(stream.local_dir)
    # Not while the query runs, which would let it prepare its Python workers, maybe until the next start.
    ask_for_executor(context)

    def look(batch: int) -> None:
        hosts[batch] = _executors(open_jobs[1])

    stream.on_batch = look
    stream.add_batches(1)
    stream.run()
    (given,) = set(hosts[5].values()) - set(hosts[3].values())
    assert set(hosts[3].values()) | {given} == set(hosts[5].values())
    assert stream.received() == stream.expected(6)


@pytest.mark.long
def test_the_tasks_of_an_executor_that_is_decommissioned_move_with_their_state(
    stream: Stream, open_jobs: list[StatefulJob]
) -> None:
    stream.add_batches(6)
    jvm: Any = stream.spark.sparkContext._jvm
    context = stream.spark.sparkContext._jsc.sc()
    hosts: dict[int, dict[int, str]] = {}

    def change(batch: int) -> None:
        if batch == 1 and batch not in hosts:
            hosts[1] = _executors(open_jobs[0])
            reason = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo(
                "the host goes down", jvm.scala.Option.empty()
            )
            keep_target, by_driver = False, False
            assert context.schedulerBackend().decommissionExecutor(
                min(hosts[1].values()), reason, keep_target, by_driver
            )
        if batch in {2, 5}:
            hosts[batch] = _executors(open_jobs[0])

    stream.on_batch = change
    query = stream.run(task__commit__ms=200)
    leaving = min(hosts[1].values())
    assert leaving not in {*hosts[2].values(), *hosts[5].values()}
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3, 4, 5]
    assert stream.received() == stream.expected(6)
    assert query.lastCommit is not None
    assert query.lastCommit.batch == 5
    # The cluster manager was told to keep their number.
    assert wait_until(lambda: context.getExecutorMemoryStatus().size() == 3)
    await_end_of_sidecars(stream.local_dir)


@pytest.mark.long
def test_the_sidecar_of_an_executor_whose_tasks_never_came_ends_with_the_query(
    stream: Stream, open_jobs: list[StatefulJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = stream.spark.sparkContext
    # State is fetched for the tasks that are to move; before they do, the query ends.
    monkeypatch.setattr(TaskMoves, "_is_near", lambda *_: False)
    stream.add_batches(1)
    writer = stream.stateful(settings={"task.commit.ms": 200}).writeStream
    writer = writer.foreachBatch(stream.sink).option("checkpointLocation", str(stream.location))
    query: sk.StatefulStreamingQuery = writer.start()
    query.processAllAvailable()
    executors = sorted(set(_executors(open_jobs[0]).values()))
    take_executor_away(context, executors[0])
    await_loss(context, executors[0])
    # A batch while one executor is left: with two, half of the lost tasks would start on the new one.
    stream.add_batches(1)
    query.processAllAvailable()
    assert set(_executors(open_jobs[0]).values()) == {executors[1]}
    ask_for_executor(context)
    for _ in range(100):
        stream.add_batches(1)
        query.processAllAvailable()
        if len(sidecar_processes(stream.local_dir)) == 2:
            break
    commands = " ".join(sidecar_processes(stream.local_dir).values())
    assert f"-{executors[1]} " in commands
    assert f"-{executors[0]} " not in commands
    assert set(_executors(open_jobs[0]).values()) == {executors[1]}
    query.stop()
    assert sidecar_processes(stream.local_dir) == {}
    assert stream.received() == stream.expected(len(stream.delivered))


def spark_submit() -> list[str]:
    """The JVM is the parent of the Python process, and the one that gets the signal."""
    return [str(Path(pyspark.__file__).parent / "bin" / "spark-submit")]


def as_process_1() -> list[str]:
    """As in an image without an init process."""
    return ["unshare", "--pid", "--fork", "--mount-proc", *spark_submit()]


def can_be_process_1() -> bool:
    unshare = shutil.which("unshare")
    command = [unshare or "", "--pid", "--fork", "--mount-proc", "true"]
    return unshare is not None and subprocess.run(command, check=False).returncode == 0


def send_to_group(driver: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the driver and all that it has started, as systemd does."""
    os.killpg(driver.pid, number)


def send_signal(driver: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the driver, or to its JVM where that is process 1 of its own processes."""
    children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
    is_wrapped = Path(f"/proc/{driver.pid}/comm").read_text() == "unshare\n"
    os.kill(int(children[0]) if is_wrapped else driver.pid, number)


@pytest.mark.parametrize(
    ("number", "send", "launcher", "ends_with"),
    [
        pytest.param(signal.SIGTERM, send_signal, [sys.executable], -signal.SIGTERM, id="SIGTERM"),
        pytest.param(
            signal.SIGTERM, send_to_group, [sys.executable], -signal.SIGTERM, id="to the group"
        ),
        pytest.param(
            signal.SIGINT,
            send_signal,
            [sys.executable],
            -signal.SIGINT,
            id="Ctrl-C",
            marks=pytest.mark.long,
        ),
        pytest.param(
            signal.SIGTERM,
            send_signal,
            spark_submit(),
            128 + 15,
            id="spark-submit",
            marks=pytest.mark.long,
        ),
        pytest.param(
            signal.SIGTERM,
            send_signal,
            as_process_1(),
            128 + 15,
            id="process 1",
            marks=[
                pytest.mark.long,
                pytest.mark.skipif(
                    not can_be_process_1(), reason="needs root and unshare, of util-linux"
                ),
            ],
        ),
    ],
)
def test_a_driver_that_is_told_to_end_commits_first(
    stream: Stream,
    number: signal.Signals,
    send: Callable[[subprocess.Popen[bytes], signal.Signals], None],
    launcher: list[str],
    ends_with: int,
) -> None:
    stream.add_batches(3)
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    log = stream.root / "stderr"
    with (
        log.open("wb") as stderr,
        subprocess.Popen(
            [*launcher, str(here / "signalled_job.py"), str(stream.root)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable},
            start_new_session=True,
        ) as driver,
    ):
        try:
            assert driver.stdout is not None
            assert b"idle\n" in driver.stdout  # reads up to there
            begin = log.stat().st_size
            send(driver, number)
            assert driver.wait(timeout=60) == ends_with
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
    said = without_daemon(log.read_bytes()[begin:].decode())
    assert len(said.splitlines()) < 20, said
    assert "Traceback" not in said
    await_end_of_sidecars(stream.local_dir)
    stream.settings = {"blob.store.uri": str(stream.root / "backup"), "task.count": 2}
    lose_directory(stream.local_dir)
    stream.add_batches(1)
    query = stream.run()
    (recovery,) = events_of(query, "recovery")
    assert recovery["replayed"] == []
    assert [batch for batch, _ in stream.delivered] == [3]


def _executors(job: StatefulJob) -> dict[int, str]:
    found = {task: place["executor"] for task, place in executors_of(job).items()}
    assert len(found) == PARTITIONS
    return found
