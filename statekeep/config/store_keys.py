"""The settings of stores: see `statekeep.config.keys`."""

from typing import Literal

from statekeep.config.key import Key
from statekeep.config.values import (
    BLOB_COMPRESSIONS,
    BLOB_ENCRYPTIONS,
    BOOLEAN,
    TEXT,
    BlobCompression,
    BlobEncryption,
    ValueType,
    byte_count,
    milliseconds,
    name_list,
    one_of,
    optional,
    whole_number,
)

StoreFactoryName = Literal["rocksdb", "memory"]
CompactionStyle = Literal["universal", "level"]
Compression = Literal["none", "snappy", "lz4", "zstd"]

_STORE_FACTORIES: ValueType[StoreFactoryName] = one_of("rocksdb", "memory")
_COMPACTION_STYLES: ValueType[CompactionStyle] = one_of("universal", "level")
_COMPRESSIONS: ValueType[Compression] = one_of("none", "snappy", "lz4", "zstd")
_BACKENDS = name_list()
_MIB = 1 << 20

STORE_FACTORY: Key[StoreFactoryName] = Key(
    "stores.<store>.factory",
    _STORE_FACTORIES,
    "rocksdb",
    "Engine of the local store.",
    "State larger than memory works without a change.",
    job_name="stores.default.factory",
)
BACKUP_FACTORIES: Key[tuple[str, ...]] = Key(
    "stores.<store>.backup.factories",
    _BACKENDS,
    (),
    "Backends that each commit of the store goes to; all must succeed. Empty: none.",
    "Nobody's data leaves the machine unasked. On Spark: `blob`, beside the checkpoint location.",
    aliases=("stores.<store>.backup.factory",),
    job_name="stores.backup.factories",
    job_aliases=("stores.backup.factory", "stores.default.backup.factories"),
    default_text="`kafka` where the store has a changelog, else none",
)
RESTORE_FACTORIES: Key[tuple[str, ...]] = Key(
    "stores.<store>.restore.factories",
    _BACKENDS,
    (),
    "Backends that a restore tries, in this order. Given as empty: the store starts empty, whatever "
    "backends hold of it.",
    "What was backed up is what can be restored.",
    aliases=("stores.<store>.restore.factory",),
    job_name="stores.restore.factories",
    job_aliases=("stores.restore.factory", "stores.default.restore.factories"),
    default_text="the store's backup factories",
)
OPTIONAL_FACTORIES: Key[tuple[str, ...]] = Key(
    "stores.<store>.backup.optional",
    _BACKENDS,
    (),
    "Listed backup backends whose failure does not fail the commit, nor their silence a start; their "
    "marker is then absent. The one that holds the job log is needed always.",
    "A checkpoint is complete only if every backend has it.",
    job_name="stores.backup.optional",
    job_aliases=("stores.default.backup.optional",),
    default_text="none",
)
CLEAN_ON_START = Key(
    "stores.<store>.clean.on.container.start",
    BOOLEAN,
    False,  # noqa: FBT003 - the default of a boolean setting, beside its name
    "Drops the local version at start, so that everything is restored from a backend.",
    "A local version is proven equal before use; dropping it only costs a download.",
    job_name="stores.default.clean.on.container.start",
)
CHANGELOG: Key[str | None] = Key(
    "stores.<store>.changelog",
    optional(TEXT),
    None,
    "Changelog topic of the store; with it, `kafka` is the default backup backend.",
    "A topic belongs to one store, so there is no default.",
    default_text="none",
)
CHANGELOG_MIN_COMPACTION_LAG_MS = Key(
    "stores.<store>.changelog.min.compaction.lag.ms",
    milliseconds(0),
    14_400_000,
    "Age up to which the broker leaves changelog records uncompacted.",
    "Four hours: longer than any commit may be in flight; the value is Samza's.",
    job_name="stores.default.changelog.min.compaction.lag.ms",
)
CHANGELOG_DELETE_RETENTION_MS = Key(
    "stores.<store>.changelog.delete.retention.ms",
    milliseconds(0),
    86_400_000,
    "How long the broker keeps the tombstones of deleted keys.",
    "A day: a restore that reads for that long would miss deletions; the value is Samza's.",
    job_name="stores.default.changelog.delete.retention.ms",
)
CHANGELOG_REPLICATION_FACTOR: Key[int | None] = Key(
    "stores.<store>.changelog.replication.factor",
    optional(whole_number(-1, what="replicas")),
    None,
    "Replicas of the store's changelog if it is created, and the fewest that one may have that is "
    "there; -1: the cluster's default.",
    "Topics of one cluster mostly have the same.",
    job_name="stores.default.changelog.replication.factor",
    default_text="`kafka.replication.factor`",
)
BLOB_STORE_COMPRESSION: Key[BlobCompression | None] = Key(
    "stores.<store>.blob.compression",
    optional(BLOB_COMPRESSIONS),
    None,
    "Compression of what is uploaded of this store, in every blob backend.",
    "One place is mostly set up in one way.",
    default_text="the backend's",
)
BLOB_STORE_ENCRYPTION: Key[BlobEncryption | None] = Key(
    "stores.<store>.blob.encryption",
    optional(BLOB_ENCRYPTIONS),
    None,
    "Encryption of this store before it leaves the machine, in every blob backend.",
    "One place is mostly set up in one way.",
    default_text="the backend's",
)
WRITE_BUFFER_BYTES = Key(
    "stores.<store>.rocksdb.write.buffer.bytes",
    byte_count(64 << 10),
    16 * _MIB,
    "Memory of one task's store that collects writes before they become a file.",
    "Eight open stores with this and the cache below take about 200 MB, a third of the engine's "
    "own defaults.",
    job_name="stores.default.rocksdb.write.buffer.bytes",
)
BLOCK_CACHE_BYTES = Key(
    "stores.<store>.rocksdb.block.cache.bytes",
    byte_count(0),
    8 * _MIB,
    "Memory of one task's store that caches what was read.",
    "The operating system caches the files as well, across batches.",
    job_name="stores.default.rocksdb.block.cache.bytes",
)
COMPACTION_STYLE: Key[CompactionStyle] = Key(
    "stores.<store>.rocksdb.compaction.style",
    _COMPACTION_STYLES,
    "universal",
    "How the engine merges its files.",
    "Uploads grow with rewritten files: 7 times the changed bytes, against 23 with `level`; and "
    "the longest pause of a commit was 25 ms against 1.9 s.",
    job_name="stores.default.rocksdb.compaction.style",
)
BLOOM_BITS = Key(
    "stores.<store>.rocksdb.bloom.bits",
    whole_number(0, 32, what="bits"),
    10,
    "Bits per key of the filter that spares reads of absent keys; 0: no filter.",
    "One false alarm in a hundred for 1.25 bytes per key.",
    job_name="stores.default.rocksdb.bloom.bits",
)
COMPRESSION: Key[Compression] = Key(
    "stores.<store>.rocksdb.compression",
    _COMPRESSIONS,
    "lz4",
    "Compression of the engine's files, and so of what is uploaded.",
    "Cheap enough never to be what a store waits for; `zstd` is smaller and slower.",
    job_name="stores.default.rocksdb.compression",
)
