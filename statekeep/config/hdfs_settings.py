"""The settings of HDFS backends."""

from dataclasses import dataclass
from typing import Final

from statekeep.config.key import setting
from statekeep.config.values import TEXT, byte_count, one_of, whole_number

HDFS_PREFIX: Final = "hdfs.store"
"""What stands before these names in the settings of all HDFS backends."""


@dataclass(frozen=True, slots=True)
class HdfsStoreSettings:
    """Where an HDFS backend keeps everything, and when it makes snapshots."""

    uri: str | None = setting("hdfs.store.uri", TEXT, None, default_text="none", in_repr=False)
    """Where hdfs backends keep everything: `hdfs://namenode:8020/path`, or any other location that
    creates or renames atomically. *No location is right for everyone.*"""
    min_deltas_for_snapshot: int = setting(
        "hdfs.store.min.deltas.for.snapshot",
        whole_number(1, what="deltas"),
        10,
        aliases=("spark.sql.streaming.stateStore.minDeltasForSnapshot",),
    )
    """After this many deltas the whole content of a store is uploaded beside the commits. *A
    restore reads at most about this many files; the value is Spark's.*"""
    max_delta_bytes: int = setting("hdfs.store.max.delta.bytes", byte_count(1), 256 << 20)
    """The same after this many bytes of deltas, before compression. *A restore reads them in a
    few seconds.*"""
    compression: str = setting(
        "hdfs.store.compression",
        one_of("lz4", "zstd", "none"),
        "lz4",
        aliases=("spark.sql.streaming.stateStore.compression.codec",),
    )
    """Compression of the blocks of deltas and snapshots. *It takes next to no time; the value is
    Spark's.*"""
