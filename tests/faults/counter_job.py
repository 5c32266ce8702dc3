"""A job that folds numbered input into two stores, and can be killed at a fault point.

``python counter_job.py DIRECTORY POINT NTH`` runs it until it reaches POINT for the NTH time, where
it dies by SIGKILL, as hard as a process can.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.container.task import Task
from statekeep.fault_points import fault_handler

INPUT = SystemStreamPartition("numbers", "input.v1", 0)
STORES = ("sums", "counts")
COMMIT_EVERY = 10
LAST_INPUT = 49


def config(directory: Path) -> Config:
    """Two blob backends, so that a mixture of them would show too."""
    return load_dict(
        {
            "job.name": "counter",
            "job.logged.store.base.dir": directory / "local",
            "stores.backup.factories": "first,second",
            "backends.first.factory": "blob",
            "backends.first.uri": f"file://{directory}/first",
            "backends.second.factory": "blob",
            "backends.second.uri": f"file://{directory}/second",
            "task.commit.ms": "0",
            "checkpoint.clean.up.ms": "0",
        }
    )


def expected(last_input: int) -> dict[str, dict[bytes, bytes]]:
    """Fold the input up to and including one number, without any store."""
    sums: dict[bytes, int] = {}
    counts: dict[bytes, int] = {}
    for number in range(last_input + 1):
        key = b"key-%d" % (number % 7)
        sums[key] = sums.get(key, 0) + number
        counts[key] = counts.get(key, 0) + 1
    return {
        "sums": {key: b"%d" % value for key, value in sums.items()},
        "counts": {key: b"%d" % value for key, value in counts.items()},
    }


def content(task: Task) -> dict[str, dict[bytes, bytes]]:
    """Read both stores."""
    return {name: dict(task.store(name).scan()) for name in STORES}


def last_input_of(task: Task) -> int:
    """Return the number that the restored commit had got to; -1 before the first commit."""
    return int(task.input_offsets.get(INPUT, "-1"))


def process(task: Task, number: int) -> None:
    """Fold one number in."""
    key = b"key-%d" % (number % 7)
    for name, amount in (("sums", number), ("counts", 1)):
        store = task.store(name)
        store.put(key, b"%d" % (int(store.get(key) or b"0") + amount))


async def run(directory: Path, commit_every: int = COMMIT_EVERY) -> None:
    """Go on from the last commit to the end of the input; note what was begun and acknowledged."""
    async with Container(config(directory)) as container:
        task = await container.start_task("Partition 0", STORES)
        for number in range(last_input_of(task) + 1, LAST_INPUT + 1):
            process(task, number)
            if (number + 1) % commit_every == 0:
                (directory / "begun").write_text(str(number))
                commit = await task.commit({INPUT: str(number)}, force=True)
                await commit.wait()
                (directory / "acknowledged").write_text(str(number))
        await task.wait()


def main() -> None:
    """Run until the fault point is reached for the n-th time."""
    directory, point, nth = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    seen = 0

    def kill_at_point(name: str) -> None:
        nonlocal seen
        if name == point:
            seen += 1
            if seen == nth:
                os.kill(os.getpid(), signal.SIGKILL)

    with fault_handler(kill_at_point):
        asyncio.run(run(directory))


if __name__ == "__main__":
    main()
