"""How answers of Azure become errors of ours, and settings become fields of requests."""

import traceback
from base64 import b64encode
from collections.abc import Iterator
from hashlib import md5
from typing import Any

import pytest
from azure.core import exceptions as azure_errors
from azure.core.pipeline.transport import HttpRequest
from azure.storage.blob import BlobProperties
from azure.storage.blob._shared.authentication import AzureSigningError

from statekeep.backends.storage.azure import AzureClient
from statekeep.backends.storage.client import ObjectStamps
from statekeep.config.blob_settings import AzureSettings
from statekeep.errors import (
    BlobExistsError,
    BlobNotFoundError,
    ConfigError,
    RetriableError,
    ThrottledError,
)

ACCOUNT = "https://account.blob.core.windows.net"
STAMPS = ObjectStamps({"store": "s"}, {"statekeep": "uncommitted"})


class AnsweringBlob:
    """Stands in for the SDK's client of one blob: records a request, raises or answers."""

    def __init__(self, answer: Exception | None = None) -> None:
        self.answer = answer
        self.requests: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, operation: str) -> Any:
        def request(*_: Any, **fields: Any) -> Any:
            self.requests.append((operation, fields))
            if self.answer is not None:
                raise self.answer

        return request


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    monkeypatch.setenv("AZURE_STORAGE_KEY", "aGlkZGVu")


@pytest.fixture
def client(key: None) -> Iterator[AzureClient]:
    client = AzureClient("container", "p/", ACCOUNT, AzureSettings(), 4)
    yield client
    client.close()


def shown(error: BaseException) -> str:
    """Return what a log has of an error that is logged with its traceback."""
    return "".join(traceback.format_exception(error))


def answered(code: str, status: int) -> azure_errors.HttpResponseError:
    error = azure_errors.HttpResponseError(f"{code} {status}")
    error.status_code = status
    error.error_code = code  # type: ignore[attr-defined]  # the SDK sets it so
    return error


def denied(status: int) -> azure_errors.ClientAuthenticationError:
    error = azure_errors.ClientAuthenticationError("m")
    error.status_code = status
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (answered("ServerBusy", 503), ThrottledError),
        (answered("", 429), ThrottledError),
        (answered("", 503), RetriableError),
        (answered("InternalError", 500), RetriableError),
        (answered("BlobAlreadyExists", 409), BlobExistsError),
        (answered("BlobNotFound", 404), BlobNotFoundError),
        (answered("ContainerNotFound", 404), ConfigError),
        (answered("AuthorizationFailure", 403), ConfigError),
        (azure_errors.ClientAuthenticationError("no credential gave a token"), RetriableError),
        (denied(401), ConfigError),
        (AzureSigningError("not a key"), ConfigError),
        (azure_errors.ServiceRequestError("no route"), RetriableError),
        (azure_errors.ServiceRequestError("CERTIFICATE_VERIFY_FAILED"), ConfigError),
        (ConnectionResetError(), RetriableError),
    ],
    ids=str,
)
def test_each_answer_is_classified_by_what_its_receiver_must_do(
    client: AzureClient, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception]
) -> None:
    monkeypatch.setattr(client, "_blob", lambda name: AnsweringBlob(error))
    with pytest.raises(kind) as caught:
        client.put("a", b"1", STAMPS, if_absent=True)
    assert type(caught.value) is kind
    assert "above exception" not in shown(caught.value)


@pytest.mark.parametrize("operation", ["put", "read", "list", "check"])
def test_no_traceback_shows_the_sas_token_and_it_says_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    monkeypatch.delenv("AZURE_STORAGE_KEY", raising=False)
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=2024-01-01&ss=b&sig=hidden")
    client = AzureClient("container", "p/", "http://127.0.0.1:9/account", AzureSettings(), 4)
    requests = {
        "put": lambda: client.put("a", b"1", STAMPS, if_absent=True),
        "read": lambda: client.read("a", 0, 1),
        "list": lambda: client.list("a"),
        "check": client.check,
    }
    with pytest.raises(RetriableError, match="kind=NewConnectionError") as caught:
        requests[operation]()
    assert "sig=" not in shown(caught.value)
    client.close()


