"""An object store that takes a request and never answers it: the request is given up in time."""

import socket
from collections.abc import Iterator
from types import ModuleType

import pytest

from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.storage import azure as azure_client
from statekeep.backends.storage import s3 as s3_client
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.errors import RetriableError
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def endpoint() -> Iterator[str]:
    """Where connections are taken, and nothing is ever read or written."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("module", "settings"),
    [
        (s3_client, {"uri": "s3://bucket/p", "s3.region": "us-east-1", "s3.path.style": "true"}),
        (azure_client, {"uri": "az://container/p"}),
    ],
    ids=["s3", "azure"],
)
async def test_a_request_that_hangs_is_given_up(
    module: ModuleType, settings: dict[str, str], endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_READ_S", 0.1)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    account = f"AccountName=a;AccountKey=bm90LWEtc2VjcmV0;BlobEndpoint={endpoint}/a"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", account)
    once = {"retry.policy.max.retries": "0"}
    own = {"s3.endpoint": endpoint} if module is s3_client else {}
    factory = BlobBackendFactory(BackendName("b"), settings | once | own)
    manager = factory.blob_store_manager(SerialExecutor(), FakeClock())
    with pytest.raises(RetriableError):
        await manager.init()
    await manager.close()
