"""``statekeep doctor``: whether a job can run here, and what to do where it cannot."""

import asyncio
from collections.abc import Iterator
from dataclasses import asdict

import typer
from rich.text import Text

from statekeep.cli.exit_status import ExitStatus
from statekeep.cli.options import (
    AsJson,
    IsFull,
    JobOptions,
    LogOfTask,
    shared_options,
)
from statekeep.cli.output import print_json, print_table
from statekeep.cli.waiting import waiting
from statekeep.clock import SystemClock
from statekeep.config.model import Config
from statekeep.errors import StateBackupError
from statekeep.inspection.doctor import (
    Check,
    check_job,
    check_machine,
    check_proof,
    check_settings,
    of_error,
)

_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


@shared_options
def doctor(
    *,
    options: JobOptions,
    task: LogOfTask = None,
    is_full: IsFull = False,
    as_json: AsJson = False,
) -> None:
    """Look at settings, versions, disk, backends and job.

    Says what to do about each thing that is wrong. Changes nothing.
    """
    try:
        checks = list(_checks(options.settings(), task))
    except StateBackupError as exc:
        checks = [of_error("settings", exc)]
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        print_table(
            ["", "what", "found", "what to do"],
            [
                [
                    Text(check.status, style=_STYLES[check.status]),
                    check.what,
                    check.found,
                    check.remedy,
                ]
                for check in checks
            ],
            prose={"found", "what to do"},
            is_full=is_full,
        )
    failed = [check for check in checks if check.status == "fail"]
    if any(check.is_setting for check in failed):
        raise typer.Exit(ExitStatus.USAGE)
    if failed:
        raise typer.Exit(ExitStatus.UNAVAILABLE)


def _checks(config: Config, task: str | None) -> Iterator[Check]:
    yield check_settings(config)
    yield check_proof(config)
    yield from check_machine(config)
    yield from asyncio.run(_job(config, task))


async def _job(config: Config, task: str | None) -> list[Check]:
    clock = SystemClock()
    async with waiting("asking the backends and reading the job log", clock):
        return await check_job(config, clock, task)
