"""What a job's driver and its places cost as the job grows old: memory, log, requests, start.

Commits pass on a simulated clock, over an in-process store, with the driver's own log writer and
clean-up; uploads are two blobs a task, a file and its index. Everything that is measured at the
first mark should be the same at the last one: the last row says by how much it grows with every
thousand commits.
"""

import argparse
import asyncio
import gc
import hashlib
import json
import logging
import time
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final, TypeVar, cast

import msgspec
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor, TaskIdentity
from statekeep.backends.blob.checkpoint_store import BlobCheckpointStore
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob.index import (
    SCHEMA_VERSION,
    DirIndex,
    FileBlob,
    FileIndex,
    FileMetadata,
    SnapshotIndex,
    SnapshotMetadata,
    encode_index,
)
from statekeep.backends.blob.job_log import BlobJobLog
from statekeep.backends.blob.managers.memory_manager import MemoryBlobStoreManager, forget_root
from statekeep.backends.blob.names import TaskPrefix, file_blob_name, index_blob_name
from statekeep.backends.blob_store import BlobMetadata
from statekeep.backends.wrappers import WrappedBlobStoreManager
from statekeep.checkpoint.checkpoint_id import CheckpointId
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointV2,
    Marker,
    StoreName,
    TaskName,
)
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.records import (
    AttemptRecord,
    BatchRecord,
    CommitRecord,
    JobIdentity,
    PinRecord,
    QueryState,
    TaskBatch,
    VoidRecord,
)
from statekeep.checkpoint.serde import encode_checkpoint_v2
from statekeep.config.load import load_dict
from statekeep.spark.driver.clean_up import CleanUp
from statekeep.spark.operator.runner import OperatorSpec
from statekeep.spark.tasks import STATE_STORE, task_name
from statekeep.spark.worker.job_spec import JobSpec
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

T = TypeVar("T")

BLOB: Final = BackendName("blob")
SECONDS_A_COMMIT: Final = 10
MARKS: Final = 8
SCENARIOS: Final = ("plain", "pin", "voids", "damage")
"""A pin on the first commit; a void attempt beside every other commit; a lost index behind a pin."""
_METADATA: Final = BlobMetadata(task=None, store_name=None, payload_name="growth")


class CountedBlobs(WrappedBlobStoreManager):
    """Counts the calls of a client by their kind, and what they transfer."""

    def __init__(self, inner: MemoryBlobStoreManager, counts: Counter[str]) -> None:
        super().__init__(inner)
        self._counts = counts

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        answer = await call()
        if operation != "init":
            self._counts[operation] += 1
        if operation == "list":
            self._counts["names listed"] += len(cast("Sequence[str]", answer))
        return answer


@dataclass(frozen=True)
class Mark:
    """What was measured after so many commits; requests are those since the mark before."""

    commits: int
    memory_kb: float
    """Traced memory of the program, without what the in-process store holds."""
    log_records: int
    blobs: int
    """That the store holds: log, checkpoints and state."""
    put: float
    get: float
    list: float
    names_listed: float
    delete: float
    clean_up_ms: float
    """Of wall time, for one clean-up."""
    start_ms: float
    """Of wall time, for reading the log."""
    start_requests: int


_NAMES: Final = tuple(field.name for field in fields(Mark))


