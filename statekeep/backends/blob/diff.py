"""What changed in a directory between the base snapshot and the local image."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from statekeep.backends.blob.index import DirIndex, FileIndex


@dataclass(frozen=True, slots=True)
class LocalFile:
    """One file of the local image."""

    path: PurePosixPath
    """Relative to the root of the image."""
    size: int
    """Bytes."""
    crc32: int
    """Unsigned, of the whole content."""


@dataclass(frozen=True, slots=True)
class LocalDir:
    """One directory of the local image, with all below it."""

    name: str
    """Name within the parent; empty for the root."""
    files: Mapping[str, LocalFile]
    sub_dirs: "Mapping[str, LocalDir]"


def local_tree(
    files: Sequence[LocalFile], directories: Sequence[PurePosixPath] = (), *, name: str = ""
) -> LocalDir:
    """Arrange an image's files as a tree.

    Args:
        files: Every file of the image.
        directories: Directories that are to be there even if they hold no file.
        name: For the root of the tree.
    """
    return _arrange(
        name,
        [(file.path.parts, file) for file in files],
        [directory.parts for directory in directories],
    )


def _arrange(
    name: str,
    files: Sequence[tuple[tuple[str, ...], LocalFile]],
    directories: Sequence[tuple[str, ...]],
) -> LocalDir:
    below: dict[str, list[tuple[tuple[str, ...], LocalFile]]] = {}
    own: dict[str, LocalFile] = {}
    for parts, file in files:
        if len(parts) == 1:
            own[parts[0]] = file
        else:
            below.setdefault(parts[0], []).append((parts[1:], file))
    directories_below: dict[str, list[tuple[str, ...]]] = {}
    for parts in directories:
        if parts:
            directories_below.setdefault(parts[0], []).append(parts[1:])
    return LocalDir(
        name,
        own,
        {
            sub_dir: _arrange(sub_dir, below.get(sub_dir, []), directories_below.get(sub_dir, []))
            for sub_dir in sorted({*below, *directories_below})
        },
    )


@dataclass(frozen=True, slots=True)
class DirDiff:
    """How one local directory differs from the same directory of the base.

    A file that changed under its name is both added and removed; a retained one is neither.
    """

    dir_name: str
    files_added: tuple[LocalFile, ...]
    files_retained: tuple[FileIndex, ...]
    """As the base has them: their blobs are used again."""
    files_removed: tuple[FileIndex, ...]
    sub_dirs_added: "tuple[DirDiff, ...]"
    """Directories that the base does not have; all below them is added."""
    sub_dirs_retained: "tuple[DirDiff, ...]"
    """Directories on both sides, whatever changed in them."""
    sub_dirs_removed: tuple[DirIndex, ...]

    def __post_init__(self) -> None:
        retained = {file.file_name for file in self.files_retained}
        added = {file.path.name for file in self.files_added}
        removed = {file.file_name for file in self.files_removed}
        if not retained.isdisjoint(added | removed):
            msg = f"a file is both retained and changed: dir={self.dir_name!r}"
            raise ValueError(msg)

    @property
    def sub_dirs(self) -> "tuple[DirDiff, ...]":
        """The directories that the local image has here."""
        return (*self.sub_dirs_added, *self.sub_dirs_retained)

    def added_files(self) -> Iterator[LocalFile]:
        """Yield every file to upload, here and below."""
        yield from self.files_added
        for sub_dir in self.sub_dirs:
            yield from sub_dir.added_files()

    def retained_files(self) -> Iterator[FileIndex]:
        """Yield every file whose blobs are used again, here and below."""
        yield from self.files_retained
        for sub_dir in self.sub_dirs:
            yield from sub_dir.retained_files()

    def to_index(self, uploaded: Mapping[PurePosixPath, FileIndex]) -> DirIndex:
        """Return the index of the local directory.

        Args:
            uploaded: What `added_files` became, by path.
        """
        present = (*(uploaded[file.path] for file in self.files_added), *self.files_retained)
        return DirIndex(
            dir_name=self.dir_name,
            files_present=tuple(sorted(present, key=lambda file: file.file_name)),
            files_removed=self.files_removed,
            sub_dirs_present=tuple(sub_dir.to_index(uploaded) for sub_dir in self.sub_dirs),
            sub_dirs_removed=self.sub_dirs_removed,
        )


def is_same_file(local: LocalFile, remote: FileIndex) -> bool:
    """Return whether two files of one path have one content: size and CRC32, at any size.

    Never by name alone: an engine may use a file name again for other content.
    """
    return local.size == remote.size and local.crc32 == remote.checksum


def diff_dirs(local: LocalDir, base: DirIndex | None) -> DirDiff:
    """Compare a local directory with what the base holds of it, at all depths.

    Args:
        local: The local image.
        base: The same directory of the base index; None if the base does not have it.
    """
    base_files = {file.file_name: file for file in base.files_present} if base else {}
    base_dirs = {sub_dir.dir_name: sub_dir for sub_dir in base.sub_dirs_present} if base else {}
    retained = {
        name
        for name, file in local.files.items()
        if name in base_files and is_same_file(file, base_files[name])
    }
    sub_dirs = sorted(local.sub_dirs.items())
    return DirDiff(
        dir_name=local.name,
        files_added=tuple(file for name, file in local.files.items() if name not in retained),
        files_retained=tuple(file for name, file in base_files.items() if name in retained),
        files_removed=tuple(file for name, file in base_files.items() if name not in retained),
        sub_dirs_added=tuple(diff_dirs(d, None) for name, d in sub_dirs if name not in base_dirs),
        sub_dirs_retained=tuple(
            diff_dirs(d, base_dirs[name]) for name, d in sub_dirs if name in base_dirs
        ),
        sub_dirs_removed=tuple(d for name, d in base_dirs.items() if name not in local.sub_dirs),
    )
