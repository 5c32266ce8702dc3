"""Gives the state of a commit to another number of tasks, on executors: split, then made and backed up.

Each old task is restored once, and each new task is written and uploaded once. Between the two, Spark's
shuffle carries the entries, packed. The first Python stage knows only the registry of its own task, so
the second one gives variables their common numbers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoints import (
    CheckpointId,
    CheckpointV2,
    StoreName,
    SystemStreamPartition,
    TaskName,
    VersionId,
)
from statekeep.checkpoint.log_session import random_nonce
from statekeep.checkpoint.names import MAIN_OPERATOR, escape_name
from statekeep.checkpoint.records import CommitRecord
from statekeep.checkpoint.serde import encode_checkpoint_v2
from statekeep.clock import SystemClock
from statekeep.config.model import Config
from statekeep.errors import CheckpointCorruptError, RestoreFailedError
from statekeep.fault_points import fault_point
from statekeep.inspection.job import open_log_storage
from statekeep.inspection.state_copy import CommitBackups, require_markers
from statekeep.inspection.task_restore import restore_task, stores_of, task_identity
from statekeep.restore.plan import BadMarkers
from statekeep.spark.operator.registry import REGISTRY_KEY
from statekeep.spark.own_loop import run_apart
from statekeep.spark.rescaling import MergedRegistry, RoutedEntries
from statekeep.spark.state.writing import open_in
from statekeep.spark.tasks import SCRATCH, SCRATCH_PREFIX, operator_tasks, task_name
from statekeep.stores.base import KeyValueStore
from statekeep.stores.private_directories import make_private
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.temporary_directory import temporary_directory
from statekeep.stores.version import SealedVersion

SPLIT_SCHEMA: Final = "task int, store string, source int, number int, content binary"
MADE_SCHEMA: Final = "answer string"
_SPLIT: Final = pa.schema(
    [
        ("task", pa.int32()),
        ("store", pa.string()),
        ("source", pa.int32()),
        ("number", pa.int32()),
        ("content", pa.binary()),
    ]
)
_MADE: Final = pa.schema([("answer", pa.string())])
_CHUNK_BYTES: Final = 256 << 10
"""Of the entries in one row of the shuffle."""
_HEADER: Final = 0
"""Number of the row that says what the others of its task, store and source are; they begin with 1."""

_Entries = list[tuple[bytes, bytes]]
_encoder: Final = msgspec.msgpack.Encoder()
_entries_decoder: Final = msgspec.msgpack.Decoder(_Entries)


class _Header(msgspec.Struct, frozen=True):
    """What one old task has sent of a store to one new task."""

    registry: bytes | None
    """Of the old task's store; None where that was empty."""
    entries: int


_header_decoder: Final = msgspec.msgpack.Decoder(_Header)


@dataclass(frozen=True, slots=True)
class Reshape:
    """What the executors have to know."""

    config: Config
    """Names the backend of the job log."""
    local_name: str
    """Of the job's directory on a host."""
    commit: CommitRecord
    """In the old shape."""
    bad_markers: BadMarkers
    operators: int
    partitions: int
    """How many tasks the job is to have, of all operators."""
    epoch: int
    attempt: int
    checkpoint_id: str
    versions: Mapping[int, str]
    """``{new task: VersionId}`` of those that turn out to have state."""
    inputs: Mapping[int, Mapping[SystemStreamPartition, str]]
    """Of the new tasks' checkpoints."""

    def targets_of(self, source: int) -> range:
        """Return the new tasks of the operator of an old task."""
        operator = source * self.operators // self.commit.identity.partitions
        return operator_tasks(operator, self.operators, self.partitions)

    @property
    def sources(self) -> Sequence[int]:
        """The old tasks that have state."""
        every = range(self.commit.identity.partitions)
        return [task for task in every if self.commit.versions.get(task_name(task))]

    def expected_by(self, task: int) -> set[tuple[StoreName, int]]:
        """Return which stores of which old tasks a new task hears of."""
        operator = task * self.operators // self.partitions
        old = operator_tasks(operator, self.operators, self.commit.identity.partitions)
        return {(s, source) for s in self.stores for source in self.sources if source in old}

    @property
    def stores(self) -> Sequence[StoreName]:
        """Of every task."""
        return stores_of(self.commit)[MAIN_OPERATOR]

    def scratch(self) -> Path:
        """Return a directory for temporary ones, on the disk of the job's local state."""
        return make_private(self.config.job.local_dir, escape_name(self.local_name), SCRATCH)


class Made(msgspec.Struct, frozen=True):
    """What one new task has."""

    task: int
    version: str
    """"" for empty state."""
    checkpoint: str
    """CheckpointV2 in JSON."""
    entries: int
    bytes_uploaded: int


_made_decoder: Final = msgspec.json.Decoder(Made)


def parse_made(answer: str) -> Made:
    """Read the answer for one new task."""
    return _made_decoder.decode(answer)


