"""Reads the tasks of a plan: restores each to a directory of its own, and gives record batches."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from statekeep.backends.awaiting import run_all
from statekeep.checkpoint.records import CommitRecord
from statekeep.clock import SystemClock
from statekeep.errors import ConfigError, RestoreFailedError
from statekeep.inspection.job import LogStorage, OpenJob, open_job, open_log_storage
from statekeep.inspection.recommit import TASKS_AT_ONCE
from statekeep.inspection.task_restore import Progress
from statekeep.spark.operator.columns import BATCH_ROWS, arrow_schema, record_batch
from statekeep.spark.own_loop import run_apart
from statekeep.spark.state.changes import changed_rows
from statekeep.spark.state.plan import StatePlan, StateRequest, TaskPart, plan_state
from statekeep.spark.state.restored import BEFORE, NOW, SCRATCH, RestoredTask
from statekeep.spark.state.store import Rows
from statekeep.spark.state.variable import Shown, StateRow
from statekeep.stores.temporary_directory import temporary_directory

_Row = tuple[str | None, StateRow]
"""A row with the kind of change; None in the state itself."""
_Sides = tuple[RestoredTask, RestoredTask | None]
"""A task at the commit, and at that where a change feed begins."""


@contextmanager
def open_state(
    request: StateRequest,
    narrow: Callable[[StatePlan], StatePlan] = lambda plan: plan,
    on_progress: Progress = lambda _: None,
    open_it: OpenJob = open_job,
) -> Generator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Give the schema and the rows of a reading; inside the block alone. Blocks.

    Restored state lies in a temporary directory until the end of the block.

    Args:
        request: What to read.
        narrow: Leaves parts of the plan out.
        on_progress: For a progress bar.
        open_it: Opens the job.

    Raises:
        StateBackupError: As `plan_state` and `read_parts`.
    """
    with temporary_directory(SCRATCH) as directory:
        plan = narrow(run_apart(plan_state(request, directory, on_progress, open_it)))
        yield arrow_schema(plan.schema), read_parts(plan, plan.parts, directory, on_progress)


def read_parts(
    plan: StatePlan,
    parts: Sequence[TaskPart],
    directory: Path,
    on_progress: Progress = lambda _: None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of tasks, one task after the other. Blocks; works in a notebook too.

    A few tasks are restored side by side; when the rows of a task have been taken, its files go.

    Args:
        plan: Of the reading.
        parts: Of the plan.
        directory: For restored state.
        on_progress: For a progress bar.

    Raises:
        ConfigError: A commit was released meanwhile, or a setting is wrong.
        RestoreFailedError: The state of a task is out of reach.
        StateSchemaError: A task has the variable in a form that cannot be converted.
    """
    left = iter(parts)
    while group := list(islice(left, TASKS_AT_ONCE)):
        restored = run_apart(_restore(plan, group, directory, on_progress))
        for part, sides in zip(group, restored, strict=True):
            yield from _batches(plan, part, _rows(plan, part, sides))
            for side in sides:
                if side is not None:
                    side.remove()


async def _restore(
    plan: StatePlan, parts: Sequence[TaskPart], directory: Path, on_progress: Progress
) -> Sequence[_Sides]:
    log = parts[0].log
    async with open_log_storage(plan.request.config, SystemClock(), task=log) as storage:
        return await run_all(
            _restore_sides(plan, part, storage, directory, on_progress) for part in parts
        )


async def _restore_sides(
    plan: StatePlan, part: TaskPart, storage: LogStorage, directory: Path, on_progress: Progress
) -> _Sides:
    async def restore(commit: CommitRecord, side: str) -> RestoredTask:
        return await RestoredTask.restore(
            storage,
            plan.request.config,
            commit,
            part.task,
            directory / side,
            store=plan.store,
            bad_markers=plan.bad_markers,
            backend=plan.request.backend,
            on_progress=on_progress,
        )

    try:
        now = await restore(part.commit, NOW)
        return now, None if part.since is None else await restore(part.since, BEFORE)
    except RestoreFailedError as exc:
        async with open_job(plan.request.config, SystemClock(), task=part.log) as job:
            released = [p for p in part.positions if p not in job.view.commits]
        if released:
            raise ConfigError(
                f"the job has released the commit while it was read: commit={released[0]}",
                hint="read again; `statekeep savepoint create NAME --live` keeps a commit for as"
                " long as it is needed",
            ) from exc
        raise


def _rows(plan: StatePlan, part: TaskPart, sides: _Sides) -> Iterator[_Row]:
    now, before = sides
    is_feed = before is not None
    has_values = is_feed or any(shown == "value" for _, shown in plan.columns)
    with ExitStack() as stack:

        def open_rows(task: RestoredTask) -> Rows | None:
            store = stack.enter_context(task.store())
            return plan.table.open(store, has_values=has_values)

        new = open_rows(now)
        old = None if before is None else open_rows(before)
        if is_feed:
            yield from changed_rows(old, new, part.front)
        elif new is not None:
            for key, data in new.entries(part.front):
                for row in new.rows(key, data):
                    yield None, row


def _batches(plan: StatePlan, part: TaskPart, rows: Iterator[_Row]) -> Iterator[pa.RecordBatch]:
    schema = plan.schema
    shown: list[Shown] = [what for _, what in plan.columns]
    while chunk := list(islice(rows, BATCH_ROWS)):
        columns = [_column(chunk, what, part) for what in shown]
        yield record_batch(schema, columns)


def _column(rows: Sequence[_Row], shown: Shown, part: TaskPart) -> list[Any]:
    match shown:
        case "partition" | "task":
            return [getattr(part, shown)] * len(rows)
        case "change":
            return [change for change, _ in rows]
        case _:
            return [getattr(row, shown) for _, row in rows]
