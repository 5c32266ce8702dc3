"""What filesystems raise, told by what the caller can do about it."""

import errno
import importlib
import json
import socket
import ssl
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import fsspec  # type: ignore[import-untyped]  # it ships no types
import pytest
import requests
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]  # as above
from gcsfs.retry import HttpError  # type: ignore[import-untyped]  # as above
from log_kit import InlineExecutor
from multidict import CIMultiDict, CIMultiDictProxy
from typing_extensions import override
from yarl import URL

from statekeep.backends.blob_store import BlobMetadata, BlobStoreManager
from statekeep.backends.storage.local import LocalClient
from statekeep.errors import (
    BlobNotFoundError,
    ConfigError,
    RetriableError,
    StateBackupError,
    ThrottledError,
)
from statekeep.testing.storage import bare_manager

google_errors: Any = importlib.import_module("google.auth.exceptions")  # its calls have no types


class FailingPlace(LocalClient):
    """Raises one error in place of every answer."""

    def __init__(self, error: Exception) -> None:
        super().__init__(Path("/nowhere"))
        self.error = error

    @override
    def write(self, name: str, content: bytes | Path, *, if_absent: bool) -> None:
        raise self.error

    @override
    def list(self, prefix: str) -> Sequence[str]:
        raise self.error


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PermissionError(errno.EACCES, "x"), ConfigError),
        (PermissionError("x"), ConfigError),
        (OSError(errno.EROFS, "x"), ConfigError),
        (OSError(errno.ENOSPC, "x"), ConfigError),
        (TimeoutError("x"), RetriableError),
        (ConnectionResetError("x"), RetriableError),
        (OSError(errno.EIO, "x"), RetriableError),
        (FileNotFoundError("x"), BlobNotFoundError),
    ],
    ids=repr,
)
async def test_errors_are_classified_by_what_the_caller_can_do(
    local: BlobStoreManager,
    monkeypatch: pytest.MonkeyPatch,
    error: OSError,
    expected: type[StateBackupError],
) -> None:
    monkeypatch.setattr(local, "_client", FailingPlace(error))

    with pytest.raises(expected):
        await local.list("a/")


def gcs_error(status: int, message: str = "sig=secret") -> Exception:
    error: Exception = HttpError({"code": status, "message": message})
    return error


def http_error(status: int) -> aiohttp.ClientResponseError:
    url = URL("https://storage.example/upload?upload_id=secret")
    headers = CIMultiDictProxy(CIMultiDict({"Authorization": "Bearer secret"}))
    request = aiohttp.RequestInfo(url, "POST", headers, url)
    return aiohttp.ClientResponseError(request, (), status=status, message="secret")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (gcs_error(408), RetriableError),
        (gcs_error(500), RetriableError),
        (gcs_error(429), ThrottledError),
        (gcs_error(503), RetriableError),
        (gcs_error(401), ConfigError),
        (gcs_error(401, "Invalid Credentials"), RetriableError),
        (gcs_error(400), ConfigError),
        (OSError("Forbidden: b/bucket/o\nno access"), ConfigError),
        (ValueError("Bad Request: b/bucket/o\ninvalid"), ConfigError),
        (http_error(502), RetriableError),
        (http_error(429), ThrottledError),
        (http_error(403), ConfigError),
        (http_error(404), BlobNotFoundError),
        (aiohttp.ServerDisconnectedError(), RetriableError),
        (aiohttp.ClientPayloadError(), RetriableError),
        (json.JSONDecodeError("x", "<html>", 0), RetriableError),
        (google_errors.DefaultCredentialsError(), ConfigError),
        (google_errors.RefreshError("invalid_grant"), ConfigError),
        (google_errors.RefreshError("busy", retryable=True), RetriableError),
        (google_errors.RefreshError(google_errors.TransportError("silent")), RetriableError),
        (google_errors.TransportError("silence"), RetriableError),
        (ssl.SSLError(1, "bad record mac"), RetriableError),
        (ssl.SSLCertVerificationError(1, "self-signed"), ConfigError),
        (RuntimeError("session is closed"), RetriableError),
    ],
    ids=lambda value: getattr(value, "__name__", f"{type(value).__name__} {str(value)[-20:]}"),
)
async def test_foreign_errors_are_classified_by_what_the_caller_can_do(
    local: BlobStoreManager,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    expected: type[StateBackupError],
) -> None:
    monkeypatch.setattr(local, "_client", FailingPlace(error))

    with pytest.raises(StateBackupError) as caught:
        await local.list("a/")

    assert type(caught.value) is expected


def quoting_errors() -> list[Exception]:
    lost = requests.exceptions.ConnectionError("url: /webhdfs/v1/?delegation=secret")
    missing = FileNotFoundError("x")
    missing.__cause__ = lost
    refused = OSError("Forbidden: https://storage.example/o?upload_id=secret")
    return [gcs_error(500), http_error(500), lost, missing, refused]


@pytest.mark.asyncio
@pytest.mark.parametrize("error", quoting_errors(), ids=lambda error: type(error).__name__)
async def test_what_a_client_quotes_of_its_request_is_in_no_traceback(
    local: BlobStoreManager, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(local, "_client", FailingPlace(error))

    with pytest.raises(StateBackupError) as caught:
        await local.list("a/")

    told = "".join(traceback.format_exception(caught.value))
    assert isinstance(error, FileNotFoundError) or type(error).__name__ in told
    assert "secret" not in told


@pytest.mark.asyncio
async def test_no_traceback_shows_the_token_of_a_namenode_that_is_down() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        uri = f"webhdfs://127.0.0.1:{free.getsockname()[1]}/backups"
    manager = bare_manager(uri, {"token": "secret"}, InlineExecutor())

    with pytest.raises(RetriableError, match="filesystem did not answer") as caught:
        await manager.init()

    assert "secret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.asyncio
async def test_storage_that_refuses_the_first_request_by_a_foreign_error_is_reported() -> None:
    class DenyingFileSystem(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
        protocol = "denying"

        def ls(self, path: str, detail: bool = True, **kwargs: object) -> object:  # noqa: FBT001, FBT002  # as in fsspec
            raise gcs_error(401)

    fsspec.register_implementation("denying", DenyingFileSystem, clobber=True)

    with pytest.raises(ConfigError, match="access denied: root=denying://place"):
        await bare_manager("denying://place", {}, InlineExecutor()).init()


@pytest.mark.asyncio
async def test_storage_that_is_gone_is_no_damage_of_the_file_to_store(
    local: BlobStoreManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "whole").write_bytes(b"x")
    monkeypatch.setattr(local, "_client", FailingPlace(FileNotFoundError("bucket")))

    with pytest.raises(ConfigError, match="no such location"):
        await local.put("a/b", tmp_path / "whole", BlobMetadata(None, None, "test"))
