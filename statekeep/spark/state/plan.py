"""What is read of a job's state: which variable, at which commit, in which tasks and columns."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from statekeep.checkpoint.checkpoints import StoreName, TaskName
from statekeep.checkpoint.log_view import BadMarker, version_of
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.checkpoint.records import CommitRecord
from statekeep.clock import SystemClock
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.inspection.commit_choice import CommitChoice
from statekeep.inspection.job import (
    InspectedJob,
    NoSuchJobError,
    OpenJob,
    open_job,
    open_log_storage,
    tasks_with_logs,
)
from statekeep.inspection.nearest import nearest_hint
from statekeep.inspection.task_restore import Progress, checkpoint_in, stores_of
from statekeep.restore.plan import BadMarkers
from statekeep.spark.operator.registry import PROCESSOR_KINDS, stored_variables
from statekeep.spark.placement import operators_of
from statekeep.spark.state.keys import KeyRouter
from statekeep.spark.state.restored import BEFORE, NOW, RestoredTask
from statekeep.spark.state.store import ByteKeys, StoreTable
from statekeep.spark.state.variable import PARTITION, Shown, VariableTable
from statekeep.spark.tasks import STATE_STORE, operator_name, operator_tasks, partition_of
from statekeep.spark.variable_stores import variable_stores_of

CHANGE_TYPE: Final = "change_type"
"""The column of a change feed that says what has happened to the row."""
_ANY_TASK: Final = "Partition 0"
"""Names a log, where only the backend that holds all of them is asked."""
_LOGS_AT_ONCE: Final = 8
"""Of the tasks of a job in plain Python: each is read by requests one after the other."""

Column = tuple[StructField, Shown]
"""A column, and what it shows."""


@dataclass(frozen=True, slots=True)
class StateRequest:
    """What is to be read."""

    config: Config
    variable: str | None
    """In plain Python the store; None: the timers."""
    commit: CommitChoice = field(default_factory=CommitChoice)
    since: CommitChoice | None = None
    """Read what has changed since this commit; None: read the state itself."""
    operator: str | None = None
    """None: the one operator of the job."""
    backend: str | None = None
    """The only one to restore from; None: those of the settings, in their order."""
    columns: tuple[str, ...] | None = None
    """None: all of them."""
    task: str | None = None
    """None: all of them."""


@dataclass(frozen=True, slots=True)
class TaskPart:
    """The part of a reading that one task has; travels to the executor that reads it."""

    commit: CommitRecord
    """With this task alone."""
    since: CommitRecord | None
    """The same of the commit where a change feed begins."""
    positions: tuple[int, int]
    """Of the two commits; without a change feed of one."""
    log: TaskName | None = None
    """Whose log has them, in plain Python; None: the job's one log."""
    front: bytes | None = None
    """One encoded grouping key, with which the stored keys begin that are read, or in plain Python one
    key; None: all are read."""

    @property
    def task(self) -> TaskName:
        """The name of the task."""
        (name,) = self.commit.versions
        return TaskName(name)

    @property
    def partition(self) -> int:
        """The number of the task."""
        return partition_of(self.task)


@dataclass(frozen=True, slots=True)
class StatePlan:
    """What to read, fully decided: the job's log is not read again."""

    request: StateRequest
    table: VariableTable | StoreTable
    store: StoreName
    """Which has the variable."""
    parts: tuple[TaskPart, ...]
    router: KeyRouter | ByteKeys
    bad_markers: BadMarkers

    def __post_init__(self) -> None:
        _ = self.columns  # a wrong name is an error now

    @property
    def variable(self) -> VariableTable:
        """The table of a state variable, for what only a job on Spark has.

        Raises:
            ConfigError: It is a store of a job in plain Python.
        """
        if isinstance(self.table, StoreTable):
            raise ConfigError(
                "the state of a job in plain Python is not written from outside: "
                f"job={self.request.config.job.name} store={self.store}",
                hint="let the program change its stores and commit: store.put, store.delete",
            )
        return self.table

    @property
    def columns(self) -> list[Column]:
        """The columns that are asked for, in that order, with what they show.

        Raises:
            ConfigError: There is no such column.
        """
        every: list[Column] = [*self.table.columns]
        if isinstance(self.table, VariableTable):
            every.append((StructField(PARTITION, IntegerType()), "partition"))
        if self.request.since is not None:
            every.insert(0, (StructField(CHANGE_TYPE, StringType()), "change"))
        if self.request.columns is None:
            return every
        if not self.request.columns:
            raise ConfigError("no column is named", hint="leave the columns out to get all of them")
        found: dict[str, Column] = {column[0].name: column for column in every}
        for name in self.request.columns:
            if name not in found:
                known = ",".join(found)
                raise ConfigError(
                    f"no such column: column={name} columns={known}",
                    hint=nearest_hint(name, found, "leave the columns out to get all of them"),
                )
        return [found[name] for name in dict.fromkeys(self.request.columns)]

    @property
    def schema(self) -> StructType:
        """The schema of what is read."""
        return StructType([column for column, _ in self.columns])

    def with_key(self, key: object) -> "StatePlan":
        """Return the plan for one grouping key alone, in the task that has it.

        Raises:
            ConfigError: It does not fit the schema of the grouping key.
        """
        front = self.router.encode(key)
        task = self.router.task_of(front)
        parts = [replace(p, front=front) for p in self.parts if task is None or p.partition == task]
        return replace(self, parts=tuple(parts))


