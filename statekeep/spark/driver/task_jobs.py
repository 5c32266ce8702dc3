"""The anchored jobs that the driver runs, as plain calls: ask the tasks, get their answers."""

# The JVM's objects and pyarrow have no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false, reportOptionalCall=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from statekeep.errors import RestoreFailedError
from statekeep.spark.anchor import Anchor
from statekeep.spark.initial_state import (
    InitialState,
    is_initial,
    with_initial_column,
    with_initial_state,
)
from statekeep.spark.operator.outputs import output_arrow_schema
from statekeep.spark.tasks import task_name
from statekeep.spark.worker import errands
from statekeep.spark.worker.job_spec import BatchPlan, HandOverPlan, JobSpec, Receipt
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
            done, total = _tasks_of_newest_job(spark)
            bar.update(row, completed=done, total=total)
            bar.refresh()
            await asyncio.sleep(_PERIOD_S)

    stop = background.watch(draw)
    try:
        yield
    finally:
        stop()
        bar.stop()


def _tasks_of_newest_job(spark: SparkSession) -> tuple[int, int | None]:
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
Candidates = Sequence[tuple[str, bytes | None]]
"""(VersionId, CheckpointV2 in JSON) of commits, newest first."""


def _is_simple(data_type: DataType) -> bool:
    """Tell whether `createDataFrame` takes Arrow data of a type as a Python stage would give it.

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
        anchor: Anchor,
        spec: JobSpec,
        background: Background,
        initial: InitialState | None = None,
    ) -> None:
        self._spark = spark
        self._background = background
        self.anchor = anchor
        self.epoch = 0
        """Of this driver, once it has taken over: goes with each request to a container."""
        self._spec = spec
        self._initial = initial
        # "No limit" is what Spark takes 0 for, and createDataFrame does not.
        self._is_inline = int(str(spark.conf.get(_BATCH_ROWS))) > 0 and all(
            _is_simple(field.dataType) for field in spec.operator.output_schema.fields
        )
        """Whether output may travel with the receipts."""

    def process(self, rows: DataFrame, plan: BatchPlan) -> dict[int, Answer]:
        """Process one batch; every task asked for answers with a receipt.

        The rows of the initial state go along where the plan says so.
        """
        spec, slots = self._spec, self.anchor.slots
        inline_bytes = _INLINE_BYTES // len(slots) if self._is_inline else 0
        plan = replace(plan, epoch=self.epoch, inline_bytes=inline_bytes)
        schema = spec.operator.row_schema
        first: Column | None = None
        if plan.has_initial_state and self._initial is not None:
            rows = with_initial_state(rows, spec.operator, self._initial)
            schema, first = with_initial_column(schema, self._initial.spec), is_initial()
        else:
            plan = replace(plan, has_initial_state=False)
        found = self.anchor.process(
            rows,
            lambda batches: errands.beside_container(
                process_slot(batches, spec, plan, slots), spec, plan.epoch
            ),
            schema=schema,
            first=first,
            key_columns=spec.operator.key_columns,
            only=plan.only,
            is_sorted=plan.is_sorted,
        )
        answers = [Answer(Receipt.parse(json.loads(text)), output) for text, output in found]
        return {answer.receipt.partition: answer for answer in answers}

    def locate(
        self, candidates: Mapping[int, Sequence[str]], *, is_thorough: bool
    ) -> dict[int, str]:
        """Ask where each task runs for the first of its candidate versions that is on that host.

        Args:
            candidates: ``{partition: [VersionId]}``, best first.
            is_thorough: Read every byte and compare, as after a restart; else sizes only.

        Returns:
            ``{partition: VersionId}`` of those that have one.
        """
        spec, epoch = self._spec, self.epoch
        answers = self.anchor.run_everywhere(
            lambda tasks: errands.beside_container(
                errands.locate(tasks, spec, candidates, is_thorough=is_thorough), spec, epoch
            )
        )
        return {int(a["partition"]): str(a["version"]) for a in answers if a["version"] is not None}

    def with_output(self, versions: Mapping[int, str]) -> frozenset[int]:
        """Return the tasks whose output of these versions lies where they run."""
        spec = self._spec
        answers = self.anchor.run_everywhere(
            lambda tasks: errands.has_output(tasks, spec, versions)
        )
        return frozenset(int(a["partition"]) for a in answers if a["is_here"])

    def restore(
        self,
        candidates: Mapping[int, Candidates],
        bad_markers: Collection[tuple[str, str, str, str]],
    ) -> dict[int, "errands.Restored"]:
        """Let the containers of the given partitions restore one of their candidates.

        Raises:
            RestoreFailedError: A task's state is out of reach.
        """
        spec = self._spec
        bad, epoch = tuple(bad_markers), self.epoch
        with job_bar(self._spark, self._background, f"restoring {len(candidates)} tasks"):
            answers = self.anchor.run(
                lambda tasks: errands.restore(tasks, spec, candidates, bad_markers=bad, epoch=epoch)
            )
        restored = {int(a["partition"]): errands.Restored(**a) for a in answers}
        for partition, outcome in restored.items():
            if outcome.error:
                raise RestoreFailedError(
                    f"the state cannot be restored ({outcome.error})",
                    task_name=task_name(partition),
                    store_names=["state"],
                )
        return restored

    def hand_over(self, plan: HandOverPlan) -> dict[int, str]:
        """Let the tasks hand their versions to their containers; return ``{partition: error}``."""
        spec = self._spec
        answers = self.anchor.run_everywhere(lambda tasks: errands.hand_over(tasks, spec, plan))
        return {int(a["partition"]): str(a["error"]) for a in answers if a["error"]}

    def abandoned(self, plan: HandOverPlan) -> frozenset[int]:
        """Return the tasks of an older driver's attempt whose version nobody is seen to back up.

        One that has its entry already may be among them.
        """
        spec = self._spec
        answers = self.anchor.run(lambda _: errands.held_uploads(spec, plan))
        return frozenset(plan.versions).difference(*(a["held"] for a in answers))

    def output(
        self, inline: Sequence[bytes], in_files: Mapping[int, str], schema: StructType
    ) -> DataFrame:
        """Return the output rows of a batch: no row of another attempt can be in it.

        Args:
            inline: What came along with the receipts.
            in_files: ``{partition: VersionId}`` of the tasks whose change set has output.
            schema: The declared one.
        """
        spec = self._spec
        frame: DataFrame | None = None
        if in_files:
            frame = self.anchor.frame(
                lambda tasks: errands.read_output(tasks, spec, in_files), schema
            )
        if not inline and frame is None:
            return self._spark.createDataFrame([], schema)
        if inline:
            arrow_schema = output_arrow_schema(schema)
            batches = [pa.ipc.read_record_batch(pa.py_buffer(b), arrow_schema) for b in inline]
            table = pa.Table.from_batches(batches, arrow_schema)
            local: DataFrame = self._spark.createDataFrame(table, schema)
            frame = local if frame is None else frame.union(local)
        assert frame is not None  # noqa: S101 - one of the two
        return frame

    def end_session(self, *, is_committed: bool) -> None:
        """Close open stores, tell the containers to end once they are done, and see them go.

        Args:
            is_committed: Whether the last batch is.
        """
        spec, tasks, epoch = self._spec, self.anchor.tasks, self.epoch
        self.anchor.run(
            lambda _: errands.end_session(spec, tasks, epoch=epoch, is_committed=is_committed)
        )
