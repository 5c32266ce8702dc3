"""Relays in front of a server of this machine, on which bad things happen to connections."""

import asyncio
from typing import Final, Self

from typing_extensions import override

_CHUNK_BYTES: Final = 64 << 10
_INTERIM: Final = b"HTTP/1.1 100"


class Relay:
    """Passes bytes on to a server until a subclass breaks a connection; a context manager."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def passes(self, data: bytes, *, is_answer: bool) -> bool:
        """Return whether bytes go on; where they do not, both ends see a broken connection."""
        del data, is_answer
        return True

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(asyncio.create_task(self._relay(reader, writer)))

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_writer: asyncio.StreamWriter | None = None
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(reader, far_writer, is_answer=False))
                group.create_task(self._carry(far_reader, writer, is_answer=True))
        except* OSError:  # of a server that is down, too
            pass
        finally:
            for end in (writer, far_writer):
                if end is not None:
                    end.transport.abort()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            if not self.passes(data, is_answer=is_answer):
                break
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError  # one end has closed: so does the other


class LostAnswer(Relay):
    """Loses one answer: that to the first request that holds some bytes, which the server has got.

    For clients that ask one thing at a time.
    """

    def __init__(self, to_port: int, request: bytes) -> None:
        super().__init__(to_port)
        self._request = request
        self._is_asked = False
        self.is_lost = False

    @override
    def passes(self, data: bytes, *, is_answer: bool) -> bool:
        if self.is_lost:
            return True
        if not is_answer:
            self._is_asked = self._is_asked or self._request in data
        elif self._is_asked and not data.startswith(_INTERIM):
            self.is_lost = True
            return False
        return True