def named_variable(variable: str | None, *, timers: bool) -> str | None:
    """Return the name of the variable to read; None for the timers.

    Raises:
        ConfigError: Both are asked for, or neither.
    """
    if (variable is None) is not timers:
        raise ConfigError(
            "either a state variable or the timers can be read: "
            f"variable={variable} timers={timers}",
            hint="give the name of a state variable, or ask for the timers",
        )
    return variable


async def plan_state(
    request: StateRequest,
    directory: Path,
    on_progress: Progress = lambda _: None,
    open_it: OpenJob = open_job,
) -> StatePlan:
    """Find the commit, and the variable in the task that changed last, which is restored for it.

    Only reads. Other tasks are restored if that one does not have the variable. Of a job in plain Python
    the commit in each task's log is found, and none is restored.

    Args:
        request: What to read.
        directory: Where the task is restored: who reads it there need not restore it again.
        on_progress: For a progress bar.
        open_it: Opens the job.

    Raises:
        ConfigError: There is no such job, commit, operator, task, variable, store, backend or column.
        CheckpointCorruptError: A record of the log cannot be read.
        RestoreFailedError: The state is out of reach.
        RetriableError: A service may answer later.
    """
    try:
        async with open_it(request.config, SystemClock()) as job:
            return await _plan_variable(job, request, directory, on_progress)
    except NoSuchJobError as exc:
        missing = exc
    # Not in the `except`: its errors would come with one of a log that has to be missing.
    return await _plan_store(request, open_it, missing)


async def _plan_variable(
    job: InspectedJob, request: StateRequest, directory: Path, on_progress: Progress
) -> StatePlan:
    positions, commit, since = _commits(job, request)
    tasks = tasks_of(commit, request.operator)
    commit, since = with_tasks(commit, tasks), since and with_tasks(since, tasks)
    _require_task(request.task, commit.versions)
    names: set[str] = set()
    find = partial(_find_table, job, request, on_progress=on_progress, names=names)
    found = await find(commit, directory / NOW)
    if found is None and since is not None:
        found = await find(since, directory / BEFORE)
    if found is None:
        raise _no_such_variable(request, names)
    store, table = found
    asked = [name for name in map(TaskName, commit.versions) if request.task in (None, name)]
    return StatePlan(
        request,
        table,
        store,
        tuple(_parts(commit, since, sorted(asked, key=partition_of), positions)),
        KeyRouter(table.keys, commit.identity.router, tasks),
        tuple(job.view.bad_markers),
    )


async def _plan_store(
    request: StateRequest, open_it: OpenJob, missing: NoSuchJobError
) -> StatePlan:
    """Plan the reading of a store of a job in plain Python, of each task by its own log.

    Raises:
        ConfigError: ``missing`` if no task has a log; or as `plan_state`.
    """
    config, clock = request.config, SystemClock()
    async with open_log_storage(config, clock, task=request.task or _ANY_TASK) as storage:
        listed = await tasks_with_logs(config, storage)
    if listed is None:  # then the one that is named has to be there
        listed = [] if request.task is None else [request.task]
    if not listed:
        raise missing
    _require_task(request.task, listed)
    asked = [TaskName(name) for name in listed if request.task in (None, name)]
    _require_in_each_log(request, asked)
    store = StoreName(request.variable or "")
    limit = asyncio.Semaphore(_LOGS_AT_ONCE)

    async def plan_task(task: TaskName) -> _StoreOfTask:
        async with limit, open_it(config, clock, task=task) as job:
            return _store_of_task(request, job, task, store)

    outcomes = await asyncio.gather(*map(plan_task, asked), return_exceptions=True)
    found: list[_StoreOfTask] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        found.append(outcome)
    names = {name for one in found for name in one.stores}
    if store not in names:
        raise _no_such_store(request, names)
    parts = tuple(part for one in found for part in one.parts)
    bad_markers = tuple(marker for one in found for marker in one.bad_markers)
    return StatePlan(request, StoreTable(), store, parts, ByteKeys(), bad_markers)


