"""The settings of HDFS backends: see `statekeep.config.keys`."""

from typing import Final

from statekeep.config.key import Key
from statekeep.config.values import TEXT, byte_count, one_of, optional, whole_number

URI: Key[str | None] = Key(
    "hdfs.store.uri",
    optional(TEXT),
    None,
    "Where hdfs backends keep everything: `hdfs://namenode:8020/path`, or any other place that "
    "creates or renames atomically.",
    "No place is right for everyone.",
    default_text="none",
)
MIN_DELTAS_FOR_SNAPSHOT = Key(
    "hdfs.store.min.deltas.for.snapshot",
    whole_number(1, what="deltas"),
    10,
    "After so many deltas the whole content of a store is uploaded beside the commits.",
    "A restore reads at most about so many files; the value is Spark's.",
    aliases=("spark.sql.streaming.stateStore.minDeltasForSnapshot",),
)
MAX_DELTA_BYTES = Key(
    "hdfs.store.max.delta.bytes",
    byte_count(1),
    256 << 20,
    "The same after so many bytes of deltas, before compression.",
    "Read back in a few seconds.",
)
COMPRESSION = Key(
    "hdfs.store.compression",
    one_of("lz4", "zstd", "none"),
    "lz4",
    "Compression of the blocks of deltas and snapshots.",
    "Costs next to no time; the value is Spark's.",
    aliases=("spark.sql.streaming.stateStore.compression.codec",),
)

ALL: Final[tuple[Key[object], ...]] = (
    URI,
    MIN_DELTAS_FOR_SNAPSHOT,
    MAX_DELTA_BYTES,
    COMPRESSION,
)
"""In the order of the documentation."""
