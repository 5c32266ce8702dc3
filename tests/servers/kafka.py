"""Apache Kafka (KRaft, one node), from the Java artefacts that PySpark's Ivy fetches."""

import os
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from servers.process import (
    ServerUnavailableError,
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
_SETTINGS: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={directory}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.cleaner.backoff.ms=200
log.cleaner.dedupe.buffer.size=8388608
log.initial.task.delay.ms=500
"""


class KafkaBroker:
    """One node, which tests may kill and start again on the same data.

    Attributes:
        servers: What clients are given as ``bootstrap.servers``.
    """

    def __init__(self, directory: Path, libraries: Path) -> None:
        port, controller = free_ports(2)
        self.servers = f"127.0.0.1:{port}"
        self._port = port
        self._directory = directory
        self._class_path = f"{libraries}/*"
        self._settings = directory / "server.properties"
        self._settings.write_text(
            _SETTINGS.format(port=port, controller=controller, directory=directory)
        )
        self._node: ExitStack | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def format(self) -> None:
        """Prepare the empty data directory, once."""
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        tool = [*self._java("kafka.tools.StorageTool"), "format", "-t", cluster_id]
        _run([*tool, "-c", str(self._settings)])

    def start(self) -> None:
        """Start the node and wait until it answers.

        Raises:
            ServerUnavailableError: It does not.
        """
        self._node = ExitStack()
        self._process = self._node.enter_context(
            running(
                [*self._java("kafka.Kafka"), str(self._settings)],
                log=self._directory / "broker.log",
                is_ready=lambda: is_listening(self._port),
            )
        )

    def kill(self) -> None:
        """End the node as a crash does; an orderly end would take up to 20 s. Idempotent."""
        if self._process is not None and self._node is not None:
            self._process.kill()
            self._process.wait()
            self._node.close()

    def partition_directory(self, partition: str) -> Path:
        """Return where the node keeps ``<topic>-<partition>``."""
        return self._directory / "data" / partition

    def _java(self, main_class: str) -> list[str]:
        return ["java", "-Xmx512m", "-cp", self._class_path, main_class]


@contextmanager
def kafka_broker() -> Generator[KafkaBroker]:
    """Run one node on a free port; its data is gone after.

    Raises:
        ServerUnavailableError: There is no Java, or the artefacts cannot be fetched.
    """
    libraries = _libraries()
    with temporary_directory("kafka") as directory:
        broker = KafkaBroker(directory, libraries)
        broker.format()
        broker.start()
        try:
            yield broker
        finally:
            broker.kill()


def _libraries() -> Path:
    """Return the directory of the jars, fetched at first use."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "statekeep-test"
    libraries = cache / f"kafka-{_VERSION}"
    if libraries.is_dir():
        return libraries
    cache.mkdir(parents=True, exist_ok=True)
    with temporary_directory("ivy") as scratch:
        for group, name, version in _ARTEFACTS:
            _run(
                [
                    *("java", "-cp", str(_ivy_jar()), "org.apache.ivy.Main"),
                    *("-cache", str(scratch / "cache"), "-dependency", group, name, version),
                    *("-confs", "runtime,master,default"),
                    *("-retrieve", f"{scratch}/lib/[artifact]-[revision].[ext]"),
                ]
            )
        staged = cache / f"kafka-{_VERSION}-{uuid.uuid4().hex}"
        _copy(scratch / "lib", staged)
        try:
            staged.rename(libraries)
        except OSError:  # another run was first; its jars are the same
            _remove(staged)
    return libraries


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ServerUnavailableError("Kafka is fetched by PySpark's Ivy: install statekeep[spark]")
    jars = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar"))
    if not jars:
        raise ServerUnavailableError("PySpark has no Ivy: install statekeep[spark]")
    return jars[0]


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    except FileNotFoundError as exc:
        raise ServerUnavailableError("Kafka needs Java 17: install a JRE") from exc
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as exc:
        output = (exc.output or b"")[-2000:].decode(errors="replace")
        raise ServerUnavailableError(f"{command[0]} failed: {output}") from exc


def _copy(source: Path, target: Path) -> None:
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())


def _remove(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()
