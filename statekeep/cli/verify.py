"""``statekeep verify``: every byte of a commit, in every backend that holds it."""

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from statekeep.checkpoint.checkpoints import BackendName, StoreName, TaskName
from statekeep.checkpoint.records import CommitRecord
from statekeep.cli.exit_status import ExitStatus, exit_status_of
from statekeep.cli.job_reading import read_job, tasks_of
from statekeep.cli.local_disk import told_of_temporary_files
from statekeep.cli.options import (
    AsJson,
    ConfigFiles,
    IsFull,
    Location,
    LogOfTask,
    Settings,
    SettingsFiles,
    Which,
    read_config,
)
from statekeep.cli.output import JsonValue, print_json, print_table, print_total, size_of, state_of
from statekeep.clock import SystemClock
from statekeep.config.model import StoreSettings
from statekeep.errors import ConfigError, RestoreFailedError
from statekeep.inspection.job import InspectedJob
from statekeep.inspection.task_restore import Progress
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
    set_file: SettingsFiles = None,
    location: Location = None,
    task: LogOfTask = None,
    is_full: IsFull = False,
    as_json: AsJson = False,
) -> None:
    """Check every byte of a commit, in each backend.

    Restores it to a temporary directory and compares every checksum. Needs local disk for the state
    of one task at a time. With --backend a store that is to be backed up there, and of which the
    commit has no marker of it, is missing.
    """

    async def run() -> list[_Found]:
        clock = SystemClock()
        async with read_job(
            read_config(config, setting, set_file, location), clock, task=task
        ) as job:
            position, commit = job.find_commit(which)
            tasks = tasks_of(commit)
            held = [(name, holder) for name in tasks for holder in _holders(job, commit, name)]
            parts = [(name, holder) for name, holder in held if backend in (None, holder)]
            if backend is not None and not parts:
                raise _not_there(job, position, backend, {holder for _, holder in held})
            async with job.held(position):
                with RestoreProgressBar(clock.monotonic_ns, is_lasting=True) as bar:
                    found = [await _verify(job, commit, *part, bar.update) for part in parts]
            if backend is not None:
                found += _missing(job, commit, tasks, BackendName(backend))
            return found + [_unheld(commit, name) for name in _versions_without(commit, held)]

    found = asyncio.run(run())
    rows = [row for row, _ in found]
    if as_json:
        print_json(rows)
    else:
        print_table(
            ["task", "backend", "size", "state"],
            [
                [
                    row["task"],
                    row["backend"],
                    size_of(row["bytes"]),
                    state_of(row["error"], is_damaged=bool(row["is-damaged"])),
                ]
                for row in rows
            ],
            if_empty="the commit has no state yet: there is nothing to verify",
            prose={"state"},
            is_grouped=True,
            is_full=is_full,
        )
        print_total((row["bytes"] for row in rows), "copies")
    statuses = {status for _, status in found}
    for status in (ExitStatus.DAMAGED, ExitStatus.UNAVAILABLE, ExitStatus.USAGE):
        if status in statuses:
            raise typer.Exit(status)


def _not_there(
    job: InspectedJob, position: int, backend: str, holders: set[BackendName]
) -> ConfigError:
    listed = sorted(job.place.factories)
    if backend not in listed:
        return ConfigError(
            f"the settings list no such backend: backend={backend} backends={','.join(listed)}"
        )
    return ConfigError(
        "the settings list the backend, but the commit has no marker of the backend: "
        f"commit={position} backend={backend} backends={','.join(sorted(holders))}",
        hint=f"the commit was made before {backend} was listed; let the job make another one, or"
        f" stop it and run `statekeep migrate --to {backend}`",
    )


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
    return _row(task, None, error, is_damaged=True), ExitStatus.DAMAGED


def _missing(
    job: InspectedJob, commit: CommitRecord, tasks: Sequence[TaskName], backend: BackendName
) -> list[_Found]:
    """Say of which stores the one backend that was asked for should have a marker, and has none."""
    found: list[_Found] = []
    for task in tasks:
        checkpoint = job.checkpoint(commit, task)
        if checkpoint is None:  # then no backend has anything, which is told of another way
            continue
        wanted = _stores_for(job, commit, lambda settings: backend in settings.backup_factories)
        missing = sorted(wanted - set(checkpoint.markers_of(backend)))
        if missing:
            error = f"the commit has no marker of the backend: stores={','.join(missing)}"
            found.append((_row(task, backend, error, is_damaged=True), ExitStatus.DAMAGED))
    return found


def _has_lost_store(job: InspectedJob, commit: CommitRecord, task: TaskName) -> bool:
    """Return whether the settings have a store backed up of which no backend has a marker."""
    checkpoint = job.checkpoint(commit, task)
    held: set[StoreName] = set()
    if checkpoint is not None:
        held.update(*checkpoint.state_markers.values())
    return bool(_stores_for(job, commit, lambda settings: settings.is_durable) - held)


def _stores_for(
    job: InspectedJob, commit: CommitRecord, is_wanted: Callable[[StoreSettings], bool]
) -> set[StoreName]:
    named = {store for stores in job.stores(commit).values() for store in stores}
    return {store for store in named if is_wanted(job.config.store(store))}


async def _verify(
    job: InspectedJob,
    commit: CommitRecord,
    task: TaskName,
    backend: BackendName,
    on_progress: Progress,
) -> _Found:
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
            # A backup that was never made: a job stops there, but asking again does not help.
            is_lost = exc.is_for_good or _has_lost_store(job, commit, task)
            status = ExitStatus.DAMAGED if is_lost else exit_status_of(exc)
            return _row(task, backend, told, is_damaged=is_lost), status
    return _row(task, backend, None) | {"bytes": outcome.bytes_fetched}, ExitStatus.FINE


def _row(
    task: TaskName, backend: BackendName | None, error: str | None, *, is_damaged: bool = False
) -> _Row:
    return {"task": task, "backend": backend, "bytes": 0, "error": error, "is-damaged": is_damaged}
