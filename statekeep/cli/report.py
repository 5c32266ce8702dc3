"""``statekeep report`` and ``statekeep ui``: the history of a job as a page, written or served."""

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from statekeep.checkpoint.names import escape_name
from statekeep.cli.job_reading import read_job
from statekeep.cli.options import (
    AsJson,
    JobOptions,
    LogOfTask,
    shared_options,
)
from statekeep.cli.output import print_json, print_line
from statekeep.cli.page.page import page
from statekeep.cli.page.server import serving
from statekeep.cli.waiting import waiting
from statekeep.clock import Clock, SystemClock
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.inspection.history import JobHistory
from statekeep.inspection.history_watch import HistoryWatch, watch_history
from statekeep.inspection.snapshots import held_bytes

_PORT: Final = 4545
_FRESH_FOR_NS: Final = 2_000_000_000
"""However many browsers ask: reading makes requests to the job's backend."""


@shared_options
def report(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Where it goes; by default <job>.html, here."),
    ] = None,
    *,
    is_held: Annotated[
        bool,
        typer.Option(
            "--held", help="Also ask the backends how much they hold of the newest commit."
        ),
    ] = False,
    options: JobOptions,
    task: LogOfTask = None,
    as_json: AsJson = False,
) -> None:
    """Write one page about the job.

    Commits and their phases, backends, recoveries, costs. With --json its figures go to stdout instead.
    """
    settings, clock = options.settings(), SystemClock()

    async def run() -> JobHistory:
        async with read_history(settings, clock, task) as (_, history):
            pass
        if not (is_held and history.commits):
            return history
        async with (
            read_job(settings, clock, task=task) as job,
            waiting("reading the snapshots", clock),
        ):
            return replace(history, held=await held_bytes(job))

    history = asyncio.run(run())
    if as_json:
        print_json(msgspec.to_builtins(history))
        return
    target = Path(f"{escape_name(history.job)}.html") if file is None else file
    try:
        target.write_text(page(history), encoding="utf-8")
    except OSError as exc:
        raise ConfigError(
            f"the page cannot be written: file={target} error={exc.strerror}",
            hint="name another file",
        ) from exc
    print_line(f"wrote {target}")


@shared_options
def ui(
    *,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Of 127.0.0.1; 0: any that is free.")
    ] = _PORT,
    options: JobOptions,
    task: LogOfTask = None,
    as_json: AsJson = False,
) -> None:
    """Serve the page of the job on this machine, until Ctrl-C.

    It renews itself. Only browsers on this machine reach it, but those of all its users.
    """
    settings = options.settings()

    async def run() -> None:
        clock = SystemClock()
        async with read_history(settings, clock, task) as (watch, history):
            pages = _Pages(watch, history, clock)
            async with serving(pages.render, port) as address:
                if as_json:
                    print_json({"address": address})
                else:
                    print_line(f"{address} shows job {history.job}; Ctrl-C ends it")
                await interrupted()

    asyncio.run(run())


@asynccontextmanager
async def read_history(
    config: Config, clock: Clock, task: str | None
) -> AsyncGenerator[tuple[HistoryWatch, JobHistory]]:
    """Open a job to be watched, and read its history for the first time, with a sign of life."""
    async with (
        waiting("reading the job log and its events", clock) as end_waiting,
        watch_history(config, clock, task=task) as watch,
    ):
        history = await watch.poll()
        end_waiting()
        yield watch, history


def live_script() -> str:
    """Return what lets a page renew itself."""
    return (files("statekeep.cli.page") / "page.js").read_text(encoding="utf-8")


async def interrupted() -> None:
    """Wait for Ctrl-C or SIGTERM, which end the command as it should end."""
    wanted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, wanted.set)
    await wanted.wait()


class _Pages:
    """Makes the page from what is new, and no more often than each two seconds."""

    def __init__(self, watch: HistoryWatch, history: JobHistory, clock: Clock) -> None:
        self._watch = watch
        self._clock = clock
        self._script = live_script()
        self._take(history)

    async def render(self) -> str:
        """Return the page as of now."""
        if self._clock.monotonic_ns() - self._made_ns > _FRESH_FOR_NS:
            self._take(await self._watch.poll())
        return self._page

    def _take(self, history: JobHistory) -> None:
        self._page = page(history, script=self._script)
        self._made_ns = self._clock.monotonic_ns()
