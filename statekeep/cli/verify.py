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
from statekeep.cli.job_reading import read_job, tasks_of
from statekeep.cli.local_disk import explained_temporary_files
from statekeep.cli.options import (
    AsJson,
    IsFull,
    JobOptions,
    LogOfTask,
    Which,
    shared_options,
)
from statekeep.cli.output import JsonValue, print_json, print_table, print_total, size_of, state_of
from statekeep.clock import SystemClock
from statekeep.errors import ConfigError
from statekeep.inspection.job import InspectedJob
from statekeep.inspection.task_restore import Progress
from statekeep.inspection.verification import (
    VerifiedCopy,
    holders_of,
    missing_from,
    unheld,
    verify_copy,
)
from statekeep.restore.progress_bar import RestoreProgressBar


@shared_options
def verify(
    which: Which = None,
    *,
    backend: Annotated[
        str | None, typer.Option(help="Only this backend; by default each one that has markers.")
    ] = None,
    is_counted: Annotated[
        bool, typer.Option("--count", help="Read and count the entries of all stores too.")
    ] = False,
    options: JobOptions,
    task: LogOfTask = None,
    is_full: IsFull = False,
    as_json: AsJson = False,
) -> None:
    """Check every byte of a commit, in each backend.

    Restores it to a temporary directory and compares every checksum. Needs local disk for the state
    of one task at a time. With --backend a store that is to be backed up there, and of which the
    commit has no marker of it, is missing.
    """

    async def run() -> list[VerifiedCopy]:
        clock = SystemClock()
        async with read_job(options.settings(), clock, task=task) as job:
            position, commit = job.find_commit(which)
            tasks = tasks_of(commit)
            held = [(name, holder) for name in tasks for holder in holders_of(job, commit, name)]
            parts = [(name, holder) for name, holder in held if backend in (None, holder)]
            if backend is not None and not parts:
                raise _not_there(job, position, backend, {holder for _, holder in held})
            async with job.held(position):
                with RestoreProgressBar(clock.monotonic_ns, is_lasting=True) as bar:
                    found = [
                        await _verify(
                            job, commit, *part, is_counted=is_counted, on_progress=bar.update
                        )
                        for part in parts
                    ]
            if backend is not None:
                found += missing_from(job, commit, tasks, BackendName(backend))
            return found + [unheld(commit, name) for name in _versions_without(commit, held)]

    found = asyncio.run(run())
    rows = [_row(copy) for copy in found]
    if as_json:
        print_json(rows)
    else:
        print_table(
            ["task", "backend", "size", *(["entries"] if is_counted else []), "state"],
            [
                [
                    row["task"],
                    row["backend"],
                    size_of(row["bytes"]),
                    *([row["entries"]] if is_counted else []),
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
    statuses = set(map(_status_of, found))
    for status in (ExitStatus.DAMAGED, ExitStatus.UNAVAILABLE, ExitStatus.USAGE):
        if status in statuses:
            raise typer.Exit(status)


def _not_there(
    job: InspectedJob, position: int, backend: str, holders: set[BackendName]
) -> ConfigError:
    listed = sorted(job.storage.factories)
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


def _versions_without(
    commit: CommitRecord, held: Sequence[tuple[TaskName, BackendName]]
) -> list[TaskName]:
    """Return the tasks that have a version of which no backend holds anything."""
    tasks = {TaskName(name) for name, version in commit.versions.items() if version}
    return sorted(tasks - {name for name, _ in held})


async def _verify(
    job: InspectedJob,
    commit: CommitRecord,
    task: TaskName,
    backend: BackendName,
    *,
    is_counted: bool,
    on_progress: Progress,
) -> VerifiedCopy:
    with (
        explained_temporary_files(),
        tempfile.TemporaryDirectory(prefix="statekeep-verify-") as directory,
    ):
        return await verify_copy(
            job,
            commit,
            task,
            backend,
            Path(directory),
            is_counted=is_counted,
            on_progress=on_progress,
        )


def _row(copy: VerifiedCopy) -> dict[str, JsonValue]:
    return {
        "task": copy.task,
        "backend": copy.backend,
        "bytes": copy.bytes,
        "entries": copy.entries,
        "error": copy.error,
        "is-damaged": copy.is_damaged,
    }


def _status_of(copy: VerifiedCopy) -> ExitStatus:
    """Return what the command would end with if this copy were the only one."""
    if copy.is_damaged:
        return ExitStatus.DAMAGED
    return ExitStatus.FINE if copy.failure is None else exit_status_of(copy.failure)
