"""``statekeep restore``: the state of a commit, as files in a directory of one's own."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from statekeep.checkpoint.checkpoints import BackendName, TaskName
from statekeep.checkpoint.records import CommitRecord
from statekeep.cli.job_reading import read_job, tasks_of
from statekeep.cli.local_disk import (
    explained_disk,
    require_apart,
    require_directory,
    require_no_others,
)
from statekeep.cli.options import (
    AsJson,
    IsFull,
    JobOptions,
    LogOfTask,
    Which,
    shared_options,
)
from statekeep.cli.output import (
    JsonValue,
    joined,
    print_json,
    print_line,
    print_table,
    print_total,
    size_of,
)
from statekeep.clock import SystemClock
from statekeep.inspection.job import InspectedJob
from statekeep.inspection.task_restore import Progress
from statekeep.restore.progress_bar import RestoreProgressBar


@shared_options
def restore(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIRECTORY", help="Gets <job>/<operator>/<task>/<version>; made if missing."
        ),
    ],
    which: Which = None,
    *,
    backend: Annotated[
        str | None,
        typer.Option(
            help="Restore only from this backend, not from the first that can; stores that only "
            "others hold are left out."
        ),
    ] = None,
    options: JobOptions,
    task: LogOfTask = None,
    is_full: IsFull = False,
    as_json: AsJson = False,
) -> None:
    """Restore the stores of every task to a directory.

    At one commit, verified; the job may go on meanwhile.
    """
    settings = options.settings()
    require_directory(directory.absolute())
    require_apart(directory.absolute(), settings.job.local_dir)
    require_no_others(directory.absolute(), settings.job.name)

    async def run() -> list[dict[str, JsonValue]]:
        clock = SystemClock()
        async with read_job(settings, clock, task=task) as job:
            position, commit = job.find_commit(which)
            async with job.held(position):
                with RestoreProgressBar(clock.monotonic_ns, is_lasting=True) as bar:
                    return [
                        await _restore(
                            job,
                            commit,
                            name,
                            directory.absolute(),
                            backend=backend,
                            on_progress=bar.update,
                        )
                        for name in tasks_of(commit)
                    ]

    rows = asyncio.run(run())
    if as_json:
        print_json(rows)
    else:
        print_table(
            ["task", "size", "left out", "directory"],
            [
                [
                    row["task"],
                    size_of(row["bytes"]),
                    joined(row["left-out"]),
                    _below(directory.absolute(), row["directory"]),
                ]
                for row in rows
            ],
            if_empty="the commit has no state yet: nothing is restored",
            is_full=is_full,
        )
        print_total((row["bytes"] for row in rows), "tasks")
        print_line(f"restored below {directory.absolute()}")


def _below(directory: Path, path: JsonValue) -> str:
    return str(Path(path).relative_to(directory)) if isinstance(path, str) else "empty"


async def _restore(
    job: InspectedJob,
    commit: CommitRecord,
    task: TaskName,
    directory: Path,
    *,
    backend: str | None,
    on_progress: Progress,
) -> dict[str, JsonValue]:
    with explained_disk(directory, "make room there, or name another directory"):
        outcome = await job.restore(
            commit,
            task,
            directory,
            backend=None if backend is None else BackendName(backend),
            on_progress=on_progress,
        )
    stores = {store for listed in job.stores(commit).values() for store in listed}
    return {
        "task": task,
        "directory": str(outcome.version.directory) if outcome.version else None,
        "bytes": outcome.bytes_fetched,
        "left-out": sorted(stores.difference(outcome.sources)) if outcome.version else [],
        "sources": {str(store): source for store, source in outcome.sources.items()},
    }
