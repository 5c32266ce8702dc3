"""A service without TLS is warned of at the start, unless it is on this machine."""

import pytest

from statekeep.backends.plain_text import warn_of_plain_brokers, warn_of_plain_url
from statekeep.backends.storage.azure import AzureClient
from statekeep.backends.storage.fsspec_client import open_client
from statekeep.backends.storage.gcs import GcsClient
from statekeep.backends.storage.locations import Location
from statekeep.backends.storage.s3 import S3Client
from statekeep.config.blob_settings import AzureSettings, S3Settings

FAR, NEAR = "http://storage.example:9000", "http://127.0.0.1:9000"


@pytest.mark.parametrize(
    ("url", "is_warned_of"),
    [
        (FAR, True),
        ("http://10.0.0.1/", True),
        ("http://[2001:db8::1]:80/", True),
        ("webhdfs://namenode:9870/a", True),
        (NEAR, False),
        ("http://localhost:9000", False),
        ("http://[::1]:9000", False),
        ("https://storage.example", False),
        ("file:///a", False),
        ("s3://bucket/a", False),
    ],
)
def test_a_url_without_tls_is_warned_of(
    caplog: pytest.LogCaptureFixture, url: str, *, is_warned_of: bool
) -> None:
    warn_of_plain_url(url, "do this")
    assert ("do this" in caplog.text) is is_warned_of


def test_a_warning_shows_neither_credentials_nor_query(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_plain_url("http://me:Zq9@storage.example/a?sig=Zq9", "do this")
    assert "service=http://storage.example:" in caplog.text
    assert "Zq9" not in caplog.text


@pytest.mark.parametrize(
    ("servers", "protocol", "is_warned_of"),
    [
        ("broker:9092", "PLAINTEXT", True),
        ("localhost:9092,broker:9092", "sasl_plaintext", True),
        ("broker:9092", "SSL", False),
        ("broker:9092", "SASL_SSL", False),
        ("localhost:9092, 127.0.0.1:9093,[::1]:9094", "PLAINTEXT", False),
    ],
)
def test_brokers_without_tls_are_warned_of(
    caplog: pytest.LogCaptureFixture, servers: str, protocol: str, *, is_warned_of: bool
) -> None:
    warn_of_plain_brokers(servers, protocol, "do this")
    assert ("do this" in caplog.text) is is_warned_of


@pytest.mark.parametrize(("endpoint", "is_warned_of"), [(FAR, True), (NEAR, False)])
def test_every_client_warns_when_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    endpoint: str,
    *,
    is_warned_of: bool,
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=x")
    S3Client("bucket", "", S3Settings(region="r"), 1)
    AzureClient("container", "", "https://a.blob.core.windows.net", AzureSettings(), 1)
    assert not caplog.records
    S3Client("bucket", "", S3Settings(region="r", endpoint=endpoint), 1)
    AzureClient("container", "", endpoint, AzureSettings(), 1)
    GcsClient("gs://bucket/a", {"endpoint_url": endpoint, "token": "anon"}, "gs://bucket/a")
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == (3 if is_warned_of else 0)


@pytest.mark.parametrize(
    ("host", "options", "is_warned_of"),
    [
        ("namenode.example", {}, True),
        ("namenode.example", {"use_https": "true"}, False),
        ("127.0.0.1", {}, False),
    ],
)
def test_webhdfs_without_tls_is_warned_of(
    caplog: pytest.LogCaptureFixture, host: str, options: dict[str, str], *, is_warned_of: bool
) -> None:
    open_client(Location(f"webhdfs://{host}:9870/a", options=options))
    assert ("without TLS" in caplog.text) is is_warned_of
