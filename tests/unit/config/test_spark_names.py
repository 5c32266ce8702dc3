"""Settings under Spark's own names have the effect that they have there."""

import pytest

from statekeep.backends.hdfs.settings import HdfsSettings
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.errors import ConfigError

SPARK = "spark.sql.streaming."


def config(**settings: str) -> Config:
    return load_dict(
        {"job.name": "j", "stores.backup.factories": "hdfs", "hdfs.store.uri": "memory://"}
        | {f"{SPARK}{name}": value for name, value in settings.items()}
    )


def hdfs_settings(found: Config) -> HdfsSettings:
    return HdfsSettings.parse("hdfs", found.backend_settings("hdfs", "hdfs.store"))


def test_deltas_between_snapshots() -> None:
    assert hdfs_settings(config()).min_deltas_for_snapshot == 10
    named = config(**{"stateStore.minDeltasForSnapshot": "3"})
    assert hdfs_settings(named).min_deltas_for_snapshot == 3


def test_the_codec_of_files() -> None:
    default = hdfs_settings(config()).compression
    (other,) = {"lz4", "zstd"} - {default}
    named = config(**{"stateStore.compression.codec": other})
    assert hdfs_settings(named).compression == other


def test_local_versions() -> None:
    assert config(maxBatchesToRetainInMemory="5").checkpoint.local_retain_versions == 5
    with pytest.raises(
        ConfigError, match=r"checkpoint\.local\.retain\.versions must be .* at least 1"
    ):
        config(maxBatchesToRetainInMemory="0")
