"""``make bench-kafka``: the changelog backend beside a plain confluent-kafka loop and Quix Streams.

All write the same store to, and from, the same broker; rounds alternate. Quix Streams wants a client
library of another version, so it runs by an interpreter of its own (``--quix-python``). Restore to
running is what a program in plain Python waits for at its start: `benchmarks.restore_to_running`.
Each ratio is to the row above.
"""

import argparse
import asyncio
import logging
import statistics
import subprocess
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_kit import ChangelogJob, Committed
from rich.console import Console
from servers.kafka import kafka_broker

from benchmarks.figures import Figure, show, write_json
from benchmarks.restore_to_running import restore_to_running
from statekeep.backends.base import RestoreContext
from statekeep.clock import SystemClock
from statekeep.commit.executor import BoundedExecutor
from statekeep.stores.factory import open_to_load
from statekeep.stores.local_files import clone_image
from statekeep.stores.rocksdb import RocksDbStore
from statekeep.testing.versions import STORE

_BATCH: Final = 10_000
_QUIX_SOURCE: Final = "bench-quix-source"
_VALUE: Final = bytes(range(100))


def measure(*, keys: int, rounds: int, quix_python: Path | None = None) -> list[Figure]:
    """Measure produce and restore rates, of each in turn, as medians of rounds.

    Args:
        keys: In the store.
        rounds: Whose medians count.
        quix_python: Interpreter that has Quix Streams; None: it is left out.
    """
    with (
        kafka_broker(is_measured=True) as broker,
        tempfile.TemporaryDirectory(prefix="statekeep-bench-") as name,
    ):
        bench = _Bench(broker.servers, Path(name), keys, quix_python)
        bench.prepare()
        seconds = [asyncio.run(bench.run(number)) for number in range(rounds + 1)][1:]
    middle = {what: statistics.median(s[what] for s in seconds) for what in seconds[0]}
    figures: list[Figure] = []
    for case in ("produce", "restore"):
        plain, ours = keys / middle[f"plain {case}"], keys / middle[case]
        figures += [
            Figure("kafka changelog", case, "plain loop", plain, "records/s"),
            Figure("kafka changelog", case, "statekeep", ours, "records/s", ours / plain),
        ]
    if quix_python is not None:
        quix, ours = keys / middle["quix restore"], keys / middle["restore"]
        case = "restore, beside Quix"
        figures += [
            Figure("kafka changelog", case, "quix streams", quix, "records/s"),
            Figure("kafka changelog", case, "statekeep", ours, "records/s", ours / quix),
        ]
    return figures


class _Bench:
    """One broker, one store of ``keys`` keys; each round uses topics of its own."""

    def __init__(self, servers: str, root: Path, keys: int, quix_python: Path | None) -> None:
        self._servers = servers
        self._root = root
        self._keys = keys
        self._quix_python = quix_python

    def prepare(self) -> None:
        """Let Quix Streams create its topics, and fill its changelog."""
        if self._quix_python is None:
            return
        admin = AdminClient({"bootstrap.servers": self._servers})
        admin.create_topics([NewTopic(_QUIX_SOURCE, 1, 1)])[_QUIX_SOURCE].result()
        self._run_quix("create", self._root / "quix-create")
        topics = admin.list_topics(timeout=10).topics
        (changelog,) = [name for name in topics if name.startswith("changelog__")]
        producer = Producer({"bootstrap.servers": self._servers, "linger.ms": 20})
        headers: list[tuple[str, str | bytes | None]] = [("__column_family__", b"default")]
        for n in range(self._keys):
            producer.produce(changelog, _VALUE, b"key-%012d" % n, 0, headers=headers)
            if n % _BATCH == 0:
                producer.flush()
        producer.flush()

    def _run_quix(self, phase: str, directory: Path) -> str:
        program = Path(__file__).with_name("quix_recovery.py")
        command = [str(self._quix_python), str(program), phase, self._servers, str(directory)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"quix streams failed: phase={phase} {done.stderr[-2000:]}")
        return done.stdout

    async def run(self, number: int) -> dict[str, float]:
        """Return the seconds of each part of a round."""
        executor = BoundedExecutor(4, "bench")
        root = self._root / str(number)
        job = ChangelogJob(self._servers, root, uuid.uuid4().hex, executor=executor)
        manager = await job.manager()
        version = job.seal({b"key-%012d" % n: _VALUE for n in range(self._keys)})
        clone_image(version.store_directory(STORE), root / "source")
        commits: list[Committed] = []

        async def produce() -> None:
            commits.append(await job.upload(manager, version))

        async def restore() -> None:
            await self._restore(job, commits[0], root / "restored", executor)

        topic = f"plain-{job.task.job_name}"
        admin = AdminClient({"bootstrap.servers": self._servers})
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
        seconds = {
            "plain produce": _timed(lambda: self._plain_produce(topic, root / "source")),
            "produce": await _timed_async(produce),
            "plain restore": _timed(lambda: self._plain_restore(topic, root / "plain")),
            "restore": await _timed_async(restore),
        }
        if self._quix_python is not None:
            seconds["quix restore"] = float(self._run_quix("recover", root / "quix"))
        await job.close()
        await executor.close()
        return seconds

    def _plain_produce(self, topic: str, image: Path) -> None:
        """Write every entry of the store in one transaction."""
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "transactional.id": topic,
                "linger.ms": 20,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
            }
        )
        store = RocksDbStore(STORE, image, is_new=True)
        producer.init_transactions(30)
        producer.begin_transaction()
        for key, value in store.scan():
            producer.produce(topic, value, key, 0)
        producer.commit_transaction(60)
        store.close()

    def _plain_restore(self, topic: str, directory: Path) -> None:
        """Read every record and write it to a store of the same kind."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "plain",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.queue.backoff.ms": 10,  # by default it waits a second for a full queue
            }
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        store = RocksDbStore(STORE, directory, is_new=True)
        left = self._keys
        while left:
            changes: dict[bytes, bytes | None] = {}
            for message in consumer.consume(min(_BATCH, left), 1):
                key = message.key()
                if message.error() is None and key is not None:
                    changes[key] = message.value()
            store.write(changes)
            left -= len(changes)
        store.close()
        consumer.close()

    async def _restore(
        self, job: ChangelogJob, commit: Committed, directory: Path, executor: BoundedExecutor
    ) -> None:
        manager = job.factory.restore_manager(
            RestoreContext(
                job.task,
                {STORE: directory},
                (),
                lambda name, path: open_to_load(name, "rocksdb", path, is_new=True),
                lambda name, path: open_to_load(name, "rocksdb", path, is_new=False),
                lambda _: None,
                lambda _: None,
                executor,
                SystemClock(),
            )
        )
        await manager.init(commit.checkpoint)
        await manager.restore()
        await manager.close()


def _timed(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


async def _timed_async(call: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await call()
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka_changelog")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quix-python", type=Path, metavar="FILE", help="has quixstreams")
    parser.add_argument(
        "--megabytes", type=int, default=1_024, help="state to restore to running; 0: left out"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    logging.getLogger("statekeep").setLevel(logging.CRITICAL)
    figures = measure(
        keys=arguments.keys, rounds=arguments.rounds, quix_python=arguments.quix_python
    )
    if arguments.megabytes:
        size = arguments.megabytes << 20
        figures += asyncio.run(restore_to_running(size, rounds=arguments.rounds))
    show(Console(highlight=False), figures)
    if arguments.json is not None:
        write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
