"""Apache Kafka (KRaft, one node or several), from the artefacts that PySpark's Ivy fetches."""

import signal
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from servers.java_artefacts import fetched, run_java
from servers.process import (
    free_ports,
    is_listening,
    running,
    temporary_directory,
)

_VERSION: Final = "4.1.0"
_ARTEFACTS: Final = (
    ("org.apache.kafka", "kafka_2.13", _VERSION),
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)
_SPARK_SOURCE: Final = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
"""What ``spark.jars`` needs for Spark's Kafka source, one by one: together they name versions that
some mirrors lack."""
_SETTINGS: Final = """\
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={directory}/data
default.replication.factor={nodes}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={nodes}
offsets.topic.num.partitions=1
transaction.state.log.replication.factor={nodes}
transaction.state.log.min.isr={in_sync}
transaction.state.log.num.partitions=4
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
group.initial.rebalance.delay.ms=0
auto.create.topics.enable={auto_create}
broker.heartbeat.interval.ms=1000
broker.session.timeout.ms=5000
log.cleaner.backoff.ms=200
log.cleaner.dedupe.buffer.size=8388608
log.initial.task.delay.ms=500
"""
_HEAP: Final = {1: "-Xmx512m", 3: "-Xmx256m"}
"""Of one node, by the number of nodes."""
_YOUNG: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For one that does not live long: its start takes less than half of the processor time."""


class KafkaBroker:
    """One node, which tests may kill and start again on the same data.

    Attributes:
        number: Of the node, from 1.
        servers: Where clients reach it.
    """

    def __init__(
        self,
        directory: Path,
        libraries: Path,
        number: int,
        ports: Sequence[tuple[int, int]],
        *,
        makes_topics: bool = False,
        is_measured: bool = False,
    ) -> None:
        """Write its settings.

        Args:
            directory: For its files.
            libraries: The jars.
            number: Of the node, from 1.
            ports: For clients and for controllers, of each node.
            makes_topics: A topic that a client asks for is created, as by default.
            is_measured: Its speed counts, and not how soon it starts.
        """
        self.number = number
        self._port, controller = ports[number - 1]
        self.servers = f"127.0.0.1:{self._port}"
        self._directory = directory
        self._class_path = f"{libraries}/*"
        self._options = (_HEAP[len(ports)], *(() if is_measured else _YOUNG))
        self._settings = directory / "server.properties"
        self._settings.write_text(
            _SETTINGS.format(
                number=number,
                nodes=len(ports),
                in_sync=(len(ports) + 1) // 2,
                voters=",".join(f"{n}@127.0.0.1:{port}" for n, (_, port) in enumerate(ports, 1)),
                port=self._port,
                controller=controller,
                directory=directory,
                auto_create=str(makes_topics).lower(),
            )
        )
        self._node: ExitStack | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def format(self, cluster_id: str) -> None:
        """Prepare the empty data directory, once."""
        tool = [*self._java("kafka.tools.StorageTool"), "format", "-t", cluster_id]
        run_java([*tool, "-c", str(self._settings)])

    def start(self, is_ready: Callable[[], bool] | None = None) -> None:
        """Start the node and wait until it answers.

        Args:
            is_ready: What to wait for instead.

        Raises:
            ServerUnavailableError: It does not.
        """
        self._node = ExitStack()
        self._process = self._node.enter_context(
            running(
                [*self._java("kafka.Kafka"), str(self._settings)],
                log=self._directory / "broker.log",
                is_ready=is_ready or (lambda: is_listening(self._port)),
                timeout_s=120,
            )
        )

    def kill(self) -> None:
        """End the node as a crash does; an orderly end would take up to 20 s. Idempotent."""
        if self._process is not None and self._node is not None:
            self._process.kill()
            self._process.wait()
            self._node.close()

    def pause(self) -> None:
        """Let the node stand still: connections stay open, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the node go on. Idempotent."""
        self._signal(signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        """Whether it was started and not killed."""
        return self._process is not None and self._process.poll() is None

    def partition_directory(self, partition: str) -> Path:
        """Return where the node keeps ``<topic>-<partition>``."""
        return self._directory / "data" / partition

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _java(self, main_class: str) -> list[str]:
        return ["java", *self._options, "-cp", self._class_path, main_class]


class KafkaCluster:
    """Several nodes, each broker and controller: one may be away, and everything goes on.

    Attributes:
        nodes: By number, from 1; all running unless a test has killed one.
        servers: What clients are given as ``bootstrap.servers``.
    """

    def __init__(self, nodes: Sequence[KafkaBroker]) -> None:
        self.nodes = {node.number: node for node in nodes}
        self.servers = ",".join(node.servers for node in nodes)

    def start_missing(self) -> None:
        """Start the nodes that do not run, and wait until the cluster has all of them."""
        missing = [node for node in self.nodes.values() if not node.is_running]
        for node in missing[:-1]:
            node.start(lambda: True)  # alone, none would ever be ready
        if missing:
            missing[-1].start(self._is_whole)

    def kill(self) -> None:
        """End all nodes."""
        for node in self.nodes.values():
            node.kill()

    def leader(self, topic: str, partition: int) -> KafkaBroker:
        """Return the node that leads a partition."""
        facts = self._admin().list_topics(topic, timeout=10).topics[topic]
        return self.nodes[facts.partitions[partition].leader]

    def _is_whole(self) -> bool:
        try:
            return len(self._admin().list_topics(timeout=1).brokers) == len(self.nodes)
        except KafkaException:
            return False

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})


@contextmanager
def kafka_broker(
    *, makes_topics: bool = False, is_measured: bool = False
) -> Generator[KafkaBroker]:
    """Run one node on a free port; its data is gone after.

    Args:
        makes_topics: A topic that a client asks for is created, as by default.
        is_measured: Its speed counts, and not how soon it starts.

    Raises:
        ServerUnavailableError: There is no Java, or the artefacts cannot be fetched.
    """
    with kafka_cluster(nodes=1, makes_topics=makes_topics, is_measured=is_measured) as cluster:
        yield cluster.nodes[1]


@contextmanager
def kafka_cluster(
    *, nodes: int = 3, makes_topics: bool = False, is_measured: bool = False
) -> Generator[KafkaCluster]:
    """Run some nodes on free ports; their data is gone after.

    Args:
        nodes: How many.
        makes_topics: A topic that a client asks for is created, as by default.
        is_measured: Their speed counts, and not how soon they start.

    Raises:
        ServerUnavailableError: There is no Java, or the artefacts cannot be fetched.
    """
    libraries = fetched(f"kafka-{_VERSION}", _ARTEFACTS)
    free = free_ports(2 * nodes)
    ports = list(zip(free[:nodes], free[nodes:], strict=True))
    cluster_id = _new_cluster_id()
    with ExitStack() as stack:
        made: list[KafkaBroker] = []
        for number in range(1, nodes + 1):
            directory = stack.enter_context(temporary_directory(f"kafka-{number}"))
            node = KafkaBroker(
                directory,
                libraries,
                number,
                ports,
                makes_topics=makes_topics,
                is_measured=is_measured,
            )
            made.append(node)
            node.format(cluster_id)
        cluster = KafkaCluster(made)
        stack.callback(cluster.kill)
        cluster.start_missing()
        yield cluster


def _new_cluster_id() -> str:
    """Draw one that the tool does not take for an option."""
    while (drawn := urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()).startswith("-"):
        continue
    return drawn


def spark_source_jars() -> list[Path]:
    """Return the jars of Spark's Kafka source, fetched at first use.

    Raises:
        ServerUnavailableError: There is no Java, or they cannot be fetched.
    """
    directory = fetched(f"spark-kafka-{_SPARK_SOURCE[0][2]}", _SPARK_SOURCE, "-notransitive")
    return sorted(directory.iterdir())
