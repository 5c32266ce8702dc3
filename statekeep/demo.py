"""The 30-second demonstration, without Spark: ``python -m statekeep.demo``.

A worker process adds up 600,000 orders by customer in a local RocksDB store and backs the store up
while it goes on. Half way it is killed by SIGKILL and its local disk is deleted. A second worker
restores the state from the backup, goes on where the last commit was, and finishes. The result is
compared with a plain recomputation; exit code 1 if a single customer differs.
"""

import argparse
import asyncio
import json
import logging
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.container.task import Task
from statekeep.restore.progress import RestoreProgress
from statekeep.stores.base import KeyValueStore

ORDERS: Final = 600_000
CUSTOMERS: Final = 5_000
_CHUNK: Final = 500
_REPORTED_EVERY: Final = 4_000
_KILL_AFTER: Final = ORDERS // 2
_INPUT: Final = SystemStreamPartition("demo", "orders", 0)
_TASK: Final = "Partition 0"
_STORE: Final = "customers"


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker says now and then, as one line of JSON."""

    started_at: int
    """Orders that the restored state had taken in already."""
    orders: int
    """Orders that the store has taken in."""
    commits: int
    """Commits that are durable."""
    mean_pause_ms: float
    """How long processing stood still for a commit."""
    restored_from: str
    restored_bytes: int
    restore_ms: int


def order(number: int) -> tuple[bytes, int]:
    """Return customer and amount in cents of one order; the same in every run."""
    mixed = (number * 2_654_435_761 + 12_345) % 4_294_967_296
    return b"customer-%04d" % (mixed % CUSTOMERS), mixed % 10_007


def totals_of(numbers: Iterable[int]) -> dict[bytes, tuple[int, int]]:
    """Return ``{customer: (orders, cents)}``."""
    totals: dict[bytes, tuple[int, int]] = {}
    for number in numbers:
        customer, cents = order(number)
        count, total = totals.get(customer, (0, 0))
        totals[customer] = count + 1, total + cents
    return totals


def config(directory: Path) -> Config:
    """Return the demo's settings: a blob backend in a directory, a commit every 100 ms."""
    return load_dict(
        {
            "job.name": "demo",
            "job.logged.store.base.dir": directory / "local",
            "stores.backup.factories": "blob",
            "blob.store.uri": (directory / "backup").as_uri(),
            "task.commit.ms": 100,
        }
    )


def add_chunk(store: KeyValueStore, numbers: range) -> None:
    """Add a chunk of orders to the store."""
    chunk = totals_of(numbers)
    before = store.get_many(list(chunk))
    store.write(
        {
            customer: b"%d %d" % _sum(_parse(old), added)
            for (customer, added), old in zip(chunk.items(), before, strict=True)
        }
    )


async def work(directory: Path) -> None:
    """Process the orders from the last commit to the end; report now and then."""
    async with Container(config(directory), on_progress=_no_bar) as container:
        task = await container.start_task(_TASK, [_STORE])
        start = _next_order(task)
        for first in range(start, ORDERS, _CHUNK):
            last = min(first + _CHUNK, ORDERS) - 1
            add_chunk(task.store(_STORE), range(first, last + 1))
            if task.is_commit_due():
                await task.commit({_INPUT: str(last)})
            # Uploads run on this loop too: a program lets them on between two chunks.
            await asyncio.sleep(0)
            if (last + 1) % _REPORTED_EVERY == 0:
                _say(task, start, last + 1)
        await task.commit({_INPUT: str(ORDERS - 1)}, force=True)
        await task.wait()
        _say(task, start, ORDERS)


def run_worker(directory: Path, *, kill_after: int | None) -> Report:
    """Run a worker process to its end, or kill it hard once it has so many orders.

    Raises:
        RuntimeError: It ended otherwise than it should.
    """
    command = [sys.executable, "-m", "statekeep.demo", "--worker", str(directory)]
    report: Report | None = None
    # Our own interpreter and module, no shell.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:  # noqa: S603
        for report in _reports(worker.stdout or ()):
            if kill_after is not None and report.orders >= kill_after and report.commits >= 2:  # noqa: PLR2004 - the second one is an increment
                worker.send_signal(signal.SIGKILL)
                break
    expected = 0 if kill_after is None else -signal.SIGKILL
    if worker.returncode != expected or report is None:
        msg = f"the worker did not end as planned: exit_code={worker.returncode}"
        raise RuntimeError(msg)
    return report


