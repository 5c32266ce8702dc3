"""Gives the page of a job to browsers on this machine: one path, GET only, over loopback."""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

from statekeep.errors import ConfigError, StateBackupError

logger = logging.getLogger(__name__)

ADDRESS: Final = "127.0.0.1"

_REQUEST: Final = re.compile(r"(GET|HEAD) (\S+) HTTP/1\.[01]")
_LONGEST_HEAD: Final = 16 * 1024
_TIMEOUT_S: Final = 10.0
"""For the head of a request, and for a browser to take an answer."""
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Connection": "close",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

Render = Callable[[], Awaitable[str]]
"""Makes the page anew."""


class PageServer:
    """Answers requests for ``/`` with the page; used on one event loop.

    Another site could point a name of its own at 127.0.0.1 and let a browser read the page under it
    (DNS rebinding): requests whose ``Host`` is another than this server's are refused.
    """

    def __init__(self, render: Render) -> None:
        self._render = render
        self._rendering = asyncio.Lock()
        self._hosts: frozenset[str] = frozenset()

    async def start(self, port: int) -> asyncio.Server:
        """Listen on a port of the loopback address; 0: any that is free."""
        server = await asyncio.start_server(self._serve, ADDRESS, port, limit=_LONGEST_HEAD)
        bound = server.sockets[0].getsockname()[1]
        self._hosts = frozenset({f"{ADDRESS}:{bound}", f"localhost:{bound}"})
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            status, kind, body = await self._answer(head.decode("latin-1"))
            is_head = head.startswith(b"HEAD ")
            writer.write(_head(status, kind, len(body)) + (b"" if is_head else body))
            async with asyncio.timeout(_TIMEOUT_S):
                await writer.drain()
        except (
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            ConnectionError,
            TimeoutError,
        ) as exc:
            logger.debug("request is dropped: error=%r", exc)
        finally:
            writer.close()

    async def _answer(self, head: str) -> tuple[HTTPStatus, str, bytes]:
        request, *lines = head.rstrip().split("\r\n")
        named = [line.partition(":") for line in lines]
        hosts = [value.strip().lower() for name, _, value in named if name.lower() == "host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return _problem(HTTPStatus.FORBIDDEN, "this page is only for browsers on this machine")
        match = _REQUEST.fullmatch(request)
        if match is None:
            return _problem(HTTPStatus.METHOD_NOT_ALLOWED, "this page can only be read")
        if match[2] != "/":
            return _problem(HTTPStatus.NOT_FOUND, "there is nothing but /")
        try:
            async with self._rendering:
                page = await self._render()
        except StateBackupError as exc:
            logger.warning("the job could not be read: error=%s", exc)
            return _problem(HTTPStatus.SERVICE_UNAVAILABLE, f"the job could not be read: {exc}")
        return HTTPStatus.OK, "text/html", page.encode()


def _problem(status: HTTPStatus, text: str) -> tuple[HTTPStatus, str, bytes]:
    return status, "text/plain", text.encode()


def _head(status: HTTPStatus, kind: str, length: int) -> bytes:
    headers = {
        **_HEADERS,
        "Content-Type": f"{kind}; charset=utf-8",
        "Content-Length": str(length),
    }
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = "GET, HEAD"
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


@asynccontextmanager
async def serving(render: Render, port: int) -> AsyncGenerator[str]:
    """Serve the page within the block; gives its address.

    Raises:
        ConfigError: The port is taken.
    """
    try:
        server = await PageServer(render).start(port)
    except OSError as exc:
        raise ConfigError(
            f"cannot listen on the port: address={ADDRESS} port={port}",
            hint="name another one with --port, or 0 for any that is free",
        ) from exc
    async with server:
        yield f"http://{ADDRESS}:{server.sockets[0].getsockname()[1]}/"
