"""The settings of named backends, and of blob backends: their locations, transfers and retries.

Those of the transfers, S3 and Azure say what can be set; they are read without the SDKs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from types import MappingProxyType
from typing import Final, Self

from statekeep.config.key import setting
from statekeep.config.values import (
    ANY_TEXT,
    BLOB_COMPRESSIONS,
    BLOB_ENCRYPTIONS,
    BOOLEAN,
    DATE,
    TEXT,
    BlobCompression,
    BlobEncryption,
    byte_count,
    decimal,
    labels,
    milliseconds,
    one_of,
    whole_number,
)

BLOB_PREFIX: Final = "blob.store"
"""What stands before these names in the settings of all blob backends."""


@dataclass(frozen=True, slots=True)
class NamedBackend:
    """What is said of one backend, of whatever kind; its factory reads it."""

    factory: str | None = setting(
        "backends.<backend>.factory", TEXT, None, default_text="the backend's name"
    )
    """Short name or dotted path of the factory behind a backend's name, so that two backends of
    one kind can stand side by side. *Most backends are named after their factory.*"""
    setting: str | None = setting(
        "backends.<backend>.<setting>", ANY_TEXT, None, default_text="the backend's"
    )
    """A setting of one backend, checked by its factory. A blob backend takes the keys of
    `blob.store.*`, without that prefix, and these win over `blob.store.*`. *See the backend.*"""


@dataclass(frozen=True, slots=True)
class BlobStoreSettings:
    """A blob backend: its location, its client, and what it does to what it stores."""

    uri: str | None = setting("blob.store.uri", TEXT, None, default_text="none", in_repr=False)
    """Where blob backends keep everything: `s3://bucket/path`, `file:///path`, ... *No location is
    right for everyone. On Spark: beside the checkpoint location.*"""
    manager_factory: str | None = setting(
        "blob.store.manager.factory", TEXT, None, default_text="by the scheme of the URI"
    )
    """Dotted path of a class that builds the blob store's client. *The scheme of the URI says
    which client is needed.*"""
    max_in_flight: int = setting(
        "blob.store.max.in.flight", whole_number(1, 1024, what="calls"), 64
    )
    """Calls to the blob store that are under way at once, of all tasks of a container. *As many
    as the container's pool may have threads.*"""
    pack_file_bytes: int = setting(
        "blob.store.pack.max.file.bytes", byte_count(0, 4 << 20), 256 << 10
    )
    """Files up to this size, at most 4 MiB, share a blob with others of their commit and store;
    0: each has its own. *A request costs as much time as this many bytes, and most files of a
    commit are smaller.*"""
    compression: BlobCompression = setting("blob.store.compression", BLOB_COMPRESSIONS, "none")
    """Compression of what is uploaded, on top of that of the store's own files. *RocksDB's
    files are compressed already.*"""
    encryption: BlobEncryption = setting("blob.store.encryption", BLOB_ENCRYPTIONS, "none")
    """Encryption of state before it leaves the machine. *It needs keys, and a
    backup is lost with its keys.*"""
    encryption_keys: str | None = setting(
        "blob.store.encryption.keys", TEXT, None, default_text="none", is_secret=True
    )
    """Where keys come from: `file:<path>`, `env:<variable>`, or the dotted path of a
    `KeyProvider`. Needed for as long as a retained commit is encrypted. *Keys are kept apart
    from settings.*"""
    plain_until: date | None = setting(
        "blob.store.encryption.plain.until", DATE, None, default_text="none"
    )
    """Last day (UTC, by this machine's clock) on which an encrypted backend still reads what is
    plain or of an older format. So a job can go on from a commit before encryption. Until that
    day is over, anyone who can write to the storage can pass off plain state. *Without it, what
    is not authenticated is refused.*"""
    start_timeout_ms: int = setting("blob.store.start.timeout.ms", milliseconds(1), 60_000)
    """How long a start, or the check of a backend, retries a store that does not answer. *Long
    enough for transient failures; short enough to report a wrong URI or missing permission while
    you watch.*"""


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """When a blob backend uploads files, and when changes."""

    max_delta_ratio: float = setting("blob.store.snapshot.max.delta.ratio", decimal(0, 10), 0.15)
    """A snapshot of a store's files is due when the deltas since the last one reach this part
    of its size; in between, a commit uploads its changes. 0: every commit uploads the files
    that are new. *A restore reads and applies at most this part more than the files. With a lower
    value, more of what compaction rewrites is uploaded.*"""
    max_deltas: int = setting(
        "blob.store.snapshot.max.deltas", whole_number(1, 100_000, what="deltas"), 500
    )
    """A snapshot of a store's files is due when this many deltas follow the last one. *A restore
    fetches each of them, and one index in 32 names them all, at 400 bytes each.*"""


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """How long and how often a call to a service is repeated."""

    # The waits are short, unlike Samza's, which grow to five minutes: whatever waits when an outage ends
    # stalls for the rest of its wait, and a commit that stalls holds up batches. With these values every
    # call is tried again 1 to 3 s after the end of an outage of any length.
    # - Load: a store that is down costs one connection per try. At most `max.in.flight` tries of a
    #   container are under way at once, before the end of an outage as after it.
    # - Jitter: calls that failed together spread over the two seconds between the shortest and the
    #   longest wait, so that many tasks do not return together.
    # - Throttling needs longer waits, and gets them elsewhere: an answer such as S3's SlowDown makes all
    #   transfers of the container rest, up to half a minute (`backends.pacing.Throttle`). Kafka's client
    #   waits by itself for as long as a broker asks.
    max_retries: int = setting(
        "blob.store.retry.policy.max.retries", whole_number(-1, what="retries"), -1
    )
    """Most retries of one call; -1: as many as the time allows. *What matters to a commit is how
    long it takes, not how often it tried; the value is Samza's.*"""
    max_duration_ms: int = setting(
        "blob.store.retry.policy.max.retry.duration.millis", milliseconds(0), 900_000
    )
    """Longest time that one call is retried for, from its first failure on. *Half of the commit
    timeout; the value is Samza's.*"""
    backoff_delay_ms: int = setting(
        "blob.store.retry.policy.backoff.delay.millis", milliseconds(1), 100
    )
    """Wait before the first retry. *Most transient failures are over by then; the value is
    Samza's.*"""
    backoff_max_delay_ms: int = setting(
        "blob.store.retry.policy.backoff.max.delay.millis", milliseconds(1), 2_000
    )
    """Longest wait between two retries, before jitter. *When an outage ends, every waiting call
    is tried again within 3 seconds. A store that throttles is given more time, apart from this
    setting.*"""
    backoff_delay_factor: float = setting(
        "blob.store.retry.policy.backoff.delay.factor", decimal(1, 100), 5.0
    )
    """Factor between one wait and the next. *From the third wait on, all have the longest time;
    the value is Samza's.*"""
    jitter_factor: float = setting("blob.store.retry.policy.jitter.factor", decimal(0, 1), 0.5)
    """How much each wait varies at random, as a part of it: 0.5 is half as long to one and a half
    times as long. *Calls that failed together spread over two seconds.*"""


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """How bytes are moved to and from a blob store."""

    task_max_in_flight: int = setting(
        "blob.store.task.max.in.flight", whole_number(1, 1024, what="requests"), 16
    )
    """Requests to the blob store that are under way at once for one task. *With parts of 16 MiB
    they fill a link in spite of 20 ms of latency, and leave requests for other tasks.*"""
    part_bytes: int = setting("blob.store.part.bytes", byte_count(1 << 20), 16 << 20)
    """Size of the parts that a large file is moved in; larger where the store allows no more
    parts. *Small enough to send again; so large that the requests take little of the time.*"""
    buffer_bytes: int = setting("blob.store.buffer.bytes", byte_count(1 << 20), 256 << 20)
    """Memory for the parts that are under way, of all tasks of a container. *Enough for 16 parts
    of 16 MiB.*"""
    bandwidth_bytes_per_second: int | None = setting(
        "blob.store.bandwidth.bytes.per.second", byte_count(1 << 10), None, default_text="no limit"
    )
    """Most bytes a second to and from the blob store, of all tasks of a container together.
    *Without a limit, commits are as short as they can be.*"""
    uncommitted_tags: Mapping[str, str] = setting(
        "blob.store.uncommitted.tags", labels(), MappingProxyType({}), default_text="none"
    )
    """Tags that new objects have until their upload is complete, such as `statekeep=uncommitted`.
    A rule of the bucket can then let objects expire that keep the tag. S3 and Azure. *Clean-up
    finds these objects without tags, and removing a tag is one more request for every object.*"""


