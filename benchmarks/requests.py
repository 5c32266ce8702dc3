"""How many requests a commit makes of an object store, by operation and number of tasks.

On Spark: the driver's own committer and clean-up and the container's own uploads run in this process,
over a store in memory whose calls are counted, or over a real S3 server whose HTTP requests are. In
plain Python: a container with its tasks. Time is simulated: one commit every ten seconds, each of one
batch.
"""

import argparse
import asyncio
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, cast

import boto3
import msgspec

from benchmarks.counted_objects import BUCKET, counted_memory, counted_s3
from statekeep.backends.registry import BackendRegistry
from statekeep.backends.sealing import open_checkpoint_store, open_job_log
from statekeep.checkpoint.checkpoints import BackendName, SystemStreamPartition
from statekeep.checkpoint.event_recorder import EventRecorder
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.records import BatchRecord, JobIdentity, QueryState, TaskBatch
from statekeep.checkpoint.version_id import VersionId
from statekeep.clock import SystemClock
from statekeep.commit.committer import CommitSummary
from statekeep.commit.executor import BoundedExecutor
from statekeep.commit.gate import CommitGate
from statekeep.config.load import load_dict
from statekeep.container.container import Container
from statekeep.container.task import Task
from statekeep.spark.container.place import ContainerSpec
from statekeep.spark.container.protocol import HandOver
from statekeep.spark.container.work import ContainerWork
from statekeep.spark.driver.clean_up import job_clean_up
from statekeep.spark.driver.events import EventList
from statekeep.spark.driver.job_commits import JobCommits
from statekeep.spark.driver.new_query import first_commit
from statekeep.spark.operator.runner import OperatorSpec
from statekeep.spark.tasks import STATE_STORE, task_name
from statekeep.spark.worker.job_spec import HandOverPlan, JobSpec
from statekeep.stores.version import SealedVersion
from statekeep.testing.clock import FakeClock

OPERATIONS: Final = ("PUT", "GET", "HEAD", "LIST", "DELETE")
DOLLARS: Final = {"PUT": 5e-6, "GET": 0.4e-6, "HEAD": 0.4e-6, "LIST": 5e-6}
"""Of S3 Standard in us-east-1, for one request."""
TASKS: Final = (2, 8, 64)
SECONDS_A_COMMIT: Final = 10
COMMITS_A_DAY: Final = 86_400 // SECONDS_A_COMMIT
COMMITS_A_CLEAN_UP: Final = 12
"""So many commits there are from one clean-up to the next: `checkpoint.clean.up.ms`."""
_WARM_UP: Final = 3
_CLEAN_UP_S: Final = 120
_BLOB: Final = BackendName("blob")
_INPUT: Final = SystemStreamPartition("kafka", "orders", 0)


@dataclass(frozen=True)
class Row:
    """What was measured."""

    what: str
    tasks: int
    changed: int
    requests: Mapping[str, float]
    """By operation; per commit, or in all for a start."""


def dollars_a_day(requests: Mapping[str, float]) -> float:
    """Return what commits cost that make so many requests each, one every ten seconds."""
    return COMMITS_A_DAY * sum(DOLLARS.get(kind, 0) * n for kind, n in requests.items())


