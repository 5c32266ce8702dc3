"""What a commit costs on a real HDFS beside what it changed, and a restore beside plain reading.

``python -m benchmarks.hdfs_files``, with ``tests`` on the path: the cluster, a NameNode and two
DataNodes in one process, is started for the measurement. One store per size is loaded and backed up
in full; then so many random keys change per commit. The plain reading is one loop of hdfs-native
over the same files, before the restore and after it. Takes local room for six times the state.
"""

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import hdfs_native
from rich.console import Console
from servers.hdfs import HdfsCluster, hdfs_cluster
from typing_extensions import override

from benchmarks import state
from benchmarks.figures import Figure, percentile, show, write_json
from statekeep.backends.base import BackupContext, CommitContext, RestoreContext, TaskIdentity
from statekeep.backends.hdfs.factory import HdfsBackendFactory
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    StoreName,
    TaskName,
)
from statekeep.clock import SystemClock
from statekeep.commit.executor import BoundedExecutor
from statekeep.stores.base import KeyValueStore
from statekeep.stores.delta import Change
from statekeep.stores.rocksdb import RocksDbStore
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion

HDFS = BackendName("hdfs")
STORE = StoreName("state")
TASK = TaskIdentity("benchmark", "main", TaskName("Partition 0"))
COMMITS = 8
CHANGES = (500, 5_000, 50_000)
SIZES_MB = (100, 1_000, 5_000)
THREADS = 4
_READ_BYTES = 4 << 20


@dataclass
class _Run:
    """One size of state on one cluster."""

    uri: str
    root: Path
    executor: BoundedExecutor
    contexts: dict[CheckpointId, CommitContext] = field(default_factory=dict)
    base: tuple[CheckpointV2, SealedVersion] | None = None

    def factory(self) -> HdfsBackendFactory:
        # No snapshot beside the commits that are measured.
        settings = {
            "uri": self.uri,
            "min.deltas.for.snapshot": "1000",
            "max.delta.bytes": "1000GiB",
        }
        return HdfsBackendFactory(HDFS, settings)


def measure(sizes_mb: Sequence[int] = SIZES_MB) -> list[Figure]:
    """Measure all sizes on one cluster."""
    with hdfs_cluster(datanodes=2) as cluster:
        return [figure for size in sizes_mb for figure in asyncio.run(_measure(cluster, size))]


