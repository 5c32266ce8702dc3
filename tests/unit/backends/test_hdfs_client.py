"""HDFS that does not answer is an error like any other, whatever its client makes of it."""

from collections.abc import Mapping

import pytest

from statekeep.backends.blob.managers.hdfs_client import HdfsClient
from statekeep.testing.executor import SerialExecutor

NOBODY = ("127.0.0.1:9", "127.0.0.1:11")
"""Ports that no server listens on."""
SERVICE = {
    "dfs.nameservices": "nobody",
    "dfs.ha.namenodes.nobody": "a,b",
    "dfs.namenode.rpc-address.nobody.a": NOBODY[0],
    "dfs.namenode.rpc-address.nobody.b": NOBODY[1],
    "dfs.client.failover.proxy.provider.nobody": (
        "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
    ),
}


async def connected(uri: str, options: Mapping[str, str]) -> HdfsClient:
    client = HdfsClient(uri, options)
    await client.connect(SerialExecutor())
    return client


@pytest.mark.parametrize(
    ("uri", "options", "error"),
    [
        (f"hdfs://{NOBODY[0]}", {}, "refused"),
        (f"hdfs://{NOBODY[0]}", {"dfs.client.failover.max.attempts": "3"}, "panicked"),
        ("hdfs://nobody", SERVICE, "panicked"),
    ],
    ids=["one", "one that is asked again", "a service of two"],
)
@pytest.mark.asyncio
async def test_namenodes_that_are_away_are_an_os_error(
    uri: str, options: Mapping[str, str], error: str
) -> None:
    client = await connected(uri, options)
    for _ in range(2):  # it is still of use
        with pytest.raises(OSError, match=error):
            await client.size("/a")
        with pytest.raises(OSError, match=error):
            await client.create("/a")
