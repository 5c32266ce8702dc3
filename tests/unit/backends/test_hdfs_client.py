"""HDFS that does not answer is an error like any other, whatever its client makes of it."""

import asyncio
import inspect
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress

import pytest
from fake_hdfs_kit import FakeHdfs
from typing_extensions import override

from statekeep.backends.storage.hdfs import blocking
from statekeep.backends.storage.hdfs import client as hdfs_client
from statekeep.backends.storage.hdfs.client import SOCKET_TIMEOUT_OPTION, HdfsClient
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
    ("uri", "options"),
    [
        (f"hdfs://{ABSENT[0]}", {}),
        (f"hdfs://{ABSENT[0]}", {"dfs.client.failover.max.attempts": "3"}),
        ("hdfs://absent", {**SERVICE, "dfs.client.failover.max.attempts": "3"}),
    ],
    ids=["one", "one that is asked again", "a service of two"],
)
@pytest.mark.asyncio
async def test_namenodes_that_are_away_are_an_os_error(
    uri: str, options: Mapping[str, str]
) -> None:
    client = await connected(uri, options)
    for _ in range(2):  # it is still of use
        with pytest.raises(OSError, match="refused"):
            await client.size("/a")
        with pytest.raises(OSError, match="refused"):
            await client.create("/a")


class PanicException(BaseException):
    """What a panic of Rust is in Python."""


@pytest.mark.asyncio
async def test_a_panic_is_an_os_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeHdfs()
    monkeypatch.setattr(hdfs_client, "_connected_client", lambda url, options: fake)
    fake.errors["info"] = PanicException("out of bounds")
    client = await connected("hdfs://absent", {})
    with pytest.raises(OSError, match="panicked: out of bounds"):
        await client.size("/a")


class LosesConnections(socketserver.BaseRequestHandler):
    """A NameNode that takes calls for a moment and breaks the connection without an answer."""

    @override
    def handle(self) -> None:
        self.request.settimeout(0.01)
        with suppress(TimeoutError):
            while self.request.recv(1 << 16):
                pass


class HoldsConnections(socketserver.BaseRequestHandler):
    """A NameNode that does not answer, until its connections are lost."""

    let_go = threading.Event()

    @override
    def handle(self) -> None:
        self.let_go.wait()


_ASK_MUCH = """
import asyncio, sys
from statekeep.backends.storage.hdfs.client import HdfsClient
from statekeep.testing.executor import SerialExecutor

async def ask(client):
    for _ in range(100):
        try:
            await client.size("/a")
        except OSError as exc:
            assert not isinstance(exc, TimeoutError)

async def main():
    client = HdfsClient(f"hdfs://127.0.0.1:{sys.argv[1]}", {})
    await client.connect(SerialExecutor())
    await asyncio.gather(*(ask(client) for _ in range(20)))
    print("all ended")

asyncio.run(main())
"""


@pytest.mark.timeout(90)
def test_connections_that_are_lost_with_calls_under_way_do_not_stop_the_process() -> None:
    """In another process: where it stands still, no time-out of its own would end it."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), LosesConnections) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = str(server.server_address[1])
        command = [sys.executable, "-c", _ASK_MUCH, port]
        done = subprocess.run(command, timeout=60, check=True, capture_output=True, text=True)
        server.shutdown()
    assert done.stdout == "all ended\n"


_END_WITH_CALLS = """
import asyncio, sys
from statekeep.backends.awaiting import run_all
from statekeep.backends.storage.hdfs.client import HdfsClient
from statekeep.testing.executor import SerialExecutor

async def fail(begun):
    while len(begun) < 8:
        await asyncio.sleep(0)
    raise FileNotFoundError

async def ask(client, begun):
    begun.append(client)
    await client.size("/a")

async def main():
    client = HdfsClient(f"hdfs://127.0.0.1:{sys.argv[1]}", {})
    await client.connect(SerialExecutor())
    begun = []
    await run_all([*(ask(client, begun) for _ in range(8)), fail(begun)])

try:
    asyncio.run(main())
except FileNotFoundError:
    print("ended", flush=True)
    sys.exit(3)
"""


@pytest.mark.timeout(60)
def test_a_process_that_ends_waits_a_moment_for_calls_that_were_left_behind() -> None:
    """One that comes back while the interpreter ends would abort it."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), HoldsConnections) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for _ in range(4):
            HoldsConnections.let_go.clear()
            command = [sys.executable, "-c", _END_WITH_CALLS, str(server.server_address[1])]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == "ended\n"
                HoldsConnections.let_go.set()
                assert process.wait(30) == 3
        server.shutdown()


@pytest.mark.asyncio
async def test_a_filesystem_whose_calls_hang_takes_no_thread_from_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocking, "_MOST_CALLS", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"hdfs://127.0.0.1:{silent.getsockname()[1]}"
        client = await connected(address, {SOCKET_TIMEOUT_OPTION: "101"})
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await client.size("/a")
        with pytest.raises(TimeoutError, match=f"calls of HDFS hang, .*: url={address} calls=2"):
            await client.size("/a")
        other = await connected(f"hdfs://{ABSENT[0]}", {})
        with pytest.raises(OSError, match="refused"):
            await other.size("/a")


@pytest.mark.asyncio
async def test_a_call_that_hangs_holds_up_no_other_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"hdfs://127.0.0.1:{silent.getsockname()[1]}"
        client = await connected(address, {SOCKET_TIMEOUT_OPTION: "100"})
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await client.size("/a")
    other = await connected(f"hdfs://{ABSENT[0]}", {})
    with pytest.raises(OSError, match="refused"):
        await other.size("/a")


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
