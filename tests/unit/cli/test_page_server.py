"""The server of the page: on loopback, for this machine's browsers, and only to read."""

import asyncio
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from cli_kit import TASK, CommandLine

from statekeep.cli.page.server import serving
from statekeep.errors import ConfigError, RetriableError


async def page() -> str:
    return "<p>the page</p>"


async def ask(address: str, request: bytes) -> bytes:
    """Send what a client sends, and return all that comes back."""
    port = int(address.rstrip("/").rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.replace(b"PORT", str(port).encode()))
    answer = await reader.read()
    writer.close()
    return answer


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.asyncio
async def test_a_browser_on_this_machine_gets_the_page_and_may_do_nothing_else_with_it() -> None:
    async with serving(page, 0) as address:
        assert address.startswith("http://127.0.0.1:")
        answer = b""
        for host in (b"127.0.0.1:PORT", b"localhost:PORT", b"LOCALHOST:PORT"):
            answer = await ask(address, b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
            assert status_of(answer) == 200
            assert answer.endswith(b"\r\n\r\n<p>the page</p>")
    for header in (
        b"X-Frame-Options: DENY",
        b"Cache-Control: no-store",
        b"X-Content-Type-Options: nosniff",
        b"Cross-Origin-Resource-Policy: same-origin",
    ):
        assert header in answer
    assert b"Access-Control" not in answer


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "headers",
    [
        b"Host: evil.example\r\n",
        b"Host: evil.example:PORT\r\n",
        b"Host: 127.0.0.1.evil.example:PORT\r\n",
        b"Host: 127.0.0.1:1\r\n",
        b"Host: 127.0.0.1\r\n",
        b"Host: 127.0.0.1:PORT\r\nHost: evil.example\r\n",
        b"X-Forwarded-Host: 127.0.0.1:PORT\r\nHost: evil.example\r\n",
        b"",
    ],
)
async def test_a_name_that_another_site_points_here_is_refused(headers: bytes) -> None:
    async with serving(page, 0) as address:
        answer = await ask(address, b"GET / HTTP/1.1\r\n" + headers + b"\r\n")
    assert status_of(answer) == 403
    assert b"the page</p>" not in answer


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"POST / HTTP/1.1", 405),
        (b"DELETE / HTTP/1.1", 405),
        (b"GET /../../etc/passwd HTTP/1.1", 404),
        (b"GET http://evil.example/ HTTP/1.1", 404),
        (b"nonsense", 405),
    ],
)
async def test_nothing_but_the_page_can_be_read_and_nothing_written(
    request_line: bytes, status: int
) -> None:
    async with serving(page, 0) as address:
        answer = await ask(address, request_line + b"\r\nHost: 127.0.0.1:PORT\r\n\r\n")
    assert status_of(answer) == status


@pytest.mark.asyncio
async def test_a_head_request_gets_no_body() -> None:
    async with serving(page, 0) as address:
        answer = await ask(address, b"HEAD / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n")
    assert b"Content-Length: 15" in answer
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.asyncio
async def test_a_connection_without_a_request_delays_no_other_and_a_long_one_is_dropped() -> None:
    async with serving(page, 0) as address:
        port = int(address.rstrip("/").rpartition(":")[2])
        _, idle = await asyncio.open_connection("127.0.0.1", port)  # as browsers do ahead
        assert await ask(address, b"GET / HTTP/1.1\r\n" + b"a" * 100_000) == b""
        answer = await ask(address, b"GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n")
        assert status_of(answer) == 200
        idle.close()


@pytest.mark.asyncio
async def test_a_job_that_cannot_be_read_now_is_an_error_on_the_page() -> None:
    async def fails() -> str:
        raise RetriableError("no answer: operation=list")

    async with serving(fails, 0) as address:
        answer = await ask(address, b"GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n")
    assert status_of(answer) == 503
    assert b"text/plain" in answer
    assert answer.endswith(b"the job could not be read: no answer: operation=list")


@pytest.mark.asyncio
async def test_a_port_that_is_taken_is_reported_with_the_remedy() -> None:
    async with serving(page, 0) as address:
        port = int(address.rstrip("/").rpartition(":")[2])
        with pytest.raises(ConfigError, match="cannot listen") as error:
            async with serving(page, port):
                pass
    assert "--port" in error.value.hints[0]


def test_the_command_serves_the_job_until_it_is_interrupted(
    statekeep: CommandLine, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "statekeep.cli", "ui", "--port", "0", "--task", TASK]
    with subprocess.Popen(
        [*command, "--config", str(statekeep.config)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = line.split()[0]
        with urllib.request.urlopen(address, timeout=20) as answer:  # noqa: S310
            assert "<h1>orders</h1>" in answer.read().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert "Ctrl-C ends it" in line