class AgeingJob:
    """Commits again and again; its newest attempts, pins and failures are those of a scenario."""

    def __init__(self, tasks: int, scenario: str, retain_ms: int) -> None:
        self._root = f"growth-{tasks}-{scenario}"
        forget_root(self._root)
        self._tasks = range(tasks)
        self._scenario = scenario
        self._clock = FakeClock()
        self._executor = SerialExecutor()
        self.counts: Counter[str] = Counter()
        self.clean_up_s = 0.0
        config = load_dict(
            {
                "job.name": "j",
                "job.logged.store.base.dir": str(Path("/nonexistent")),
                "stores.backup.factories": "blob",
                "blob.store.uri": "file:///nonexistent",
                "checkpoint.retain.ms": str(retain_ms),
            }
        )
        self._spec = JobSpec(
            config=config,
            job_uid="u",
            log_backend="blob",
            app_id="app",
            operator=cast("OperatorSpec", None),
            processor=b"",
            python_path=(),
        )
        self._factories = {
            BLOB: BlobBackendFactory(
                BLOB, {"uri": "memory://growth"}, make_manager=self._make_manager
            )
        }
        self._writer = LogSession(BlobJobLog(self.blobs(), "j"))
        self._checkpoints = BlobCheckpointStore(self.blobs(), "j")
        self._attempts = 0
        self._batch = -1
        self._clean_up = CleanUp(
            spec=self._spec,
            partitions=tasks,
            factories=self._factories,
            writer=self._writer,
            checkpoints=self._checkpoints,
            executor=self._executor,
            clock=self._clock,
        )

    def blobs(self) -> CountedBlobs:
        """Return a client of the job's store."""
        return CountedBlobs(MemoryBlobStoreManager(self._root, self._executor), self.counts)

    async def begin(self) -> None:
        """Take the log over, as the driver of a new job does."""
        await self._writer.open()
        await self._writer.take_over("growth")
        await self._commit_record(0, {}, batch=-1)

    async def commit(self, number: int) -> None:
        """Process a batch, commit it, and clean up."""
        self._clock.advance(SECONDS_A_COMMIT)
        if self._scenario == "voids" and number % 2:
            await self._void()
        self._batch += 1
        version = f"{self._batch}_{self._uid('v')[:16]}"
        await self._writer.append(
            BatchRecord(
                query_id="q",
                batch=self._batch,
                offsets=f'v1\n{{"batchTimestampMs":{self._clock.time_ns() // 1_000_000}}}\n[{number}]',
                previous_commit='v1\n{"nextBatchWatermarkMs":0}',
                tasks={
                    str(task_name(p)): TaskBatch(
                        version=version, rows_in=number, input_digest=self._uid(f"i{p}")[:32]
                    )
                    for p in self._tasks
                },
            )
        )
        attempt = await self._begin_attempt(version)
        markers = {p: await self._upload(p, attempt) for p in self._tasks}
        await self._commit_record(attempt, markers, batch=self._batch)
        if self._scenario == "pin" and number == 1:
            position = self._writer.view.last_commit_position
            await self._writer.append(PinRecord(name="p", position=position))
        if self._scenario == "damage" and number == 1:
            position = self._writer.view.last_commit_position
            await self._writer.append(PinRecord(name="p", position=position))
            await MemoryBlobStoreManager(self._root, self._executor).delete(markers[0])
        began = time.perf_counter()
        await self._clean_up.run()
        self.clean_up_s += time.perf_counter() - began

    async def measure_start(self) -> tuple[float, int]:
        """Return how long a successor reads the log, and with how many requests."""
        before = self.counts.copy()
        began = time.perf_counter()
        await LogSession(BlobJobLog(self.blobs(), "j")).look()
        elapsed_s = time.perf_counter() - began
        made = self.counts - before
        self.counts.subtract(made)
        return elapsed_s * 1e3, sum(n for kind, n in made.items() if kind != "names listed")

    async def held(self) -> tuple[int, int, int]:
        """Return how many log records, how many blobs, and how many bytes the store holds."""
        inner = MemoryBlobStoreManager(self._root, self._executor)
        names = await inner.list("")
        sizes = [len(await inner.get(name)) + len(name) + 150 for name in names]
        return sum("/log/" in name for name in names), len(names), sum(sizes)

    async def _begin_attempt(self, version: str) -> int:
        self._attempts += 1
        names = [str(task_name(p)) for p in self._tasks]
        await self._writer.append(
            AttemptRecord(
                attempt=self._attempts,
                batch=self._batch,
                checkpoint_id=CheckpointId.at(self._clock.time_ns()).serialize(),
                versions=dict.fromkeys(names, version),
                uploads=names,
            )
        )
        return self._attempts

    async def _void(self) -> None:
        attempt = await self._begin_attempt("0_0")
        await self._writer.append(VoidRecord(attempt_epoch=1, attempt=attempt, reason="growth"))

    async def _upload(self, partition: int, attempt: int) -> Marker:
        """Upload one file and its index, and tell so, as the container of a task does."""
        blobs, uid = self.blobs(), self._uid(f"u{partition}")[:16]
        prefix = TaskPrefix(BLOB, self._spec.task(partition)).attempt(STATE_STORE, 1, attempt)
        blob_id = await blobs.put(file_blob_name(prefix, uid, 0, "f"), b"content", _METADATA)
        data = _index(self._spec.task(partition), STATE_STORE, blob_id, attempt)
        marker = Marker(await blobs.put(index_blob_name(prefix, uid, data), data, _METADATA))
        name = task_name(partition)
        await self._checkpoints.write(f"1-{attempt}", TaskName(name), b"told")
        return marker

    async def _commit_record(
        self, attempt: int, markers: Mapping[int, Marker], *, batch: int
    ) -> None:
        checkpoint_id = CheckpointId.at(self._clock.time_ns())
        await self._writer.append(
            CommitRecord(
                attempt_epoch=1,
                attempt=attempt,
                batch=batch,
                checkpoint_id=checkpoint_id.serialize(),
                identity=JobIdentity(job_uid="u", job_name="j", partitions=len(self._tasks)),
                checkpoints={
                    str(task_name(p)): msgspec.Raw(
                        encode_checkpoint_v2(
                            CheckpointV2(checkpoint_id, {}, {BLOB: {STATE_STORE: marker}})
                        )
                    )
                    for p, marker in markers.items()
                },
                versions={str(task_name(p)): f"{batch}_{self._uid('v')[:16]}" for p in markers},
                query=QueryState(query_id="q", metadata="{}", offsets="v1"),
            )
        )

    def _uid(self, what: str) -> str:
        return hashlib.sha256(f"{what} {self._batch} {self._attempts}".encode()).hexdigest()

    def _make_manager(self, _: Mapping[str, str], __: BlockingExecutor) -> CountedBlobs:
        return self.blobs()


