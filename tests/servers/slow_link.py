"""A link with latency and bandwidth in front of a server: a TCP relay in a process of its own."""

import asyncio
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from servers.process import free_ports, is_listening, running, temporary_directory

_CHUNK_BYTES: Final = 256 << 10
_CHUNKS_UNDER_WAY: Final = 16


@contextmanager
def slow_link(to_port: int, *, round_trip_ms: float, bytes_per_second: int) -> Generator[int]:
    """Relay to a port of this machine; gives the port to connect to instead."""
    [port] = free_ports()
    arguments = [port, to_port, round_trip_ms, bytes_per_second]
    command = [sys.executable, str(Path(__file__)), *map(str, arguments)]
    root = str(Path(__file__).parents[1])
    with temporary_directory("slow-link") as directory:
        relay = running(
            command,
            log=directory / "log",
            is_ready=lambda: is_listening(port),
            env={"PYTHONPATH": root},
        )
        with relay:
            yield port


@dataclass
class _Direction:
    """One way through the link, shared by all connections."""

    delay_s: float
    bytes_per_second: int
    free_at_s: float = 0.0

    def arrival_s(self, size: int, now_s: float) -> float:
        """Return when bytes that are sent now arrive: after those before them, and the way."""
        self.free_at_s = max(self.free_at_s, now_s) + size / self.bytes_per_second
        return self.free_at_s + self.delay_s


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: _Direction
) -> None:
    """Move bytes one way until their end."""
    loop = asyncio.get_running_loop()
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS_UNDER_WAY)

    async def deliver() -> None:
        while True:
            arrival_s, data = await under_way.get()
            await asyncio.sleep(max(arrival_s - loop.time(), 0))
            if not data:
                writer.close()
                return
            writer.write(data)
            await writer.drain()

    async def take() -> None:
        while data := await reader.read(_CHUNK_BYTES):
            await under_way.put((direction.arrival_s(len(data), loop.time()), data))
        await under_way.put((loop.time() + direction.delay_s, b""))

    with suppress(ConnectionError, BrokenPipeError):
        await asyncio.gather(take(), deliver())


async def _relay(port: int, to_port: int, round_trip_ms: float, bytes_per_second: int) -> None:
    there, back = (_Direction(round_trip_ms / 2000, bytes_per_second) for _ in range(2))

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", to_port)
        await asyncio.gather(_carry(reader, far_writer, there), _carry(far_reader, writer, back))

    server = await asyncio.start_server(connected, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_relay(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