def test_no_traceback_shows_a_connection_string(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountKey=hidden")
    with pytest.raises(ConfigError, match="not a connection string") as caught:
        AzureClient("container", "", None, AzureSettings(), 4)
    assert "hidden" not in shown(caught.value)


@pytest.mark.parametrize("account_url", ["foo", "http://", "foo?sig=hidden"])
def test_an_account_url_that_is_none_is_refused_unseen(key: None, account_url: str) -> None:
    with pytest.raises(ConfigError, match="not the URL of a storage account") as caught:
        AzureClient("container", "", account_url, AzureSettings(), 4)
    assert "hidden" not in shown(caught.value)


def test_settings_go_with_every_new_blob(key: None, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = AzureSettings(
        access_tier="Cool",
        encryption_scope="scope",
        tags={"team": "streams"},
        proxy="http://proxy:3128",
    )
    client = AzureClient("container", "p/", ACCOUNT, settings, 4)
    blob = AnsweringBlob()
    monkeypatch.setattr(client, "_blob", lambda name: blob)
    client.put("a", b"1", STAMPS, if_absent=False)
    client.complete_parts("a", "1", ["1-000000"], STAMPS, if_absent=False)
    assert [operation for operation, _ in blob.requests] == ["upload_blob", "commit_block_list"]
    for _, fields in blob.requests:
        assert fields["metadata"] == {"store": "s"}
        assert fields["tags"] == {"team": "streams", "statekeep": "uncommitted"}
        assert (fields["standard_blob_tier"], fields["encryption_scope"]) == ("Cool", "scope")
    client.close()


def test_a_create_is_conditional_in_one_request_and_in_parts(
    client: AzureClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = AnsweringBlob()
    monkeypatch.setattr(client, "_blob", lambda name: blob)
    client.put("a", b"1", STAMPS, if_absent=True)
    client.complete_parts("a", "1", ["1-000000"], STAMPS, if_absent=True)
    (_, whole), (_, parts) = blob.requests
    assert whole["overwrite"] is False
    assert parts["etag"] == "*"


def test_a_folder_of_a_hierarchical_namespace_is_no_blob(
    client: AzureClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [
        BlobProperties(name="p/a", metadata={"hdi_isfolder": "true"}),
        BlobProperties(name="p/a/1", metadata={"store": "s"}),
        BlobProperties(name="p/a/2", metadata=None),
    ]
    monkeypatch.setattr(client._container, "list_blobs", lambda **_: iter(listed))
    assert client.list("a") == ["a/1", "a/2"]


@pytest.mark.parametrize("checksum", ["md5", "none"])
def test_content_goes_up_with_a_checksum_for_the_service_to_compare_unless_set_otherwise(
    key: None, monkeypatch: pytest.MonkeyPatch, checksum: str
) -> None:
    client = AzureClient("container", "p/", ACCOUNT, AzureSettings(checksum=checksum), 4)
    sent: list[HttpRequest] = []

    def send(request: HttpRequest, **_: object) -> None:
        sent.append(request)
        raise ConnectionResetError

    monkeypatch.setattr(client._container._pipeline._transport, "send", send)
    for call in (
        lambda: client.put("a", b"content", STAMPS, if_absent=False),
        lambda: client.put_part("a", "upload", 0, b"content"),
    ):
        with pytest.raises(RetriableError):
            call()
    digest = b64encode(md5(b"content", usedforsecurity=False).digest()).decode()
    expected = digest if checksum == "md5" else None
    assert [request.headers.get("Content-MD5") for request in sent] == [expected] * 2
    client.close()


def test_no_proxy_password_is_shown() -> None:
    assert "hidden" not in repr(AzureSettings(proxy="http://user:hidden@proxy:3128"))
