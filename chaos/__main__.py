"""``make chaos``: runs random schedules of faults, and shows what they came to."""

import argparse
import atexit
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import Progress

from chaos import backends, servers
from chaos.outcome import Outcome
from chaos.servers import Server
from chaos.table import show, write_json


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the harness."""

    run_schedule: Callable[[int, Sequence[str], Path, Mapping[str, Server]], Outcome]
    points: Callable[[Sequence[str]], Sequence[str]]
    """What its schedules aim at, given the kinds of their places."""


def _plain() -> Level:
    from chaos.plain import level  # noqa: PLC0415  # only what is asked for is loaded

    return Level(level.run_schedule, level.points)


def _malice() -> Level:
    from chaos.malice import level  # noqa: PLC0415  # only what is asked for is loaded

    atexit.register(level.close)
    return Level(level.run_schedule, level.points)


def _spark() -> Level:
    from chaos.spark import level  # noqa: PLC0415  # loads Spark

    atexit.register(level.close)
    return Level(level.run_schedule, level.points)


def _reshape() -> Level:
    from chaos.spark import level  # noqa: PLC0415  # loads Spark

    atexit.register(level.close)
    return Level(level.run_reshaping, level.reshaping_points)


def _guard() -> Level:
    from chaos.guard import level  # noqa: PLC0415  # loads PySpark

    return Level(level.run_schedule, level.points)


def _changes() -> Level:
    from chaos.changes import level  # noqa: PLC0415  # loads PySpark

    return Level(level.run_schedule, level.points)


def _clones() -> Level:
    from chaos.clones import level  # noqa: PLC0415  # loads PySpark

    return Level(level.run_schedule, level.points)


# In this order: the first two fork, and Spark's session would start threads before.
LEVELS: Final = {
    "plain": _plain,
    "malice": _malice,
    "spark": _spark,
    "reshape": _reshape,
    "guard": _guard,
    "changes": _changes,
    "clones": _clones,
}


_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - what is made there has a name of its own


def main() -> int:
    """Run what was asked for; return the exit status, 1 if a schedule failed."""
    arguments = _parse()
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as an error: servers are stopped
    names = [*LEVELS] if arguments.level == "all" else [arguments.level]
    levels = {name: LEVELS[name]() for name in names}
    with servers.running(backends.servers_of(arguments.backends)) as running:
        try:
            outcomes = _run(arguments, console, levels, running)
        finally:
            backends.close()
    points = {name: level.points(arguments.backends) for name, level in levels.items()}
    show(console, outcomes, points)
    if arguments.json is not None:
        write_json(arguments.json, outcomes)
    return 1 if any(outcome.failures for outcome in outcomes) else 0


def _run(
    arguments: argparse.Namespace,
    console: Console,
    levels: Mapping[str, Level],
    running: Mapping[str, Server],
) -> list[Outcome]:
    seeds = range(arguments.seed, arguments.seed + arguments.runs)
    if arguments.replay is not None:
        seeds = range(arguments.replay, arguments.replay + 1)
    directory = arguments.directory or Path(
        tempfile.mkdtemp(prefix="statekeep-chaos-", dir=_place())
    )
    outcomes: list[Outcome] = []
    for name, level in levels.items():
        with Progress(console=console, transient=True, auto_refresh=False) as bar:
            task = bar.add_task(name, total=len(seeds))
            for seed in seeds:
                place = directory / f"{name}-{seed}"
                outcome = level.run_schedule(seed, arguments.backends, place, running)
                outcomes.append(outcome)
                _conclude(console, outcome, is_kept=arguments.replay is not None)
                if not console.is_terminal:  # where no bar is shown
                    verdict = "failed" if outcome.failures else "green"
                    console.print(f"{name} seed {seed}: {verdict}, {outcome.seconds:.1f} s")
                bar.advance(task)
                bar.refresh()
    return outcomes


def _conclude(console: Console, outcome: Outcome, *, is_kept: bool) -> None:
    """Tell of a failure and how to see it again; remove what a green schedule left."""
    if outcome.directory is None:
        return
    if outcome.failures:
        kinds = ",".join(outcome.backends)
        console.print(f"[red]failed[/]: {outcome.level} seed {outcome.seed}", soft_wrap=True)
        for failure in outcome.failures:
            console.print(f"  {failure}", soft_wrap=True, markup=False)
        console.print(f"  what it left: {outcome.directory}", soft_wrap=True)
        console.print(
            f"  again: make chaos LEVEL={outcome.level} BACKENDS={kinds} REPLAY={outcome.seed}",
            soft_wrap=True,
        )
    elif is_kept:
        console.print(f"what it left: {outcome.directory}", soft_wrap=True)
    else:
        shutil.rmtree(outcome.directory, ignore_errors=True)


def _place() -> Path | None:
    """Return where schedules run fastest: in memory, as no schedule cuts the power."""
    return _MEMORY if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) else None


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first schedule")
    parser.add_argument("--runs", type=int, default=100, help="how many schedules")
    parser.add_argument("--level", choices=[*LEVELS, "all"], default="plain")
    parser.add_argument(
        "--backends",
        type=lambda text: text.split(","),
        default=["blob", "blob"],
        help="kinds of places, separated by commas; the first holds the job log",
    )
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one schedule, keep all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every outcome there")
    parser.add_argument("--directory", type=Path, help="where schedules leave their files")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
