"""How long a program waits at its start, with its disk lost: from a blob store and from a changelog.

One job with both backends commits a store; then it starts anew from the one and from the other. The
blob store is a directory of this machine, as the broker is a process of it.
"""

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from servers.kafka import kafka_broker

from benchmarks.figures import Figure
from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container

_INPUT: Final = SystemStreamPartition("bench", "input", 0)
_TASK: Final = "Partition 0"
_STORE: Final = "s"
_ENTRY_BYTES: Final = 1_016
_BATCH: Final = 10_000


async def restore_to_running(size: int, *, rounds: int) -> list[Figure]:
    """Measure how long it takes until a store is open again, from each backend.

    Args:
        size: Bytes of the store.
        rounds: Whose medians count; the backends take turns.
    """
    with (
        kafka_broker(is_measured=True) as broker,
        tempfile.TemporaryDirectory(prefix="statekeep-bench-") as name,
    ):
        root = Path(name)
        await _fill(_config(root, broker.servers, "kafka,files"), size)
        seconds: dict[str, list[float]] = {"kafka": [], "files": []}
        for _ in range(rounds):
            for source, taken in seconds.items():
                shutil.rmtree(root / "local")
                taken.append(await _start(root, broker.servers, source))
    changelog, blob = (statistics.median(taken) for taken in seconds.values())
    case = f"{size >> 20} MB to running"
    return [
        Figure("kafka changelog", case, "from blobs", blob, "s"),
        Figure("kafka changelog", case, "from the changelog", changelog, "s", changelog / blob),
    ]


async def _start(root: Path, servers: str, source: str) -> float:
    """Return the seconds of a start that restores from one backend."""
    config = _config(root, servers, "kafka,files", restore=source)
    async with Container(config, on_progress=lambda _: None) as container:
        began = time.perf_counter()
        task = await container.start_task(_TASK, [_STORE])
        seconds = time.perf_counter() - began
        if dict(task.restored.sources) != {_STORE: source}:
            raise RuntimeError(f"restored from elsewhere: {task.restored}")
    return seconds


async def _fill(config: Config, size: int) -> None:
    """Commit a store of random values, which no compression helps, to both backends."""
    async with Container(config) as container:
        task = await container.start_task(_TASK, [_STORE])
        for start in range(0, size // _ENTRY_BYTES, _BATCH):
            end = min(start + _BATCH, size // _ENTRY_BYTES)
            task.store(_STORE).write(
                {b"key-%012d" % n: os.urandom(1_000) for n in range(start, end)}
            )
        await (await task.commit({_INPUT: "1"}, force=True)).wait()


def _config(root: Path, servers: str, backups: str, restore: str | None = None) -> Config:
    return load_dict(
        {
            "job.name": "bench",
            "job.log.backend": "files",
            "job.logged.store.base.dir": root / "local",
            "stores.backup.factories": backups,
            "stores.restore.factories": restore or backups,
            "kafka.bootstrap.servers": servers,
            "backends.files.factory": "blob",
            "backends.files.uri": (root / "files").as_uri(),
        },
        "bench",
    )
