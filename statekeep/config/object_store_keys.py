"""The settings of object stores and of the transfers to and from them: see `config.keys`."""

from collections.abc import Mapping
from types import MappingProxyType

from statekeep.config.key import Key
from statekeep.config.values import (
    BOOLEAN,
    TEXT,
    byte_count,
    labels,
    one_of,
    optional,
    whole_number,
)

BLOB_TASK_MAX_IN_FLIGHT = Key(
    "blob.store.task.max.in.flight",
    whole_number(1, 1024, what="requests"),
    16,
    "Requests to an object store that are under way at once for one task.",
    "Hides 20 ms of latency at 16 MiB a part, and leaves places for the other tasks' small blobs.",
)
BLOB_PART_BYTES = Key(
    "blob.store.part.bytes",
    byte_count(1 << 20),
    16 << 20,
    "Size of the parts that a large file is moved in; larger where the store would take no more.",
    "Small enough to repeat, large enough that requests cost little beside bytes.",
)
BLOB_BUFFER_BYTES = Key(
    "blob.store.buffer.bytes",
    byte_count(1 << 20),
    256 << 20,
    "Memory for the parts that are under way, of all tasks of a container.",
    "16 parts of 16 MiB.",
)
BLOB_BANDWIDTH: Key[int | None] = Key(
    "blob.store.bandwidth.bytes.per.second",
    optional(byte_count(1 << 10)),
    None,
    "Most bytes a second to and from an object store, of all tasks of a container together.",
    "A commit should not last longer than it must.",
    default_text="no limit",
)
BLOB_UNCOMMITTED_TAGS: Key[Mapping[str, str]] = Key(
    "blob.store.uncommitted.tags",
    labels(),
    MappingProxyType({}),
    "Tags of new objects until their upload is complete, for a rule of the bucket that lets what "
    "stays uncommitted expire: `statekeep=uncommitted`. S3 and Azure.",
    "Clean-up finds all of it without; taking a tag away is one more request for every object.",
    default_text="none",
)
S3_ENDPOINT: Key[str | None] = Key(
    "blob.store.s3.endpoint",
    optional(TEXT),
    None,
    "URL of an S3 store that is not Amazon's.",
    "The SDK finds Amazon's by the region.",
    default_text="the SDK's",
)
S3_REGION: Key[str | None] = Key(
    "blob.store.s3.region",
    optional(TEXT),
    None,
    "Region of the bucket.",
    "From the environment or profile.",
    default_text="the SDK's",
)
S3_PROFILE: Key[str | None] = Key(
    "blob.store.s3.profile",
    optional(TEXT),
    None,
    "Profile of the SDK's files that credentials come from.",
    "Credentials come from the SDK's usual chain and never from these settings.",
    default_text="the SDK's",
)
S3_PATH_STYLE: Key[bool | None] = Key(
    "blob.store.s3.path.style",
    optional(BOOLEAN),
    None,
    "Whether the bucket stands in the path of a URL instead of its host name.",
    "The SDK decides by the endpoint.",
    default_text="the SDK's",
)
S3_CHECKSUM = Key(
    "blob.store.s3.checksum",
    one_of("crc32", "none"),
    "crc32",
    "Checksum that is sent with every object and part, for the store to compare.",
    "Damage on the way is noticed at once; `none` is for stores that refuse the header.",
)
S3_ENCRYPTION: Key[str | None] = Key(
    "blob.store.s3.server.side.encryption",
    optional(one_of("AES256", "aws:kms", "aws:kms:dsse")),
    None,
    "Server-side encryption of new objects.",
    "The bucket has a default of its own.",
    default_text="the bucket's",
)
S3_KMS_KEY: Key[str | None] = Key(
    "blob.store.s3.kms.key.id",
    optional(TEXT),
    None,
    "Id of the key for `aws:kms`.",
    "The bucket has a default of its own.",
    default_text="the bucket's",
)
S3_STORAGE_CLASS: Key[str | None] = Key(
    "blob.store.s3.storage.class",
    optional(TEXT),
    None,
    "Storage class of new objects, such as `STANDARD_IA`.",
    "State is short-lived: classes with a minimum duration cost more.",
    default_text="the store's",
)
S3_TAGS: Key[Mapping[str, str]] = Key(
    "blob.store.s3.tags",
    labels(),
    MappingProxyType({}),
    "Tags of new objects: `team=streams,tier=state`.",
    "None are needed.",
    default_text="none",
)
S3_PROXY: Key[str | None] = Key(
    "blob.store.s3.proxy",
    optional(TEXT),
    None,
    "URL of the proxy to reach the store by.",
    "From the environment.",
    default_text="the SDK's",
    is_secret=True,
)
S3_CA_BUNDLE: Key[str | None] = Key(
    "blob.store.s3.ca.bundle",
    optional(TEXT),
    None,
    "File with the certificates to trust.",
    "From the environment.",
    default_text="the SDK's",
)
AZURE_ACCOUNT_URL: Key[str | None] = Key(
    "blob.store.azure.account.url",
    optional(TEXT),
    None,
    "URL of the storage account, such as `https://name.blob.core.windows.net`.",
    "From the URI, else from `AZURE_STORAGE_CONNECTION_STRING` or `AZURE_STORAGE_ACCOUNT`.",
    default_text="by the URI or the environment",
)
AZURE_CHECKSUM = Key(
    "blob.store.azure.checksum",
    one_of("md5", "none"),
    "md5",
    "Checksum that is sent with every blob and block, for the store to compare.",
    "Damage on the way is noticed at once; it costs about a second of processor time a gigabyte.",
)
AZURE_ACCESS_TIER: Key[str | None] = Key(
    "blob.store.azure.access.tier",
    optional(one_of("Hot", "Cool", "Cold")),
    None,
    "Access tier of new blobs.",
    "State is short-lived: colder tiers have a minimum duration.",
    default_text="the account's",
)
AZURE_ENCRYPTION_SCOPE: Key[str | None] = Key(
    "blob.store.azure.encryption.scope",
    optional(TEXT),
    None,
    "Encryption scope of new blobs.",
    "The container has a default of its own.",
    default_text="the container's",
)
AZURE_TAGS: Key[Mapping[str, str]] = Key(
    "blob.store.azure.tags",
    labels(),
    MappingProxyType({}),
    "Index tags of new blobs: `team=streams,tier=state`.",
    "None are needed.",
    default_text="none",
)
AZURE_PROXY: Key[str | None] = Key(
    "blob.store.azure.proxy",
    optional(TEXT),
    None,
    "URL of the proxy to reach the account by.",
    "From the environment.",
    default_text="the SDK's",
    is_secret=True,
)
AZURE_CA_BUNDLE: Key[str | None] = Key(
    "blob.store.azure.ca.bundle",
    optional(TEXT),
    None,
    "File with the certificates to trust.",
    "From the environment.",
    default_text="the SDK's",
)

KEYS: tuple[Key[object], ...] = (
    BLOB_TASK_MAX_IN_FLIGHT,
    BLOB_PART_BYTES,
    BLOB_BUFFER_BYTES,
    BLOB_BANDWIDTH,
    BLOB_UNCOMMITTED_TAGS,
    S3_ENDPOINT,
    S3_REGION,
    S3_PROFILE,
    S3_PATH_STYLE,
    S3_CHECKSUM,
    S3_ENCRYPTION,
    S3_KMS_KEY,
    S3_STORAGE_CLASS,
    S3_TAGS,
    S3_PROXY,
    S3_CA_BUNDLE,
    AZURE_ACCOUNT_URL,
    AZURE_CHECKSUM,
    AZURE_ACCESS_TIER,
    AZURE_ENCRYPTION_SCOPE,
    AZURE_TAGS,
    AZURE_PROXY,
    AZURE_CA_BUNDLE,
)
"""All of them, in the order of the documentation."""
