"""A blob backend's settings: typed, with Samza's defaults; mistakes are named."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob.settings import DEFAULTS_PREFIX, BlobSettings
from statekeep.backends.blob_store import MAX_DOCUMENT_BYTES, BlobStoreManager
from statekeep.backends.hdfs.settings import HdfsSettings
from statekeep.backends.storage.locations import Location
from statekeep.backends.storage.memory import MemoryBlobStoreManager, forget_root
from statekeep.checkpoint.checkpoints import BackendName, StoreName
from statekeep.config.blob_settings import AzureSettings, S3Settings
from statekeep.config.load import load_dict
from statekeep.errors import CheckpointCorruptError, ConfigError
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.faults import Fault, FaultPlan, faulty_blob_factory


def test_the_defaults_are_samzas_but_for_short_waits() -> None:
    retry = BlobSettings.parse("b", {"uri": "file:///x"}).retry
    assert (retry.max_retries, retry.max_duration_ms) == (-1, 900_000)
    assert (retry.backoff_delay_ms, retry.backoff_max_delay_ms) == (100, 2_000)
    assert (retry.backoff_delay_factor, retry.jitter_factor) == (5, 0.5)


def test_every_setting_is_read() -> None:
    settings = BlobSettings.parse(
        "b",
        {
            "uri": "s3://bucket/path",
            "manager.factory": "m:F",
            "max.in.flight": "7",
            "retry.policy.max.retries": "3",
            "retry.policy.max.retry.duration.millis": "60s",
            "retry.policy.backoff.delay.millis": "10",
            "retry.policy.backoff.max.delay.millis": "1000",
            "retry.policy.backoff.delay.factor": "2",
            "retry.policy.jitter.factor": "0.5",
            "storage.options.endpoint_url": "http://localhost",
        },
    )
    assert (settings.uri, settings.manager_factory) == ("s3://bucket/path", "m:F")
    assert settings.max_in_flight == 7
    assert settings.retry.max_retries == 3
    assert settings.retry.max_duration_ms == 60_000
    assert settings.retry.backoff_delay_ms == 10
    assert settings.retry.backoff_max_delay_ms == 1000
    assert settings.retry.backoff_delay_factor == 2
    assert settings.retry.jitter_factor == 0.5
    assert settings.storage_options == {"endpoint_url": "http://localhost"}


def test_an_unknown_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"key=ury nearest=uri") as caught:
        BlobSettings.parse("near", {"ury": "x"})
    assert caught.value.key == "backends.near.ury"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max.in.flight", "0"),
        ("pack.max.file.bytes", "4194305"),
        ("retry.policy.jitter.factor", "2"),
        ("uri", ""),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be") as caught:
        BlobSettings.parse("near", {"uri": "file:///x", name: value})
    assert caught.value.key == f"backends.near.{name}"


def test_a_backend_without_a_location_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match="no location") as caught:
        BlobSettings.parse("near", {})
    assert "backends.near.uri" in caught.value.hints[0]


def test_secrets_stay_out_of_the_repr() -> None:
    settings = BlobSettings.parse("b", {"uri": "file:///x", "storage.options.secret": "hush"})
    assert "hush" not in repr(settings)


def make_manager(settings: Mapping[str, str], executor: BlockingExecutor) -> BlobStoreManager:
    """A client of a user's own, named by dotted path below."""
    return MemoryBlobStoreManager(settings["storage.options.root"], executor)


def make_nothing(settings: Mapping[str, str], executor: BlockingExecutor) -> object:
    return settings, executor


not_callable = 7


@pytest.mark.asyncio
async def test_a_client_of_the_users_own_is_used_and_validated(tmp_path: Path) -> None:
    settings = {"manager.factory": f"{__name__}:make_manager", "storage.options.root": "own"}
    factory = BlobBackendFactory(BackendName("b"), settings)
    admin = factory.admin(SerialExecutor(), FakeClock())
    await admin.create_resources()
    await admin.validate_resources()
    await admin.close()
    assert await MemoryBlobStoreManager("own", SerialExecutor()).list("") == []
    forget_root("own")


@pytest.mark.parametrize("name", ["make_nothing", "not_callable"])
def test_a_client_that_is_none_is_refused(name: str) -> None:
    factory = BlobBackendFactory(BackendName("b"), {"manager.factory": f"{__name__}:{name}"})
    with pytest.raises(ConfigError, match=name):
        factory.blob_store_manager(SerialExecutor(), FakeClock())


@pytest.mark.asyncio
@pytest.mark.parametrize("operation", ["put", "get", "list", "delete"])
async def test_a_backend_that_denies_an_operation_fails_validation(
    tmp_path: Path, operation: str
) -> None:
    plan = FaultPlan([Fault(operation, times=-1, make_error=lambda: ConfigError("denied"))])
    factory = faulty_blob_factory(str(tmp_path), plan)
    admin = factory.admin(SerialExecutor(), FakeClock())
    await admin.create_resources()
    with pytest.raises(ConfigError, match="denied"):
        await admin.validate_resources()
    forget_root(str(tmp_path))


