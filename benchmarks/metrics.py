"""What listeners cost: a job that commits every second, with all exporters and with none, by turns.

``python -m benchmarks.metrics``: rounds of both by turns in one process, so that what else the machine
does meets both. A round writes to a store as fast as it can; the figure is processor time a write,
of all threads of the process, which a busy machine changes less than the time on the clock.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import statekeep as sk
from statekeep.metrics.opentelemetry import OpenTelemetryListener
from statekeep.metrics.prometheus import PrometheusListener

INPUT = sk.SystemStreamPartition("gen", "numbers", 0)
VALUE = b"v" * 100


def exporters() -> list[sk.Listener]:
    """Return all that Statekeep has, as a program would set them up."""
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    meters = MeterProvider([InMemoryMetricReader()])
    return [PrometheusListener("127.0.0.1", 0), OpenTelemetryListener(meters, tracers)]


async def measure(root: Path, seconds: float, listeners: list[sk.Listener]) -> tuple[float, int]:
    """Return microseconds of processor time a write, and how many commits there were."""
    config = sk.load_dict(
        {
            "job.name": "bench",
            "job.logged.store.base.dir": str(root / "local"),
            "stores.backup.factories": "blob",
            "blob.store.uri": (root / "blobs").as_uri(),
            "task.commit.ms": "1s",
        }
    )
    writes = commits = 0
    async with sk.Container(config, listeners=listeners) as container:
        task = await container.start_task("Partition 0", ["counts"])
        store = task.store("counts")
        began, began_cpu = time.monotonic(), time.process_time()
        while time.monotonic() - began < seconds:
            for _ in range(200):
                store.put(b"key-%d" % (writes % 20_000), VALUE)
                writes += 1
            if task.is_commit_due():
                commits += (await task.commit({INPUT: str(writes)})).is_started
            await asyncio.sleep(0)
        await task.wait()
        used = time.process_time() - began_cpu
    return 1e6 * used / writes, commits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=8)
    args = parser.parse_args()
    found: dict[str, list[float]] = {"none": [], "all": []}
    for number in range(args.rounds):
        for name in ("none", "all") if number % 2 else ("all", "none"):
            with tempfile.TemporaryDirectory() as root:
                listeners = exporters() if name == "all" else []
                cost, commits = asyncio.run(measure(Path(root), args.seconds, listeners))
            found[name].append(cost)
            print(f"round {number}, listeners: {name}: {cost:.3f} us a write, {commits} commits")
    medians = {name: statistics.median(costs) for name, costs in found.items()}
    ratios = [a / n for a, n in zip(found["all"], found["none"], strict=True)]
    print(
        f"median us a write: none {medians['none']:.3f}, all {medians['all']:.3f};"
        f" ratio {medians['all'] / medians['none']:.4f}, of pairs {min(ratios):.4f} to {max(ratios):.4f}"
    )


if __name__ == "__main__":
    main()
