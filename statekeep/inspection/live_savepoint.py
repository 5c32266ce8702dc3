"""A savepoint of a job that may run: its newest commit, kept under a name as it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.records import CommitRecord
from statekeep.clock import Clock
from statekeep.config.model import Config
from statekeep.errors import ConfigError, RetriableError, StateBackupError
from statekeep.inspection.job import InspectedJob, open_job
from statekeep.inspection.recommit import require_commit_with_state, require_free

_TRIES: Final = 8
"""A job that releases a commit between two looks at its log commits more often than it is read."""


@dataclass(frozen=True, slots=True)
class KeptCommit:
    """The commit of one log that was pinned."""

    log: str | None
    """In plain Python, the task whose log it is."""
    position: int
    batch: int


async def keep_newest_commits(
    config: Config, clock: Clock, logs: Sequence[str | None], name: str
) -> list[KeptCommit]:
    """Pin the newest commit of each log, in all of them or in none; fences no driver.

    A pinned commit keeps what it needs in each backend that keeps every commit, through any number
    of later ones. What the job does meanwhile is not in it.

    Args:
        config: Of the job.
        clock: For durations and retries.
        logs: In plain Python, those of the tasks; (None,): the log of the whole job.
        name: Checked by `check_pin_name`.

    Raises:
        ConfigError: A log has no commit with state, the name is in use in one of them, or a store
            is only where old commits give way to new ones.
        RetriableError: A service may answer later.
    """
    for log in logs:
        async with open_job(config, clock, task=log) as job:
            _require_fit(job, name)
    kept: list[KeptCommit] = []
    try:
        for log in logs:
            kept.append(await _keep(config, clock, log, name))  # noqa: PERF401 - undone if one fails
    except BaseException as exc:
        for log in (made.log for made in kept):
            await _undo(config, clock, log, name, exc)
        raise
    return kept


async def _keep(config: Config, clock: Clock, log: str | None, name: str) -> KeptCommit:
    """Pin the newest commit of one log; a job that went on and released it is looked at again."""
    seen = -1
    for _ in range(_TRIES):
        async with open_job(config, clock, task=log) as job:
            commit = _require_fit(job, name)
            position = job.view.last_commit_position
            try:
                await job.pin_writer.pin(name, position)
            except ConfigError:
                if position == seen:
                    raise
                seen = position
            else:
                return KeptCommit(log, position, commit.batch)
    msg = f"the job releases its commits before they can be kept: job={config.job.name} name={name}"
    raise RetriableError(msg)


async def _undo(
    config: Config, clock: Clock, log: str | None, name: str, error: BaseException
) -> None:
    """Take a pin away again; one that cannot be stays, and ``error`` says so."""
    try:
        async with open_job(config, clock, task=log) as job:
            await job.pin_writer.unpin(name)
    except StateBackupError as exc:
        error.add_note(f"hint: `statekeep savepoint drop {name}` first: log={log} error={exc}")


def _require_fit(job: InspectedJob, name: str) -> CommitRecord:
    """Return the newest commit, if it can be kept under the name."""
    require_free(name, job.view)
    commit = require_commit_with_state(job)
    lasting = [
        backend
        for backend, factory in job.storage.factories.items()
        if factory.properties.keeps_every_commit
    ]
    for task in map(TaskName, sorted(task for task, version in commit.versions.items() if version)):
        found, usable = job.checkpoint(commit, task), job.view.usable_checkpoint(commit, task)
        if found is None or usable is None:
            raise ConfigError(f"the task has a version but no checkpoint: task={task}")
        held = {store for markers in found.state_markers.values() for store in markers}
        kept = {store for backend in lasting for store in usable.markers_of(backend)}
        if held - kept:
            raise ConfigError(
                "no backend that keeps old commits has the state of the newest one: "
                f"task={task} stores={','.join(sorted(held - kept))} "
                f"backends={','.join(sorted(usable.state_markers))}",
                key="stores.backup.factories",
                hint="list one more backend, such as blob, and let the job commit; or stop the job, "
                "and name one with --to instead of --live",
            )
    return commit
