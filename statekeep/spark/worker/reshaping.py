"""Gives the state of a commit to another number of tasks, on executors: split, then made and backed up.

Each old task is restored once, and each new task is written and uploaded once. Between the two, Spark's
shuffle carries the entries, packed, and in any order: sorting them would take as long as the rest. The
first Python stage knows only the registry of its own task, so the second one gives variables their
common numbers.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from statekeep.spark.rescaling import MergedRegistry, Moves, RoutedEntries
from statekeep.spark.state.writing import open_in
from statekeep.spark.tasks import SCRATCH, SCRATCH_PREFIX, operator_tasks, task_name
from statekeep.stores.base import KeyValueStore
from statekeep.stores.private_directories import make_private
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.temporary_directory import temporary_directory
from statekeep.stores.version import SealedVersion

SPLIT_SCHEMA: Final = (
    "task int, store string, source int, registry binary, entries binary, sent int"
)
MADE_SCHEMA: Final = "answer string"
_SPLIT: Final = pa.schema(
    [
        ("task", pa.int32()),
        ("store", pa.string()),
        ("source", pa.int32()),
        ("registry", pa.binary()),
        ("entries", pa.binary()),
        ("sent", pa.int32()),
    ]
)
_MADE: Final = pa.schema([("answer", pa.string())])
_CHUNK_BYTES: Final = 256 << 10
"""Of the entries in one row of the shuffle."""

_Entries = list[tuple[bytes, bytes]]
_encoder: Final = msgspec.msgpack.Encoder()
_entries_decoder: Final = msgspec.msgpack.Decoder(_Entries)


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
        return operator_tasks(self._operator_of(source), self.operators, self.partitions)

    def former_of(self, source: int) -> range:
        """Return the old tasks of the operator of an old task."""
        before = self.commit.identity.partitions
        return operator_tasks(self._operator_of(source), self.operators, before)

    def _operator_of(self, source: int) -> int:
        return source * self.operators // self.commit.identity.partitions

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
                    splitting = Splitting(
                        store, source, reshape.targets_of(source), reshape.former_of(source)
                    )
                    yield from splitting.rows(opened)


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

    def __init__(self, store: StoreName, source: int, targets: range, former: range) -> None:
        """Begin with none.

        Args:
            store: The name of the store.
            source: The old task.
            targets: The new tasks.
            former: The old ones.
        """
        self._store = store
        self._source = source
        self._targets = targets
        self._own = source - former.start, len(former)
        self._registry: bytes | None = None
        self._waiting: list[_Entries] = [[] for _ in targets]
        self._bytes = [0] * len(targets)
        self._sent = [0] * len(targets)

    def rows(self, store: KeyValueStore | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all entries, then one for each new task with their number.

        Args:
            store: None is an empty one.

        Raises:
            CheckpointCorruptError: An entry cannot be routed, or is none of the old task's.
        """
        if store is not None:
            routed = RoutedEntries(store, len(self._targets), self._own)
            self._registry = routed.registry
            for nth, key, value in routed:
                self._waiting[nth].append((key, value))
                self._bytes[nth] += len(key) + len(value)
                if self._bytes[nth] >= _CHUNK_BYTES:
                    yield self._packed(nth)
        for nth, waiting in enumerate(self._waiting):
            if waiting:
                yield self._packed(nth)
        for nth, sent in enumerate(self._sent):
            yield self._row(nth, None, None, sent)

    def _packed(self, nth: int) -> pa.RecordBatch:
        entries = self._waiting[nth]
        self._waiting[nth], self._bytes[nth] = [], 0
        self._sent[nth] += len(entries)
        return self._row(nth, self._registry, _encoder.encode(entries), None)

    def _row(self, nth: int, *values: bytes | int | None) -> pa.RecordBatch:
        row = [self._targets[nth], self._store, self._source, *values]
        arrays = [pa.array([v], t) for v, t in zip(row, _SPLIT.types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_SPLIT)


SplitRow = tuple[int, StoreName, int, bytes | None, bytes | None, int | None]
"""New task, store, old task; registry of the old task's store and entries; or how many it has sent."""


def make_tasks(batches: Iterator[pa.RecordBatch], reshape: Reshape) -> Iterator[pa.RecordBatch]:
    """Write new tasks, back them up, and yield what each has; in a Spark task.

    Any number of attempts may run: each has uploads of its own, and one of them is named in the commit.

    Args:
        batches: Rows of `split_tasks`, all those of a task one after the other.
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

    def __init__(
        self,
        task: TaskName,
        expected: Iterable[tuple[StoreName, int]],
        open_store: Callable[[StoreName], KeyValueStore],
    ) -> None:
        """Begin with none.

        Args:
            task: The new task.
            expected: The stores and old tasks that it is to hear of.
            open_store: Opens a store, which is empty.
        """
        self._task = task
        self._expected = {*expected}
        self._open_store = open_store
        self._stores: dict[StoreName, _FilledStore] = {}
        self._sent: dict[tuple[StoreName, int], int] = {}
        """What the old tasks say."""
        self._found: Counter[tuple[StoreName, int]] = Counter()

    @property
    def entries(self) -> int:
        """How many were written, of all stores."""
        return self._found.total()

    def fill(self, rows: Iterable[SplitRow]) -> None:
        """Write what all old tasks have sent, in any order: they have no key in common.

        Raises:
            CheckpointCorruptError: Not every entry has come, or not each old task was heard of.
            StateSchemaError: Two tasks have a variable of one name, but not of one form.
        """
        for _, name, source, registry, content, sent in rows:
            if name not in self._stores:
                self._stores[name] = _FilledStore(self._open_store(name))
            if sent is not None:
                self._sent[name, source] = sent
            elif registry is not None and content is not None:
                entries = _entries_decoder.decode(content)
                self._stores[name].write(source, registry, entries)
                self._found[name, source] += len(entries)
        if self._sent.keys() != self._expected:
            raise CheckpointCorruptError(
                f"a new task did not get the state of every old one: task={self._task}"
                f" missing={sorted(self._expected - self._sent.keys())}"
            )
        for each in sorted(self._sent.keys() | self._found.keys()):
            found, sent = self._found[each], self._sent.get(each)
            if found != sent:
                store, source = each
                raise CheckpointCorruptError(
                    f"a new task does not get all that an old one has sent: task={self._task}"
                    f" store={store} source={source} entries={found} sent={sent}"
                )
        for filled in self._stores.values():
            filled.finish()


class _FilledStore:
    """One store of a new task."""

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        self._registry = MergedRegistry()
        self._moves: dict[int, Moves] = {}
        """By old task."""

    def write(self, source: int, registry: bytes, entries: _Entries) -> None:
        """Write entries of an old task, with the numbers that its variables have here."""
        if source not in self._moves:
            self._moves[source] = self._registry.add(registry)
        moves = self._moves[source]
        self._store.load(entries if moves.is_none else (moves.moved(*entry) for entry in entries))

    def finish(self) -> None:
        """Add the registry of all, if there are any entries."""
        if self._moves:
            self._store.put(REGISTRY_KEY, self._registry.encode())


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

    def make(self, rows: Iterable[SplitRow]) -> Made:
        """Take in all rows of the task."""
        written = self._write(rows)
        if written is None:
            return empty_task(self._reshape, self._task)
        version, entries = written
        uploads, reshape = _Uploads(), self._reshape
        checkpoint = run_apart(self._back_up(version, uploads))
        require_markers(self._identity.task_name, version, checkpoint, reshape.stores)
        text = encode_checkpoint_v2(checkpoint).decode()
        return Made(self._task, str(version.id), text, entries, uploads.sent)

    def _write(self, rows: Iterable[SplitRow]) -> tuple[SealedVersion, int] | None:
        """Return what was written, and how many entries it has; None: no state."""
        reshape = self._reshape
        with self._directory.begin(random_nonce(), None, reshape.stores) as work:
            filling = Filling(
                self._identity.task_name,
                reshape.expected_by(self._task),
                lambda store: open_in(work, store, reshape.config, is_to_load=True),
            )
            filling.fill(rows)
            if not filling.entries:
                return None
            version = VersionId.parse(reshape.versions[self._task])
            return work.seal(version.batch, version.uid, None), filling.entries

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
