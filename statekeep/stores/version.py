"""A sealed version: the immutable image of a task's stores after a batch, and its seal manifest.

Layout of a version's directory, ``<batch>_<uid>``::

    SEAL-MANIFEST                     what the directory holds, with sizes and checksums
    CHECKPOINT-V2                     the task's checkpoint, once it is known; not in the manifest
    <store>/db/...                    the store's image
    <store>/changes/<version>.delta   the changes that led to <version> from the one before it
    <other files>                     such as the output of the batch
"""

import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.checkpoint.decoding import decode_json, is_file_name
from statekeep.checkpoint.escaping import escape_name
from statekeep.checkpoint.framing import frame, unframe
from statekeep.checkpoint.version_id import VersionId
from statekeep.errors import CheckpointCorruptError, UnknownFormatError, VersionDamagedError
from statekeep.stores.local_files import (
    crc32_of,
    explained_errors,
    read_document,
    replace_durably,
)

MANIFEST_FILE: Final = "SEAL-MANIFEST"
CHECKPOINT_FILE: Final = "CHECKPOINT-V2"
LINEAGE_LIMIT: Final = 256
"""Most ancestors that a manifest names, and most deltas that a version carries: well above the
batches that a query may run ahead of its commit (Spark retains 100), and 12 KB of text."""

