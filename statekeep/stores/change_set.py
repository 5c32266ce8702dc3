"""A change set: what one batch changed in a task's stores, under the name of the version it makes.

A version is its parent plus a change set. On Spark a batch leaves no more than that; an image, with
all files of the stores, is made when a version is submitted for a commit.

Layout of ``<batch>_<uid>.changes``::

    <store>.delta     the changes of one store; the header names the version, its parent, the store
    output.arrow      the output rows of the batch, where they did not travel with the receipt

A change set appears whole, by one rename. Nothing is fsynced: it must survive the death of a
process, not of the host. Each delta carries checksums and an end marker, so one that a power loss
tore is found when it is read.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.checkpoint.escaping import escape_name
from statekeep.checkpoint.version_id import VersionId
from statekeep.errors import CheckpointCorruptError, VersionDamagedError
from statekeep.stores.delta import DeltaReader
from statekeep.stores.local_files import open_regular

CHANGES_SUFFIX: Final = ".changes"
OUTPUT_FILE: Final = "output.arrow"


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """A change set on this disk; immutable, but it may be removed once a newer image is there."""

    directory: Path
    version: VersionId

    def parent(self, store: StoreName) -> VersionId | None:
        """Return the version that the changes start from; None for empty state.

        Raises:
            VersionDamagedError: The delta of ``store`` is missing or damaged.
        """
        with self.open(store) as delta:
            return VersionId.parse(delta.header.parent) if delta.header.parent else None

    @contextmanager
    def open(self, store: StoreName) -> Generator[DeltaReader]:
        """Open the delta of a store; damage found here or inside the block is one error.

        Raises:
            VersionDamagedError: It is missing, damaged, or of another version or store.
            UnknownFormatError: A newer version of Statekeep wrote it.
        """
        path = self.delta_path(store)
        try:
            with open_regular(path) as file:
                delta = DeltaReader(file, where=f"path={path}")
                if (delta.header.version, delta.header.store) != (str(self.version), store):
                    msg = f"delta is of another version or store: path={path}"
                    raise VersionDamagedError(msg)
                yield delta
        except (FileNotFoundError, NotADirectoryError) as exc:
            raise VersionDamagedError(f"delta of a version is missing: path={path}") from exc
        except CheckpointCorruptError as exc:
            raise VersionDamagedError(f"delta of a version is damaged: path={path}") from exc

    def verify(self, stores: Sequence[StoreName]) -> None:
        """Read every delta to its end.

        Raises:
            VersionDamagedError: One is missing or damaged; names it.
        """
        for store in stores:
            with self.open(store) as delta:
                for _ in delta.blocks():
                    pass

    def delta_path(self, store: StoreName) -> Path:
        """Return where the delta of a store lies."""
        return self.directory / delta_name(store)

    @property
    def output_path(self) -> Path:
        """Where the output of the batch lies, if it is here."""
        return self.directory / OUTPUT_FILE


def delta_name(store: StoreName) -> str:
    """Return the file name of a store's delta in a change set."""
    return f"{escape_name(store)}.delta"
