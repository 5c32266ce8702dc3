"""What reading one key, changing one key and cloning cost where the state of a job is large.

The job has the tasks of a default job and one value variable of random bytes, which no compression helps, and is
made without Spark. Its backend is a directory: what is measured is the work, without the way to a store.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType
from rich.console import Console

import statekeep as sk
from benchmarks.figures import Figure, show
from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.log_session import random_nonce
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.checkpoint.records import CommitRecord, JobIdentity, QueryState
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.inspection.new_job import begin_job
from statekeep.spark.operator.codec import ValueCodec
from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.operator.key_hash import KeyHasher, partition_of_hash
from statekeep.spark.operator.registry import REGISTRY_KEY, RegisteredVariable, encode_registry
from statekeep.spark.placement import ROUTER
from statekeep.spark.tasks import STATE_STORE, task_name
from statekeep.stores.local_files import remove_tree
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion

_KEY: Final = StructType([StructField("user", StringType())])
_VALUE: Final = StructType([StructField("payload", BinaryType())])
_VARIABLE: Final = RegisteredVariable(1, "value", _VALUE.json(), None)
_JOB: Final = "large"
_NAME: Final = "payload"
_TASKS: Final = 32
_VALUE_BYTES: Final = 4_000
_CHUNK: Final = 2_000
_ROUNDS: Final = 5
_OFFSETS: Final = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1700000000000}\n{}'


def measure(size: int, directory: Path) -> list[Figure]:
    """Make a job with so many bytes of state, and measure.

    Args:
        size: Of the state.
        directory: Gets the backups, and one task's state at a time.
    """
    settings = {
        "job.name": _JOB,
        "stores.backup.factories": "blob",
        "blob.store.uri": (directory / "backups").as_uri(),
    }
    keys = size // _VALUE_BYTES
    made = _seconds(lambda: asyncio.run(_make(settings, keys, directory)))
    case = f"{size / (1 << 30):.3g} GiB in {_TASKS} tasks"
    chosen = [f"user-{number}" for number in range(0, keys, max(1, keys // _ROUNDS))][:_ROUNDS]
    reads = [_seconds(partial(_read, settings, key)) for key in chosen]
    options = [word for pair in settings.items() for word in ("--set", "=".join(pair))]
    command = [sys.executable, "-m", "statekeep.cli", "state", "get", _NAME, chosen[0], *options]
    run = partial(subprocess.run, command, check=True, capture_output=True)
    got = [_seconds(run) for _ in range(_ROUNDS)]
    clones = [_seconds(partial(sk.clone, settings, f"copy-{n}")) for n in range(_ROUNDS)]
    put = pa.table({"key": [chosen[0]], "value": [b"changed"]})
    write = _seconds(partial(sk.write_state, settings, _NAME, put, reason="a measurement"))
    return [
        Figure("large state", case, "make and back up", made, "s"),
        Figure("large state", case, "read_state of one key", statistics.median(reads), "s"),
        Figure("large state", case, "statekeep state get", statistics.median(got), "s"),
        Figure("large state", case, "clone", statistics.median(clones), "s"),
        Figure("large state", case, "write_state of one key", write, "s"),
    ]


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _read(settings: dict[str, str], key: str) -> None:
    (row,) = sk.read_state(settings, _NAME, key=key).to_pylist()
    if row["key"]["user"] != key or len(row["value"]["payload"]) != _VALUE_BYTES:
        raise RuntimeError(f"another row was read: {row['key']}")


async def _make(settings: dict[str, str], keys: int, directory: Path) -> None:
    commit = CommitRecord(
        attempt_epoch=0,
        attempt=0,
        batch=0,
        checkpoint_id="1-1",
        identity=JobIdentity(
            job_uid="",
            job_name="",
            partitions=_TASKS,
            router=ROUTER,
            key_schema=_KEY.simpleString(),
            stores={MAIN_OPERATOR: [STATE_STORE]},
        ),
    )
    codec, hasher = KeyCodec(_KEY), KeyHasher(_KEY)
    of_task: list[list[bytes]] = [[] for _ in range(_TASKS)]
    for number in range(keys):
        key = codec.encode((f"user-{number}",))
        of_task[partition_of_hash(hasher.hash_front(key)[0], _TASKS)].append(key)
    clock = SystemClock()
    config = load_dict(settings)
    async with begin_job(config, commit, clock, owner="benchmark", partitions=_TASKS) as job:
        for task, mine in enumerate(of_task):
            own = directory / "task"
            await job.add(task_name(task), _sealed(own, task, mine), {})
            remove_tree(own)
        await job.finish(QueryState(query_id="q", metadata='{"id":"q"}', offsets=_OFFSETS))


def _sealed(directory: Path, task: int, keys: Sequence[bytes]) -> SealedVersion:
    place = TaskDirectory.of(directory, TaskIdentity(_JOB, MAIN_OPERATOR, task_name(task)))
    values, uid = ValueCodec(_VALUE), random_nonce()
    with place.begin(uid, None, [STATE_STORE]) as work:
        store = work.open_store(STATE_STORE, "rocksdb")
        store.put(REGISTRY_KEY, encode_registry(_KEY, {_NAME: _VARIABLE}))
        for at in range(0, len(keys), _CHUNK):
            store.write(
                {
                    _VARIABLE.prefix + key: values.encode((os.urandom(_VALUE_BYTES),))
                    for key in keys[at : at + _CHUNK]
                }
            )
        return work.seal(0, uid, None)


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=10, help="of state (default: 10)")
    size = int(parser.parse_args().gigabytes * (1 << 30))
    with tempfile.TemporaryDirectory(prefix="statekeep-bench-") as name:
        show(Console(highlight=False), measure(size, Path(name)))


if __name__ == "__main__":
    main()
