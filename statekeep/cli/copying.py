"""``statekeep migrate`` and ``statekeep savepoint create``: the newest commit, copied elsewhere."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from statekeep.backends.base import StateBackendFactory
from statekeep.backends.registry import BackendRegistry
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.cli.counting_bar import CountingBar
from statekeep.cli.options import owner_name
from statekeep.cli.output import JsonValue, print_json, print_table
from statekeep.clock import SystemClock
from statekeep.config.model import Config
from statekeep.inspection.job import InspectedJob, open_job
from statekeep.inspection.recommit import Recommit, recommit, require_commit_with_state
from statekeep.restore.progress import RestoreProgressBar
from statekeep.stores.temporary_directory import temporary_directory


def copy_newest_commits(
    config: Config,
    tasks: Sequence[str] | None,
    backends: Sequence[str],
    *,
    pin: str | None = None,
) -> list[dict[str, JsonValue]]:
    """Make the newest commit of each log again, with markers of ``backends``; return one row a log.

    Args:
        config: Of the job; the backends need not be listed by any store.
        tasks: In plain Python, whose logs; None: the log of the whole job.
        backends: Names of the backends that the state is copied to.
        pin: Name to keep the new commits under.
    """
    registry = BackendRegistry(config)
    factories = {BackendName(name): registry.factory(name) for name in backends}
    clock = SystemClock()
    with (
        temporary_directory("statekeep-copy-") as directory,
        CountingBar("uploaded", clock.monotonic_ns) as uploaded,
    ):
        return asyncio.run(
            _copy_all(config, tasks, factories, directory, uploaded=uploaded, pin=pin)
        )


async def _copy_all(
    config: Config,
    tasks: Sequence[str] | None,
    factories: Mapping[BackendName, StateBackendFactory],
    directory: Path,
    *,
    uploaded: CountingBar,
    pin: str | None,
) -> list[dict[str, JsonValue]]:
    clock = SystemClock()
    restored = RestoreProgressBar(clock.monotonic_ns)
    # No task is taken over before all were found to be there.
    for task in tasks or (None,):
        async with open_job(config, clock, task=task) as job:
            require_commit_with_state(job)
    rows: list[dict[str, JsonValue]] = []
    for task in tasks or (None,):
        async with open_job(config, clock, task=task) as job:
            made = await recommit(
                job,
                factories,
                directory,
                owner=owner_name(),
                pin=pin,
                on_progress=restored.update,
                on_uploaded=uploaded.add,
            )
        rows.append(_row(task, job, made, factories))
    return rows


def _row(
    task: str | None,
    job: InspectedJob,
    made: Recommit,
    factories: Mapping[BackendName, StateBackendFactory],
) -> dict[str, JsonValue]:
    return {
        "log": task or job.config.job.name,
        "commit": made.position,
        "tasks": made.tasks,
        "backends": sorted(factories),
        "bytes": made.bytes_uploaded,
    }


def print_copies(rows: list[dict[str, JsonValue]], *, is_json: bool) -> None:
    """Show what was made."""
    if is_json:
        print_json(rows)
        return
    print_table(
        ["log", "commit", "tasks", "bytes"],
        [[row["log"], row["commit"], row["tasks"], row["bytes"]] for row in rows],
    )
