"""The proxy of the settings is the way to an object store: no name below is known anywhere else."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from typing_extensions import override

from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.errors import RetriableError
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

KEY = "bm90LWEtc2VjcmV0"


class Proxy(ThreadingHTTPServer):
    """Answers every request itself, and opens no tunnel.

    Attributes:
        requests: Their methods and targets.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ProxyHandler)
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class ProxyHandler(BaseHTTPRequestHandler):
    server: Proxy

    def _answer(self, status: int) -> None:
        self.server.requests.append(f"{self.command} {self.path.partition('?')[0]}")
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_HEAD(self) -> None:
        self._answer(200)

    def do_GET(self) -> None:
        self._answer(200)

    def do_CONNECT(self) -> None:
        self._answer(502)

    @override
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def settings_of(kind: str, scheme: str, proxy: str, patch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the settings of a store that is reached by a proxy alone."""
    if kind == "s3":
        patch.setenv("AWS_ACCESS_KEY_ID", "id")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
        return {
            "uri": "s3://bucket/prefix",
            "s3.endpoint": f"{scheme}://store.invalid",
            "s3.region": "us-east-1",
            "s3.path.style": "true",
            "s3.proxy": proxy,
        }
    account = f"AccountName=account;AccountKey={KEY};BlobEndpoint={scheme}://store.invalid/account"
    patch.setenv("AZURE_STORAGE_CONNECTION_STRING", account)
    return {"uri": "az://container/prefix", "azure.proxy": proxy}


async def reach(settings: dict[str, str]) -> None:
    """Look for a bucket or container, once."""
    once = {"retry.policy.max.retries": "0"}
    factory = BlobBackendFactory(BackendName("b"), settings | once)
    manager = factory.blob_store_manager(SerialExecutor(), FakeClock())
    try:
        await manager.init()
    finally:
        await manager.close()


@pytest.mark.parametrize(
    ("kind", "request_line"),
    [
        ("s3", "HEAD http://store.invalid/bucket"),
        ("azure", "GET http://store.invalid/account/container"),
    ],
)
@pytest.mark.asyncio
async def test_requests_go_through_the_proxy(
    proxy: Proxy, kind: str, request_line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await reach(settings_of(kind, "http", proxy.url, monkeypatch))
    assert proxy.requests == [request_line]


@pytest.mark.parametrize("kind", ["s3", "azure"])
@pytest.mark.asyncio
async def test_with_tls_requests_go_through_a_tunnel_of_the_proxy(
    proxy: Proxy, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RetriableError):
        await reach(settings_of(kind, "https", proxy.url, monkeypatch))
    assert proxy.requests == ["CONNECT store.invalid:443"]
