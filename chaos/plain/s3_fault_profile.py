"""Bad days of an S3 server, on the way to it: answers that are lost, requests that are put off."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

from chaos.fault_profile import LOST_ANSWERS, FaultProfile

_CHUNK_BYTES: Final = 64 << 10
_REFUSED_REQUESTS: Final = 0.1
_MOST_REFUSED: Final = 4
"""In one life; each makes all transfers rest, up to twice as long as the one before."""
_INTERIM: Final = b"HTTP/1.1 100"
_BODY: Final = b"<Error><Code>SlowDown</Code><Message>on purpose</Message></Error>"
_SLOW_DOWN: Final = (
    b"HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Type: application/xml\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


@asynccontextmanager
async def faulty_endpoint(endpoint: str, profile: FaultProfile, seed: str) -> AsyncGenerator[str]:
    """Stand between S3 clients and their server; what happens to a request is drawn from the seed.

    Args:
        endpoint: Of the server, without TLS.
        profile: LOSSY or THROTTLED.
        seed: See there.

    Yields:
        The endpoint for the clients.
    """
    relay = _Relay(endpoint, profile, seed)
    server = await asyncio.start_server(relay.connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await relay.close()


class _Relay:
    def __init__(self, endpoint: str, profile: FaultProfile, seed: str) -> None:
        address = urlsplit(endpoint)
        self._host, self._port = address.hostname, address.port
        self._profile = profile
        self._draw = random.Random(seed)  # noqa: S311 - the same faults each time
        self._refusals_left = _MOST_REFUSED if profile is FaultProfile.THROTTLED else 0
        self._connections: set[asyncio.Task[None]] = set()

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_Connection(self, reader, writer).run(self._host, self._port))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def close(self) -> None:
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def refuses(self) -> bool:
        """Return whether the request that just begins is put off."""
        if not self._refusals_left or self._draw.random() >= _REFUSED_REQUESTS:
            return False
        self._refusals_left -= 1
        return True

    def loses(self) -> bool:
        """Return whether the answer that just begins is lost: the server has done what was asked."""
        return self._profile is FaultProfile.LOSSY and self._draw.random() < LOST_ANSWERS


class _Connection:
    """One connection of a client, which asks again only after an answer."""

    def __init__(
        self, relay: _Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._relay = relay
        self._reader = reader
        self._writer = writer
        self._is_asking = False

    async def run(self, host: str | None, port: int | None) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(host, port)
        except OSError:  # the server is down, as its client then finds out
            self._writer.transport.abort()
            return
        ways = [self._up(far_writer), self._down(far_reader)]
        running = [asyncio.ensure_future(way) for way in ways]
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in running:
                way.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            self._writer.transport.abort()
            far_writer.transport.abort()

    async def _up(self, far_writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await self._reader.read(_CHUNK_BYTES):
                if not self._is_asking:
                    self._is_asking = True
                    if self._relay.refuses():
                        await self._put_off()
                        return
                far_writer.write(data)
                await far_writer.drain()

    async def _put_off(self) -> None:
        self._writer.write(_SLOW_DOWN)
        await self._writer.drain()
        # Closed with unread bytes, the connection would be reset, and the answer lost.
        while await self._reader.read(_CHUNK_BYTES):
            pass

    async def _down(self, far_reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while data := await far_reader.read(_CHUNK_BYTES):
                if self._is_asking and not data.startswith(_INTERIM):
                    self._is_asking = False
                    if self._relay.loses():
                        return
                self._writer.write(data)
                await self._writer.drain()