def _index(task: TaskIdentity, store: StoreName, blob_id: str, number: int) -> bytes:
    """Return the bytes of an index that names one file."""
    plain = FileMetadata(
        creation_time_millis=0,
        last_modified_time_millis=0,
        size=7,
        owner="",
        group="",
        permissions="rw-------",
    )
    file = FileIndex(
        file_name="f",
        blobs=(FileBlob(blob_id=blob_id, offset=0),),
        file_metadata=plain,
        checksum=0,
    )
    return encode_index(
        SnapshotIndex(
            creation_time_millis=0,
            snapshot_metadata=SnapshotMetadata(
                checkpoint_id=f"{number}-1",
                job_name=task.job_name,
                job_id="1",
                task_name=task.task_name,
                store_name=store,
            ),
            dir_index=DirIndex(
                dir_name="",
                files_present=(file,),
                files_removed=(),
                sub_dirs_present=(),
                sub_dirs_removed=(),
            ),
            prev_snapshot_index_blob_id=None,
            schema_version=SCHEMA_VERSION,
            version=f"{number}_0",
        )
    )


async def grow(commits: int, tasks: int, scenario: str, retain_ms: int) -> list[Mark]:
    """Let a job commit so often, and measure it `MARKS` times, at even distances."""
    job = AgeingJob(tasks, scenario, retain_ms)
    await job.begin()
    marks: list[Mark] = []
    step = max(1, commits // MARKS)
    tracemalloc.start()
    for number in range(1, step * MARKS + 1):
        await job.commit(number)
        if number % step:
            continue
        per = {kind: round(count / step, 2) for kind, count in job.counts.items()}
        records, blobs, held = await job.held()
        gc.collect()
        memory_kb = (tracemalloc.get_traced_memory()[0] - held) / 1024
        start_ms, requests = await job.measure_start()
        marks.append(
            Mark(
                commits=number,
                memory_kb=round(memory_kb, 1),
                log_records=records,
                blobs=blobs,
                put=per.get("put", 0),
                get=per.get("get", 0),
                list=per.get("list", 0),
                names_listed=per.get("names listed", 0),
                delete=per.get("delete", 0),
                clean_up_ms=round(job.clean_up_s / step * 1e3, 2),
                start_ms=round(start_ms, 1),
                start_requests=requests,
            )
        )
        job.counts.clear()
        job.clean_up_s = 0.0
    tracemalloc.stop()
    return marks


def slopes(marks: Sequence[Mark]) -> dict[str, float]:
    """Return by how much each figure grows with every thousand commits: least squares.

    Without the first mark: until then the job fills up to what it retains.
    """
    steady = marks[1:]
    middle = sum(mark.commits for mark in steady) / len(steady)
    spread = sum((mark.commits - middle) ** 2 for mark in steady)
    found: dict[str, float] = {}
    for name in _NAMES[1:]:
        values = [float(getattr(mark, name)) for mark in steady]
        mean = sum(values) / len(values)
        pairs = zip(steady, values, strict=True)
        slope = sum((mark.commits - middle) * (value - mean) for mark, value in pairs) / spread
        found[name] = round(slope * 1000, 3)
    return found


def print_table(marks: Sequence[Mark]) -> None:
    """Print a row for each mark, and the slopes."""
    rows = [[str(getattr(mark, name)) for name in _NAMES] for mark in marks]
    rows.append(["per 1,000", *(f"{slope:+}" for slope in slopes(marks).values())])
    table = [[name.replace("_", " ") for name in _NAMES], *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table for each scenario."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=100_000)
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--retain-ms", type=int, default=0, help="checkpoint.retain.ms of the job")
    parser.add_argument("--scenario", choices=SCENARIOS, action="append", help="default: plain")
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args(arguments)
    logging.disable(logging.ERROR)  # a damaged index is told at every clean-up
    figures: dict[str, object] = {}
    for scenario in given.scenario or ["plain"]:
        print(f"{scenario}: {given.commits} commits, {given.tasks} tasks")
        marks = asyncio.run(grow(given.commits, given.tasks, scenario, given.retain_ms))
        print_table(marks)
        figures[scenario] = {
            "marks": [asdict(mark) for mark in marks],
            "per 1,000 commits": slopes(marks),
        }
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
