"""A Spark standalone cluster: a master, and workers with local directories of their own, as hosts have."""

import json
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pyspark
from servers.process import free_ports, is_listening, running, temporary_directory
from servers.process_tree import command_of, descendants, processes_that_name

SPARK_HOME: Final = Path(pyspark.__file__).parent
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
EXECUTOR: Final = "CoarseGrainedExecutorBackend"
"""In the command line of an executor."""


@dataclass(frozen=True)
class Worker:
    """One "host": a process that starts executors below it."""

    process: "subprocess.Popen[bytes]"
    directory: Path

    @property
    def local(self) -> Path:
        """Where tasks keep their state on this host."""
        return self.directory / "local"

    @property
    def executors(self) -> list[int]:
        """The process ids of its executors' JVMs."""
        return [pid for pid in descendants(self.process.pid) if EXECUTOR in command_of(pid)]

    def kill_executor(self) -> None:
        """Kill the JVM of an executor; the worker starts another one."""
        os.kill(self.executors[0], signal.SIGKILL)

    def lose(self) -> None:
        """Kill all that runs on the host, and lose its disk."""
        victims = [*descendants(self.process.pid), *processes_that_name(self.directory)]
        for pid in {self.process.pid, *victims}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.local, ignore_errors=True)


@dataclass(frozen=True)
class SparkCluster:
    """A running cluster."""

    uri: str
    workers: list[Worker]


@contextmanager
def spark_cluster(worker_count: int) -> Generator[SparkCluster]:
    """Run a master and workers with one core each."""
    port, web_port = free_ports(2)
    spark = [str(SPARK_HOME / "bin" / "spark-class")]  # becomes the JVM
    settings = {"SPARK_HOME": str(SPARK_HOME), "SPARK_DAEMON_MEMORY": "256m"}
    with ExitStack() as stack:
        directory = stack.enter_context(temporary_directory("cluster"))
        at = ["--host", "127.0.0.1", "--port"]
        stack.enter_context(
            running(
                [*spark, _MASTER, *at, str(port), "--webui-port", str(web_port)],
                log=directory / "master.log",
                is_ready=lambda: is_listening(port),
                env=settings,
            )
        )
        uri = f"spark://127.0.0.1:{port}"
        cluster = SparkCluster(uri, [])
        for number in range(worker_count):
            own = directory / f"host-{number}"
            own.mkdir()
            ports = free_ports(2)
            options = ["--cores", "1", "--memory", "1g", "--webui-port", str(ports[1])]
            worker = stack.enter_context(
                running(
                    [*spark, _WORKER, *at, str(ports[0]), *options, "-d", str(own / "work"), uri],
                    log=own / "worker.log",
                    is_ready=partial(_has_workers, web_port, number + 1),
                    env=settings
                    | {
                        "SPARK_LOCAL_DIRS": str(own / "spark"),
                        "LOGGED_STORE_BASE_DIR": str(own / "local"),
                    },
                )
            )
            cluster.workers.append(Worker(worker, own))
        yield cluster


def _has_workers(web_port: int, count: int) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{web_port}/json/", timeout=5) as answer:
        text = answer.read()
    return bool(text) and int(json.loads(text)["aliveworkers"]) == count  # empty while it starts