class CountedJob:
    """A job of the driver's and the container's own parts, without Spark."""

    def __init__(self, root: Path, tasks: int, settings: Mapping[str, str]) -> None:
        self._tasks = tasks
        self._clock = FakeClock()
        self._executor = BoundedExecutor(4, "driver")
        self._events = EventList(self._clock)
        text = {
            "job.name": "j",
            "job.logged.store.base.dir": str(root / "local"),
            "stores.backup.factories": "blob",
            **settings,
        }
        config = load_dict(text)
        self._spec = JobSpec(
            config=config,
            job_uid="u",
            log_backend="blob",
            app_id="app",
            operator=cast("OperatorSpec", None),
            processor=b"",
            python_path=(),
        )
        self._factories = dict(BackendRegistry(config).factories())
        place = (self._factories, _BLOB, "j", self._executor, self._clock)
        self._writer = LogSession(open_job_log(*place))
        self._checkpoints = open_checkpoint_store(*place)
        self._work = ContainerWork(
            ContainerSpec(
                job_name="j",
                job_uid="u",
                local_name=self._spec.local_name,
                operator="main",
                settings=text,
                stores=[STATE_STORE],
                log_backend="blob",
                local_dir=str(root / "local"),
                app_id="app",
                executor_id="1",
                jvm_pid=1,
                python_path=[],
            ),
            SystemClock(),  # its uploads take real time
        )
        identity = JobIdentity(job_uid="u", job_name="j", partitions=tasks)
        self._identity = identity
        self._clean_up = job_clean_up(
            self._spec,
            tasks,
            self._factories,
            log=self._writer,
            checkpoints=self._checkpoints,
            executor=self._executor,
            clock=self._clock,
            note=self._events.add,
        )
        self._commits = JobCommits(
            log=self._writer,
            checkpoints=self._checkpoints,
            gate=CommitGate(config.task),
            clock=self._clock,
            identity=identity,
            query_state=self._query_state,
            on_commit=self._committed,
            required_backends=["blob"],
            note=self._events.add,
        )
        self._recorder: EventRecorder | None = None
        self._has_committed = asyncio.Event()
        self._batch = -1
        self._versions: dict[int, SealedVersion] = {}

    async def start(self) -> None:
        """Set up the backend, take the log over and write the commit that a query begins with."""
        admin = self._factories[_BLOB].admin(self._executor, self._clock)
        await admin.create_resources()
        await admin.validate_resources()
        await admin.close()
        await self._writer.open()
        await self._writer.take_over("requests")
        recorder = EventRecorder(
            self._checkpoints, self._writer.epoch, self._spec.config.job, self._clock
        )
        self._events.pass_to(lambda event: recorder.add(event.time_ms, event.kind, event.details))
        self._recorder = recorder
        if self._writer.view.last_commit is None:
            await self._writer.append(first_commit(None, self._identity, "7-1", 1))

    async def commit(self, changed: Collection[int], seconds: int = SECONDS_A_COMMIT) -> None:
        """Process a batch that changes some tasks, commit it, and clean up if that is due."""
        self._batch += 1
        self._clock.advance(seconds)
        for partition in changed:
            self._versions[partition] = self._seal(partition)
        versions = {p: str(v.id) for p, v in self._versions.items()}
        for partition in range(self._tasks):
            versions.setdefault(partition, "")
        await self._writer.append(
            BatchRecord(
                query_id="q",
                batch=self._batch,
                offsets="v1",
                tasks={
                    str(task_name(p)): TaskBatch(version=version) for p, version in versions.items()
                },
            )
        )
        plan = await self._commits.prepare(self._batch, versions, is_forced=True)
        if plan is None:
            raise RuntimeError("the gate let no commit begin")
        await asyncio.gather(*(self._work.upload(request) for request in _requests(plan)))
        await self._commits.handed_over(plan, {})
        async with asyncio.timeout(60):  # not by the job's clock, which does not move by itself
            await self._has_committed.wait()
        self._has_committed.clear()
        await self._clean_up.wait()
        if self._recorder is not None:
            await self._recorder.finish()  # they have waited for as long as a commit is apart

    async def close(self) -> None:
        """Close every client."""
        await self._work.close()
        await self._checkpoints.close()
        await self._writer.close()
        await self._executor.close()

    def _seal(self, partition: int) -> SealedVersion:
        base, uid = self._versions.get(partition), f"{self._batch:08x}"
        directory = self._spec.directory(partition)
        current = self._writer.view.last_commit
        committed = None if current is None else current.versions.get(task_name(partition))
        with directory.begin(uid, base, [STATE_STORE], captured=[STATE_STORE]) as work:
            store = work.open_store(STATE_STORE, "memory")
            if base is None:
                store.write({b"%06d" % key: os.urandom(100) for key in range(50)})
            store.write({b"%06d" % self._batch: os.urandom(100)})
            return work.seal(
                self._batch,
                uid,
                base,
                committed=VersionId.parse(committed) if committed else None,
            )

    def _committed(self, _: CommitSummary) -> None:
        self._has_committed.set()
        self._clean_up.start()

    async def _query_state(self, batch: int) -> QueryState:
        return QueryState(query_id="q", metadata="{}", offsets="v1", commit=f"{batch}")


def _requests(plan: HandOverPlan) -> Sequence[HandOver]:
    found: list[HandOver] = []
    for partition, version in plan.versions.items():
        base_version, base = plan.bases.get(partition, ("", b"null"))
        found.append(
            HandOver(
                epoch=plan.epoch,
                attempt=plan.attempt,
                partition=partition,
                version=version,
                checkpoint=msgspec.Raw(plan.checkpoints[partition]),
                base=msgspec.Raw(base),
                base_version=base_version,
            )
        )
    return found