async def _measure(cluster: HdfsCluster, size_mb: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        executor = BoundedExecutor(THREADS, "benchmark")
        try:
            run = _Run(f"{cluster.uri}/bench-{size_mb}", Path(name), executor)
            return [*await _commits(run, size_mb), *await _restores(run, size_mb)]
        finally:
            await executor.close()


async def _commits(run: _Run, size_mb: int) -> list[Figure]:
    context = BackupContext(TASK, (STORE,), run.contexts.__getitem__, run.executor, SystemClock())
    manager = run.factory().backup_manager(context)
    await manager.init()
    directory = TaskDirectory(run.root / "local", TASK)
    draw, count = random.Random(size_mb), state.key_count(size_mb)
    figures: list[Figure] = []
    with directory.begin("bench", None, [STORE], captured=[STORE]) as work:
        store = work.open_store(STORE, "rocksdb")
        state.load(store, count, draw)

        async def commit() -> float:
            number = len(run.contexts)
            parent = run.base[1] if run.base else None
            version = work.seal(
                number, f"{number:08x}", parent, committed=parent.id if parent else None
            )
            checkpoint_id = CheckpointId(0, number)
            run.contexts[checkpoint_id] = CommitContext(
                checkpoint_id, 1, number, version,
                run.base[0] if run.base else None, parent.id if parent else None,
            )  # fmt: skip
            begin = time.perf_counter()
            markers = await manager.upload(checkpoint_id, manager.snapshot(checkpoint_id))
            seconds = time.perf_counter() - begin
            run.base = (CheckpointV2(checkpoint_id, {}, {HDFS: markers}), version)
            directory.retain([version.id], number)
            return seconds

        case = f"{size_mb / 1000:g} GB of state"
        figures.append(Figure("hdfs", case, "full upload", size_mb / await commit(), "MB/s"))
        for changed in CHANGES:
            times = []
            for _ in range(COMMITS):
                state.change(store, draw.sample(range(count), changed), draw)
                times.append(await commit())
            subject = f"commit of {changed:,} random keys, p50"
            figures.append(Figure("hdfs", case, subject, 1000 * percentile(times, 0.5), "ms"))
    await manager.close()
    return figures


async def _restores(run: _Run, size_mb: int) -> list[Figure]:
    if run.base is None:
        raise RuntimeError("nothing was committed")
    before_mb, before_s = await run.executor.run(_read_plainly, run.uri)
    watch = _Watch()
    context = RestoreContext(
        task=TASK,
        directories={STORE: run.root / "restored" / "db"},
        reusable=(),
        open_store=watch.open_store,
        open_image=watch.open_store,
        on_bytes=lambda _: None,
        on_total=lambda _: None,
        executor=run.executor,
        clock=SystemClock(),
    )
    manager = run.factory().restore_manager(context)
    begin = time.perf_counter()
    await manager.init(run.base[0])
    await manager.restore()
    restore_s = time.perf_counter() - begin
    await manager.close()
    after_mb, after_s = await run.executor.run(_read_plainly, run.uri)
    plain = (before_mb + after_mb) / (before_s + after_s)
    case, restored = f"{size_mb / 1000:g} GB of state", before_mb / restore_s
    return [
        Figure("hdfs", case, "plain read of the same files, before", before_mb / before_s, "MB/s"),
        Figure("hdfs", case, "plain read of the same files, after", after_mb / after_s, "MB/s"),
        Figure("hdfs", case, "restore, beside both reads", restored, "MB/s", restored / plain),
        Figure("hdfs", case, "in it: writing to the store", watch.load_s, "s"),
        Figure("hdfs", case, "in it: closing the store", watch.close_s, "s"),
        Figure(
            "hdfs",
            case,
            "in it: the rest, such as waiting for bytes and taking blocks apart",
            restore_s - watch.load_s - watch.close_s,
            "s",
        ),
    ]


class _Watch:
    """Where the time of a restore goes, as far as the store tells."""

    def __init__(self) -> None:
        self.load_s = 0.0
        self.close_s = 0.0

    def open_store(self, name: StoreName, directory: Path) -> KeyValueStore:
        """Open a store to be loaded, and watch it."""
        watch = self

        class Watched(RocksDbStore):
            @override
            def load(self, records: Iterable[Change]) -> None:
                begin = time.perf_counter()
                super().load(records)
                watch.load_s += time.perf_counter() - begin

            @override
            def close(self) -> None:
                begin = time.perf_counter()
                super().close()
                watch.close_s += time.perf_counter() - begin

        return Watched(name, directory, is_new=True, is_to_load=True)


def _read_plainly(uri: str) -> tuple[float, float]:
    """Read all files once, one after the other; return the megabytes and the seconds."""
    place, read_bytes = urlsplit(uri), 0
    client = hdfs_native.Client(f"{place.scheme}://{place.netloc}")
    paths = [each.path for each in client.list_status(place.path, recursive=True) if not each.isdir]
    begin = time.perf_counter()
    for path in paths:
        with client.read(path) as file:
            while data := file.read(_READ_BYTES):
                read_bytes += len(data)
    return read_bytes / 1e6, time.perf_counter() - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hdfs_files", description=__doc__)
    parser.add_argument(
        "--sizes-mb", type=int, nargs="+", default=list(SIZES_MB), metavar="MB",
        help=f"of state (default: {' '.join(map(str, SIZES_MB))})",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    figures = measure(arguments.sizes_mb)
    show(Console(highlight=False), figures)
    if arguments.json:
        write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