def empty_task(reshape: Reshape, task: int) -> Made:
    """Return what a new task has that has got no state."""
    checkpoint = CheckpointV2(CheckpointId.parse(reshape.checkpoint_id), reshape.inputs[task])
    return Made(task, "", encode_checkpoint_v2(checkpoint).decode(), 0, 0)


def split_tasks(batches: Iterator[pa.RecordBatch], reshape: Reshape) -> Iterator[pa.RecordBatch]:
    """Restore old tasks, and yield their entries with the new tasks that they go to; in a Spark task.

    Args:
        batches: Indexes in the list of `Reshape.sources`.
        reshape: What to do.

    Raises:
        RestoreFailedError: The state of a task is out of reach.
        CheckpointCorruptError: An entry cannot be read.
    """
    indexes = [index for batch in batches for index in batch.column(0).to_pylist()]
    for index in indexes:
        fault_point("reshape.before_split")
        source = reshape.sources[index]
        with temporary_directory(SCRATCH_PREFIX, reshape.scratch()) as directory:
            version = run_apart(_restore(reshape, source, directory))
            restored = TaskDirectory.of(directory, task_identity(reshape.commit, task_name(source)))
            present = [store for store in reshape.stores if version.store_files(store)]
            with restored.begin(random_nonce(), version, present) as work:
                for store in reshape.stores:
                    opened = open_in(work, store, reshape.config) if store in present else None
                    yield from Splitting(store, source, reshape.targets_of(source)).rows(opened)


async def _restore(reshape: Reshape, source: int, directory: Path) -> SealedVersion:
    clock, name = SystemClock(), task_name(source)
    async with open_log_storage(reshape.config, clock) as storage:
        outcome = await restore_task(
            reshape.config,
            storage.factories,
            reshape.commit,
            name,
            directory,
            executor=storage.executor,
            clock=clock,
            bad_markers=reshape.bad_markers,
        )
    version = outcome.version
    if version is None or not any(map(version.store_files, reshape.stores)):
        raise RestoreFailedError(
            "no store of the task could be restored", task_name=name, store_names=reshape.stores
        )
    return version


