"""``statekeep verify``: every byte of a commit, in every backend that holds it."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from statekeep.checkpoint.checkpoints import BackendName, TaskName
from statekeep.checkpoint.records import CommitRecord
from statekeep.cli.exit_status import ExitStatus, exit_status_of
from statekeep.cli.job_reading import read_job
from statekeep.cli.local_disk import told_of_temporary_files
from statekeep.cli.options import AsJson, ConfigFiles, LogOfTask, Settings, Which, read_config
from statekeep.cli.output import JsonValue, print_json, print_table
from statekeep.clock import SystemClock
from statekeep.errors import ConfigError, RestoreFailedError
from statekeep.inspection.job import InspectedJob, Progress
from statekeep.restore.progress import RestoreProgressBar

_Row = dict[str, JsonValue]
_Found = tuple[_Row, ExitStatus]
"""What is shown of one task in one backend, and what the command would end with if it were the only one."""


def verify(
    which: Which = None,
    *,
    backend: Annotated[
        str | None, typer.Option(help="Only this backend; left out: each one that has markers.")
    ] = None,
    config: ConfigFiles = None,
    setting: Settings = None,
    task: LogOfTask = None,
    as_json: AsJson = False,
) -> None:
    """Check every byte of a commit, in each backend.

    Restores it to a temporary directory and compares every checksum. Needs local disk for the state
    of one task at a time.
    """

    async def run() -> list[_Found]:
        clock = SystemClock()
        bar = RestoreProgressBar(clock.monotonic_ns)
        async with read_job(read_config(config, setting), clock, task=task) as job:
            position, commit = job.find_commit(which)
            tasks = sorted(map(TaskName, {*commit.versions, *commit.checkpoints}))
            held = [(name, holder) for name in tasks for holder in _holders(job, commit, name)]
            parts = [(name, holder) for name, holder in held if backend in (None, holder)]
            if backend is not None and not parts:
                raise ConfigError(
                    f"the commit has no marker of the backend: commit={position} backend={backend} "
                    f"backends={','.join(sorted({holder for _, holder in held}))}"
                )
            async with job.held(position):
                found = [await _verify(job, commit, *part, bar.update) for part in parts]
            return found + [_unheld(commit, name) for name in _versions_without(commit, held)]

    found = asyncio.run(run())
    rows = [row for row, _ in found]
    if as_json:
        print_json(rows)
    else:
        print_table(
            ["task", "backend", "bytes", "state"],
            [[row["task"], row["backend"], row["bytes"], row["error"] or "fine"] for row in rows],
        )
    statuses = {status for _, status in found}
    for status in (ExitStatus.DAMAGED, ExitStatus.UNAVAILABLE, ExitStatus.USAGE):
        if status in statuses:
            raise typer.Exit(status)


def _holders(job: InspectedJob, commit: CommitRecord, task: TaskName) -> list[BackendName]:
    checkpoint = job.checkpoint(commit, task)
    return [] if checkpoint is None else sorted(checkpoint.state_markers)


def _versions_without(
    commit: CommitRecord, held: Sequence[tuple[TaskName, BackendName]]
) -> list[TaskName]:
    """Return the tasks that have a version of which no backend holds anything."""
    tasks = {TaskName(name) for name, version in commit.versions.items() if version}
    return sorted(tasks - {name for name, _ in held})


def _unheld(commit: CommitRecord, task: TaskName) -> _Found:
    error = f"no backend holds anything of the version: version={commit.versions[task]}"
    row: _Row = {"task": task, "backend": None, "bytes": 0, "error": error, "is-damaged": True}
    return row, ExitStatus.DAMAGED


async def _verify(
    job: InspectedJob,
    commit: CommitRecord,
    task: TaskName,
    backend: BackendName,
    on_progress: Progress,
) -> _Found:
    row: _Row = {
        "task": task,
        "backend": backend,
        "bytes": 0,
        "error": None,
        "is-damaged": False,
    }
    with (
        told_of_temporary_files(),
        tempfile.TemporaryDirectory(prefix="statekeep-verify-") as directory,
    ):
        try:
            outcome = await job.restore(
                commit, task, Path(directory), backend=backend, on_progress=on_progress
            )
        except RestoreFailedError as exc:
            told = "; ".join([str(exc), *getattr(exc, "__notes__", ())])
            return row | {"error": told, "is-damaged": exc.is_for_good}, exit_status_of(exc)
    return row | {"bytes": outcome.bytes_fetched}, ExitStatus.FINE
