"""HDFS that does not answer is an error like any other, whatever its client makes of it."""

import asyncio
import inspect
from collections.abc import Mapping

import pytest

from statekeep.backends.storage.hdfs.client import HdfsClient
from statekeep.testing.executor import SerialExecutor

ABSENT = ("127.0.0.1:9", "127.0.0.1:11")
"""Ports that no server listens on."""
SERVICE = {
    "dfs.nameservices": "absent",
    "dfs.ha.namenodes.absent": "a,b",
    "dfs.namenode.rpc-address.absent.a": ABSENT[0],
    "dfs.namenode.rpc-address.absent.b": ABSENT[1],
    "dfs.client.failover.proxy.provider.absent": (
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
        (f"hdfs://{ABSENT[0]}", {}, "refused"),
        (f"hdfs://{ABSENT[0]}", {"dfs.client.failover.max.attempts": "3"}, "panicked"),
        ("hdfs://absent", SERVICE, "panicked"),
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


@pytest.mark.asyncio
async def test_a_step_that_is_cancelled_before_it_begins_is_not_left_behind() -> None:
    """As at the end of a loop, which cancels all that runs."""
    client = HdfsClient("hdfs://absent", {})
    begun = False

    async def call() -> None:
        nonlocal begun
        begun = True

    step = call()
    waiting = asyncio.create_task(client.to_end(step))
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    assert not begun
    assert inspect.getcoroutinestate(step) == inspect.CORO_CLOSED