class Splitting:
    """Packs the entries of one store of an old task for the new tasks of its operator."""

    def __init__(self, store: StoreName, source: int, targets: range) -> None:
        """Begin with none.

        Args:
            store: The name of the store.
            source: The old task.
            targets: The new tasks.
        """
        self._store = store
        self._source = source
        self._targets = targets
        self._waiting: list[_Entries] = [[] for _ in targets]
        self._bytes = [0] * len(targets)
        self._rows = [0] * len(targets)
        self._entries = [0] * len(targets)

    def rows(self, store: KeyValueStore | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all entries, then the headers; None is an empty store."""
        routed = () if store is None else RoutedEntries(store, len(self._targets))
        for nth, key, value in routed:
            self._waiting[nth].append((key, value))
            self._bytes[nth] += len(key) + len(value)
            if self._bytes[nth] >= _CHUNK_BYTES:
                yield self._packed(nth)
        for nth, waiting in enumerate(self._waiting):
            if waiting:
                yield self._packed(nth)
        registry = routed.registry if isinstance(routed, RoutedEntries) else None
        for nth, entries in enumerate(self._entries):
            header = _encoder.encode(_Header(registry, entries))
            yield self._row(nth, _HEADER, header)

    def _packed(self, nth: int) -> pa.RecordBatch:
        entries = self._waiting[nth]
        self._waiting[nth], self._bytes[nth] = [], 0
        self._entries[nth] += len(entries)
        self._rows[nth] += 1
        return self._row(nth, self._rows[nth], _encoder.encode(entries))

    def _row(self, nth: int, number: int, content: bytes) -> pa.RecordBatch:
        values = [self._targets[nth], self._store, self._source, number, content]
        arrays = [pa.array([v], t) for v, t in zip(values, _SPLIT.types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_SPLIT)


SplitRow = tuple[int, StoreName, int, int, bytes]
"""New task, store, old task, number, content."""


def make_tasks(batches: Iterator[pa.RecordBatch], reshape: Reshape) -> Iterator[pa.RecordBatch]:
    """Write new tasks, back them up, and yield what each has; in a Spark task.

    Any number of attempts may run: each has uploads of its own, and one of them is named in the commit.

    Args:
        batches: Rows of `split_tasks`, sorted by task, store, source and number.
        reshape: What to do.

    Raises:
        CheckpointCorruptError: Not every entry has come.
        StateSchemaError: Two tasks have a variable of one name, but not of one form.
        CommitFailedError: A backend did not take a task.
    """
    for task, rows in groupby(split_rows(batches), key=lambda row: row[0]):
        fault_point("reshape.before_make")
        with temporary_directory(SCRATCH_PREFIX, reshape.scratch()) as directory:
            made = _Making(reshape, task, directory).make(rows)
        answer = msgspec.json.encode(made).decode()
        yield pa.RecordBatch.from_arrays([pa.array([answer], pa.string())], schema=_MADE)


def split_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[SplitRow]:
    """Yield the rows of batches."""
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in _SPLIT.names), strict=True)


class Filling:
    """Writes into the stores of one new task what old tasks have sent."""

    def __init__(self, task: TaskName, expected: Iterable[tuple[StoreName, int]]) -> None:
        """Begin with none.

        Args:
            task: The new task.
            expected: The stores and old tasks that it is to hear of.
        """
        self._task = task
        self._missing = set(expected)
        self.entries = 0
        """Of all stores."""

    def fill(self, name: StoreName, store: KeyValueStore, rows: Iterable[SplitRow]) -> None:
        """Write what all old tasks have sent for one store.

        Raises:
            CheckpointCorruptError: Not every entry has come.
            StateSchemaError: Two tasks have a variable of one name, but not of one form.
        """
        registry, given = MergedRegistry(), 0
        for source, of_source in groupby(rows, key=lambda row: row[2]):
            contents = iter(of_source)
            header = self._header(name, source, next(contents))
            given += header.entries
            if header.registry is None:
                continue
            moves = registry.add(header.registry)
            for *_, content in contents:
                store.write(dict(moves.moved(*entry) for entry in _entries_decoder.decode(content)))
        found = sum(1 for _ in store.scan())
        if found != given:
            raise CheckpointCorruptError(
                f"the new task does not hold what it was given: task={self._task} "
                f"store={name} entries={found} given={given}"
            )
        self.entries += given
        if given:
            store.put(REGISTRY_KEY, registry.encode())

    def require_all(self) -> None:
        """Make sure that each old task was heard of.

        Raises:
            CheckpointCorruptError: One was not.
        """
        if self._missing:
            raise CheckpointCorruptError(
                f"a new task did not get the state of every old one: task={self._task}"
                f" missing={sorted(self._missing)}"
            )

    def _header(self, store: StoreName, source: int, row: SplitRow) -> _Header:
        *_, number, content = row
        if number != _HEADER or (store, source) not in self._missing:
            raise CheckpointCorruptError(
                f"entries of a task have come without their header: source={source} store={store}"
            )
        self._missing.remove((store, source))
        return _header_decoder.decode(content)


class _Making:
    """Writes one new task and backs it up."""

    def __init__(self, reshape: Reshape, task: int, directory: Path) -> None:
        self._reshape = reshape
        self._task = task
        job = reshape.commit.identity
        self._identity = TaskIdentity(
            job.job_name, MAIN_OPERATOR, task_name(task), job_uid=job.job_uid
        )
        self._directory = TaskDirectory.of(directory, self._identity)
        self._filling = Filling(self._identity.task_name, reshape.expected_by(task))

    def make(self, rows: Iterable[SplitRow]) -> Made:
        """Take in all rows of the task."""
        version = self._write(rows)
        if version is None:
            return empty_task(self._reshape, self._task)
        uploads, reshape = _Uploads(), self._reshape
        checkpoint = run_apart(self._back_up(version, uploads))
        require_markers(self._identity.task_name, version, checkpoint, reshape.stores)
        text = encode_checkpoint_v2(checkpoint).decode()
        return Made(self._task, str(version.id), text, self._filling.entries, uploads.sent)

    def _write(self, rows: Iterable[SplitRow]) -> SealedVersion | None:
        reshape = self._reshape
        with self._directory.begin(random_nonce(), None, reshape.stores) as work:
            for store, of_store in groupby(rows, key=lambda row: row[1]):
                self._filling.fill(store, open_in(work, store, reshape.config), of_store)
            self._filling.require_all()
            if not self._filling.entries:
                return None
            version = VersionId.parse(reshape.versions[self._task])
            return work.seal(version.batch, version.uid, None)

    async def _back_up(self, version: SealedVersion, uploads: "_Uploads") -> CheckpointV2:
        reshape, clock = self._reshape, SystemClock()
        async with open_log_storage(reshape.config, clock) as storage:
            backups = CommitBackups(
                factories=storage.factories,
                stores={store: reshape.config.store(store) for store in reshape.stores},
                epoch=reshape.epoch,
                attempt=reshape.attempt,
                checkpoint_id=CheckpointId.parse(reshape.checkpoint_id),
                executor=storage.executor,
                clock=clock,
                uploads=uploads,
                optional_timeout_s=reshape.config.task.commit_optional_timeout_ms / 1000,
            )
            return await backups.back_up(self._identity, version, reshape.inputs[self._task])


class _Uploads:
    """Counts what is uploaded."""

    def __init__(self) -> None:
        self.sent = 0

    def expect(self, size: int, /) -> None:
        """As `Uploads` has it."""

    def add(self, size: int, /) -> None:
        """As `Uploads` has it."""
        self.sent += size
