"""A sealed version: the immutable image of a task's stores after a batch, and its seal manifest.

Layout of a version's directory, ``<batch>_<uid>``::

    SEAL-MANIFEST                     what the directory holds, with sizes and checksums
    CHECKPOINT-V2                     the task's checkpoint, once it is known; not in the manifest
    <store>/db/...                    the store's image
    <store>/changes/<version>.delta   the changes that led to <version> from the one before it
    <other files>                     such as the output of the batch
"""

import os
import stat
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Final, Self

import msgspec

from statekeep.checkpoint.checkpoints import StoreName, VersionId
from statekeep.checkpoint.framing import decode_json, frame, unframe
from statekeep.checkpoint.names import escape_name, is_file_name
from statekeep.errors import CheckpointCorruptError, UnknownFormatError, VersionDamagedError
from statekeep.stores.local_files import (
    IMMUTABLE_SUFFIXES,
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

    It may be deleted once its batch is resolved and nothing names it (`TaskDirectory.retain`): then its
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

    @property
    def image_bytes(self) -> int:
        """The size of the images of all stores."""
        return sum(entry.size for entry in self.manifest.files if "/db/" in entry.path)

    def changed_bytes(self, stores: Iterable[StoreName], base: VersionId | None) -> int | None:
        """Return the size of the deltas that lead from ``base`` to this version.

        None if ``base`` is none or no ancestor, or not all of the deltas are at hand.
        """
        if base is None:
            return None
        sizes = {entry.path: entry.size for entry in self.manifest.files}
        total = 0
        for store in stores:
            changes = self._changes_since(store, base, sizes)
            if changes is None:
                return None
            total += sum(sizes[path] for path in changes)
        return total

    def store_sizes(self, store: StoreName) -> list[int]:
        """Return the sizes of the files of a store's image."""
        prefix = f"{image_path(store)}/"
        return [entry.size for entry in self.manifest.files if entry.path.startswith(prefix)]

    def lacks(self, stores: Iterable[StoreName]) -> tuple[StoreName, ...]:
        """Return those of the stores that it has no image of."""
        return tuple(store for store in stores if not self.store_files(store))

    def changes_since(self, store: StoreName, base: VersionId) -> list[Path] | None:
        """Return the delta files that lead from ``base`` to this version, in order.

        Returns:
            None if ``base`` is not an ancestor, or not all of the deltas are at hand.
        """
        changes = self._changes_since(store, base, {entry.path for entry in self.manifest.files})
        return None if changes is None else [self.directory / path for path in changes]

    def _changes_since(
        self, store: StoreName, base: VersionId, held: Container[str]
    ) -> list[str] | None:
        paths: list[str] = []
        for version in (self.id, *self.lineage):
            if version == base:
                return paths[::-1]
            path = changes_path(store, version)
            if path not in held:
                return None
            paths.append(path)
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
                raise VersionDamagedError(
                    f"version has an entry that is not a regular file: path={path}"
                )
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


_FileId = tuple[str, int, int, int]
_SUFFIXES: Final = tuple(IMMUTABLE_SUFFIXES)
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class KnownChecksums:
    """Gives the manifest entries of an image without reading again what the last one shares.

    A store of a gigabyte is not read for every version. Used by one thread; only `read_ahead`, once
    at a time, may run beside another method.
    """

    def __init__(self) -> None:
        self._crcs: dict[_FileId, int] = {}
        self._ahead: dict[_FileId, int] = {}

    def learn(self, directory: Path, entries: tuple[FileEntry, ...]) -> None:
        """Take over what the manifest of the version in ``directory`` says.

        Raises:
            FileNotFoundError: A file is missing.
        """
        self._crcs = {
            _file_id(entry.path, (directory / entry.path).stat()): entry.crc32
            for entry in entries
            if entry.path.endswith(_SUFFIXES)
        }

    def read_ahead(self, directory: Path, least_bytes: int = 0) -> None:
        """Read the files of an image to be, which the engine may be writing just now.

        A file that changes meanwhile is left to `entries`.

        Args:
            directory: Laid out as the image will be: a file is known by name, inode, size and time.
            least_bytes: Smaller files are left to `entries`.
        """
        known, found = self._crcs, dict[_FileId, int]()
        try:
            for name, path in _tables_below(directory, least_bytes):
                with suppress(FileNotFoundError):  # compacted away
                    file_id = _file_id(name, path.stat())
                    if file_id not in known:
                        crc = self._ahead.get(file_id)
                        crc = crc32_of(path) if crc is None else crc
                        if _file_id(name, path.stat()) == file_id:
                            found[file_id] = crc
        finally:
            self._ahead = found  # what was read holds, whatever else cannot be

    def has_unread(self, directory: Path, least_bytes: int) -> bool:
        """Return whether `read_ahead` would read a file; 10 us for each file."""
        for name, path in _tables_below(directory, least_bytes):
            with suppress(FileNotFoundError):  # compacted away
                file_id = _file_id(name, path.stat())
                if file_id not in self._crcs and file_id not in self._ahead:
                    return True
        return False

    def entries(self, directory: Path) -> tuple[FileEntry, ...]:
        """Return the entry of every file below ``directory``, and know these from now on.

        A file that the engine has made readable for others is closed to them.
        """
        crcs: dict[_FileId, int] = {}
        entries: list[FileEntry] = []
        for name, file in _files_below(directory):
            status = file.stat()
            if status.st_mode & _OTHERS:
                os.chmod(file.path, stat.S_IMODE(status.st_mode) & ~_OTHERS)  # noqa: PTH101 - as above
            file_id = _file_id(name, status)
            crc = self._crcs.get(file_id, self._ahead.get(file_id))
            if crc is None:
                crc = crc32_of(Path(file.path))
            if name.endswith(_SUFFIXES):
                crcs[file_id] = crc
            entries.append(FileEntry(name, status.st_size, crc))
        self._crcs = crcs
        return tuple(sorted(entries, key=attrgetter("path")))


def _files_below(directory: Path | str, prefix: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the files with their relative names; not by `Path.walk`, as this is on the sync pause."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(entry.path, f"{prefix}{entry.name}/")
            else:
                yield prefix + entry.name, entry


def _tables_below(directory: Path, least_bytes: int) -> Iterator[tuple[str, Path]]:
    """Yield the files that never change once they are written, as far as they are found."""
    for name, file in _files_below(directory):
        if name.endswith(_SUFFIXES):
            with suppress(FileNotFoundError):
                if not least_bytes or file.stat().st_size >= least_bytes:
                    yield name, Path(file.path)


def _file_id(name: str, status: os.stat_result) -> _FileId:
    """Return what a hard link shares with its original, and no other file has.

    The inode alone would not do: it may be given to a new file once the old one is gone.
    """
    return name, status.st_ino, status.st_size, status.st_mtime_ns
