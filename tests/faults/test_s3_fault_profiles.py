"""The bad days that the crash harness gives an S3 server: what clients are told, what took effect."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from chaos.backends import places
from chaos.fault_profile import FaultProfile
from chaos.plain.s3_fault_profile import faulty_endpoint
from chaos.plain.schedule import draw_schedule
from chaos.servers import Server
from statekeep.backends.storage.client import ObjectStamps
from statekeep.backends.storage.s3 import S3Client
from statekeep.commit.executor import BoundedExecutor
from statekeep.config.blob_settings import S3Settings
from statekeep.errors import RetriableError

PUTS = 120
STAMPS = ObjectStamps({})


class CountingServer:
    """Takes every put, after the interim answer that S3 gives to large ones."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                if b"expect: 100-continue" in head:
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                length = head.partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0]
                self.bodies.append(await reader.readexactly(int(length)))
                writer.write(b'HTTP/1.1 200 OK\r\nETag: "1"\r\nContent-Length: 0\r\n\r\n')
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()


@asynccontextmanager
async def counting_server() -> AsyncGenerator[tuple[CountingServer, str]]:
    counting = CountingServer()
    server = await asyncio.start_server(counting.connected, "127.0.0.1", 0)
    try:
        yield counting, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def put_all(
    profile: FaultProfile, monkeypatch: pytest.MonkeyPatch
) -> tuple[Counter[str], int]:
    """Put blobs one after the other; return what the client was told, and how many were taken."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    executor = BoundedExecutor(1, "profile")
    told: Counter[str] = Counter()
    async with (
        counting_server() as (server, address),
        faulty_endpoint(address, profile, "seed") as endpoint,
    ):
        settings = S3Settings(endpoint=endpoint, has_path_style=True)
        client = S3Client("bucket", "", settings, 1)
        for number in range(PUTS):
            put = partial(client.put, f"{number}", bytes(100_000), STAMPS, if_absent=False)
            try:
                await executor.run(put)
                told["done"] += 1
            except RetriableError as exc:
                told[type(exc).__name__] += 1
        await executor.run(client.close)
    await executor.close()
    assert all(len(body) >= 100_000 for body in server.bodies)
    return told, len(server.bodies)


@pytest.mark.asyncio
async def test_in_the_lossy_profile_what_failed_has_taken_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, taken = await put_all(FaultProfile.LOSSY, monkeypatch)
    assert told.keys() == {"done", "RetriableError"}
    assert taken == PUTS


@pytest.mark.asyncio
async def test_throttled_requests_get_an_error_and_do_not_reach_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, taken = await put_all(FaultProfile.THROTTLED, monkeypatch)
    assert told == {"done": PUTS - 4, "ThrottledError": 4}
    assert taken == PUTS - 4


def test_schedules_on_s3_have_profiles_of_their_own(tmp_path: Path) -> None:
    server = Server("http://127.0.0.1:9", "s3://bucket", lambda: None)
    seen: set[FaultProfile] = set()
    for seed in range(60):
        schedule = draw_schedule(seed, places(["blob-s3"], tmp_path, {"s3": server}), tmp_path)
        seen |= {w for step in schedule.steps for life in step.lives for w in life.profile.values()}
    assert seen == {FaultProfile.LOSSY, FaultProfile.THROTTLED}
