"""A checkpoint location of a query that Spark has kept the state of, made of golden files."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

GOLDEN = Path(__file__).parents[1] / "golden" / "spark-hdfs"
"""The state of one partition: what ``groupBy("value").count()`` gave after four batches."""
COUNTS = {b"key0": 3, b"key1": 3, b"key2": 3, b"key3": 3, b"key4": 3, b"key5": 2, b"key6": 3}
STATE_STORE = "spark.sql.streaming.stateStore"


def make_location(
    root: Path, partitions: int = 1, pinned: Mapping[str, str] = MappingProxyType({})
) -> Path:
    """Make a location with four batches; ``pinned`` are settings below `STATE_STORE`."""
    conf = {
        f"{STATE_STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state"
        ".HDFSBackedStateStoreProvider",
        f"{STATE_STORE}.compression.codec": "lz4",
        "spark.sql.shuffle.partitions": str(partitions),
        **{f"{STATE_STORE}.{name}": value for name, value in pinned.items()},
    }
    for directory in ("offsets", "commits"):
        (root / directory).mkdir(parents=True)
    for batch in range(4):
        head = json.dumps({"batchWatermarkMs": 0, "conf": conf})
        (root / "offsets" / str(batch)).write_text(f'v1\n{head}\n{{"logOffset":{batch}}}')
        (root / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    (root / "state" / "0" / "_metadata").mkdir(parents=True)
    for partition in range(partitions):
        shutil.copytree(GOLDEN, root / "state" / "0" / str(partition))
    return root
