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
from statekeep.backends.seals import open_checkpoint_store, open_job_log
from statekeep.checkpoint.checkpoints import (
    BackendName,
    StoreName,
    SystemStreamPartition,
    VersionId,
)
from statekeep.checkpoint.event_log import EventRecorder
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.records import BatchRecord, JobIdentity, QueryState, TaskBatch
from statekeep.clock import SystemClock
from statekeep.commit.executor import BoundedExecutor
from statekeep.commit.gate import CommitGate
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.container.task import Task
from statekeep.events import CommitSummary
from statekeep.reporter import Reporter
from statekeep.spark.driver.first_start import first_commit
from statekeep.spark.driver.job_commits import JobCommits, job_clean_up
from statekeep.spark.driver.progress import EventList
from statekeep.spark.operator.runner import OperatorSpec
from statekeep.spark.sidecar.paths import SidecarSpec
from statekeep.spark.sidecar.protocol import SubmitVersion
from statekeep.spark.sidecar.work import SidecarWork
from statekeep.spark.tasks import STATE_STORE, task_name
from statekeep.spark.worker.job_spec import JobSpec, SubmitPlan
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
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - what is made there has a name of its own


@dataclass(frozen=True)
class Row:
    """What was measured."""

    what: str
    tasks: int
    changed: int
    requests: Mapping[str, float]
    """By operation; per commit, or in all for a start."""
    stores: int = 1
    """Of each task; each commit changes all of those of a task."""
    backends: int = 1
    """Of each store, all in the same bucket."""


def dollars_a_day(requests: Mapping[str, float]) -> float:
    """Return what commits cost that make so many requests each, one every ten seconds."""
    return COMMITS_A_DAY * sum(DOLLARS.get(kind, 0) * n for kind, n in requests.items())


