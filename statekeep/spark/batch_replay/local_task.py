"""One task of the operator in this process: its state as it was, on which batches run one after the other."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from statekeep.backends.awaiting import run_all
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.checkpoint.log_session import random_nonce
from statekeep.checkpoint.records import TaskBatch
from statekeep.clock import SystemClock
from statekeep.errors import StateBackupError
from statekeep.inspection.job import LogStorage, open_log_storage
from statekeep.inspection.task_restore import restore_task, stores_of, task_identity
from statekeep.spark.batch_replay.recorded import RecordedRun
from statekeep.spark.initial_state import divide
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.due import next_times
from statekeep.spark.operator.grouping import GroupingOverflow, hold
from statekeep.spark.operator.runner import OperatorSpec, TimedOutcome, run_operator
from statekeep.spark.placement import DIGEST_COLUMN
from statekeep.spark.tasks import STATE_STORE, task_name
from statekeep.spark.variable_stores import lasting_stores, stores_of_query
from statekeep.stores.base import KeyValueStore
from statekeep.stores.rocksdb import RocksDbOptions
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion

_SESSION: Final = "replayed batch"
"""In place of a driver session: what is in a cache is of none."""


@dataclass(frozen=True)
class LocalRun:
    """What a task did in a batch here."""

    done: TaskBatch
    """As a batch record has it, without a version."""
    output: Sequence[pa.RecordBatch]
    key_range: str = ""
    timed: TimedOutcome = field(default_factory=TimedOutcome)


async def restore_tasks(
    run: RecordedRun, tasks: Sequence[int], directory: Path
) -> Sequence[SealedVersion | None]:
    """Restore the stores of tasks at the commit, several at a time; None for empty state.

    Raises:
        ConfigError: A setting is wrong.
        RestoreFailedError: The state is out of reach.
    """
    async with open_log_storage(run.config, SystemClock()) as storage:
        return await run_all(_restore(run, storage, task, directory) for task in tasks)


async def _restore(
    run: RecordedRun, storage: LogStorage, task: int, directory: Path
) -> SealedVersion | None:
    if not run.commit.versions.get(task_name(task)):
        return None
    listed = {name for stores in stores_of(run.commit).values() for name in stores}
    outcome = await restore_task(
        run.config,
        storage.factories,
        run.commit,
        task_name(task),
        directory,
        executor=storage.executor,
        clock=storage.clock,
        bad_markers=run.bad_markers,
        only=listed.intersection(lasting_stores(run.config)),
    )
    return outcome.version


class LocalTask:
    """A task whose stores are open here. Used by one thread; a context of which files are gone after it."""

    def __init__(
        self, run: RecordedRun, task: int, version: SealedVersion | None, directory: Path
    ) -> None:
        identity = task_identity(run.commit, task_name(task))
        self._names = stores_of_query(run.config)
        self._config = run.config
        self._directory = TaskDirectory.of(directory, identity)
        self._version = version
        self._stack = ExitStack()
        self._stores: dict[StoreName, KeyValueStore] = {}

    def __enter__(self) -> Self:
        work = self._stack.enter_context(
            self._directory.begin(random_nonce(), self._version, self._names)
        )
        for name in self._names:
            settings = self._config.store(name)
            options = RocksDbOptions.of(settings)
            self._stores[name] = work.open_store(name, settings.factory, options)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def process(
        self,
        operator: OperatorSpec,
        processor: StatefulProcessor,
        rows: Sequence[pa.RecordBatch],
        clock: BatchClock,
        *,
        has_initial_state: bool,
    ) -> LocalRun:
        """Run a batch as a task of the runtime does, on this thread.

        Args:
            operator: What to run.
            processor: The user's, used for this call alone.
            rows: Of the task; a task without any runs only if something is due.
            clock: The time of the batch.
            has_initial_state: Whether rows of the initial state are among them.

        Raises:
            StateBackupError: The rows are too many for one process.
            Exception: Whatever the processor raises, with a note that names the grouping key.
        """
        state = self._stores[STATE_STORE]
        if not rows and not self._is_due(operator.time_mode, clock):
            return LocalRun(TaskBatch(version=""), ())
        # As one batch, in which rows of the initial state are found wherever they stand.
        held = _joined(rows)
        given: Iterator[pa.RecordBatch] = iter([] if held is None else [held])
        initial: Iterator[pa.RecordBatch] | None = None
        if has_initial_state and operator.initial_state is not None:
            initial, given = divide(given, DIGEST_COLUMN)
        output: list[pa.RecordBatch] = []
        write: Callable[[pa.RecordBatch], None] = output.append
        outcome = run_operator(
            replace(operator, processor=processor, grouping_max_bytes=sys.maxsize),
            state,
            given,
            is_sorted=False,
            clock=clock,
            write_output=write,
            digest_column=DIGEST_COLUMN,
            initial=initial,
            others={name: store for name, store in self._stores.items() if name != STATE_STORE},
            session=_SESSION,
        )
        done = TaskBatch(
            version="",
            rows_in=outcome.rows_in,
            rows_out=outcome.rows_out,
            input_digest=outcome.input_digest,
            output_digest=outcome.output_digest,
            changes_digest=outcome.changes_digest,
        )
        return LocalRun(done, output, outcome.key_range, outcome.timed)

    def _is_due(self, mode: TimeMode, clock: BatchClock) -> bool:
        if mode is TimeMode.NONE:
            return False
        lasting = (self._stores[n] for n in lasting_stores(self._config) if n != STATE_STORE)
        return next_times(self._stores[STATE_STORE], mode, lasting).are_due(clock, mode)


def _joined(rows: Sequence[pa.RecordBatch]) -> pa.RecordBatch | None:
    try:
        return hold(iter(rows), sys.maxsize)
    except GroupingOverflow as exc:
        raise StateBackupError(
            "the rows of a task in a batch are too many to run again here: more than 2 GiB in a column"
        ) from exc
