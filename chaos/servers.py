"""The real servers that some places need: started once a run, struck now and then, stopped for sure.

They are those of the integration tests: ``tests`` must be on the path, as ``make chaos`` sees to.
"""

import os
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs."""

    address: str
    """As its clients are given it."""
    root: str
    """URI below which everything of the run lies."""
    fail: Callable[[], None]
    """Kills it and starts it again on its data, or the nearest to that; returns once it answers."""


NO_SERVER: Final = Server("", "", lambda: None)
"""Of places on local files."""


@contextmanager
def running(names: Collection[str]) -> Generator[Mapping[str, Server]]:
    """Run servers until the block ends, also by an error or a signal that raises.

    Args:
        names: Out of ``s3``, ``kafka`` and ``hdfs``.

    Raises:
        ServerUnavailableError: One does not start; says what is missing.
    """
    with ExitStack() as stack:
        yield {name: stack.enter_context(_SERVERS[name]()) for name in sorted(names)}


@contextmanager
def _s3() -> Generator[Server]:
    import boto3  # noqa: PLC0415 - only what is asked for is loaded
    from servers.seaweedfs import seaweedfs  # noqa: PLC0415

    bucket = "statekeep-chaos"
    with seaweedfs() as server:
        # It takes any; the jobs inherit these.
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "statekeep",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        client = boto3.client("s3", endpoint_url=server.endpoint)
        client.create_bucket(Bucket=bucket)
        client.close()
        yield Server(server.endpoint, f"s3://{bucket}", server.restart)


@contextmanager
def _kafka() -> Generator[Server]:
    from servers.kafka import kafka_broker  # noqa: PLC0415

    with kafka_broker() as broker:

        def fail() -> None:
            broker.kill()
            broker.start()

        yield Server(broker.servers, "", fail)


@contextmanager
def _hdfs() -> Generator[Server]:
    from servers.hdfs import hdfs_cluster  # noqa: PLC0415

    with hdfs_cluster() as cluster:
        yield Server(cluster.uri, f"{cluster.uri}/chaos", cluster.restart_namenode)


_SERVERS: Final[Mapping[str, Callable[[], AbstractContextManager[Server]]]] = {
    "s3": _s3,
    "kafka": _kafka,
    "hdfs": _hdfs,
}