class CountedJob:
    """A job of the driver's and the container's own parts, without Spark."""

    def __init__(
        self,
        root: Path,
        tasks: int,
        settings: Mapping[str, str],
        stores: Sequence[StoreName] = (STATE_STORE,),
    ) -> None:
        self._tasks = tasks
        self._stores = stores
        self._clock = FakeClock()
        self._executor = BoundedExecutor(4, "driver")
        self._events = EventList()
        self._report = Reporter(self._clock, "j", parts=[self._events]).report
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
            session="a1",
            python_path=(),
            stores=tuple(stores),
            lasting_stores=tuple(stores),
        )
        self._factories = dict(BackendRegistry(config).factories())
        place = (self._factories, _BLOB, "j", self._executor, self._clock)
        self._writer = LogSession(open_job_log(*place))
        self._checkpoints = open_checkpoint_store(*place)
        self._work = SidecarWork(
            SidecarSpec(
                job_name="j",
                job_uid="u",
                local_name=self._spec.local_name,
                operator="main",
                settings=text,
                stores=list(stores),
                log_backend="blob",
                local_dir=str(root / "local"),
                app_id="app",
                executor_id="1",
                jvm_pid=1,
                python_path=[],
                session="a1",
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
            report=self._report,
        )
        self._commits = JobCommits(
            log=self._writer,
            checkpoints=self._checkpoints,
            gate=CommitGate(config.task),
            clock=self._clock,
            identity=identity,
            query_state=self._query_state,
            on_commit=self._committed,
            required_backends=dict.fromkeys(map(BackendName, config.backend_names()), stores),
            report=self._report,
        )
        self._recorder: EventRecorder | None = None
        self._has_committed = asyncio.Event()
        self._batch = -1
        self._versions: dict[int, SealedVersion] = {}

    async def start(self) -> None:
        """Set up the backend, take the log over and write the commit that a query begins with."""
        for factory in self._factories.values():
            admin = factory.admin(self._executor, self._clock)
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
        await self._commits.submitted(plan, {})
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
        with directory.begin(uid, base, self._stores, captured=self._stores) as work:
            for name in self._stores:
                store = work.open_store(name, "memory")
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


def _requests(plan: SubmitPlan) -> Sequence[SubmitVersion]:
    found: list[SubmitVersion] = []
    for partition, version in plan.versions.items():
        base_version, base = plan.bases.get(partition, ("", b"null"))
        found.append(
            SubmitVersion(
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
    counts: Counter[str],
    tasks: int,
    changed: int,
    settings: Mapping[str, str],
    stores: Sequence[StoreName] = (STATE_STORE,),
) -> list[Row]:
    """Return the requests of the first start, of a commit in steady state, and of a later start.

    Args:
        counts: Of all requests, by operation.
        tasks: Of the job.
        changed: Tasks that each commit changes.
        settings: Of the place.
        stores: Of each task.
    """
    backends = settings.get("stores.backup.factories", "blob").count(",") + 1

    def row(what: str, commits: int = 1) -> Row:
        made = {kind: n / commits for kind, n in counts.items()}
        return Row(what, tasks, changed, made, len(stores), backends)

    with _local_directory() as root:
        job = CountedJob(Path(root), tasks, settings, stores)
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
        successor = CountedJob(Path(root), tasks, settings, stores)
        counts.clear()
        await successor.start()
        again = row("start")
        await successor.close()
    return [first, steady, again]


async def measure_plain(
    counts: Counter[str], tasks: int, changed: int, *, is_idle: bool = False
) -> Row:
    """Return the requests of a commit of each task of a container, in steady state.

    Args:
        counts: Of all requests, by operation.
        tasks: Of the container.
        changed: Tasks whose stores each commit changes.
        is_idle: The input of the others does not go on either.
    """
    clock = FakeClock()
    with _local_directory() as root:
        async with Container(_plain_config(root), clock=clock) as container:
            read: dict[str, str] = {}
            started = [await container.start_task(task_name(n), ["s"]) for n in range(tasks)]

            async def commit(number: int, writing: Sequence[Task], seconds: int) -> None:
                clock.advance(seconds)
                for task in writing:
                    for key in range(50) if number == 0 else [number]:
                        task.store("s").put(b"%06d" % key, os.urandom(100))
                read.update((task.name, str(number)) for task in (writing if is_idle else started))
                made = [await task.commit({_INPUT: read[task.name]}) for task in started]
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


async def measure_plain_starts(counts: Counter[str], tasks: int) -> list[Row]:
    """Return the requests of the first start of a container with all its tasks, and of a later one.

    Before the later one each task has made one commit.
    """
    rows: list[Row] = []
    with _local_directory() as root:
        for what in ("first start, plain", "start, plain"):
            counts.clear()
            async with Container(_plain_config(root), clock=FakeClock()) as container:
                started = [await container.start_task(task_name(n), ["s"]) for n in range(tasks)]
                rows.append(Row(what, tasks, tasks, dict(counts)))
                for task in started:
                    task.store("s").put(b"key", what.encode())
                    await (await task.commit({_INPUT: what})).wait()
                    await task.wait()
    return rows


def _plain_config(root: str) -> Config:
    return load_dict(
        {
            "job.name": "j",
            "job.logged.store.base.dir": root,
            "stores.default.factory": "memory",
            "stores.backup.factories": "blob",
            "blob.store.uri": f"s3://{BUCKET}/j",
            "task.commit.ms": "0",
        }
    )


def measure_plain_starts_in_memory(tasks: int) -> list[Row]:
    """Measure starts in plain Python over a bucket in memory."""
    with counted_memory() as counts:
        return asyncio.run(measure_plain_starts(counts, tasks))


def measure_plain_in_memory(tasks: int, changed: int, *, is_idle: bool = False) -> Row:
    """Measure plain Python over a bucket in memory."""
    with counted_memory() as counts:
        return asyncio.run(measure_plain(counts, tasks, changed, is_idle=is_idle))


def _local_directory() -> TemporaryDirectory[str]:
    """Make a directory for local state, in memory if there is such a place: nothing of it is measured."""
    return TemporaryDirectory(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)


def measure_in_memory(tasks: int, changed: int, stores: int = 1, backends: int = 1) -> list[Row]:
    """Measure over a bucket in memory, in which each backend has a prefix."""
    settings = {"blob.store.uri": f"s3://{BUCKET}/j"}
    others = [f"far{number}" for number in range(1, backends)]
    for name in others:
        settings[f"backends.{name}.factory"] = "blob"
        settings[f"backends.{name}.uri"] = f"s3://{BUCKET}/{name}"
    if others:
        settings["stores.backup.factories"] = ",".join(["blob", *others])
    names = (STATE_STORE, *(StoreName(f"more{number}") for number in range(1, stores)))
    with counted_memory() as counts:
        return asyncio.run(measure(counts, tasks, changed, settings, names))


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
    head = ["", "tasks", "changed", "stores", "backends", *OPERATIONS, "$ a day"]
    table = [head]
    for row in rows:
        counts = [f"{row.requests.get(kind, 0):g}" for kind in OPERATIONS]
        dollars = f"{dollars_a_day(row.requests):.2f}" if row.what.startswith("commit") else ""
        shape = [str(n) for n in (row.tasks, row.changed, row.stores, row.backends)]
        table.append([row.what, *shape, *counts, dollars])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, action="append", help=f"default: {TASKS}")
    parser.add_argument("--stores", type=int, default=1, help="of each task")
    parser.add_argument("--backends", type=int, default=1, help="of each store")
    parser.add_argument(
        "--s3", action="store_true", help="also on SeaweedFS, with the fewest tasks"
    )
    given = parser.parse_args(arguments)
    rows: list[Row] = []
    for tasks in given.tasks or TASKS:
        for changed in sorted({0, tasks // 2, tasks}):
            rows += measure_in_memory(tasks, changed, given.stores, given.backends)
        rows.append(measure_plain_in_memory(tasks, tasks))
        rows += measure_plain_starts_in_memory(tasks)
    if given.s3:
        from benchmarks.blob_transfer import server  # noqa: PLC0415  # needs the tests' servers

        with server(0, 0) as endpoint:
            rows += measure_on_s3(endpoint, min(TASKS), min(TASKS))
    print_rows(rows)


if __name__ == "__main__":
    main()
