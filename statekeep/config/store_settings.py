"""The settings of stores."""

import re
from dataclasses import dataclass
from typing import Final, Literal

from statekeep.config.key import setting
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
    whole_number,
)

StoreFactoryName = Literal["rocksdb", "memory"]
CompactionStyle = Literal["universal", "level"]
Compression = Literal["none", "snappy", "lz4", "zstd"]

_STORE_FACTORIES: Final[ValueType[StoreFactoryName]] = one_of("rocksdb", "memory")
_COMPACTION_STYLES: Final[ValueType[CompactionStyle]] = one_of("universal", "level")
_COMPRESSIONS: Final[ValueType[Compression]] = one_of("none", "snappy", "lz4", "zstd")
_MIB: Final = 1 << 20
_STORE_NAME: Final = re.compile(r"[^.,/\s\x00-\x1f\x7f]+")

RESERVED_STORE_NAMES: Final = frozenset({"default", "backup", "restore"})
"""The second part of the keys that speak for all stores; no store may be called so."""


def _parse_store_name(text: str) -> str:
    if _STORE_NAME.fullmatch(text) is None or text in RESERVED_STORE_NAMES:
        raise ValueError("not the name of a store")
    return text


_STORE_NAMES: Final = ValueType(
    "store",
    "the name of a store: without dots, commas, slashes and blanks, and none of "
    + ", ".join(sorted(RESERVED_STORE_NAMES)),
    _parse_store_name,
)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """One store, its backends and its engine."""

    name: str
    """The name in ``stores.<name>.*``."""
    factory: StoreFactoryName = setting(
        "stores.<store>.factory", _STORE_FACTORIES, "rocksdb", for_all=True
    )
    """Engine of the local store. *State larger than memory works without a change.*"""
    backup_factories: tuple[str, ...] = setting(
        "stores.<store>.backup.factories",
        name_list(),
        (),
        aliases=("stores.<store>.backup.factory",),
        job_name="stores.backup.factories",
        job_aliases=("stores.backup.factory", "stores.default.backup.factories"),
        default_text="`kafka` where the store has a changelog, else none",
    )
    """Backends that each commit of the store goes to; all must succeed. Empty: none. *No data
    leaves the machine unasked. On Spark: `blob`, beside the checkpoint location.*"""
    restore_factories: tuple[str, ...] = setting(
        "stores.<store>.restore.factories",
        name_list(),
        (),
        aliases=("stores.<store>.restore.factory",),
        job_name="stores.restore.factories",
        job_aliases=("stores.restore.factory", "stores.default.restore.factories"),
        default_text="the store's backup factories",
    )
    """Backends that a restore tries, in this order. If you set it to an empty list, the store
    starts empty, whatever the backends hold. *A restore reads from where the store was backed
    up.*"""
    optional_factories: tuple[str, ...] = setting(
        "stores.<store>.backup.optional",
        name_list(),
        (),
        job_name="stores.backup.optional",
        job_aliases=("stores.default.backup.optional",),
        default_text="none",
    )
    """Those of the backup backends that the job can do without. If one fails, the commit goes on
    without its marker; if it does not answer, the job still starts. The backend that holds the
    job log is always needed. *A checkpoint is complete only if every backend has it.*"""
    is_cleaned_on_start: bool = setting(
        "stores.<store>.clean.on.container.start", BOOLEAN, False, for_all=True
    )
    """Drops the local version at start, so that everything is restored from a backend. *A local
    version is verified before use, so dropping it only costs a download.*"""
    changelog: str | None = setting("stores.<store>.changelog", TEXT, None, default_text="none")
    """Changelog topic of the store; with it, `kafka` is the default backup backend. *A topic
    belongs to one store, so there is no default.*"""
    changelog_min_compaction_lag_ms: int = setting(
        "stores.<store>.changelog.min.compaction.lag.ms", milliseconds(0), 14_400_000, for_all=True
    )
    """Age up to which the broker leaves changelog records uncompacted. *Four hours: longer than
    any commit may be in flight; the value is Samza's.*"""
    changelog_delete_retention_ms: int = setting(
        "stores.<store>.changelog.delete.retention.ms", milliseconds(0), 86_400_000, for_all=True
    )
    """How long the broker keeps the tombstones of deleted keys. *A day. A restore that takes
    longer would miss deletions; the value is Samza's.*"""
    changelog_replication_factor: int | None = setting(
        "stores.<store>.changelog.replication.factor",
        whole_number(-1, what="replicas"),
        None,
        for_all=True,
        default_text="`kafka.replication.factor`",
    )
    """Replicas of the store's changelog when it is created. One that exists must have at least as
    many. -1: the cluster's default. *Most topics of a cluster have the same number.*"""
    write_buffer_bytes: int = setting(
        "stores.<store>.rocksdb.write.buffer.bytes", byte_count(64 << 10), 16 * _MIB, for_all=True
    )
    """Memory of one task's store that collects writes before they become a file. *Eight open
    stores with this and the cache below take about 200 MB, a third of the engine's own
    defaults.*"""
    block_cache_bytes: int = setting(
        "stores.<store>.rocksdb.block.cache.bytes", byte_count(0), 8 * _MIB, for_all=True
    )
    """Memory of one task's store that caches what was read. *The operating system caches the
    files as well, across batches.*"""
    compaction_style: CompactionStyle = setting(
        "stores.<store>.rocksdb.compaction.style",
        _COMPACTION_STYLES,
        "universal",
        for_all=True,
    )
    """How the engine merges its files. *It rewrites less: 7 bytes for each byte that changed,
    against 23 with `level`. The longest of 100 pauses, one after the other on 1 GB, was 0.3 s, against 0.1 s.*"""
    bloom_bits: int = setting(
        "stores.<store>.rocksdb.bloom.bits", whole_number(0, 32, what="bits"), 10, for_all=True
    )
    """Bits per key of the filter that avoids reads of absent keys; 0: no filter. *It takes 1.25 bytes
    per key, and misses one absent key in a hundred.*"""
    compression: Compression = setting(
        "stores.<store>.rocksdb.compression",
        _COMPRESSIONS,
        "lz4",
        for_all=True,
    )
    """Compression of the engine's files, and so of what is uploaded. *So fast that a store never
    waits for it; `zstd` is smaller and slower.*"""
    blob_compression: BlobCompression | None = setting(
        "stores.<store>.blob.compression", BLOB_COMPRESSIONS, None, default_text="the backend's"
    )
    """Compression of what is uploaded of this store, in every blob backend. *Most stores of a
    backend need the same.*"""
    blob_encryption: BlobEncryption | None = setting(
        "stores.<store>.blob.encryption", BLOB_ENCRYPTIONS, None, default_text="the backend's"
    )
    """Encryption of this store before it leaves the machine, in every blob backend. *Most stores
    of a backend need the same.*"""
    is_begun_empty: bool = False
    """Whether the list of restore backends was given, as empty: what backends hold is given up."""

    @property
    def is_durable(self) -> bool:
        """Whether the store is backed up at all."""
        return bool(self.backup_factories)

    @property
    def required_factories(self) -> tuple[str, ...]:
        """The backup backends without which a commit is not complete."""
        return tuple(name for name in self.backup_factories if name not in self.optional_factories)


@dataclass(frozen=True, slots=True)
class StateVariableSettings:
    """One state variable of an operator on Spark."""

    store: str = setting("state.variables.<variable>.store", _STORE_NAMES, "state")
    """Store that keeps the state variable of this name on Spark, in every operator of the query that has
    one; `operator-2.<name>` holds for that operator alone. A variable that has data stays in its
    store. *One store is the cheapest; another one is for state that goes to other backends, or to
    none.*"""