async def measure(
    counts: Counter[str], tasks: int, changed: int, settings: Mapping[str, str]
) -> list[Row]:
    """Return the requests of the first start, of a commit in steady state, and of a later start.

    Args:
        counts: Of all requests, by operation.
        tasks: Of the job.
        changed: Tasks that each commit changes.
        settings: Of the place.
    """

    def row(what: str, commits: int = 1) -> Row:
        return Row(what, tasks, changed, {kind: n / commits for kind, n in counts.items()})

    with TemporaryDirectory() as root:
        job = CountedJob(Path(root), tasks, settings)
        counts.clear()
        await job.start()
        first = row("first start")
        await job.commit(range(tasks))
        for _ in range(_WARM_UP):
            await job.commit(range(changed), seconds=_CLEAN_UP_S)
        counts.clear()
        for _ in range(COMMITS_A_CLEAN_UP):
            await job.commit(range(changed))
        steady = row("commit", COMMITS_A_CLEAN_UP)
        await job.close()
        successor = CountedJob(Path(root), tasks, settings)
        counts.clear()
        await successor.start()
        again = row("start")
        await successor.close()
    return [first, steady, again]


async def measure_plain(counts: Counter[str], tasks: int, changed: int) -> Row:
    """Return the requests of a commit of each task of a container, in steady state."""
    clock = FakeClock()
    with TemporaryDirectory() as root:
        config = load_dict(
            {
                "job.name": "j",
                "job.logged.store.base.dir": root,
                "stores.default.factory": "memory",
                "stores.backup.factories": "blob",
                "blob.store.uri": f"s3://{BUCKET}/j",
                "task.commit.ms": "0",
            }
        )
        async with Container(config, clock=clock) as container:
            started = [await container.start_task(task_name(n), ["s"]) for n in range(tasks)]

            async def commit(number: int, writing: Sequence[Task], seconds: int) -> None:
                clock.advance(seconds)
                for task in writing:
                    for key in range(50) if number == 0 else [number]:
                        task.store("s").put(b"%06d" % key, os.urandom(100))
                made = [await task.commit({_INPUT: str(number)}, force=True) for task in started]
                await asyncio.gather(*(one.wait() for one in made))
                await asyncio.gather(*(task.wait() for task in started))

            await commit(0, started, SECONDS_A_COMMIT)
            for number in range(1, 1 + _WARM_UP):
                await commit(number, started[:changed], _CLEAN_UP_S)
            counts.clear()
            for number in range(1 + _WARM_UP, 1 + _WARM_UP + COMMITS_A_CLEAN_UP):
                await commit(number, started[:changed], SECONDS_A_COMMIT)
            made = {kind: count / COMMITS_A_CLEAN_UP for kind, count in counts.items()}
    return Row("commit, plain", tasks, changed, made)


def measure_plain_in_memory(tasks: int, changed: int) -> Row:
    """Measure plain Python over a bucket in memory."""
    with counted_memory() as counts:
        return asyncio.run(measure_plain(counts, tasks, changed))


def measure_in_memory(tasks: int, changed: int) -> list[Row]:
    """Measure over a bucket in memory."""
    with counted_memory() as counts:
        return asyncio.run(measure(counts, tasks, changed, {"blob.store.uri": f"s3://{BUCKET}/j"}))


def measure_on_s3(endpoint: str, tasks: int, changed: int) -> list[Row]:
    """Measure over a bucket of a real server, which is made here."""
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=BUCKET)
    settings = {
        "blob.store.uri": f"s3://{BUCKET}/j",
        "backends.blob.s3.endpoint": endpoint,
        "backends.blob.s3.path.style": "true",
    }
    with counted_s3() as counts:
        return asyncio.run(measure(counts, tasks, changed, settings))


def print_rows(rows: Sequence[Row]) -> None:
    """Print a table."""
    head = ["", "tasks", "changed", *OPERATIONS, "$ a day"]
    table = [head]
    for row in rows:
        counts = [f"{row.requests.get(kind, 0):g}" for kind in OPERATIONS]
        dollars = f"{dollars_a_day(row.requests):.2f}" if row.what.startswith("commit") else ""
        table.append([row.what, str(row.tasks), str(row.changed), *counts, dollars])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, action="append", help=f"default: {TASKS}")
    parser.add_argument(
        "--s3", action="store_true", help="also on SeaweedFS, with the fewest tasks"
    )
    given = parser.parse_args(arguments)
    rows: list[Row] = []
    for tasks in given.tasks or TASKS:
        for changed in sorted({0, tasks // 2, tasks}):
            rows += measure_in_memory(tasks, changed)
        rows.append(measure_plain_in_memory(tasks, tasks))
    if given.s3:
        from benchmarks.blob_transfer import server  # noqa: PLC0415  # needs the tests' servers

        with server(0, 0) as endpoint:
            rows += measure_on_s3(endpoint, min(TASKS), min(TASKS))
    print_rows(rows)


if __name__ == "__main__":
    main()
