"""How long the page of a job with many commits takes to read, to make and to show, and how large it is.

The job log is a real one; its progress events are made up, as a driver with these commits writes them.
"""

import argparse
import asyncio
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from statekeep.checkpoint.event_log import Event, EventWriter, delete_events
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.cli.page.page import page
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.inspection.history_watch import watch_history
from statekeep.inspection.job import open_log_storage

TASK = "Partition 0"
START_MS = 1_795_000_000_000
BACKENDS = ("near", "far")


def made_events(
    commits: int,
    *,
    tasks: int = 8,
    every_ms: int = 1_000,
    backends: Sequence[str] = BACKENDS,
    start_ms: int = START_MS,
    seed: int = 1,
) -> Iterator[Event]:
    """Yield what a job tells: each 200th attempt is aborted, each 2,000th commit a restart follows."""
    rng = random.Random(seed)
    sequence = attempt = 0
    now_ms = start_ms

    def event(kind: str, **details: Any) -> Event:
        nonlocal sequence
        sequence += 1
        return Event(epoch=1, sequence=sequence, time_ms=now_ms, kind=kind, details=details)

    def began(position: int) -> Event:
        return event(
            "job-initialised",
            partitions=tasks,
            backends=list(backends),
            log_backend=backends[0],
            commit_position=position,
            head=position,
            limits=[],
        )

    yield began(-1)
    for number in range(commits):
        now_ms = start_ms + number * every_ms
        attempt += 1
        if number % 2_000 == 1_999:
            yield event("stopped", committed=number, head=number, error="SparkException: lost")
            yield event("restart", number=1, delay_ms=1_000, reason="SparkException: lost")
            yield began(number)
            restored = {str(task): backends[0] for task in range(tasks)}
            phases = {"restore": 700, "replay": 200}
            yield event(
                "recovery",
                head=number,
                restored=restored,
                replayed=[],
                elapsed_ms=900,
                reason="start",
                phases_ms=phases,
            )
        yield event("batch", batch=number, rows_in=5_000, rows_out=10, max_pause_ms=2.5)
        if number % 200 == 199:
            reason = f"the commit failed: task={TASK} backend={backends[-1]}"
            yield event("void", attempt_epoch=1, attempt=attempt, batch=number, reason=reason)
            continue
        slowest = 0
        for task in range(tasks):
            took = {name: rng.randrange(80, 400) for name in backends}
            slowest = max(slowest, *took.values())
            yield event(
                "task-uploaded",
                task=f"Partition {task}",
                attempt=attempt,
                batch=number,
                bytes=40_000 * len(backends),
                elapsed_ms=max(took.values()) + 5,
                uploads={name: {"bytes": 40_000, "elapsed_ms": ms} for name, ms in took.items()},
                changed_bytes=30_000,
                state_bytes=5_000_000 + 100 * number,
            )
        yield event(
            "commit",
            batch=number,
            checkpoint_id=f"{now_ms - slowest - 60}-000000",
            position=3 * number,
            elapsed_ms=slowest + 60,
            wait_ms=40,
            upload_ms=slowest,
            record_ms=20,
            skipped=int(number % 7 == 0),
            blocked_ms=0,
            tasks_uploaded=tasks,
            bytes_uploaded=40_000 * tasks * len(backends),
            was_rolled_forward=False,
            left_out=[],
        )


def settings_in(directory: Path) -> Config:
    """Return the settings of the job."""
    return load_dict(
        {
            "job.name": "flights",
            "job.logged.store.base.dir": str(directory / "local"),
            "stores.counts.backup.factories": "blob",
            "blob.store.uri": (directory / "blobs").as_uri(),
        }
    )


async def make_job(directory: Path, commits: int) -> None:
    """Make a job whose first session tells of so many commits."""
    config, clock = settings_in(directory), SystemClock()
    for _ in range(2):
        async with Container(config) as container:
            task = await container.start_task(TASK, ["counts"])
            task.store("counts").put(b"k", b"v")
            await (await task.commit({}, force=True)).wait()
    async with open_log_storage(config, clock, task=TASK) as storage:
        store = storage.checkpoint_store()
        try:
            await delete_events(store, 1)
            start_ms = clock.time_ns() // 1_000_000 - 1_000 * commits
            await _write(store, made_events(commits, start_ms=start_ms))
        finally:
            await store.close()


async def _write(store: CheckpointStore, events: Iterator[Event]) -> None:
    """Write a segment for each ten commits, as a job that commits each second does."""
    writer = EventWriter(store, 1, SystemClock(), flush_interval_ms=0, buffer_bytes=1 << 20)
    for event in events:
        writer.add_seen(event.time_ms, event.kind, event.details)
        if event.kind == "commit" and event.details["batch"] % 10 == 0:
            await writer.flush()
    await writer.flush()


async def measure(directory: Path) -> dict[str, float]:
    """Read the job twice, and make its page."""
    figures: dict[str, float] = {}
    began = time.perf_counter()
    async with watch_history(settings_in(directory), SystemClock(), task=TASK) as watch:
        history = await watch.poll()
        figures["commits"] = len(history.commits)
        figures["read_s"] = time.perf_counter() - began
        began = time.perf_counter()
        history = await watch.poll()
        figures["read_again_s"] = time.perf_counter() - began
    began = time.perf_counter()
    text = page(history)
    figures["make_s"] = time.perf_counter() - began
    figures["page_kb"] = len(text.encode()) / 1000
    (directory / "page.html").write_text(text, encoding="utf-8")
    return figures


def show_s(path: Path) -> float | None:
    """Return how long a browser takes from its start until it has laid the page out; None without one."""
    browser = shutil.which("chromium")
    if browser is None:
        return None
    began = time.perf_counter()
    subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", path.as_uri()],
        check=True,
        capture_output=True,
        timeout=120,
    )
    return time.perf_counter() - began


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=10_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="statekeep-bench-") as name:
        directory = Path(name)
        asyncio.run(make_job(directory, asked.commits))
        figures = asyncio.run(measure(directory))
        for key, value in figures.items():
            print(f"{key:14} {value:10.3f}")
        shown = show_s(directory / "page.html")
        print(f"{'show_s':14} {'no browser' if shown is None else f'{shown:10.3f}'}")


if __name__ == "__main__":
    main()
