"""A log that is still empty: is the task new, or do the settings look for its log in the wrong backend?"""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from statekeep.backends.base import BlockingExecutor, StateBackendFactory, TaskIdentity
from statekeep.backends.optional_powers import FindsState
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.checkpoint.job_log import JobLog
from statekeep.checkpoint.log_reader import LogReader
from statekeep.checkpoint.log_reset import read_remains
from statekeep.checkpoint.names import task_scope
from statekeep.clock import Clock
from statekeep.errors import ConfigError, RetriableError

_NUMBERED: Final = re.compile(r"Partition ([1-9][0-9]*)")
"""Every numbered task but the first, whose log says how many there are."""
_FIRST: Final = "Partition 0"

OpenLog = Callable[[BackendName, str], JobLog]
"""Builds the log of a scope in a backend; the caller closes it."""

logger = logging.getLogger(__name__)


def answering(
    factories: Iterable[StateBackendFactory],
    away: Collection[BackendName],
    *,
    is_log_named: bool,
) -> Sequence[StateBackendFactory]:
    """Return the backends that can be asked what they hold.

    Args:
        factories: All of them.
        away: Optional ones that do not answer.
        is_log_named: Whether the settings name the backend that holds the log.

    Raises:
        RetriableError: They do not, and the log may be in one that does not answer.
    """
    for factory in factories:
        if factory.name not in away or not factory.properties.can_hold_job_log:
            continue
        if not is_log_named:
            error = RetriableError(
                "the task is new unless its log is in a backend that does not answer: "
                f"backend={factory.name}"
            )
            error.add_note("hint: name the backend that holds the log as job.log.backend")
            raise error
        logger.warning(
            "backend does not answer, so it was not searched for an older log of the task: backend=%s",
            factory.name,
        )
    return [factory for factory in factories if factory.name not in away]


async def require_no_other_log(
    factories: Iterable[StateBackendFactory],
    scope: str,
    log_backend: BackendName,
    open_log: OpenLog,
) -> None:
    """Make sure that a log which is empty in one backend is in no other; writes nothing.

    Args:
        factories: Those that can be asked.
        scope: Of the log.
        log_backend: Where it is empty.
        open_log: Builds the log of a scope in a backend.

    Raises:
        ConfigError: It is: the task would begin with empty state.
        RetriableError: A service may answer later.
    """
    for factory in factories:
        if factory.name == log_backend or not factory.properties.can_hold_job_log:
            continue
        holder = await find_holder(open_log, factory.name, scope)
        # One that moved to where it is empty now was deleted there since, to begin anew.
        if holder is not None and holder != log_backend:
            raise ConfigError(
                "the job log is in another backend, it is empty here: "
                f"scope={scope} backend={log_backend} found_in={holder}",
                key="job.log.backend",
                hint=f"set job.log.backend={holder}; `statekeep migrate-log` moves a log. To begin "
                "with empty state, choose another job.name",
            )


async def find_holder(open_log: OpenLog, backend: BackendName, scope: str) -> str | None:
    """Return where a log is, here or where it moved; None if nothing of a job is in it.

    Args:
        open_log: Builds the log.
        backend: To look in; it can hold a log.
        scope: Of the log.

    Raises:
        UnknownFormatError: A newer version of Statekeep has written to it.
        RetriableError: The service may answer later.
    """
    log = open_log(backend, scope)
    try:
        if not await log.is_there():
            return None
        remains = await read_remains(log)
    finally:
        await log.close()
    if remains.moved_to is not None:
        return remains.moved_to
    # A reset leaves one record, and a start that was killed at once another: of no job.
    return backend if remains.identities or remains.damaged else None


async def require_no_state(
    factories: Iterable[StateBackendFactory],
    task: TaskIdentity,
    log_backend: BackendName,
    executor: BlockingExecutor,
    clock: Clock,
) -> None:
    """Make sure that no backend has state of a task whose log is empty; writes nothing.

    The log of a task comes before its state, and stays when a reset deletes that.

    Raises:
        ConfigError: One has: the log is elsewhere, or lost.
        RetriableError: A service may answer later.
    """
    for factory in factories:
        if not isinstance(factory, FindsState):
            continue
        location = await factory.find_state(task, executor, clock)
        if location is not None:
            raise ConfigError(
                "the job log is empty, but there is state of the task: "
                f"task={task.task_name} backend={log_backend} "
                f"found_in={factory.name} location={location}",
                key="job.log.backend",
                hint="set job.log.backend to the backend that holds the log, with its settings. To "
                "begin with empty state, choose another job.name or delete what is there",
            )


async def require_within_task_count(
    log_backend: BackendName,
    task: TaskIdentity,
    open_log: OpenLog,
) -> None:
    """Make sure that a job which a tool made with so many tasks gets no other; writes nothing.

    The keys of the whole job were given to that many tasks: another one would begin with empty
    state, though the program sends it keys.

    Raises:
        ConfigError: The task's number is too high.
        CheckpointCorruptError: The log that says how many there are cannot be read.
        RetriableError: A service may answer later.
    """
    match = _NUMBERED.fullmatch(task.task_name)
    if match is None:
        return
    log = open_log(log_backend, task_scope(task.job_name, task.operator, _FIRST))
    try:
        count = await _task_count(log)
    finally:
        await log.close()
    if 0 < count <= int(match[1]):
        raise ConfigError(
            f"the job has fewer tasks: job={task.job_name} task={task.task_name} tasks={count}",
            hint=f"run it on {count} tasks, or make a job with more of them: `statekeep rescale "
            "--partitions`. To begin with empty state, choose another job.name",
        )


async def _task_count(log: JobLog) -> int:
    """Return the number of tasks that a log says its job has; 0 if it says none."""
    if not await log.is_there():
        return 0
    reader = LogReader(log)
    await reader.catch_up()
    commit = reader.view.last_commit
    return 0 if commit is None else commit.identity.task_count