@dataclass(frozen=True, slots=True)
class S3Settings:
    """One S3 store; None: as the SDK, the bucket or the store has it."""

    endpoint: str | None = setting(
        "blob.store.s3.endpoint", TEXT, None, default_text="the SDK's", in_repr=False
    )
    """URL of an S3 store that is not Amazon's. *The SDK finds Amazon's by the region.*"""
    region: str | None = setting("blob.store.s3.region", TEXT, None, default_text="the SDK's")
    """Region of the bucket. *From the environment or profile.*"""
    profile: str | None = setting("blob.store.s3.profile", TEXT, None, default_text="the SDK's")
    """Profile of the SDK's files that credentials come from. *Credentials come from the SDK's
    usual chain and never from these settings.*"""
    has_path_style: bool | None = setting(
        "blob.store.s3.path.style", BOOLEAN, None, default_text="the SDK's"
    )
    """Whether the bucket stands in the path of a URL instead of its host name. *The SDK decides
    by the endpoint.*"""
    checksum: str = setting("blob.store.s3.checksum", one_of("crc32", "none"), "crc32")
    """Checksum that is sent with every object and part, for the store to compare. *Damage on
    the way is noticed at once; `none` is for stores that refuse the header.*"""
    server_side_encryption: str | None = setting(
        "blob.store.s3.server.side.encryption",
        one_of("AES256", "aws:kms", "aws:kms:dsse"),
        None,
        default_text="the bucket's",
    )
    """Server-side encryption of new objects. *The bucket has a default of its own.*"""
    kms_key_id: str | None = setting(
        "blob.store.s3.kms.key.id", TEXT, None, default_text="the bucket's"
    )
    """Id of the key for `aws:kms`. *The bucket has a default of its own.*"""
    storage_class: str | None = setting(
        "blob.store.s3.storage.class", TEXT, None, default_text="the store's"
    )
    """Storage class of new objects, such as `STANDARD_IA`. *State is short-lived: classes with
    a minimum duration cost more.*"""
    tags: Mapping[str, str] = setting(
        "blob.store.s3.tags", labels(), MappingProxyType({}), default_text="none"
    )
    """Tags of new objects: `team=streams,tier=state`. *None are needed.*"""
    proxy: str | None = setting(
        "blob.store.s3.proxy", TEXT, None, default_text="the SDK's", is_secret=True
    )
    """URL of the proxy to reach the store by. *From the environment.*"""
    ca_bundle: str | None = setting("blob.store.s3.ca.bundle", TEXT, None, default_text="the SDK's")
    """File with the certificates to trust. *From the environment.*"""

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
    """One storage account; None: as the SDK, the container or the account has it."""

    account_url: str | None = setting(
        "blob.store.azure.account.url",
        TEXT,
        None,
        default_text="by the URI or the environment",
        in_repr=False,
    )
    """URL of the storage account, such as `https://name.blob.core.windows.net`. *From the URI,
    else from `AZURE_STORAGE_CONNECTION_STRING` or `AZURE_STORAGE_ACCOUNT`.*"""
    checksum: str = setting("blob.store.azure.checksum", one_of("md5", "none"), "md5")
    """Checksum that is sent with every blob and block, for the store to compare. *Damage on the
    way is noticed at once; it costs about a second of processor time a gigabyte.*"""
    access_tier: str | None = setting(
        "blob.store.azure.access.tier",
        one_of("Hot", "Cool", "Cold"),
        None,
        default_text="the account's",
    )
    """Access tier of new blobs. *State is short-lived: colder tiers have a minimum
    duration.*"""
    encryption_scope: str | None = setting(
        "blob.store.azure.encryption.scope", TEXT, None, default_text="the container's"
    )
    """Encryption scope of new blobs. *The container has a default of its own.*"""
    tags: Mapping[str, str] = setting(
        "blob.store.azure.tags", labels(), MappingProxyType({}), default_text="none"
    )
    """Index tags of new blobs: `team=streams,tier=state`. *None are needed.*"""
    proxy: str | None = setting(
        "blob.store.azure.proxy", TEXT, None, default_text="the SDK's", is_secret=True
    )
    """URL of the proxy to reach the account by. *From the environment.*"""
    ca_bundle: str | None = setting(
        "blob.store.azure.ca.bundle", TEXT, None, default_text="the SDK's"
    )
    """File with the certificates to trust. *From the environment.*"""

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