@dataclass(frozen=True, slots=True)
class _StoreOfTask:
    """What there is to read of a store in one task of a job in plain Python."""

    stores: Collection[StoreName] = ()
    """All that the task has."""
    parts: Sequence[TaskPart] = ()
    bad_markers: Sequence[BadMarker] = ()


def _store_of_task(
    request: StateRequest, job: InspectedJob, task: TaskName, store: StoreName
) -> _StoreOfTask:
    """Look into the log of one task."""
    if job.view.last_commit is None and not job.view.is_half_made:
        return _StoreOfTask()  # it was reset, or has not begun: there is no state
    try:
        positions, commit, since = _commits(job, request)
    except ConfigError as exc:
        exc.add_note(f"hint: this is the log of task {task!r}")
        raise
    tasks_of(commit, request.operator)
    stores: set[StoreName] = set()
    for one in (commit, since or commit):
        stores.update(stores_of(one)[MAIN_OPERATOR])
        _require_held(request, one, task, store)
    commit, since = _with_store(commit, store), since and _with_store(since, store)
    parts = tuple(_parts(commit, since, [task], positions, log=task))
    return _StoreOfTask(stores, parts, tuple(job.view.bad_markers))


def _commits(
    job: InspectedJob, request: StateRequest
) -> tuple[tuple[int, int], CommitRecord, CommitRecord | None]:
    """Return the commit to read and that where a change feed begins, with their positions before them."""
    position, commit = request.commit.find(job)
    since_position, since = (position, None) if request.since is None else request.since.find(job)
    if since_position > position:
        raise ConfigError(
            f"the change feed begins after its end: begin={since_position} end={position}",
            hint="give the older commit as its start",
        )
    if since is not None and since.identity.partitions != commit.identity.partitions:
        raise ConfigError(
            "the number of tasks changed between the two commits: "
            f"begin={since.identity.partitions} end={commit.identity.partitions}",
            hint="read the changes before and after that commit; `statekeep checkpoints list` shows the"
            " number of tasks of each",
        )
    return (position, since_position), commit, since


def _require_task(task: str | None, known: Collection[str]) -> None:
    if task is not None and task not in known:
        raise ConfigError(
            f"no such task: task={task} tasks={','.join(known)}",
            hint=nearest_hint(task, known, "leave it out to read all tasks"),
        )


def _require_in_each_log(request: StateRequest, tasks: Sequence[TaskName]) -> None:
    """Make sure that the commits are named by what the logs of all tasks have in common.

    Raises:
        ConfigError: They are not: the same number is another commit in each log.
    """
    choices = (request.commit, request.since or request.commit)
    if len(tasks) > 1 and any(choice.is_of_one_log for choice in choices):
        raise ConfigError(
            "a position, a checkpoint id and a batch are of one task, as each has a log of its own: "
            f"tasks={','.join(tasks)}",
            hint="name one task, or give a pin that every task has, or a time",
        )


def _with_store(commit: CommitRecord, store: StoreName) -> CommitRecord:
    """Return a commit of a task in plain Python: without state, if it does not list the store."""
    is_listed = store in stores_of(commit)[MAIN_OPERATOR]
    return commit if is_listed else msgspec.structs.replace(commit, versions={}, checkpoints={})


def _require_held(
    request: StateRequest, commit: CommitRecord, task: TaskName, store: StoreName
) -> None:
    """Make sure that a store has a backup where it is looked for: else it would be read as empty.

    Raises:
        ConfigError: It has none.
    """
    checkpoint = checkpoint_in(commit, task) if task in commit.versions else None
    if checkpoint is None or store not in stores_of(commit)[MAIN_OPERATOR]:
        return
    holders = [name for name, markers in checkpoint.state_markers.items() if store in markers]
    asked = request.backend
    if not holders or asked not in {None, *holders}:
        raise ConfigError(
            f"there is no backup of the store to read: store={store} task={task} "
            f"backend={asked or 'any'} backends={','.join(holders)}",
            hint=nearest_hint(asked or "", holders, "only what is backed up can be read"),
        )


def _no_such_store(request: StateRequest, names: Collection[str]) -> ConfigError:
    if request.variable is None:
        return ConfigError(
            f"a job in plain Python has no timers: stores={','.join(sorted(names))}",
            hint="read one of its stores",
        )
    return ConfigError(
        f"no such store: store={request.variable} stores={','.join(sorted(names))}",
        hint=nearest_hint(request.variable, names, "name it as the program's start_task() does"),
    )


def _parts(
    commit: CommitRecord,
    since: CommitRecord | None,
    tasks: Iterable[TaskName],
    positions: tuple[int, int],
    log: TaskName | None = None,
) -> Iterable[TaskPart]:
    """Yield the parts of tasks that have something to read."""
    for task in tasks:
        before = "" if since is None else since.versions.get(task, "")
        if commit.versions.get(task, "") != before:
            only_since = None if since is None else _only(since, task)
            yield TaskPart(_only(commit, task), only_since, positions, log)


