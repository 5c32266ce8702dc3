"""What can be set about S3 and Azure; read without their SDKs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self, TypeVar

from statekeep.config import object_store_keys as keys
from statekeep.config.key import Key

T = TypeVar("T")


class Section(Protocol):
    """The settings of one backend, read by key."""

    def read(self, key: Key[T]) -> T:
        """Return a setting, or its default; ConfigError if it is of the wrong type."""
        ...


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """How bytes are moved to and from an object store; each field is a key of its name."""

    task_max_in_flight: int = keys.BLOB_TASK_MAX_IN_FLIGHT.default
    part_bytes: int = keys.BLOB_PART_BYTES.default
    buffer_bytes: int = keys.BLOB_BUFFER_BYTES.default
    bandwidth_bytes_per_second: int | None = None
    uncommitted_tags: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def read(cls, section: Section) -> Self:
        """Read them."""
        return cls(
            task_max_in_flight=section.read(keys.BLOB_TASK_MAX_IN_FLIGHT),
            part_bytes=section.read(keys.BLOB_PART_BYTES),
            buffer_bytes=section.read(keys.BLOB_BUFFER_BYTES),
            bandwidth_bytes_per_second=section.read(keys.BLOB_BANDWIDTH),
            uncommitted_tags=section.read(keys.BLOB_UNCOMMITTED_TAGS),
        )


@dataclass(frozen=True, slots=True)
class S3Settings:
    """See the keys ``blob.store.s3.*``; None: as the SDK, the bucket or the store has it."""

    endpoint: str | None = field(default=None, repr=False)
    region: str | None = None
    profile: str | None = None
    has_path_style: bool | None = None
    checksum: str = keys.S3_CHECKSUM.default
    server_side_encryption: str | None = None
    kms_key_id: str | None = None
    storage_class: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    proxy: str | None = field(default=None, repr=False)
    ca_bundle: str | None = None

    @classmethod
    def read(cls, section: Section) -> Self:
        """Read them."""
        return cls(
            endpoint=section.read(keys.S3_ENDPOINT),
            region=section.read(keys.S3_REGION),
            profile=section.read(keys.S3_PROFILE),
            has_path_style=section.read(keys.S3_PATH_STYLE),
            checksum=section.read(keys.S3_CHECKSUM),
            server_side_encryption=section.read(keys.S3_ENCRYPTION),
            kms_key_id=section.read(keys.S3_KMS_KEY),
            storage_class=section.read(keys.S3_STORAGE_CLASS),
            tags=section.read(keys.S3_TAGS),
            proxy=section.read(keys.S3_PROXY),
            ca_bundle=section.read(keys.S3_CA_BUNDLE),
        )

    def plainer(self) -> Mapping[str, Self]:
        """Return settings that lack one thing each that goes with every object, by what it is."""
        found: dict[str, Self] = {}
        if self.checksum != "none":
            found["s3.checksum"] = replace(self, checksum="none")
        if self.server_side_encryption is not None or self.kms_key_id is not None:
            found["s3.server.side.encryption"] = replace(
                self, server_side_encryption=None, kms_key_id=None
            )
        if self.storage_class is not None:
            found["s3.storage.class"] = replace(self, storage_class=None)
        if self.tags:
            found["s3.tags"] = replace(self, tags={})
        return found


@dataclass(frozen=True, slots=True)
class AzureSettings:
    """See the keys ``blob.store.azure.*``; None: as the SDK, the container or the account has it."""

    account_url: str | None = field(default=None, repr=False)
    checksum: str = keys.AZURE_CHECKSUM.default
    access_tier: str | None = None
    encryption_scope: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    proxy: str | None = field(default=None, repr=False)
    ca_bundle: str | None = None

    @classmethod
    def read(cls, section: Section) -> Self:
        """Read them."""
        return cls(
            account_url=section.read(keys.AZURE_ACCOUNT_URL),
            checksum=section.read(keys.AZURE_CHECKSUM),
            access_tier=section.read(keys.AZURE_ACCESS_TIER),
            encryption_scope=section.read(keys.AZURE_ENCRYPTION_SCOPE),
            tags=section.read(keys.AZURE_TAGS),
            proxy=section.read(keys.AZURE_PROXY),
            ca_bundle=section.read(keys.AZURE_CA_BUNDLE),
        )

    def plainer(self) -> Mapping[str, Self]:
        """Return settings that lack one thing each that goes with every blob, by what it is."""
        found: dict[str, Self] = {}
        if self.checksum != "none":
            found["azure.checksum"] = replace(self, checksum="none")
        if self.encryption_scope is not None:
            found["azure.encryption.scope"] = replace(self, encryption_scope=None)
        if self.access_tier is not None:
            found["azure.access.tier"] = replace(self, access_tier=None)
        if self.tags:
            found["azure.tags"] = replace(self, tags={})
        return found
