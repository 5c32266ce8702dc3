"""``statekeep migrate`` and ``statekeep savepoint create``: the newest commit, copied elsewhere."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from statekeep.backends.base import StateBackendFactory
from statekeep.backends.registry import BackendRegistry
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.cli.counting_bar import CountingBar
from statekeep.cli.job_reading import read_job
from statekeep.cli.local_disk import explained_temporary_files
from statekeep.cli.options import owner_name
from statekeep.cli.output import JsonValue, print_json, print_table, print_total, size_of
from statekeep.cli.waiting import waiting_for_progress
from statekeep.clock import SystemClock
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.inspection.job import InspectedJob
from statekeep.inspection.recommit import Recommit, recommit, require_commit_with_state
from statekeep.restore.progress_bar import RestoreProgressBar
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
        pin: Name to keep the new commits under. A log whose newest commit has it already, by an
            earlier try that was cut off, is left as it is.
    """
    registry = BackendRegistry(config)
    factories = {BackendName(name): registry.factory(name) for name in backends}
    clock = SystemClock()
    with (
        explained_temporary_files(),
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
    kept = await _find_kept(config, tasks, pin)
    rows: list[dict[str, JsonValue]] = []
    for task in tasks or (None,):
        async with (
            read_job(config, clock, task=task) as job,
            waiting_for_progress("taking the job over", clock, restored.update) as on_progress,
        ):
            made = kept.get(task) or await recommit(
                job,
                factories,
                directory,
                owner=owner_name(),
                pin=pin,
                on_progress=on_progress,
                uploads=uploaded,
            )
        rows.append(_row(task, job, made, factories))
    return rows


async def _find_kept(
    config: Config, tasks: Sequence[str] | None, pin: str | None
) -> Mapping[str | None, Recommit]:
    """Return the logs whose newest commit an earlier try has kept under the name already.

    No task is taken over before all were found to be there, and to have the name free.

    Raises:
        ConfigError: One has no state, or the name is in use: in one log for another commit, or in
            all of them.
    """
    kept: dict[str | None, Recommit] = {}
    logs = tasks or (None,)
    for task in logs:
        async with read_job(config, SystemClock(), task=task) as job:
            require_commit_with_state(job)
            if pin is None or pin not in job.view.pins:
                continue
            kept[task] = Recommit(job.view.pins[pin], tasks=0, bytes_uploaded=0)
            if job.view.pins[pin] != job.view.last_commit_position or len(kept) == len(logs):
                raise ConfigError(f"the name is in use: name={pin} commit={job.view.pins[pin]}")
    return kept


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
        ["log", "commit", "tasks", "size"],
        [[row["log"], row["commit"], row["tasks"], size_of(row["bytes"])] for row in rows],
    )
    print_total((row["bytes"] for row in rows), "logs")