class ForgetfulManager(MemoryBlobStoreManager):
    """Loses, alters or hides what it is given."""

    def __init__(self, root: str, executor: BlockingExecutor, fault: str) -> None:
        super().__init__(root, executor)
        self._fault = fault

    @override
    async def get(self, blob_id: str, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
        return (
            b"other"
            if self._fault == "different data"
            else await super().get(blob_id, max_bytes=max_bytes)
        )

    @override
    async def list(self, prefix: str) -> list[str]:
        return [] if self._fault == "does not list" else list(await super().list(prefix))

    @override
    async def delete(self, blob_id: str) -> None:
        if self._fault != "does not delete":
            await super().delete(blob_id)


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["different data", "does not list", "does not delete"])
async def test_a_backend_that_does_not_do_what_it_says_fails_validation(
    tmp_path: Path, fault: str
) -> None:
    factory = BlobBackendFactory(
        BackendName("b"),
        {"uri": str(tmp_path)},
        make_manager=lambda settings, executor: ForgetfulManager(settings["uri"], executor, fault),
    )
    admin = factory.admin(SerialExecutor(), FakeClock())
    with pytest.raises(ConfigError, match=fault):
        await admin.validate_resources()
    forget_root(str(tmp_path))


@pytest.mark.asyncio
async def test_errors_of_the_job_log_name_the_location_without_its_secrets(tmp_path: Path) -> None:
    factory = BlobBackendFactory(
        BackendName("b"),
        {"uri": "s3://me:hush@bucket/path?sig=hush"},
        make_manager=lambda _, executor: MemoryBlobStoreManager(str(tmp_path), executor),
    )
    log = factory.job_log("job", SerialExecutor(), FakeClock())
    await log.append(1, b"a record whose predecessor is gone")
    with pytest.raises(
        CheckpointCorruptError, match=r"root=s3://\S+@bucket/path\S* scope=job"
    ) as e:
        await log.read(0)
    assert "hush" not in str(e.value)
    forget_root(str(tmp_path))


@pytest.mark.asyncio
async def test_a_location_out_of_reach_is_named_without_its_secrets() -> None:
    factory = BlobBackendFactory(BackendName("b"), {"uri": "nosuch://me:hush@host/path?sig=hush"})
    admin = factory.admin(SerialExecutor(), FakeClock())
    with pytest.raises(ConfigError, match=r"root=nosuch://\S+@host/path") as caught:
        await admin.create_resources()
    assert "hush" not in str(caught.value)


def test_compression_and_encryption_are_read_for_the_backend_and_for_stores() -> None:
    encoding = BlobSettings.parse(
        "b",
        {
            "uri": "file:///x",
            "compression": "zstd",
            "encryption.keys": "env:KEYS",
            "stores.orders.blob.encryption": "aes-256-gcm",
            "stores.plain.blob.compression": "none",
        },
    ).encoding
    assert encoding.of(StoreName("other")) == ("zstd", False)
    assert encoding.of(StoreName("orders")) == ("zstd", True)
    assert encoding.of(StoreName("plain")) == ("none", False)


def test_what_stores_say_reaches_every_blob_backend() -> None:
    config = load_dict(
        {
            "job.name": "j",
            "stores.backup.factories": "near",
            "backends.near.factory": "blob",
            "backends.near.uri": "file:///x",
            "blob.store.encryption.keys": "env:KEYS",
            "stores.orders.blob.encryption": "aes-256-gcm",
        }
    )
    section = config.backend_settings("near", DEFAULTS_PREFIX)
    assert BlobSettings.parse("near", section).encoding.of(StoreName("orders")) == ("none", True)


def test_tags_until_a_commit_are_refused_where_no_store_has_tags(tmp_path: Path) -> None:
    settings = {"uri": tmp_path.as_uri(), "uncommitted.tags": "statekeep=uncommitted"}
    with pytest.raises(ConfigError, match="tags are for object stores"):
        BlobBackendFactory(BackendName("b"), settings)


def test_encryption_without_keys_is_refused() -> None:
    with pytest.raises(ConfigError, match="encryption without keys") as caught:
        BlobSettings.parse("b", {"uri": "file:///x", "encryption": "aes-256-gcm"})
    assert caught.value.key == "backends.b.encryption.keys"


def test_where_keys_come_from_is_not_shown() -> None:
    settings = BlobSettings.parse("b", {"uri": "file:///x", "encryption.keys": "env:KEYS"})
    assert "KEYS" not in repr(settings)


@pytest.mark.parametrize("settings_class", [BlobSettings, HdfsSettings])
def test_no_part_of_a_location_that_may_be_secret_is_shown(
    settings_class: type[BlobSettings] | type[HdfsSettings],
) -> None:
    settings = {
        "uri": "sftp://me:Zq9@host/a",
        "s3.endpoint": "http://me:Zq9@host",
        "s3.proxy": "http://me:Zq9@host",
        "azure.account.url": "https://host?sig=Zq9",
        "storage.options.password": "Zq9",
    }
    assert "Zq9" not in repr(settings_class.parse("b", settings))


@pytest.mark.parametrize("prefix", ["blob.store.", "backends.near."])
def test_tags_reach_a_backend_as_they_were_given(prefix: str) -> None:
    tags = {"team": "streams", "tier": "a=b"}
    names = ("uncommitted.tags", "s3.tags", "azure.tags")
    given = {f"{prefix}{name}": "team=streams, tier = a=b" for name in names}
    config = load_dict({**given, "backends.near.uri": "s3://bucket/near"})
    found = BlobSettings.parse("near", config.backend_settings("near", DEFAULTS_PREFIX))
    location = Location("s3://bucket/near", of_buckets=found.of_buckets)
    assert location.settings(S3Settings).tags == tags
    assert location.settings(AzureSettings).tags == tags
    assert found.transfer.uncommitted_tags == tags
