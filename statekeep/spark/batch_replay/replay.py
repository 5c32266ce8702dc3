"""The flight recorder: one recorded batch again, on its state as it was, in this process."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from statekeep.checkpoint.records import TaskBatch
from statekeep.errors import ConfigError, RestoreFailedError
from statekeep.inspection.recommit import TASKS_AT_ONCE
from statekeep.spark.batch_replay.local_task import LocalRun, LocalTask, restore_tasks
from statekeep.spark.batch_replay.recorded import RecordedRun, find_recorded
from statekeep.spark.batch_replay.result import Difference, ReplayedBatch, compared
from statekeep.spark.batch_replay.source_rows import SourceRows
from statekeep.spark.batch_replay.trace import Tracer
from statekeep.spark.batch_replay.traced_processor import TracedProcessor
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.opening import source_limits
from statekeep.spark.operator.arrow_function import ArrowProcessor
from statekeep.spark.operator.columns import arrow_schema
from statekeep.spark.operator.runner import OperatorSpec, TimedOutcome
from statekeep.spark.own_loop import run_apart
from statekeep.spark.session import session_builder
from statekeep.spark.stage import QueryDefinition
from statekeep.spark.state.key_text import parse_fields
from statekeep.spark.state.keys import KeyRouter
from statekeep.spark.variable_stores import variable_stores_of
from statekeep.spark.writer import StatefulStreamWriter
from statekeep.stores.local_files import remove_tree
from statekeep.stores.temporary_directory import temporary_directory

_SCRATCH: Final = "statekeep-replay-"


def replay_batch(
    query: StatefulStreamWriter,
    batch: int,
    key: Sequence[Any] | Mapping[str, Any] | str | int | None = None,
    *,
    debug: bool = False,
) -> ReplayedBatch:
    """Run one recorded batch of a job again, on its state as it was, and tell what it did to each key.

    The newest retained commit before the batch is restored to a temporary directory; Spark reads the rows of
    the batches since then from the source, with their recorded boundaries. Then the operator runs in this
    process, on the calling thread, as a task of the runtime does. The job is only read and may run meanwhile:
    no record, no file in the checkpoint location, no output. Needs local disk for the state of the tasks that
    run, and for the rows of the batches since the commit.

    Args:
        query: ``writeStream`` of the query with its ``checkpointLocation``, and its ``queryName`` if it has one,
            just before ``start``.
        batch: The number of the batch.
        key: One grouping key, as `read_state` takes it: its task alone runs, and only this key is traced.
        debug: Whether ``breakpoint()`` stops in the processor, while it has a key that is traced.
            Else it is ignored.

    Returns:
        What each key had and did. Another result than recorded is no error; `ReplayedBatch.differences` has it.

    Raises:
        ConfigError: The batch is not retained, there is no such job, the key does not fit, a source keeps no
            rows, or the query has several stateful operators.
        CheckpointLocationError: The location is another query's, or boundaries are gone.
        RestoreFailedError: No backend can give the state.
        StateBackupError: The source cannot be read again.
        Exception: Whatever the processor raises, with a note that names the grouping key.
    """
    definition = query.definition()
    return _replayed(definition, batch, key, debug=debug)


def replay_by_command(
    program: str,
    batch: int,
    key: str | None,
    *,
    debug: bool,
    master: str | None,
    session_settings: Mapping[str, str],
) -> ReplayedBatch:
    """Replay with a session that ends with it, unless there is one already.

    Args:
        program: ``module:function``, called with the session; returns what `replay_batch` takes.
        batch: The batch.
        key: As the user typed it.
        debug: As in `replay_batch`.
        master: Of Spark; None: as spark-submit says.
        session_settings: Of a session that is begun.

    Raises:
        ConfigError: There is no such function, or it returns something else.
    """
    function = find_function(program)
    is_new = SparkSession.getActiveSession() is None
    builder = session_builder(master)
    for name, value in session_settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        query = function(spark)
        if not isinstance(query, StatefulStreamWriter):
            raise ConfigError(
                f"the function does not return a query: program={program} found={type(query).__name__}",
                hint="return writeStream of the stateful frame with its options, before start()",
            )
        definition = query.definition()
        given: Any = key
        if key is not None and len(definition.stages) == 1:
            given = parse_fields(key, definition.stages[0].operator.key_schema)
        return _replayed(definition, batch, given, debug=debug)
    finally:
        if is_new:
            spark.stop()


def find_function(program: str) -> Any:  # noqa: ANN401 - the user's
    """Return the function that ``module:function`` names; the module may lie in the working directory.

    Raises:
        ConfigError: There is none.
    """
    module, colon, name = program.partition(":")
    if not colon or not module or not name:
        raise ConfigError(f"no function is named: program={program}", hint="write module:function")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{module}.".startswith(f"{exc.name}."):
            raise  # the module needs another one
        raise ConfigError(
            f"there is no such module: program={program} module={exc.name}",
            hint="run the command where the module lies, or set PYTHONPATH",
        ) from exc
    function = getattr(found, name, None)
    if not callable(function):
        raise ConfigError(
            f"the module has no such function: program={program}",
            hint="name a function that takes the session and returns the query before start()",
        )
    return function


def _replayed(query: QueryDefinition, batch: int, key: Any, *, debug: bool) -> ReplayedBatch:  # noqa: ANN401 - as `replay_batch`
    if len(query.stages) != 1:
        raise ConfigError(
            f"only a query with one stateful operator can run again: operators={len(query.stages)}"
        )
    limits = source_limits(query.source)
    if limits:
        raise ConfigError(f"the rows of a batch cannot be read again: {limits[0]}")
    run = run_apart(find_recorded(query, batch))
    front, task = _chosen(query.stages[0].operator, run, key)
    with temporary_directory(_SCRATCH) as directory:
        rows = SourceRows(run, directory)
        spark = query.source.sparkSession
        rows.read_again(query, CheckpointLocation(spark, (directory / "spark").as_uri()), task)
        return _Replay(query, run, rows, Tracer(front, is_stopping=debug)).of(directory, task)


def _chosen(
    operator: OperatorSpec,
    run: RecordedRun,
    key: Any,  # noqa: ANN401 - as `replay_batch`
) -> tuple[bytes | None, int | None]:
    """Return the encoded key that is asked for, and its task."""
    if key is None:
        return None, None
    if isinstance(operator.processor, ArrowProcessor):
        raise ConfigError(
            "a function of record batches has no single keys", hint="leave the key out"
        )
    router = KeyRouter(operator.key_schema, run.commit.identity.router, range(run.partitions))
    front = router.encode(key)
    return front, router.task_of(front)


@dataclass
class _Replay:
    """The run of the tasks, one after the other."""

    query: QueryDefinition
    run: RecordedRun
    rows: SourceRows
    tracer: Tracer
    done: dict[int, dict[int, tuple[TaskBatch, str]]] = field(
        default_factory=dict[int, dict[int, tuple[TaskBatch, str]]]
    )
    """``{batch: {task: (what it did, range of keys)}}``"""
    output: list[pa.RecordBatch] = field(default_factory=list[pa.RecordBatch])
    timed: TimedOutcome = field(default_factory=TimedOutcome)

    @property
    def operator(self) -> OperatorSpec:
        operator = self.query.stages[0].operator
        stores = variable_stores_of(self.run.config, operator.name)
        return replace(operator, variable_stores=stores)

    def of(self, directory: Path, only: int | None) -> ReplayedBatch:
        """Run one task, or all that have something to do in the batch."""
        tasks = self._active() if only is None else [only]
        with self.tracer.guarding():
            for at in range(0, len(tasks), TASKS_AT_ONCE):
                self._run_some(tasks[at : at + TASKS_AT_ONCE], directory)
        schema = arrow_schema(self.operator.output_schema)
        return ReplayedBatch(
            job_name=self.run.config.job.name,
            batch=self.run.batch,
            commit_batch=self.run.commit.batch,
            tasks=tasks,
            keys=self.tracer.traces,
            untraced=self.tracer.left_out,
            output=pa.Table.from_batches(self.output, schema),
            expired_values=self.timed.expired_values,
            late_rows=self.timed.late_rows,
            differences=self._differences(),
        )

    def _active(self) -> list[int]:
        """Return the tasks that have rows in the batch, or did something by its record."""
        found = self.rows.tasks(self.run.batch)
        for task, done in self.run.tasks[self.run.batch].items():
            if done.rows_in or done.rows_out or done.version != self.run.version_before(task):
                found.add(task)
        return sorted(found)

    def _run_some(self, tasks: Sequence[int], directory: Path) -> None:
        root = directory / "state"
        try:
            versions = run_apart(restore_tasks(self.run, tasks, root))
        except RestoreFailedError as exc:
            exc.add_note("hint: a running job may have released the commit meanwhile; try again")
            raise
        for task, version in zip(tasks, versions, strict=True):
            with LocalTask(self.run, task, version, root) as local:
                self._run_batches(task, local)
        if root.exists():
            remove_tree(root)

    def _run_batches(self, task: int, local: LocalTask) -> None:
        for batch in self.run.batches:
            is_traced = batch == self.run.batch
            ran = local.process(
                self.operator,
                self._processor(task, is_traced=is_traced),
                self.rows.of_task(batch, task),
                self.run.clock(batch),
                has_initial_state=batch == 0 and self.rows.has_initial_state,
            )
            self.done.setdefault(batch, {})[task] = (ran.done, ran.key_range)
            if is_traced:
                self._take(ran)

    def _take(self, ran: LocalRun) -> None:
        self.output += ran.output
        self.timed += ran.timed

    def _processor(self, task: int, *, is_traced: bool) -> StatefulProcessor:
        """Return a processor of its own for each task and batch, as in the runtime."""
        operator = self.operator
        found: StatefulProcessor = cloudpickle.loads(cloudpickle.dumps(operator.processor))  # type: ignore[no-untyped-call]
        if not is_traced or isinstance(found, ArrowProcessor):
            return found
        columns, output = operator.row_schema.names, operator.output_schema.names
        return TracedProcessor(found, self.tracer, task, columns, output)

    def _differences(self) -> list[Difference]:
        return [
            difference
            for batch, tasks in sorted(self.done.items())
            if batch in self.run.tasks
            for difference in compared(batch, self.run.tasks[batch], tasks)
        ]