_MANIFEST_KIND: Final = "seal-manifest"
_CHECKPOINT_KIND: Final = "task-checkpoint"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a version."""

    path: str
    """Relative to the version's directory (or to the store's, where said), ``/``-separated."""
    size: int
    """Bytes."""
    crc32: int
    """Of the whole content, unsigned."""


@dataclass(frozen=True, slots=True)
class SealManifest:
    """What a sealed version is and holds; written before the version gets its name."""

    version: VersionId
    parent: VersionId | None
    """The version that it was made from; None: empty state."""
    lineage: tuple[VersionId, ...]
    """Ancestors, nearest first, at most `LINEAGE_LIMIT`; they need not be on this disk."""
    job_name: str
    operator: str
    task_name: str
    files: tuple[FileEntry, ...]
    """Every file but the manifest and the checkpoint, by path."""

    def encode(self) -> bytes:
        """Return the bytes of the manifest: JSON in a frame with a CRC."""
        data = _ManifestData(
            version=str(self.version),
            parent=str(self.parent or ""),
            lineage=[str(version) for version in self.lineage],
            job=self.job_name,
            operator=self.operator,
            task=self.task_name,
            files=self.files,
        )
        return frame(_MANIFEST_KIND, msgspec.json.encode(data))

    @classmethod
    def decode(cls, data: bytes, *, where: str) -> Self:
        """Read a manifest back.

        Raises:
            CheckpointCorruptError: Damaged or truncated.
            UnknownFormatError: A newer version of Statekeep wrote it.
        """
        manifest = unframe(data, where=where)
        read = decode_json(_decoder, manifest.payload, f"seal manifest cannot be read: {where}")
        foreign = [e.path for e in read.files if not all(map(is_file_name, e.path.split("/")))]
        if foreign:
            msg = f"seal manifest names a file outside its version: {where} path={foreign[0]!r}"
            raise CheckpointCorruptError(msg)
        return cls(
            version=VersionId.parse(read.version),
            parent=VersionId.parse(read.parent) if read.parent else None,
            lineage=tuple(VersionId.parse(text) for text in read.lineage),
            job_name=read.job,
            operator=read.operator,
            task_name=read.task,
            files=read.files,
        )


class _ManifestData(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    parent: str
    lineage: list[str]
    job: str
    operator: str
    task: str
    files: tuple[FileEntry, ...]


_decoder: Final = msgspec.json.Decoder(_ManifestData)


@dataclass(frozen=True, slots=True)
class SealedVersion:
    """A version on this disk. Safe to use from any thread and process: nothing in it changes.

    It may go away once it is settled and nobody names it (`TaskDirectory.retain`): then its
    methods raise what a missing file raises.
    """

    directory: Path
    manifest: SealManifest

    @property
    def id(self) -> VersionId:
        """The version's name."""
        return self.manifest.version

    @property
    def parent(self) -> VersionId | None:
        """The version that it was made from; None: empty state."""
        return self.manifest.parent

    @property
    def lineage(self) -> tuple[VersionId, ...]:
        """Its ancestors, nearest first."""
        return self.manifest.lineage

    def store_directory(self, store: StoreName) -> Path:
        """Return where the image of a store lies."""
        return self.directory / image_path(store)

    def store_files(self, store: StoreName) -> tuple[FileEntry, ...]:
        """Return the files of a store's image, their paths relative to its directory."""
        prefix = f"{image_path(store)}/"
        return tuple(
            FileEntry(entry.path.removeprefix(prefix), entry.size, entry.crc32)
            for entry in self.manifest.files
            if entry.path.startswith(prefix)
        )

    def lacks(self, stores: Iterable[StoreName]) -> tuple[StoreName, ...]:
        """Return those of the stores that it has no image of."""
        return tuple(store for store in stores if not self.store_files(store))

    def changes_since(self, store: StoreName, base: VersionId) -> list[Path] | None:
        """Return the delta files that lead from ``base`` to this version, in order.

        Returns:
            None if ``base`` is not an ancestor, or not all of the deltas are at hand.
        """
        held = {entry.path for entry in self.manifest.files}
        paths: list[Path] = []
        for version in (self.id, *self.lineage):
            if version == base:
                return paths[::-1]
            path = changes_path(store, version)
            if path not in held:
                return None
            paths.append(self.directory / path)
        return None

    def verify(self) -> None:
        """Compare every file with its size and checksum; reads the whole version.

        Raises:
            VersionDamagedError: A file is missing or differs; names it.
        """
        self.verify_sizes()
        for entry in self.manifest.files:
            path = self.directory / entry.path
            crc = crc32_of(path)
            if crc != entry.crc32:
                msg = f"file of a version is damaged: path={path} expected_crc32={entry.crc32:08x} actual_crc32={crc:08x}"
                raise VersionDamagedError(msg)

    def verify_sizes(self) -> None:
        """Compare every file with its size; reads no content.

        Raises:
            VersionDamagedError: A file is missing or of another size; names it.
        """
        for entry in self.manifest.files:
            path = self.directory / entry.path
            try:
                found = path.lstat()
            except (FileNotFoundError, NotADirectoryError) as exc:
                raise VersionDamagedError(f"file of a version is missing: path={path}") from exc
            if not stat.S_ISREG(found.st_mode):
                raise VersionDamagedError(f"file of a version is none: path={path}")
            if found.st_size != entry.size:
                msg = f"file of a version is damaged: path={path} expected_bytes={entry.size} actual_bytes={found.st_size}"
                raise VersionDamagedError(msg)

    def read_checkpoint(self) -> bytes | None:
        """Return what `write_checkpoint` wrote; None where it cannot be read."""
        path = self.directory / CHECKPOINT_FILE
        try:
            found = unframe(read_document(path), where=f"path={path}")
        except (OSError, CheckpointCorruptError, UnknownFormatError):
            return None
        return found.payload if found.kind == _CHECKPOINT_KIND else None

    def write_checkpoint(self, data: bytes) -> None:
        """Put the task's checkpoint beside the manifest, atomically and durably.

        Called by one process at a time. An earlier one is replaced.

        Raises:
            ConfigError: The disk is full or not writable.
        """
        with explained_errors(self.directory):
            replace_durably(self.directory / CHECKPOINT_FILE, frame(_CHECKPOINT_KIND, data))


def image_path(store: StoreName) -> str:
    """Return where a store's image lies in a version's directory, or in a work directory."""
    return f"{escape_name(store)}/db"


def changes_path(store: StoreName, version: VersionId) -> str:
    """Return where the delta lies that leads a store to ``version`` from the one before."""
    return f"{escape_name(store)}/changes/{version}.delta"