def _only(commit: CommitRecord, task: TaskName) -> CommitRecord:
    checkpoints = {name: raw for name, raw in commit.checkpoints.items() if name == task}
    versions = {task: commit.versions.get(task, "")}
    return msgspec.structs.replace(commit, checkpoints=checkpoints, versions=versions, query=None)


def tasks_of(commit: CommitRecord, operator: str | None) -> range:
    """Return the tasks of an operator.

    Raises:
        ConfigError: There is no such operator, or there are several and none is named.
    """
    job = commit.identity
    count = operators_of(job.router) or 1
    known = [operator_name(number) for number in range(count)]
    if operator is None and count > 1:
        raise ConfigError(
            f"the job has several operators: operators={','.join(known)}", hint="name one of them"
        )
    if operator is not None and operator not in known:
        raise ConfigError(
            f"no such operator: operator={operator} operators={','.join(known)}",
            hint=nearest_hint(operator, known, "leave it out to read the job's only one"),
        )
    return operator_tasks(known.index(operator or MAIN_OPERATOR), count, job.partitions)


def with_tasks(commit: CommitRecord, tasks: range) -> CommitRecord:
    """Return a commit with the versions of some tasks alone."""
    versions = {task: v for task, v in commit.versions.items() if partition_of(task) in tasks}
    return msgspec.structs.replace(commit, versions=versions)


async def _find_table(
    job: InspectedJob,
    request: StateRequest,
    commit: CommitRecord,
    directory: Path,
    *,
    on_progress: Progress,
    names: set[str],
) -> tuple[StoreName, VariableTable] | None:
    """Return the store and the table of the variable, in the newest form that a task has.

    Adds the names of the variables that there are to ``names``.

    Returns:
        None if no task has it.
    """
    for task, store in product(by_age(commit), _stores(commit, request)):
        restored = await RestoredTask.restore(
            job.storage,
            request.config,
            commit,
            task,
            directory,
            store=store,
            bad_markers=job.view.bad_markers,
            backend=request.backend,
            on_progress=on_progress,
        )
        found = await job.executor.run(_table_of, restored, request.variable, names)
        if found is not None:
            return store, found
        await job.executor.run(restored.remove)
    return None


def _stores(commit: CommitRecord, request: StateRequest) -> Sequence[StoreName]:
    """Return the stores that may have the variable, the likeliest first."""
    listed = stores_of(commit)[MAIN_OPERATOR]
    if request.variable is None:
        return [STATE_STORE]
    where = variable_stores_of(request.config, request.operator or MAIN_OPERATOR)
    own = where.store_of(request.variable)
    return sorted(listed, key=lambda store: store != own)


def _table_of(
    restored: RestoredTask, variable: str | None, names: set[str]
) -> VariableTable | None:
    """Return the table of the variable in a task; add the names of all variables. Blocks."""
    with restored.store() as store:
        variables = stored_variables(store)[1]
        names.update(name for name, known in variables.items() if known.kind in PROCESSOR_KINDS)
        return VariableTable.find(store, variable)


def by_age(commit: CommitRecord) -> Sequence[TaskName]:
    """Return the tasks that have state, those that changed last first.

    Each batch of a task declares all variables of its program: the first task has the newest forms,
    and nearly always all variables.
    """
    batches = {
        TaskName(task): version.batch
        for task in commit.versions
        if (version := version_of(commit, task)) is not None
    }
    return sorted(batches, key=lambda task: (-batches[task], partition_of(task)))


def _no_such_variable(request: StateRequest, names: Collection[str]) -> ConfigError:
    variable, known = request.variable, ",".join(sorted(names))
    if variable is None:
        return ConfigError(
            f"the state has no timers: variables={known}",
            hint="read a state variable; timers are there once a processor has registered one",
        )
    where = variable_stores_of(request.config, request.operator or MAIN_OPERATOR)
    if where.store_of(variable) in where.caches:
        return ConfigError(
            "the state variable is in a cache, which no commit holds: "
            f"variable={variable} store={where.store_of(variable)}",
            hint="only what is backed up can be read",
        )
    if not names:
        return ConfigError(
            f"the state is empty at this commit: variable={variable}",
            hint="read a later commit: `statekeep checkpoints list` shows what is retained",
        )
    if request.backend is not None:
        return ConfigError(
            f"the backend has no such state variable: variable={variable} variables={known} "
            f"backend={request.backend}",
            hint="leave the backend out: another one may have the variable's store",
        )
    return ConfigError(
        f"no such state variable: variable={variable} variables={known}",
        hint=nearest_hint(variable, names, "name it as the processor's init() does"),
    )
