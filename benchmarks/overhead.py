"""What backing up costs the processing, and how much memory it takes: in plain Python.

Two tasks of one container have state of the given size and change keys as fast as they can, one at a
time in turn, so that both meet the same machine. One backs its store up; the other's store lists no
backend, so that nothing is captured, sealed or uploaded. Each size runs in a process of its own: its
memory is that of the container, both stores included.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import state
from benchmarks.figures import Figure
from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.config.load import load_dict
from statekeep.container.container import Container
from statekeep.container.task import Task

COMMIT_SECONDS = 2
RANGES_OF_COMMITS = 3
KEYS_PER_STEP = 1_000
INPUT = SystemStreamPartition("benchmark", "input", 0)
BACKED_UP = "state"
PLAIN = "plain"
MEGABYTE = 1_000_000


@dataclass
class Ranges:
    """Sums over all time ranges of one size."""

    rows_with: int = 0
    seconds_with: float = 0.0
    rows_without: int = 0
    seconds_without: float = 0.0
    cpu_with: float = 0.0
    """Processor seconds of all threads, the rest of the last upload included."""
    cpu_without: float = 0.0
    commits: int = 0
    peak_memory_mb: float = 0.0


def measure(
    sizes_mb: Sequence[int], commits: int, commit_seconds: int = COMMIT_SECONDS
) -> list[Figure]:
    """Measure each size until at least ``commits`` commits were made, so many seconds apart."""
    figures: list[Figure] = []
    for size_mb in sizes_mb:
        numbers = [size_mb, commits, commit_seconds]
        command = [sys.executable, "-m", "benchmarks.overhead", *map(str, numbers)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
        sums = Ranges(**json.loads(done.stdout))
        on = sums.rows_with / sums.seconds_with
        off = sums.rows_without / sums.seconds_without
        case = f"{size_mb / 1000:g} GB of state, {sums.commits} commits, {commit_seconds} s apart"
        figures += [
            Figure("overhead", case, "backup off", off, "keys/s", 1.0),
            Figure("overhead", case, "backup on", on, "keys/s", on / off),
            Figure(
                "overhead", case, "processor time, off", _micros(sums, is_on=False), "us/key", 1.0
            ),
            Figure(
                "overhead",
                case,
                "processor time, on",
                _micros(sums, is_on=True),
                "us/key",
                _micros(sums, is_on=True) / _micros(sums, is_on=False),
            ),
            Figure("overhead", case, "memory of the process", sums.peak_memory_mb, "MB"),
        ]
    return figures


def _micros(sums: Ranges, *, is_on: bool) -> float:
    """Return the processor time of a key, which a busy machine changes less than the time on the clock."""
    cpu, rows = (sums.cpu_with, sums.rows_with) if is_on else (sums.cpu_without, sums.rows_without)
    return 1e6 * cpu / rows


async def run(root: Path, size_mb: int, commits: int, commit_seconds: int) -> Ranges:
    """Load the state, then alternate; return the sums."""
    config = load_dict(
        {
            "job.name": "overhead",
            "job.logged.store.base.dir": str(root / "local"),
            "task.commit.ms": str(commit_seconds * 1000),
            f"stores.{BACKED_UP}.backup.factories": "blob",
            f"stores.{PLAIN}.backup.factories": "",
            "blob.store.uri": (root / "backup").as_uri(),
        }
    )
    draw = random.Random(size_mb)
    numbers = range(state.key_count(size_mb))
    seconds_each = RANGES_OF_COMMITS * commit_seconds
    sums = Ranges()
    async with Container(config) as container:
        plain = await container.start_task("Partition 0", stores=[PLAIN])
        state.load(plain.store(PLAIN), len(numbers), draw)
        task = await container.start_task("Partition 1", stores=[BACKED_UP])
        state.load(task.store(BACKED_UP), len(numbers), draw)
        await task.commit({INPUT: "0"}, force=True)
        await task.wait()
        while sums.commits < commits:
            began = time.process_time()
            rows, seconds = await _range(task, BACKED_UP, numbers, draw, sums, seconds=seconds_each)
            sums.rows_with, sums.seconds_with = sums.rows_with + rows, sums.seconds_with + seconds
            await task.wait()
            between = time.process_time()
            rows, seconds = await _range(plain, PLAIN, numbers, draw, sums, seconds=seconds_each)
            sums.cpu_with += between - began
            sums.cpu_without += time.process_time() - between
            sums.rows_without += rows
            sums.seconds_without += seconds
    return sums


async def _range(
    task: Task, name: str, numbers: range, draw: random.Random, sums: Ranges, *, seconds: int
) -> tuple[int, float]:
    store = task.store(name)
    rows = 0
    begin = time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds:
        chosen = draw.sample(numbers, KEYS_PER_STEP)
        store.get_many([state.key(number) for number in chosen])
        state.change(store, chosen, draw)
        rows += len(chosen)
        await asyncio.sleep(0)  # the loop's turn, as between two messages
        if name == BACKED_UP and task.is_commit_due():
            commit = await task.commit({INPUT: str(rows)})
            sums.commits += commit.is_started
            sums.peak_memory_mb = max(sums.peak_memory_mb, _resident_mb())
    return rows, elapsed


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MEGABYTE


def main(size_mb: int, commits: int, commit_seconds: int) -> None:
    """Measure one size and print the sums as JSON."""
    with tempfile.TemporaryDirectory() as root:
        sums = asyncio.run(run(Path(root), size_mb, commits, commit_seconds))
    sys.stdout.write(json.dumps(asdict(sums)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
