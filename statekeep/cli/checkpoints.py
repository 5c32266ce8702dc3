"""``statekeep checkpoints``: what is retained, what is in it, and what stays for good."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from statekeep.checkpoint.checkpoints import (
    CheckpointId,
    CheckpointV2,
    SystemStreamPartition,
    TaskName,
)
from statekeep.checkpoint.records import CommitRecord, Share
from statekeep.cli.job_reading import read_job, tasks_of
from statekeep.cli.options import (
    AsJson,
    IsFull,
    IsSure,
    JobOptions,
    LogOfTask,
    Which,
    owner_name,
    shared_options,
)
from statekeep.cli.output import JsonValue, joined, print_json, print_line, print_table, utc
from statekeep.cli.waiting import waiting
from statekeep.clock import SystemClock
from statekeep.errors import ConfigError
from statekeep.inspection.job import InspectedJob, check_pin_name
from statekeep.inspection.offsets import overwrite_input_offsets
from statekeep.inspection.removal import remove_commits

app = typer.Typer(
    name="checkpoints", help="The commits of a job and what they hold.", no_args_is_help=True
)


@app.command("list")
@shared_options
def list_commits(
    *,
    options: JobOptions,
    task: LogOfTask = None,
    is_full: IsFull = False,
    as_json: AsJson = False,
) -> None:
    """List the commits that a restore may use, oldest first."""

    async def run() -> list[dict[str, JsonValue]]:
        async with read_job(options.settings(), SystemClock(), task=task) as job:
            return [_commit_row(job, position) for position in job.view.commits]

    rows = asyncio.run(run())
    if as_json:
        print_json(rows)
        return
    print_table(
        ["commit", "batch", "checkpoint id", "time", "tasks", "backends", "pinned as", ""],
        [
            [
                row["commit"],
                row["batch"],
                row["checkpoint-id"],
                row["time"],
                row["tasks"],
                joined(row["backends"]),
                joined(row["pins"]),
                "current" if row["is-current"] else "",
            ]
            for row in rows
        ],
        if_empty="no commit is retained yet",
        is_full=is_full,
    )


@app.command()
@shared_options
def show(
    which: Which = None,
    *,
    options: JobOptions,
    task: LogOfTask = None,
    is_full: IsFull = False,
    as_json: AsJson = False,
) -> None:
    """Show what one commit holds for each task.

    Version, input offsets and markers.
    """

    async def run() -> tuple[
        dict[str, JsonValue], dict[str, dict[str, JsonValue]], Sequence[Share]
    ]:
        async with read_job(options.settings(), SystemClock(), task=task) as job:
            position, commit = job.find_commit(which)
            return _commit_row(job, position), _task_rows(job, commit), commit.identity.shares

    row, tasks, shares = asyncio.run(run())
    if as_json:
        origins: list[JsonValue] = [
            {"job": share.job_name, "commit": share.position, "pin": share.pin} for share in shares
        ]
        print_json({**row, "tasks": tasks, "shares": origins})
        return
    print_line(
        f"commit {row['commit']}, batch {row['batch']}, {row['time']}, "
        f"checkpoint id {row['checkpoint-id']}, epoch {row['epoch']}, attempt {row['attempt']}"
    )
    for share in shares:
        print_line(f"shares commit {share.position} of {share.job_name}, pinned as {share.pin}")
    print_table(["task", "what", "where", "value"], _flat(tasks), is_grouped=True, is_full=is_full)


@app.command()
@shared_options
def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The commit to compare with.")],
    new: Annotated[
        str | None,
        typer.Argument(metavar="NEW", help="The other; by default the current one."),
    ] = None,
    *,
    options: JobOptions,
    task: LogOfTask = None,
    is_full: IsFull = False,
    as_json: AsJson = False,
) -> None:
    """Show what differs between two commits, value by value."""

    async def run() -> list[tuple[str, str, str, str | None, str | None]]:
        async with read_job(options.settings(), SystemClock(), task=task) as job:
            before = _values(_task_rows(job, job.find_commit(old)[1]))
            after = _values(_task_rows(job, job.find_commit(new)[1]))
        return [
            (*name, before.get(name), after.get(name))
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
        ]

    rows = asyncio.run(run())
    columns = ["task", "what", "where", "old", "new"]
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        print_table(
            columns,
            rows,
            if_empty="the two commits do not differ",
            is_grouped=True,
            is_full=is_full,
        )


@app.command()
@shared_options
def pin(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name to keep the commit under.")],
    which: Which = None,
    *,
    options: JobOptions,
    task: LogOfTask = None,
    as_json: AsJson = False,
) -> None:
    """Keep a commit under a name.

    It is not released until it is unpinned. The job may keep running.
    """
    check_pin_name(name)

    async def run() -> int:
        async with read_job(options.settings(), SystemClock(), task=task) as job:
            position, _ = job.find_commit(which)
            await job.pin_writer.pin(name, position)
            return position

    position = asyncio.run(run())
    if as_json:
        print_json({"pin": name, "commit": position})
    else:
        print_line(f"commit {position} is pinned as {name}")


@app.command()
@shared_options
def unpin(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the pin.")],
    *,
    options: JobOptions,
    task: LogOfTask = None,
    as_json: AsJson = False,
) -> None:
    """Drop a pin.

    Retention applies to the commit again: the job's next clean-up may release it.
    """

    async def run() -> int | None:
        async with read_job(options.settings(), SystemClock(), task=task) as job:
            await job.pin_writer.unpin(name)
            return job.view.pins.get(name)

    position = asyncio.run(run())
    if as_json:
        print_json({"pin": name, "commit": position})
    else:
        print_line(f"no commit is pinned as {name} any more")


@app.command()
@shared_options
def remove(
    which: Annotated[
        list[str], typer.Argument(metavar="COMMIT", help="Positions or checkpoint ids.")
    ],
    *,
    is_sure: IsSure = False,
    options: JobOptions,
    task: LogOfTask = None,
    as_json: AsJson = False,
) -> None:
    """Release commits, and delete what only they reach.

    Stop the job first; a running job is fenced. The current commit and pinned ones stay.
    """
    settings = options.settings()
    if not is_sure:
        typer.confirm(f"Take over job {settings.job.name} and remove the commits?", abort=True)

    async def run() -> list[int]:
        clock = SystemClock()
        async with (
            read_job(settings, clock, task=task) as job,
            waiting("deleting", clock),
        ):
            return await remove_commits(job, which, owner=owner_name())

    removed = asyncio.run(run())
    if as_json:
        print_json({"removed": removed})
    else:
        print_line(f"removed: {', '.join(map(str, removed))}")


@app.command("overwrite-offsets")
@shared_options
def overwrite_offsets(
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task, such as 'Partition 0'.")],
    offsets: Annotated[
        list[str], typer.Argument(metavar="INPUT=OFFSET", help="kafka.orders.v1.0=17")
    ],
    *,
    is_sure: IsSure = False,
    options: JobOptions,
    as_json: AsJson = False,
) -> None:
    """Set the input offsets that a task continues from.

    In plain Python. The state stays as it is: a new commit gets the markers of the current one. Stop the job first; a
    running job is fenced.
    """
    wanted = dict(map(_parse_offset, offsets))
    if not is_sure:
        typer.confirm(f"Take over {task} and overwrite {len(wanted)} input offsets?", abort=True)

    async def run() -> CheckpointV2:
        clock = SystemClock()
        async with (
            read_job(options.settings(), clock, task=task) as job,
            waiting("taking the job over", clock),
        ):
            return await overwrite_input_offsets(
                job, TaskName(task), wanted, owner=owner_name(), clock=clock
            )

    checkpoint = asyncio.run(run())
    rows = {_input_name(ssp): offset for ssp, offset in sorted(checkpoint.input_offsets.items())}
    if as_json:
        print_json({"checkpoint-id": str(checkpoint.checkpoint_id), "input-offsets": rows})
    else:
        print_table(["input", "offset"], rows.items())


def _parse_offset(text: str) -> tuple[SystemStreamPartition, str]:
    name, equals, offset = text.partition("=")
    system, _, rest = name.partition(".")
    stream, _, partition = rest.rpartition(".")
    if not (equals and offset and system and stream and partition.isdecimal()):
        raise ConfigError(
            f"not SYSTEM.STREAM.PARTITION=OFFSET: {text}",
            hint="`statekeep checkpoints show` has the names of the inputs",
        )
    return SystemStreamPartition(system, stream, int(partition)), offset


def _commit_row(job: InspectedJob, position: int) -> dict[str, JsonValue]:
    commit, view = job.commit_at(position), job.view
    checkpoints = (job.checkpoint(commit, TaskName(name)) for name in commit.checkpoints)
    backends = {name for found in checkpoints if found for name in found.state_markers}
    return {
        "commit": position,
        "batch": commit.batch,
        "checkpoint-id": commit.checkpoint_id,
        "time": utc(CheckpointId.parse(commit.checkpoint_id).millis),
        "epoch": commit.attempt_epoch,
        "attempt": commit.attempt,
        "tasks": commit.identity.partitions,
        "backends": sorted(backends),
        "pins": sorted(name for name, pinned in view.pins.items() if pinned == position),
        "is-current": position == view.last_commit_position,
    }


def _task_rows(job: InspectedJob, commit: CommitRecord) -> dict[str, dict[str, JsonValue]]:
    return {
        name: _task_row(commit.versions.get(name, ""), job.checkpoint(commit, name))
        for name in tasks_of(commit)
    }


def _task_row(version: str, checkpoint: CheckpointV2 | None) -> dict[str, JsonValue]:
    if checkpoint is None:
        return {"version": version, "input-offsets": {}, "markers": {}}
    return {
        "version": version,
        "input-offsets": {
            _input_name(ssp): offset for ssp, offset in sorted(checkpoint.input_offsets.items())
        },
        "markers": {
            str(backend): {str(store): str(marker) for store, marker in stores.items()}
            for backend, stores in sorted(checkpoint.state_markers.items())
        },
    }


def _values(tasks: Mapping[str, Mapping[str, JsonValue]]) -> dict[tuple[str, str, str], str]:
    return {(task, what, where): value for task, what, where, value in _flat(tasks)}


def _flat(tasks: Mapping[str, Mapping[str, JsonValue]]) -> list[tuple[str, str, str, str]]:
    rows: list[tuple[str, str, str, str]] = []
    for task, row in tasks.items():
        rows.append((task, "version", "", str(row["version"] or "empty")))
        offsets, markers = row["input-offsets"], row["markers"]
        if isinstance(offsets, Mapping):
            rows += [(task, "input offset", name, str(value)) for name, value in offsets.items()]
        if isinstance(markers, Mapping):
            for backend, stores in markers.items():
                if isinstance(stores, Mapping):
                    rows += [
                        (task, f"marker in {backend}", store, str(marker))
                        for store, marker in stores.items()
                    ]
    return rows


def _input_name(ssp: SystemStreamPartition) -> str:
    return f"{ssp.system}.{ssp.stream}.{ssp.partition}"