async def read_result(directory: Path) -> Mapping[bytes, tuple[int, int]]:
    """Return the store's content at the last commit."""
    async with Container(config(directory), on_progress=_no_bar) as container:
        task = await container.start_task(_TASK, [_STORE])
        return {customer: _parse(value) for customer, value in task.store(_STORE).scan()}


def demonstrate(directory: Path, console: Console) -> bool:
    """Run the whole story and tell it; return whether the result is exact."""
    console.print(f"[bold]1.[/] A worker adds up {ORDERS:,} orders of {CUSTOMERS:,} customers.")
    killed = run_worker(directory, kill_after=_KILL_AFTER)
    console.print(
        f"   After {killed.orders:,} orders and {killed.commits} commits it is "
        "[bold red]killed by SIGKILL[/], and its local disk is deleted."
    )
    shutil.rmtree(directory / "local")
    console.print("[bold]2.[/] A second worker takes over.")
    finished = run_worker(directory, kill_after=None)
    console.print(_table(killed, finished))
    console.print("[bold]3.[/] The result is compared with a recomputation of all orders.")
    actual, expected = asyncio.run(read_result(directory)), totals_of(range(ORDERS))
    wrong = [c for c in actual.keys() | expected.keys() if actual.get(c) != expected.get(c)]
    if wrong:
        console.print(f"   [bold red]{len(wrong):,} customers differ.[/]")
    else:
        console.print(f"   [bold green]All {len(expected):,} customers are equal to the cent.[/]")
    return not wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration, or one worker of it; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m statekeep.demo", description=__doc__)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker is not None:
        asyncio.run(work(options.worker))
        return 0
    logging.getLogger("statekeep").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory(prefix="statekeep-demo-") as directory:
        return 0 if demonstrate(Path(directory), Console()) else 1


def _table(killed: Report, finished: Report) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 3))
    table.add_row("state restored from", finished.restored_from)
    table.add_row("restored", f"{finished.restored_bytes:,} bytes in {finished.restore_ms:,} ms")
    table.add_row("went on after order", f"{finished.started_at:,}")
    repeated = killed.orders - finished.started_at
    table.add_row("orders processed again", f"{repeated:,} (those after the last commit)")
    table.add_row("commits of both workers", f"{killed.commits + finished.commits}")
    table.add_row("pause for a commit, mean", f"{finished.mean_pause_ms:.1f} ms")
    return table


def _say(task: Task, start: int, orders: int) -> None:
    figures = task.metrics.timers
    sync = figures["commit-sync-ns"]
    restored = task.restored
    report = Report(
        started_at=start,
        orders=orders,
        commits=figures["commit-ns"].count,
        mean_pause_ms=sync.total_ns / max(1, sync.count) / 1e6,
        restored_from=", ".join(restored.sources.values()) or "nothing, it was the first start",
        restored_bytes=restored.bytes_fetched,
        restore_ms=restored.elapsed_ms,
    )
    sys.stdout.write(f"{json.dumps(asdict(report))}\n")
    sys.stdout.flush()


def _reports(lines: Iterable[str]) -> Iterator[Report]:
    return (Report(**json.loads(line)) for line in lines)


def _next_order(task: Task) -> int:
    return int(task.input_offsets.get(_INPUT, "-1")) + 1


def _parse(value: bytes | None) -> tuple[int, int]:
    count, _, total = (value or b"0 0").partition(b" ")
    return int(count), int(total)


def _sum(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]


def _no_bar(_report: RestoreProgress) -> None:
    """The demonstration tells its own story."""


if __name__ == "__main__":
    sys.exit(main())
