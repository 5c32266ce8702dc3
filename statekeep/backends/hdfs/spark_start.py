"""Starting from the state files of Spark's own provider: a marker without a unique id."""

import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final

from statekeep.backends.awaiting import run_to_end
from statekeep.backends.base import RestoreContext
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.hdfs.names import check_directory
from statekeep.backends.hdfs.streaming import empty_store, fetched_file
from statekeep.checkpoint.checkpoints import Marker, StoreName
from statekeep.errors import CheckpointCorruptError
from statekeep.stores.base import KeyValueStore

_MARKER: Final = re.compile(r"(.*/)?(-?[0-9]{1,18})")
_WRITE_KEYS: Final = 4096


class SparkStart:
    """What a marker ``<directory>/<version>`` names: one version in a directory of Spark's.

    The first commit after it is a full snapshot, since such a marker is no base.
    """

    def __init__(self, directory: str, version: int) -> None:
        self._directory = directory
        self._version = version
        self._paths: list[str] = []

    @classmethod
    def parse(cls, marker: Marker) -> "SparkStart | None":
        """Read a marker; None if it is of another form.

        Raises:
            CheckpointCorruptError: It names no directory.
        """
        match = _MARKER.fullmatch(marker)
        if match is None:
            return None
        directory = match[1] or ""
        check_directory(directory, marker)
        return cls(directory, int(match[2]))

    async def find(self, manager: BlobStoreManager) -> None:
        """Find the files of the version.

        Raises:
            BlobNotFoundError: One is missing.
            CheckpointCorruptError: The version is negative.
        """
        # Here, because only who starts from Spark's files needs the libraries that read them.
        from statekeep.backends.hdfs.spark_files import plan_spark_load  # noqa: PLC0415

        ids = await manager.list(self._directory)
        # What lies deeper is another store's.
        names = {blob_id.removeprefix(self._directory) for blob_id in ids}
        try:
            plan = plan_spark_load(self._version, names)
        except ValueError as exc:
            raise CheckpointCorruptError(f"{exc} directory={self._directory}") from exc
        self._paths = [f"{self._directory}{name}" for name in plan]

    async def restore(
        self, context: RestoreContext, manager: BlobStoreManager, store: StoreName
    ) -> None:
        """Fill a store; errors as of `TaskRestoreManager.restore`."""
        async with empty_store(context, store) as opened:
            for path in self._paths:
                async with fetched_file(context, manager, path, store) as local:
                    await run_to_end(context.executor, apply_spark_file, local, opened, path)


def apply_spark_file(
    local: Path,
    store: KeyValueStore,
    path: str,
    on_records: Callable[[int], None] = lambda _: None,
) -> None:
    """Put the records of a file into a store. Blocks.

    Args:
        local: The file.
        store: Gets them.
        path: Where the file comes from: its name says whether it may delete, and errors name it.
        on_records: Called with how many were put.

    Raises:
        CheckpointCorruptError: Truncated or damaged; what was put must be thrown away.
    """
    from statekeep.backends.hdfs.spark_files import read_spark_file  # noqa: PLC0415  # as above

    with local.open("rb") as file:
        records = read_spark_file(file, where=path, may_delete=path.endswith(".delta"))
        while changes := dict(islice(records, _WRITE_KEYS)):
            store.write(changes)
            on_records(len(changes))
