"""Jobs that commit repeatedly over an in-process store, for `benchmarks.growth`."""

import hashlib
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, cast

import msgspec
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor, TaskIdentity
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
from statekeep.backends.blob.names import file_blob_name, index_blob_name, is_index
from statekeep.backends.blob_store import BlobMetadata
from statekeep.backends.storage.checkpoint_store import BlobCheckpointStore
from statekeep.backends.storage.job_log import BlobJobLog
from statekeep.backends.storage.memory import MemoryBlobStoreManager, forget_root
from statekeep.backends.storage.names import TaskPrefix
from statekeep.backends.wrappers import WrappedBlobStoreManager
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
    SystemStreamPartition,
    TaskName,
)
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.records import (
    AbortRecord,
    AttemptRecord,
    BatchRecord,
    CommitRecord,
    JobIdentity,
    PinRecord,
    QueryState,
    TaskBatch,
)
from statekeep.checkpoint.serde import encode_checkpoint_v2
from statekeep.config.load import load_dict
from statekeep.container.container import Container
from statekeep.container.task import Task
from statekeep.errors import ConfigError
from statekeep.spark.driver.job_commits import job_clean_up
from statekeep.spark.operator.runner import OperatorSpec
from statekeep.spark.tasks import STATE_STORE, task_name
from statekeep.spark.worker.job_spec import JobSpec
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

T = TypeVar("T")

BLOB: Final = BackendName("blob")
SECONDS_A_COMMIT: Final = 10
ROOT: Final = "growth"
_INPUT: Final = SystemStreamPartition("gen", "numbers", 0)
_KEYS: Final = 500
_METADATA: Final = BlobMetadata(task=None, store_name=None, payload_name="growth")


class CountedBlobs(WrappedBlobStoreManager):
    """Counts the calls of a client by their kind, and what they transfer."""

    def __init__(
        self, inner: MemoryBlobStoreManager, counts: Counter[str], *, may_delete: bool = True
    ) -> None:
        """Count into ``counts``; without ``may_delete``, state cannot be deleted."""
        super().__init__(inner)
        self._counts = counts
        self._may_delete = may_delete

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        if operation == "delete" and "/state-" in subject and not self._may_delete:
            raise ConfigError(f"access denied: name={subject}")
        answer = await call()
        if operation in {"put", "list", "delete"}:
            self._counts[operation] += 1
        elif operation in {"get", "get_range", "download"}:
            self._counts["get"] += 1
        elif operation != "init":
            self._counts["other"] += 1
        if operation == "list":
            self._counts["names listed"] += len(cast("Sequence[str]", answer))
        return answer


def count_in_process(_: Mapping[str, str], executor: BlockingExecutor) -> CountedBlobs:
    """Return a client of the one store of the task in plain Python; its settings name this function."""
    return CountedBlobs(MemoryBlobStoreManager(ROOT, executor), COUNTS)


COUNTS: Final[Counter[str]] = Counter()
"""Of `count_in_process`."""


def stored(root: str) -> dict[str, bytes]:
    """Return the dictionary that is the in-process store; it belongs to no part of a job."""
    return MemoryBlobStoreManager(root, SerialExecutor())._blobs  # noqa: SLF001 - private to the store


@dataclass(frozen=True)
class Held:
    """What the in-process store holds."""

    log_records: int
    log_kb: float
    index_kb: float
    blobs: int
    """Without segments of events: each mark begins a session, and the events of ten sessions are kept."""


