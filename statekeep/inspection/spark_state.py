"""State of Spark's own HDFSBackedStateStoreProvider, in a query's checkpoint location."""

import errno
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from statekeep.backends.storage.locations import explained_missing_package
from statekeep.errors import (
    BlobNotFoundError,
    CheckpointLocationError,
)
from statekeep.inspection.location_files import (
    LocationFiles,
    explained_location_errors,
    open_location,
)
from statekeep.stores.base import KeyValueStore
from statekeep.stores.local_files import explained_errors

DEFAULT_STORE: Final = "default"
"""What Spark calls the store of an operator that has one; its files lie beside those of the others."""

_CONF: Final = "spark.sql.streaming."
_PROVIDER: Final = f"{_CONF}stateStore.providerClass"
_CODEC: Final = f"{_CONF}stateStore.compression.codec"
_ROW_CHECKSUM: Final = f"{_CONF}stateStore.rowChecksum.enabled"
_PARTITIONS: Final = (f"{_CONF}internal.stateStore.partitions", "spark.sql.shuffle.partitions")


@dataclass(frozen=True, slots=True)
class SparkState:
    """One store of one operator, at the newest batch that its query has committed."""

    location: LocationFiles
    operator: int
    store: str
    version: int
    """The number of batches that it holds."""
    partitions: int

    @classmethod
    def open(cls, uri: str, *, operator: int = 0, store: str = DEFAULT_STORE) -> "SparkState":
        """Find the state in a checkpoint location, whose query should not run. Blocks.

        Args:
            uri: Of the location, as Spark names it.
            operator: Number of the stateful operator.
            store: Its name, where the operator has several.

        Raises:
            ConfigError: The location cannot be reached, or there is no such operator or store.
            CheckpointLocationError: Nothing was committed, or the state is of another form.
        """
        location = open_location(uri)
        with explained_location_errors(location):
            batches = [int(name) for name in _names(location, "commits") if name.isdecimal()]
            if not batches:
                raise CheckpointLocationError(
                    f"the query has committed no batch: location={location.shown}"
                )
            conf = _pinned_settings(location, max(batches))
            _require_readable(location, conf)
            parts = sorted(int(n) for n in _names(location, f"state/{operator}") if n.isdecimal())
        expected = next((int(conf[key]) for key in _PARTITIONS if key in conf), len(parts))
        if not parts or parts != list(range(expected)):
            raise CheckpointLocationError(
                f"partitions of the operator are missing: location={location.shown} "
                f"operator={operator} expected={expected} found={len(parts)}"
            )
        return cls(location, operator, store, max(batches) + 1, expected)

    def load(
        self,
        partition: int,
        store: KeyValueStore,
        scratch: Path,
        on_records: Callable[[int], None],
    ) -> None:
        """Fill an empty store with what a partition holds. Blocks.

        Args:
            partition: From 0.
            store: Gets keys and values as Spark has encoded them.
            scratch: A directory, for one file at a time.
            on_records: Called with the records that were read.

        Raises:
            BlobNotFoundError: A file is missing.
            CheckpointCorruptError: A file is damaged.
            ConfigError: The location cannot be reached, or the local disk is full.
        """
        with explained_missing_package("hdfs"):
            from statekeep.backends.hdfs.spark_files import plan_spark_load  # noqa: PLC0415
        from statekeep.backends.hdfs.spark_start import apply_spark_file  # noqa: PLC0415  # as above

        directory = f"state/{self.operator}/{partition}"
        if self.store != DEFAULT_STORE:
            directory = f"{directory}/{self.store}"
        with explained_location_errors(self.location):
            names = _names(self.location, directory)
        try:
            plan = plan_spark_load(self.version, names)
        except BlobNotFoundError as exc:
            raise BlobNotFoundError(f"{self.location.shown}/{directory}/{exc.blob_id}") from exc
        for name in plan:
            local = scratch / f"{partition}-{name}"
            try:
                with explained_location_errors(self.location), explained_full_disk(scratch):
                    path = f"{self.location.root}/{directory}/{name}"
                    self.location.files.get_file(path, str(local))
                apply_spark_file(
                    local, store, f"{self.location.shown}/{directory}/{name}", on_records
                )
            finally:
                local.unlink(missing_ok=True)


def _names(location: LocationFiles, directory: str) -> Sequence[str]:
    """Return what a directory of the location holds; nothing if it is missing."""
    try:
        found = location.files.ls(f"{location.root}/{directory}", detail=False)
    except FileNotFoundError:
        return []
    return [str(path).rstrip("/").rpartition("/")[2] for path in found]


def _pinned_settings(location: LocationFiles, batch: int) -> Mapping[str, Any]:
    """Return the settings that Spark keeps for a query's life."""
    name = f"offsets/{batch}"
    try:
        text = location.files.cat_file(f"{location.root}/{name}").decode()
        conf: Mapping[str, Any] = json.loads(text.splitlines()[1])["conf"]
    except (FileNotFoundError, ValueError, LookupError, TypeError) as exc:
        raise CheckpointLocationError(
            f"file is missing or cannot be read: file={location.shown}/{name}"
        ) from exc
    return conf


def _require_readable(location: LocationFiles, conf: Mapping[str, Any]) -> None:
    """Make sure that the files are of the one form that is read.

    Raises:
        CheckpointLocationError: They are not.
    """
    provider = str(conf.get(_PROVIDER, "HDFSBackedStateStoreProvider"))
    if provider.rpartition(".")[2] != "HDFSBackedStateStoreProvider":
        raise CheckpointLocationError(
            f"the state is of another provider: location={location.shown} {_PROVIDER}={provider}"
        )
    if conf.get(_CODEC, "lz4") != "lz4":
        raise CheckpointLocationError(
            f"the state is compressed in another way: location={location.shown} "
            f"{_CODEC}={conf[_CODEC]}"
        )
    if conf.get(_ROW_CHECKSUM, "false") != "false":
        raise CheckpointLocationError(
            "the state has a checksum within each value, which only Spark can read: "
            f"location={location.shown} {_ROW_CHECKSUM}={conf[_ROW_CHECKSUM]}"
        )


@contextmanager
def explained_full_disk(directory: Path) -> Generator[None]:
    """Report a full disk as that of ``directory``, into which a location is read."""
    try:
        yield
    except OSError as exc:
        if exc.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        with explained_errors(directory):
            raise
