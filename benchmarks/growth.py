"""What a job and its backends cost as the job grows old: memory, log, index, requests, start.

Commits pass on a simulated clock, over an in-process store. A job on Spark is its driver's log session
and clean-up; its uploads are two blobs a task, a file and its index. The scenario ``task`` is a whole task
in plain Python: a real store, its deltas, snapshots and indexes. A commit of it takes five times as long,
so it makes fewer of them.

Everything that is measured at the first mark should be the same at the last one. The last row says by
how much it grows with every thousand commits.
"""

import argparse
import asyncio
import gc
import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Final

import msgspec

from benchmarks.ageing import Ageing, AgeingJob, AgeingTask, stored
from benchmarks.curves import Curve, draw

MARKS: Final = 8
SCENARIOS: Final = ("plain", "age", "pin", "aborts", "damage", "failing", "task")
"""Commits kept for an hour; a pin on the first commit; an aborted attempt beside every other commit; a lost
index behind a pin; a store that refuses to delete; a task in plain Python."""
AGE_MS: Final = 3_600_000
TASK_SHARE: Final = 20
"""Commits of a job on Spark for one of the task in plain Python."""


@dataclass(frozen=True)
class Mark:
    """What was measured after so many commits; requests are those since the mark before."""

    commits: int
    memory_kb: float
    """Of all objects of the program, without what the in-process store holds."""
    log_records: int
    log_kb: float
    index_kb: float
    """Of an index, on average."""
    blobs: int
    """That the store holds: log, checkpoints and state, without events."""
    put: float
    get: float
    list: float
    names_listed: float
    delete: float
    other: float
    """Looks for unfinished puts, and tags."""
    commit_ms: float
    """Of processor time, clean-up included."""
    start_ms: float
    """Of processor time: reading the log, and for the task in plain Python restoring."""
    start_requests: int


_NAMES: Final = tuple(field.name for field in fields(Mark))


def object_kb(left_out: dict[str, bytes]) -> float:
    """Return the size of all Python objects of the program, but for those of a store.

    Counted once at each mark: tracing each allocation takes longer than what is measured.
    """
    while (
        gc.collect()
    ):  # what has a finalizer, such as a coroutine, keeps others until the next one
        pass
    seen = {id(left_out), *map(id, left_out), *map(id, left_out.values())}
    total, waiting = 0, list(gc.get_objects())
    while waiting:
        found = waiting.pop()
        if id(found) in seen or found is seen:
            continue
        seen.add(id(found))
        total += len(bytes(found)) if isinstance(found, msgspec.Raw) else sys.getsizeof(found)
        # In 3.12.1 the module of asyncio tells of freed objects (gh-122695).
        if isinstance(found, ModuleType):
            continue
        # The others are in the list already.
        waiting += [each for each in gc.get_referents(found) if not gc.is_tracked(each)]
    return round(total / 1024, 1)


async def grow(job: Ageing, commits: int) -> list[Mark]:
    """Let a job commit so often; measure it `MARKS` times, at even distances, and print that."""
    print_row([name.replace("_", " ") for name in _NAMES])
    await job.begin()
    marks: list[Mark] = []
    step = max(1, commits // MARKS)
    began_s = time.process_time()
    for number in range(1, step * MARKS + 1):
        await job.commit(number)
        if number % step:
            continue
        commit_ms = (time.process_time() - began_s) / step * 1e3
        per = {kind: round(count / step, 2) for kind, count in job.counts.items()}
        held = job.held()
        memory_kb = object_kb(stored(job.root))
        start_ms, requests = await job.measure_start()
        marks.append(
            Mark(
                commits=number,
                memory_kb=memory_kb,
                log_records=held.log_records,
                log_kb=held.log_kb,
                index_kb=held.index_kb,
                blobs=held.blobs,
                put=per.get("put", 0),
                get=per.get("get", 0),
                list=per.get("list", 0),
                names_listed=per.get("names listed", 0),
                delete=per.get("delete", 0),
                other=per.get("other", 0),
                commit_ms=round(commit_ms, 2),
                start_ms=round(start_ms, 1),
                start_requests=requests,
            )
        )
        print_row(list(asdict(marks[-1]).values()))
        job.counts.clear()
        began_s = time.process_time()
    await job.end()
    return marks


def slopes(marks: Sequence[Mark]) -> dict[str, float]:
    """Return by how much each figure grows with every thousand commits: least squares.

    Without the first mark: until then the job fills up to what it retains.
    """
    steady = marks[1:]
    middle = sum(mark.commits for mark in steady) / len(steady)
    spread = sum((mark.commits - middle) ** 2 for mark in steady)
    found: dict[str, float] = {}
    for name in _NAMES[1:]:
        values = [float(getattr(mark, name)) for mark in steady]
        mean = sum(values) / len(values)
        pairs = zip(steady, values, strict=True)
        slope = sum((mark.commits - middle) * (value - mean) for mark, value in pairs) / spread
        found[name] = round(slope * 1000, 3)
    return found


def print_row(cells: Sequence[object]) -> None:
    """Print a row of the table at once: a long run is looked at while it goes on."""
    names = [name.replace("_", " ") for name in _NAMES]
    padded = (str(cell).rjust(max(len(name), 9)) for cell, name in zip(cells, names, strict=True))
    print("  ".join(padded), flush=True)


def job_of(scenario: str, tasks: int, retain_ms: int) -> Ageing:
    """Return what a scenario measures."""
    if scenario == "task":
        return AgeingTask()
    return AgeingJob(tasks, scenario, AGE_MS if scenario == "age" else retain_ms)


def curves(scenario: str, marks: Sequence[Mark]) -> list[Curve]:
    """Return a curve for each figure."""
    return [
        Curve(
            f"{scenario}: {name.replace('_', ' ')}",
            [(mark.commits, float(getattr(mark, name))) for mark in marks],
        )
        for name in _NAMES[1:]
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table for each scenario, and write figures and curves where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=100_000)
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--retain-ms", type=int, default=0, help="checkpoint.retain.ms of the job")
    parser.add_argument(
        "--scenario", choices=SCENARIOS, action="append", help="default: plain and task"
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--plot", type=Path, help="file for the curves, as SVG")
    given = parser.parse_args(arguments)
    logging.disable(logging.ERROR)  # a damaged index is told at every clean-up
    figures: dict[str, object] = {}
    drawn: list[Curve] = []
    for scenario in given.scenario or ["plain", "task"]:
        commits = given.commits // (TASK_SHARE if scenario == "task" else 1)
        print(f"{scenario}: {commits} commits", flush=True)
        job = job_of(scenario, given.tasks, given.retain_ms)
        marks = asyncio.run(grow(job, commits))
        print_row(["per 1,000", *(f"{slope:+}" for slope in slopes(marks).values())])
        figures[scenario] = {
            "marks": [asdict(mark) for mark in marks],
            "per 1,000 commits": slopes(marks),
        }
        drawn += curves(scenario, marks)
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if given.plot is not None:
        given.plot.write_text(draw(drawn), encoding="utf-8")


if __name__ == "__main__":
    main()