class Ageing(ABC):
    """Something that commits repeatedly."""

    root: str
    counts: Counter[str]

    @abstractmethod
    async def begin(self) -> None:
        """Start it, with nothing to go on from."""

    @abstractmethod
    async def commit(self, number: int) -> None:
        """Process a batch, commit it, and clean up."""

    @abstractmethod
    async def start_again(self) -> None:
        """Do what a successor does at its start."""

    async def end(self) -> None:  # noqa: B027 - a job of nothing but objects has nothing open
        """Release what is open."""

    async def measure_start(self) -> tuple[float, int]:
        """Return how long a successor takes to start, and how many requests."""
        before = self.counts.copy()
        began = time.process_time()
        await self.start_again()
        elapsed_s = time.process_time() - began
        made = self.counts - before
        self.counts.subtract(made)
        return elapsed_s * 1e3, sum(n for kind, n in made.items() if kind != "names listed")

    def held(self) -> Held:
        """Return what the store holds."""
        blobs = stored(self.root)
        logged = [len(data) for name, data in blobs.items() if "/log/" in name]
        indexes = [len(data) for name, data in blobs.items() if is_index(name)]
        mean = sum(indexes) / max(1, len(indexes))
        events = sum("/events-" in name for name in blobs)
        return Held(
            len(logged),
            round(sum(logged) / 1024, 1),
            round(mean / 1024, 2),
            len(blobs) - events,
        )


class AgeingJob(Ageing):
    """Commits repeatedly; its newest attempts, pins and failures are those of a scenario."""

    def __init__(self, tasks: int, scenario: str, retain_ms: int) -> None:
        self.root = f"growth-{tasks}-{scenario}"
        forget_root(self.root)
        self._tasks = range(tasks)
        self._scenario = scenario
        self._clock = FakeClock()
        self._executor = SerialExecutor()
        self.counts = Counter()
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
            session="a1",
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
        self._clean_up = job_clean_up(
            self._spec,
            tasks,
            self._factories,
            log=self._writer,
            checkpoints=self._checkpoints,
            executor=self._executor,
            clock=self._clock,
        )

    def blobs(self) -> CountedBlobs:
        """Return a client of the job's store."""
        inner = MemoryBlobStoreManager(self.root, self._executor)
        return CountedBlobs(inner, self.counts, may_delete=self._scenario != "failing")

    @override
    async def begin(self) -> None:
        await self._writer.open()
        await self._writer.take_over("growth")
        await self._commit_record(0, {}, batch=-1)

    @override
    async def commit(self, number: int) -> None:
        self._clock.advance(SECONDS_A_COMMIT)
        if self._scenario == "aborts" and number % 2:
            await self._abort()
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
            await MemoryBlobStoreManager(self.root, self._executor).delete(markers[0])
        await self._clean_up.run()

    @override
    async def start_again(self) -> None:
        await LogSession(BlobJobLog(self.blobs(), "j")).poll()

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

    async def _abort(self) -> None:
        attempt = await self._begin_attempt("0_0")
        await self._writer.append(AbortRecord(attempt_epoch=1, attempt=attempt, reason="growth"))

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


class AgeingTask(Ageing):
    """A task in plain Python, whose store, deltas, snapshots and indexes are real."""

    root = ROOT
    counts = COUNTS

    def __init__(self) -> None:
        forget_root(ROOT)
        COUNTS.clear()
        self._clock = FakeClock()
        self._open = AsyncExitStack()
        self._task: Task | None = None

    @override
    async def begin(self) -> None:
        """Restore on a disk of its own: what an earlier start left on its disk is gone."""
        directory = self._open.enter_context(tempfile.TemporaryDirectory(prefix="growth-"))
        config = load_dict(
            {
                "job.name": "j",
                "job.logged.store.base.dir": directory,
                "stores.default.factory": "memory",
                "stores.backup.factories": "blob",
                "blob.store.manager.factory": f"{__name__}:{count_in_process.__name__}",
                "task.commit.ms": "0",
            }
        )
        container = await self._open.enter_async_context(Container(config, clock=self._clock))
        self._task = await container.start_task("Partition 0", ["s"])

    @override
    async def commit(self, number: int) -> None:
        assert self._task is not None  # noqa: S101 - `begin` comes first
        self._clock.advance(SECONDS_A_COMMIT)
        for key in range(5):
            self._task.store("s").put(b"%d" % ((number * 5 + key) % _KEYS), b"%d" % number)
        await (await self._task.commit({_INPUT: str(number)}, force=True)).wait()
        await self._task.wait()

    @override
    async def start_again(self) -> None:
        await self.end()
        await self.begin()

    @override
    async def end(self) -> None:
        await self._open.aclose()


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
