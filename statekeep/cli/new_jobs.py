"""``statekeep savepoint restore`` and ``statekeep rescale``: jobs that go on from another one's state."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.records import CommitRecord, QueryState
from statekeep.cli.all_tasks import require_all_tasks
from statekeep.cli.counting_bar import CountingBar
from statekeep.cli.job_reading import read_job
from statekeep.cli.local_disk import explained_temporary_files
from statekeep.cli.options import (
    AsJson,
    IsSure,
    JobOptions,
    LogsOfTasks,
    owner_name,
    shared_options,
)
from statekeep.cli.output import JsonValue, print_json, print_table
from statekeep.cli.waiting import waiting, waiting_for_progress
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict, merge
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.inspection.job import InspectedJob
from statekeep.inspection.job_copy import Making, OldLog, OldTask, copy_logs, rescale
from statekeep.inspection.locations import check_locations, copy_location
from statekeep.inspection.recommit import require_all_committed, require_commit_with_state
from statekeep.inspection.splitting import splitter_for
from statekeep.restore.progress_bar import RestoreProgressBar
from statekeep.stores.temporary_directory import temporary_directory

NewName: TypeAlias = Annotated[
    str, typer.Option("--as", metavar="JOB", help="The name of the new job.")
]
FromLocation: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="URI", help="On Spark: the checkpoint location of the old query."),
]
ToLocation: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="URI", help="On Spark: where to make that of the new query."),
]


@dataclass(frozen=True, slots=True)
class Locations:
    """The checkpoint locations of the old and the new query."""

    old: str
    new: str

    @classmethod
    def of(cls, old: str | None, new: str | None) -> "Locations | None":
        """Return both, or None for neither.

        Raises:
            ConfigError: Only one of them is given.
        """
        if old is None and new is None:
            return None
        if old is None or new is None:
            raise ConfigError("--from-location and --to-location are given together or not at all")
        return cls(old, new)


@shared_options
def restore_savepoint(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A savepoint, or any pin, position or id of a commit."),
    ],
    *,
    new_name: NewName,
    from_location: FromLocation = None,
    to_location: ToLocation = None,
    options: JobOptions,
    task: LogsOfTasks = None,
    is_sure: IsSure = False,
    as_json: AsJson = False,
) -> None:
    """Make a new job that starts from a savepoint.

    With its state and input offsets. It has backups of its own and refers to nothing of the old job, which may go on or be deleted.
    """
    settings = options.settings()
    locations = Locations.of(from_location, to_location)

    async def run(making: Making) -> list[dict[str, JsonValue]]:
        if task:
            await require_all_tasks(settings, task, is_sure=is_sure)
        async with AsyncExitStack() as stack:
            logs: list[OldLog] = []
            for log in task or (None,):
                job = await stack.enter_async_context(read_job(settings, making.clock, task=log))
                position, commit = job.find_commit(name)
                await stack.enter_async_context(job.held(position))
                await _check_locations(job, commit, locations)
                logs.append(OldLog(job, commit, log, partial(_query, job, commit, locations)))
            async with waiting_for_progress(
                "beginning the new job", making.clock, making.on_progress
            ) as on_progress:
                made = await copy_logs(replace(making, on_progress=on_progress), logs)
        return [
            {"log": log.task or new_name, "commit": position, "batch": log.commit.batch}
            for log, position in zip(logs, made, strict=True)
        ]

    with _making(settings, new_name) as making:
        rows = asyncio.run(run(making))
    if as_json:
        print_json(rows)
    else:
        print_table(["log", "commit", "batch"], [list(row.values()) for row in rows])


@shared_options
def rescale_job(
    *,
    partitions: Annotated[int, typer.Option(min=1, help="The number of tasks of the new job.")],
    new_name: NewName,
    router: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Plain Python: a function from key (bytes) and number of tasks to the number of"
            " the key's task.",
        ),
    ] = None,
    from_location: FromLocation = None,
    to_location: ToLocation = None,
    options: JobOptions,
    task: LogsOfTasks = None,
    is_sure: IsSure = False,
    as_json: AsJson = False,
) -> None:
    """Make a new job with another number of tasks.

    From a stopped one, with each key in its task. The old job stays as it is, so that there is a way back. Needs local disk for the whole state.
    """
    settings = options.settings()
    locations = Locations.of(from_location, to_location)

    async def run(making: Making) -> Sequence[int]:
        if task:
            await require_all_tasks(settings, task, is_sure=is_sure)
        async with _old_tasks(settings, task) as old:
            await _check_locations(old[0].job, old[0].commit, locations)
            identity = old[0].commit.identity
            new_splitter = splitter_for(identity, partitions, router)
            query = partial(_query, old[0].job, old[0].commit, locations)
            async with waiting_for_progress(
                "beginning the new job", making.clock, making.on_progress
            ) as on_progress:
                return await rescale(
                    replace(making, on_progress=on_progress),
                    old,
                    partitions,
                    new_splitter,
                    is_one_log=task is None,
                    query=query,
                )

    with _making(settings, new_name) as making:
        counts = asyncio.run(run(making))
    names = [f"Partition {number}" for number in range(partitions)]
    rows: list[dict[str, JsonValue]] = [
        {"task": name, "entries": count} for name, count in zip(names, counts, strict=True)
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(["task", "entries"], [list(row.values()) for row in rows])


@contextmanager
def _making(settings: Config, new_name: str) -> Generator[Making]:
    clock = SystemClock()
    if new_name == settings.job.name:
        raise ConfigError(f"the new job needs a name of its own: job={new_name}", key="job.name")
    with (
        explained_temporary_files(),
        temporary_directory("statekeep-copy-") as directory,
        CountingBar("uploaded", clock.monotonic_ns) as uploaded,
        CountingBar("entries routed", clock.monotonic_ns, is_bytes=False) as routed,
    ):
        yield Making(
            config=merge(settings, load_dict({"job.name": new_name}, "--as")),
            clock=clock,
            directory=Path(directory),
            owner=owner_name(),
            on_progress=RestoreProgressBar(clock.monotonic_ns).update,
            uploads=uploaded,
            on_entries=routed.add,
        )


@asynccontextmanager
async def _old_tasks(
    settings: Config, logs: Sequence[str] | None
) -> AsyncGenerator[Sequence[OldTask]]:
    """Open the logs of a job and hold the newest commit of each."""
    async with AsyncExitStack() as stack:
        tasks: list[OldTask] = []
        for log in logs or (None,):
            job = await stack.enter_async_context(read_job(settings, SystemClock(), task=log))
            commit = require_commit_with_state(job)
            require_all_committed(job, commit)
            await stack.enter_async_context(job.held(job.view.last_commit_position))
            tasks += [OldTask(job, commit, TaskName(name)) for name in sorted(commit.versions)]
        yield tasks


async def _check_locations(
    job: InspectedJob, commit: CommitRecord, locations: Locations | None
) -> None:
    """Check the locations before any state is moved."""
    if locations is not None:
        async with waiting("looking at the checkpoint locations", job.clock):
            await job.executor.run(check_locations, locations.old, locations.new, commit)


async def _query(
    job: InspectedJob, commit: CommitRecord, locations: Locations | None
) -> QueryState | None:
    if locations is None:
        return commit.query
    async with waiting("copying the checkpoint location", job.clock):
        return await job.executor.run(copy_location, locations.old, locations.new, commit)
