"""Which client a URI needs, and what such a URI may not hold."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.storage.locations import Bucket, Location
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.clock import SystemClock
from statekeep.errors import ConfigError
from statekeep.testing.executor import SerialExecutor

ACCOUNT = "https://account.blob.core.windows.net"


@pytest.mark.parametrize(
    ("uri", "bucket", "prefix", "account_url"),
    [
        pytest.param("s3://bucket", "bucket", "", None, id="no prefix"),
        pytest.param("s3://bucket/a/b/", "bucket", "a/b/", None, id="slash at the end"),
        pytest.param("s3a://bucket/a", "bucket", "a/", None, id="Hadoop's scheme"),
        pytest.param("az://container/a", "container", "a/", None, id="azure"),
        pytest.param(
            "abfss://container@account.dfs.core.windows.net/a",
            "container",
            "a/",
            ACCOUNT,
            id="azure with its account",
        ),
    ],
)
def test_a_uri_names_the_location(
    uri: str, bucket: str, prefix: str, account_url: str | None
) -> None:
    assert Location(uri).bucket() == Bucket(bucket, prefix, account_url)


@pytest.mark.parametrize(
    ("uri", "module"),
    [
        ("s3a://bucket/a", "s3"),
        ("abfss://c@account.dfs.core.windows.net/a", "azure"),
        ("gs://bucket/a", "gcs"),
        ("ssh://host/a", "sftp"),
        ("viewfs://host/a", "hdfs.manager"),
        ("webhdfs://host/a", "fsspec_client"),
        ("file:///a", "fsspec_client"),
        ("/a", "fsspec_client"),
    ],
)
def test_a_scheme_names_the_kind_of_store(uri: str, module: str) -> None:
    assert Location(uri).kind.module == module


@pytest.mark.parametrize(
    "uri",
    [
        "s3:///a",
        "s3://user:hidden@bucket/a",
        "s3://bucket/a?token=hidden",
        "az://c/a?sig=hidden",
        "abfs://user:hidden@account/a",
    ],
)
def test_a_uri_with_more_than_a_location_is_refused_unquoted(uri: str) -> None:
    with pytest.raises(ConfigError, match="not a location in an object store") as caught:
        BlobBackendFactory(BackendName("b"), {"uri": uri})
    assert caught.value.key == "backends.b.uri"
    assert "hidden" not in str(caught.value)


def test_storage_options_are_refused_where_no_client_reads_them() -> None:
    with pytest.raises(ConfigError, match="storage options"):
        BlobBackendFactory(
            BackendName("b"), {"uri": "s3://bucket/a", "storage.options.key": "hidden"}
        )


def manager_of(uri: str, **settings: str) -> BlobStoreManager:
    factory = BlobBackendFactory(BackendName("b"), {"uri": uri, **settings})
    return factory.blob_store_manager(SerialExecutor(), SystemClock())


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Makes a package look as if it were not installed."""

    def hide(package: str, importer: str) -> None:
        absent: ModuleType | None = None
        monkeypatch.setitem(__import__("sys").modules, package, absent)
        monkeypatch.delitem(__import__("sys").modules, importer, raising=False)

    return hide


@pytest.mark.parametrize(
    ("uri", "package", "extra"),
    [("s3://bucket/a", "boto3", "s3"), ("az://container/a", "azure.storage.blob", "azure")],
)
@pytest.mark.asyncio
async def test_a_missing_package_is_reported_with_the_extra_that_brings_it(
    uri: str, package: str, extra: str, hidden: Callable[[str, str], None]
) -> None:
    hidden(package, f"statekeep.backends.storage.{extra}")
    manager = manager_of(uri)
    with pytest.raises(ConfigError, match="missing") as caught:
        await manager.init()
    assert caught.value.hints == (f"pip install 'statekeep[{extra}]'",)
    await manager.close()


@pytest.mark.asyncio
async def test_an_azure_location_without_an_account_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    manager = manager_of("az://container/a")
    with pytest.raises(ConfigError, match="no storage account"):
        await manager.init()
    await manager.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("uri", "key"), [("s3://bucket/a", "s3.ca.bundle"), ("az://container/a", "azure.ca.bundle")]
)
async def test_a_file_of_certificates_that_is_not_there_is_reported_before_any_request(
    uri: str, key: str, tmp_path: Path
) -> None:
    manager = manager_of(uri, **{key: str(tmp_path / "ca.pem")})
    with pytest.raises(ConfigError, match=f"no such file of certificates: key={key}"):
        await manager.init()
    await manager.close()
