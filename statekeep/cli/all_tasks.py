"""Whether every task of a job in plain Python was named, each of which has a log of its own."""

import re
from collections.abc import Sequence
from typing import Final

import typer

from statekeep.checkpoint.log_reset import read_remains
from statekeep.cli.waiting import waiting
from statekeep.clock import SystemClock
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.inspection.job import open_log_storage, tasks_with_logs

_NUMBERED: Final = re.compile(r"Partition ([0-9]+)")


async def require_all_tasks(config: Config, names: Sequence[str], *, is_sure: bool) -> None:
    """Make sure that no task of a job in plain Python is left out or named twice.

    The state of one that is left out would be lost: the task would begin empty beside all others.

    Args:
        config: Of the job.
        names: The tasks.
        is_sure: Not to ask where the backend of the logs cannot say which there are.

    Raises:
        ConfigError: One is.
        Abort: The answer was no.
        RetriableError: A service may answer later.
    """
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"tasks are named twice: tasks={','.join(twice)}", hint="give each --task once"
        )
    clock = SystemClock()
    async with (
        waiting("looking for the tasks of the job", clock),
        open_log_storage(config, clock, task=names[0]) as storage,
    ):
        there = await tasks_with_logs(config, storage)
        others = _gaps(names) if there is None else [task for task in there if task not in names]
        left_out = [task for task in others if await _has_log(config, task)]
    if left_out:
        raise ConfigError(
            f"tasks of the job are left out: tasks={','.join(left_out)}",
            hint="name every task of the job with --task; `statekeep reset` removes one that the "
            "job no longer has",
        )
    if there is None and not is_sure:
        typer.confirm(
            f"Backend {storage.log_backend} cannot say which tasks there are, and the state of one that is "
            f"not named is lost. Are these all of job {config.job.name}: {', '.join(names)}?",
            abort=True,
        )


def _gaps(names: Sequence[str]) -> list[str]:
    """Return numbered tasks that are missing among others, or the one that would follow them."""
    numbers = {int(match[1]) for match in map(_NUMBERED.fullmatch, names) if match}
    missing = [number for number in range(len(numbers) + 1) if number not in numbers]
    return [f"Partition {number}" for number in missing]


async def _has_log(config: Config, task: str) -> bool:
    """Return whether anything of a job stands in a task's log: a reset leaves a record of none."""
    async with open_log_storage(config, SystemClock(), task=task) as storage:
        if not await storage.log.is_there():
            return False
        remains = await read_remains(storage.log)
    return bool(remains.identities or remains.damaged or remains.moved_to)
