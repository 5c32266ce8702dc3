"""How long a commit keeps a task from processing, by size of state: in plain Python, no backend.

The pause is `WorkDirectory.seal`: flush, image by hard links, manifest, rename. It should depend on
what changed since the last commit, and not on how much state there is.
"""

import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import state
from benchmarks.figures import Figure, percentile
from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoints import StoreName, TaskName
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion

STORE = StoreName("state")
CHANGED_KEYS = 5_000
KEPT_VERSIONS = 2
WARM_UP = 3


def measure(commits: int, sizes_mb: Sequence[int]) -> list[Figure]:
    """Measure the pause at each size of state."""
    figures: list[Figure] = []
    for size_mb in sizes_mb:
        with tempfile.TemporaryDirectory() as name:
            pauses = _pauses(Path(name), size_mb, commits)
        case = f"{size_mb / 1000:g} GB of state, {CHANGED_KEYS:,} changed keys"
        figures += [
            Figure("pause", case, f"p{share * 100:.0f}", percentile(pauses, share), "ms")
            for share in (0.5, 0.99)
        ]
    return figures


def _pauses(root: Path, size_mb: int, commits: int) -> list[float]:
    directory = TaskDirectory(root, TaskIdentity("benchmark", "main", TaskName("Partition 0")))
    draw = random.Random(size_mb)
    numbers = range(state.key_count(size_mb))
    pauses: list[float] = []
    with directory.begin("bench", None, [STORE]) as work:
        store = work.open_store(STORE, "rocksdb")
        state.load(store, len(numbers), draw)
        sealed: SealedVersion | None = None
        kept: list[SealedVersion] = []
        for batch in range(commits + WARM_UP):
            state.change(store, draw.sample(numbers, CHANGED_KEYS), draw)
            begin = time.perf_counter()
            sealed = work.seal(batch, f"{batch:032x}", sealed)
            pauses.append((time.perf_counter() - begin) * 1000)
            kept = [*kept, sealed][-KEPT_VERSIONS:]
            directory.retain([version.id for version in kept], batch)
    return pauses[WARM_UP:]
