"""``statekeep top``: the newest of a job in a terminal, refreshed."""

import asyncio
import os
import signal
import sys
import termios
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import msgspec
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from statekeep.cli.options import (
    AsJson,
    JobOptions,
    LogOfTask,
    shared_options,
)
from statekeep.cli.output import console, print_json, table_of
from statekeep.cli.page.page import session_state
from statekeep.cli.page.units import NOT_RECORDED, ago, duration, moment, number, size
from statekeep.cli.report import read_history
from statekeep.clock import Clock, SystemClock
from statekeep.errors import RetriableError
from statekeep.inspection.findings import findings_of
from statekeep.inspection.history import COMMITTED, Attempt, Backend, JobHistory
from statekeep.inspection.history_watch import HistoryWatch

_REFRESHED_EVERY_S = 2.0
_ATTEMPTS = 12
_TASKS = 5
_STYLES = {"good": "green", "warn": "yellow", "bad": "red"}
_BLOCKS = "▁▂▃▄▅▆▇█"
_BLOCK_COUNT = 60
_ENDING_KEYS = frozenset(b"qQ\x03")
"""The last one is Ctrl-C, which is a key like others meanwhile."""
_LOCAL_MODES = 3
"""Their place in what `termios` gives."""


@shared_options
def top(
    *,
    options: JobOptions,
    task: LogOfTask = None,
    as_json: AsJson = False,
) -> None:
    """Show what a job does, in a terminal.

    Its newest commits, backends and slowest tasks, every two seconds; q or Ctrl-C ends it. Where stdout
    is no terminal they are printed once.
    """
    settings = options.settings()

    async def run() -> None:
        clock = SystemClock()
        async with read_history(settings, clock, task) as (watch, history):
            if as_json:
                print_json(msgspec.to_builtins(_newest(history)))
            elif console().is_terminal and sys.stdin.isatty():
                await _follow(watch, history, clock)
            else:
                console().print(view(history))

    asyncio.run(run())


def view(history: JobHistory, problem: str = "") -> RenderableType:
    """Return all that is shown.

    Args:
        history: Of the job.
        problem: Why it is not the newest.
    """
    parts: list[RenderableType] = [
        Text.assemble((history.job, "bold"), f"  {moment(history.now_ms)}  {_headline(history)}")
    ]
    if problem:
        parts.append(Text(problem, style="red"))
    parts += [
        Text(f"{finding.level}: {finding.text}", style=_STYLES[finding.level])
        for finding in findings_of(history)
    ]
    commits = history.commits
    took = [commit.elapsed_ms for commit in commits if commit.elapsed_ms is not None]
    if took:
        parts.append(Text(f"\ncommits took {bars(took)} up to {duration(max(took[-60:]))}"))
    if history.attempts:
        parts += [Text(), _attempts(history)]
    backends = _current_backends(history)
    if backends:
        parts += [Text(), _backends(backends)]
    if history.tasks:
        parts += [Text(), _tasks(history)]
    return Group(*parts)


def bars(values: list[float]) -> str:
    """Return the newest values as a row of blocks, the highest one full."""
    shown = values[-_BLOCK_COUNT:]
    most = max(shown) or 1
    return "".join(_BLOCKS[round(value / most * (len(_BLOCKS) - 1))] for value in shown)


def _headline(history: JobHistory) -> str:
    commits = history.commits
    newest = f"newest commit {ago(commits[-1].time_ms, history.now_ms)}" if commits else "no commit"
    return f"{newest}, driver session {session_state(history)}"


def _attempts(history: JobHistory) -> RenderableType:
    rows = [_attempt_row(attempt) for attempt in reversed(history.attempts[-_ATTEMPTS:])]
    heads = ["time", "batch", "state", "took", "pause", "upload", "sent", "changed", "slowest task"]
    return table_of(heads, rows)


def _attempt_row(attempt: Attempt) -> list[object]:
    state = Text(attempt.outcome, style="green" if attempt.outcome == COMMITTED else "yellow")
    return [
        NOT_RECORDED if attempt.time_ms is None else moment(attempt.time_ms)[-9:],
        attempt.batch,
        state,
        duration(attempt.elapsed_ms),
        duration(attempt.phases.get("pause")),
        duration(attempt.phases.get("upload")),
        size(attempt.bytes_uploaded),
        size(attempt.changed_bytes),
        attempt.slowest_task or attempt.reason,
    ]


def _current_backends(history: JobHistory) -> list[Backend]:
    return [backend for backend in history.backends if backend.is_current]


def _backends(backends: Sequence[Backend]) -> RenderableType:
    rows = [
        [
            each.name,
            _state_of_backend(each),
            number(each.behind_commits),
            duration(each.median_ms),
            duration(each.longest_ms),
            size(each.bytes) if each.uploads else NOT_RECORDED,
            each.failures,
        ]
        for each in backends
    ]
    heads = ["backend", "newest commit", "behind", "median", "longest", "sent", "failures"]
    return table_of(heads, rows)


def _state_of_backend(backend: Backend) -> Text:
    if backend.is_left_out:
        return Text("incomplete", style="red")
    if backend.behind_commits == 0:
        return Text("whole", style="green")
    return Text(NOT_RECORDED)


def _tasks(history: JobHistory) -> RenderableType:
    rows = [
        [each.task, each.times_slowest, duration(each.longest_ms), size(each.state_bytes)]
        for each in history.tasks[:_TASKS]
    ]
    return table_of(["slowest tasks", "times", "longest", "state"], rows)


def _newest(history: JobHistory) -> dict[str, object]:
    return {
        "job": history.job,
        "findings": findings_of(history),
        "attempts": list(history.attempts[-_ATTEMPTS:]),
        "backends": _current_backends(history),
        "tasks": list(history.tasks[:_TASKS]),
    }


async def _follow(watch: HistoryWatch, history: JobHistory, clock: Clock) -> None:
    ended = asyncio.Event()
    with _keys(ended), Live(console=console(), screen=True, auto_refresh=False) as live:
        problem = ""
        while True:
            live.update(view(history, problem), refresh=True)
            if await _is_over(ended, clock):
                return
            try:
                history, problem = await watch.poll(), ""
            except RetriableError as exc:
                problem = f"the job could not be read: {exc}"


async def _is_over(ended: asyncio.Event, clock: Clock) -> bool:
    """Wait until it is time for the next look, or for the end."""
    waits = {
        asyncio.ensure_future(ended.wait()),
        asyncio.ensure_future(clock.sleep(_REFRESHED_EVERY_S)),
    }
    _, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in pending:
        wait.cancel()
    return ended.is_set()


@contextmanager
def _keys(ended: asyncio.Event) -> Generator[None]:
    """Set the event when q or Ctrl-C is pressed, or at SIGTERM; the terminal is as before at the end."""
    loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(stdin)

    def read() -> None:
        pressed = os.read(stdin, 64)
        if not pressed or {*pressed} & _ENDING_KEYS:
            ended.set()

    # Not `tty.setraw`: what is written needs the terminal's own line ends.
    local_modes = before[_LOCAL_MODES] & ~(termios.ICANON | termios.ECHO | termios.ISIG)
    wanted = [*before[:_LOCAL_MODES], local_modes, *before[_LOCAL_MODES + 1 :]]
    termios.tcsetattr(stdin, termios.TCSANOW, wanted)
    loop.add_reader(stdin, read)
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_reader(stdin)
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
