"""From the URI of a blob backend to the client of HDFS."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.managers.object_places import missing_package_told
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.errors import ConfigError

_SCHEMES: Final = frozenset({"hdfs", "viewfs"})


def is_hdfs(uri: str) -> bool:
    """Return whether a URI names a place on HDFS."""
    return urlsplit(uri).scheme in _SCHEMES


def make_hdfs_manager(
    uri: str, options: Mapping[str, str], executor: BlockingExecutor, *, key: str
) -> BlobStoreManager:
    """Build a manager, which needs `init`.

    Args:
        uri: ``hdfs://namenode:8020/path``; `is_hdfs` of it.
        options: Settings of Hadoop.
        executor: For local files.
        key: What ``options`` were read from, for errors.

    Raises:
        ConfigError: hdfs-native is not installed, or a setting of Hadoop makes no sense.
    """
    with missing_package_told("hdfs"):
        from statekeep.backends.blob.managers.hdfs_client import (  # noqa: PLC0415  # it needs the package
            HdfsClient,
        )
        from statekeep.backends.blob.managers.hdfs_manager import (  # noqa: PLC0415  # as above
            HdfsBlobStoreManager,
        )
    try:
        client = HdfsClient(uri, options)
    except ValueError as exc:
        raise ConfigError(f"a setting of Hadoop makes no sense: {key} {exc}", key=key) from exc
    return HdfsBlobStoreManager(uri, client, executor)
