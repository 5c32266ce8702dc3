"""The placed jobs that the driver runs, as plain calls: ask the tasks, get their answers."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    LongType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.errors import RestoreFailedError, StateBackupError
from statekeep.spark.driver.rebalancer import Rebalancer
from statekeep.spark.initial_state import (
    is_initial,
    with_initial_column,
    with_initial_state,
)
from statekeep.spark.operator.columns import arrow_schema
from statekeep.spark.operator.combiner import ROWS_COLUMN
from statekeep.spark.operator.declarations import check_declarations, check_order
from statekeep.spark.operator.registry import variables_in
from statekeep.spark.placement import Placement, fixed_partitioning
from statekeep.spark.stage import Stage, combined, operators_with_watermark, transformed
from statekeep.spark.tasks import operator_tasks, task_name
from statekeep.spark.variable_stores import check_variables
from statekeep.spark.worker import task_functions
from statekeep.spark.worker.job_spec import BatchPlan, JobSpec, Receipt, SubmitPlan, TaskCommit
from statekeep.spark.worker.process import process_slot

logger = logging.getLogger(__name__)

_SHOWN_AFTER_S: Final = 2.0
_PERIOD_S: Final = 0.5


class Background(Protocol):
    """Runs coroutines beside a blocking call; `CommitThread` is one."""

    def watch(self, work: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        """Start a coroutine; return what ends it."""
        ...


@contextmanager
def job_bar(
    spark: SparkSession, background: Background, description: str, console: Console | None = None
) -> Generator[None]:
    """Show how many tasks of the running Spark job are done, once it has lasted two seconds.

    Nothing is shown where stderr is no terminal.

    Args:
        spark: The session that runs the job on this thread, inside the block.
        background: Where the bar is drawn while this thread waits.
        description: What people wait for.
        console: Where to draw; None: stderr.
    """
    target = Console(stderr=True) if console is None else console
    if not target.is_terminal:
        yield
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
        console=target,
        auto_refresh=False,
        transient=True,
    )
    row = bar.add_task(description, total=None)

    async def draw() -> None:
        await asyncio.sleep(_SHOWN_AFTER_S)
        bar.start()
        while True:
            done, total = progress_of_newest_job(spark)
            bar.update(row, completed=done, total=total)
            bar.refresh()
            await asyncio.sleep(_PERIOD_S)

    stop = background.watch(draw)
    try:
        yield
    finally:
        stop()
        bar.stop()


def progress_of_newest_job(spark: SparkSession) -> tuple[int, int | None]:
    """Return completed and all tasks of the stage that runs now; a local look-up."""
    tracker = spark.sparkContext.statusTracker()
    for job in sorted(tracker.getActiveJobsIds(), reverse=True):
        info = tracker.getJobInfo(job)
        for stage in sorted(info.stageIds if info is not None else [], reverse=True):
            found = tracker.getStageInfo(stage)
            if found is not None and found.numTasks:
                return found.numCompletedTasks, found.numTasks
    return 0, None


_INLINE_BYTES: Final = 4 << 20
"""Most bytes of output of a batch that travel with the receipts, by way of the driver."""

_BATCH_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_PLAIN: Final = (NumericType, StringType, BinaryType, BooleanType, DateType)


def _is_simple(data_type: DataType) -> bool:
    """Return whether `createDataFrame` takes Arrow data of a type as a Python stage would give it.

    It takes nested arrays apart that have timestamps in them, and rebuilds types of the user's.
    """
    if isinstance(data_type, ArrayType):
        return _is_simple_within(data_type.elementType)
    if isinstance(data_type, MapType):
        return all(map(_is_simple_within, (data_type.keyType, data_type.valueType)))
    if isinstance(data_type, StructType):
        return all(_is_simple_within(field.dataType) for field in data_type.fields)
    return isinstance(data_type, (*_PLAIN, TimestampType, TimestampNTZType))


def _is_simple_within(data_type: DataType) -> bool:
    return _is_simple(data_type) and not isinstance(data_type, TimestampType | TimestampNTZType)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a task sends back for a batch."""

    receipt: Receipt
    output: Sequence[bytes]
    """Its output as Arrow record batches, where it came along."""


class TaskJobs:
    """Runs one Spark job per call over the slots of all tasks. Blocking, on the driver."""

    def __init__(
        self,
        spark: SparkSession,
        rebalancer: Rebalancer,
        specs: Sequence[JobSpec],
        background: Background,
        stages: Sequence[Stage],
    ) -> None:
        """Take what the jobs run.

        Args:
            spark: The session.
            rebalancer: Has the placement of the tasks of all operators.
            specs: The job with each operator, in their order.
            background: Runs what shows people how far a job is.
            stages: The operators.
        """
        self._spark = spark
        self._background = background
        self.rebalancer = rebalancer
        self.epoch = 0
        """Of this driver, once it has taken over: goes with each request to a sidecar."""
        self.executors: dict[int, str] = {}
        """Where each task has processed its newest batch."""
        self.disks: dict[str, str] = {}
        """The `local_disk` of each executor, as far as it was told."""
        self._spec = specs[0]
        """For jobs in which the operator does not matter."""
        self._specs = specs
        self._stages = stages
        self._has_watermark = operators_with_watermark(stages)
        self.tasks = [
            operator_tasks(number, len(stages), self.placement.tasks)
            for number in range(len(stages))
        ]
        """Of each operator."""
        self._checked_registries: set[tuple[int, tuple[tuple[str, str], ...]]] = {
            (number, ()) for number in range(len(stages))
        }
        """Of tasks' stores, as JSON, that the processor of an operator can read."""
        self._declared = [stage.operator.declared.variables for stage in stages]
        """What each operator declares or deletes; None until a task reports it, where ``init`` fails here."""
        # "No limit" is what Spark takes 0 for, and createDataFrame does not.
        is_limited = int(str(spark.conf.get(_BATCH_ROWS))) > 0
        self._is_inline = [
            is_limited
            and all(_is_simple(field.dataType) for field in stage.operator.output_schema.fields)
            for stage in stages
        ]
        """Whether output of an operator may travel with the receipts."""

    @property
    def placement(self) -> Placement:
        """The table of tasks and slots as it is now."""
        return self.rebalancer.placement

    def process(self, number: int, rows: DataFrame, plan: BatchPlan) -> dict[int, Answer]:
        """Process one batch in an operator; every task of it that is asked for answers with a receipt.

        The rows of the initial state go along where the plan says so.

        Args:
            number: Of the operator.
            rows: Those that it gets.
            plan: What to do.

        Raises:
            ConfigError: A setting names a state variable that is not there, as tasks can report only now.
        """
        spec, slots, initial = (
            self._specs[number],
            self.placement.slots,
            self._stages[number].initial,
        )
        inline_bytes = _INLINE_BYTES // len(slots) if self._is_inline[number] else 0
        clock = plan.clock if self._has_watermark[number] else plan.clock.without_watermark()
        plan = replace(plan, epoch=self.epoch, inline_bytes=inline_bytes, clock=clock)
        schema = spec.operator.row_schema
        first: Column | None = None
        if plan.has_initial_state and initial is not None:
            rows = with_initial_state(rows, spec.operator, initial)
            schema, first = with_initial_column(schema, initial.spec), is_initial()
        else:
            plan = replace(plan, has_initial_state=False)
        if spec.operator.combiner is not None:
            rows = combined(rows, spec.operator.combiner)
            schema = StructType([*schema.fields]).add(ROWS_COLUMN, LongType())
        found = self.placement.process(
            rows,
            lambda batches: task_functions.beside_sidecar(
                process_slot(batches, spec, plan, slots), spec, plan.epoch
            ),
            schema=schema,
            first=first,
            key_columns=spec.operator.key_columns,
            tasks=self.tasks[number],
            only=plan.only,
            is_sorted=plan.is_sorted,
        )
        answers = [Answer(Receipt.parse(json.loads(text)), output) for text, output in found]
        self.executors |= {a.receipt.partition: a.receipt.executor for a in answers}
        self.disks |= {a.receipt.executor: a.receipt.disk for a in answers if a.receipt.disk}
        self._learn_variables(number, answers)
        return {answer.receipt.partition: answer for answer in answers}

    def rows_behind(
        self, number: int, inline: Sequence[bytes], in_files: Mapping[int, str]
    ) -> DataFrame:
        """Return the rows that the operator after the given one gets, of the output of its tasks."""
        output = self.output(number, inline, in_files)
        with fixed_partitioning(self._spark):
            rows: Any = transformed(output, self._stages[number + 1].transformations)._jdf  # noqa: SLF001
            # As `foreachBatch` gets them: Spark would leave out the join with the placement table, and with it
            # the tasks, if its optimiser saw that there are no rows.
            java: Any = self._spark._jsparkSession  # noqa: SLF001
            rdd = rows.queryExecution().toRdd()
            made = java.internalCreateDataFrame(rdd, rows.schema(), False)  # noqa: FBT003 - Java's
        return DataFrame(made, self._spark)

    def locate(
        self, candidates: Mapping[int, Sequence[str]], *, is_thorough: bool
    ) -> dict[int, str]:
        """Ask where each task runs for the first of its candidate versions that is on that host.

        Args:
            candidates: ``{partition: [VersionId]}``, best first.
            is_thorough: Read every byte and compare, as after a restart; else sizes only.

        Returns:
            ``{partition: VersionId}`` of those that have one.

        Raises:
            StateSchemaError: Stored state cannot be read as the processor declares it; found by a
                thorough look only.
        """
        spec, epoch = self._spec, self.epoch
        answers = self.placement.run_everywhere(
            lambda tasks: task_functions.beside_sidecar(
                task_functions.locate(
                    tasks, spec, candidates, epoch=epoch, is_thorough=is_thorough
                ),
                spec,
                epoch,
            )
        )
        self._check_declarations(answers)
        return {int(a["partition"]): str(a["version"]) for a in answers if a["version"] is not None}

    def with_output(self, versions: Mapping[int, str]) -> frozenset[int]:
        """Return the tasks whose output of these versions lies where they run."""
        spec = self._spec
        answers = self.placement.run_everywhere(
            lambda tasks: task_functions.has_output(tasks, spec, versions)
        )
        return frozenset(int(a["partition"]) for a in answers if a["is_here"])

    def restore(
        self,
        candidates: Mapping[int, Sequence[TaskCommit]],
        bad_markers: Collection[tuple[str, str, str, str]],
    ) -> dict[int, "task_functions.Restored"]:
        """Let the sidecars of the given partitions restore one of their candidates.

        Raises:
            RestoreFailedError: A task's state is out of reach.
            StateSchemaError: It cannot be read as the processor declares it.
        """
        spec = self._spec
        bad, epoch = tuple(bad_markers), self.epoch
        with job_bar(self._spark, self._background, f"restoring {len(candidates)} tasks"):
            answers = self.placement.run(
                lambda tasks: task_functions.restore(
                    tasks, spec, candidates, bad_markers=bad, epoch=epoch
                )
            )
        restored = {int(a["partition"]): task_functions.Restored(**a) for a in answers}
        for partition, outcome in restored.items():
            if outcome.error:
                raise RestoreFailedError(
                    f"the state cannot be restored ({outcome.error})",
                    task_name=task_name(partition),
                    store_names=spec.stores,
                )
        self._check_declarations(answers)
        return restored

    def fetch_ahead(
        self,
        table: Placement,
        commits: Mapping[int, TaskCommit],
        bad_markers: Collection[tuple[str, str, str, str]],
    ) -> bool:
        """Have commits of tasks brought where a table has these tasks; returns whether all are there.

        Beside the batches, and short: what is not there yet comes without this call.

        Raises:
            StateBackupError: One could not be brought.
        """
        spec, bad, epoch = self._spec, tuple(bad_markers), self.epoch
        answers = table.run(
            lambda tasks: task_functions.fetch_ahead(
                tasks, spec, commits, bad_markers=bad, epoch=epoch
            )
        )
        errors = [str(a["error"]) for a in answers if a["error"]]
        if errors:
            raise StateBackupError(errors[0])
        return not any(a["waiting"] for a in answers)

    def _check_declarations(self, answers: Collection[Mapping[str, Any]]) -> None:
        """Hold what the processor declares against stored state, which the first batch would do."""
        found = {
            (self._spec.operator_of(a["partition"]), tuple(sorted(a["registries"].items())))
            for a in answers
        }
        for number, registries in found - self._checked_registries:
            spec = self._specs[number]
            check_declarations(
                cloudpickle.loads(spec.processor),
                spec.operator.key_schema,
                spec.operator.time_mode,
                {StoreName(name): registry.encode() for name, registry in registries},
                operator=spec.operator.name,
                variable_stores=spec.operator.variable_stores,
            )
            self._checked_registries.add((number, registries))

    def check_variables(self) -> None:
        """Refuse operators that were swapped, and settings of state variables that are not there.

        A variable is there if an operator declares, deletes or has data of it. Of an operator whose
        ``init`` fails on the driver nothing is known until a task has called it: `process` checks then.

        Raises:
            ConfigError: There is one.
        """
        declared: dict[str, frozenset[str]] = {}
        stored: dict[str, frozenset[str]] = {}
        for number, (stage, variables) in enumerate(zip(self._stages, self._declared, strict=True)):
            if variables is None:
                return
            declared[stage.operator.name] = variables
            stored[stage.operator.name] = frozenset(
                name
                for operator, registries in self._checked_registries
                for _, registry in registries
                if operator == number
                for name in variables_in(registry.encode())
            )
        check_order(declared, stored)
        check_variables(
            self._spec.config, {name: declared[name] | stored[name] for name in declared}
        )

    def _learn_variables(self, number: int, answers: Collection[Answer]) -> None:
        if self._declared[number] is not None:
            return
        reported = (a.receipt.variables for a in answers if a.receipt.variables is not None)
        self._declared[number] = next((frozenset(names) for names in reported), None)
        self.check_variables()

    def submit_versions(self, plan: SubmitPlan) -> dict[int, str]:
        """Let the tasks hand their versions to their sidecars; return ``{partition: error}``."""
        spec = self._spec
        answers = self.placement.run_everywhere(
            lambda tasks: task_functions.submit_versions(tasks, spec, plan)
        )
        return {int(a["partition"]): str(a["error"]) for a in answers if a["error"]}

    def abandoned(self, plan: SubmitPlan) -> frozenset[int]:
        """Return the tasks of an older driver's attempt whose version no sidecar is seen to back up.

        One that has its entry already may be among them.
        """
        spec = self._spec
        answers = self.placement.run(lambda _: task_functions.held_uploads(spec, plan))
        return frozenset(plan.versions).difference(*(a["held"] for a in answers))

    def output(
        self, number: int, inline: Sequence[bytes], in_files: Mapping[int, str]
    ) -> DataFrame:
        """Return the output rows of an operator in a batch: no row of another attempt can be in it.

        Args:
            number: Of the operator.
            inline: What came along with the receipts.
            in_files: ``{partition: VersionId}`` of the tasks whose change set has output.
        """
        spec, schema = self._spec, self._stages[number].operator.output_schema
        frame: DataFrame | None = None
        if in_files:
            frame = self.placement.frame(
                lambda tasks: task_functions.read_output(tasks, spec, in_files), schema
            )
        if not inline and frame is None:
            return self._spark.createDataFrame([], schema)
        if inline:
            types = arrow_schema(schema)
            batches = [pa.ipc.read_record_batch(pa.py_buffer(b), types) for b in inline]
            table = pa.Table.from_batches(batches, types)
            local: DataFrame = self._spark.createDataFrame(table, schema)
            frame = local if frame is None else frame.union(local)
        assert frame is not None  # noqa: S101 - one of the two
        return frame

    def end_session(self, *, is_committed: bool) -> None:
        """Close open stores, ask the sidecars to end once they are done, and wait for that.

        Args:
            is_committed: Whether the last batch is.
        """
        spec, tasks, epoch = self._spec, self.placement.tasks, self.epoch
        self.rebalancer.run_on_all(
            lambda own: task_functions.end_session(
                own, spec, tasks, epoch=epoch, is_committed=is_committed
            )
        )
