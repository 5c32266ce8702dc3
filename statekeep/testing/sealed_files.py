"""Sealed versions with any files in them, made without a store engine."""

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from statekeep.checkpoint.checkpoints import StoreName, VersionId
from statekeep.stores.version import (
    MANIFEST_FILE,
    FileEntry,
    SealedVersion,
    SealManifest,
    image_path,
)
from statekeep.stores.work_directory import Identity

StoreContent = Mapping[str, bytes]
"""``{path within the store: bytes}``; a path that ends with ``/`` is an empty directory."""


def seal_files(
    root: Path,
    version: VersionId,
    content: Mapping[StoreName, StoreContent],
    task: Identity,
    *,
    parent: SealedVersion | None = None,
) -> SealedVersion:
    """Write a sealed version and return it.

    Args:
        root: Gets the version's directory.
        version: Its name.
        content: What each store holds.
        task: Whose state it is.
        parent: The version that it was made from.
    """
    directory = root / str(version)
    entries = [
        entry
        for store, files in content.items()
        for entry in _write_files(directory, image_path(store), files)
    ]
    manifest = SealManifest(
        version=version,
        parent=parent.id if parent else None,
        lineage=(parent.id, *parent.lineage) if parent else (),
        job_name=task.job_name,
        operator=task.operator,
        task_name=task.task_name,
        files=tuple(sorted(entries, key=lambda entry: entry.path)),
    )
    (directory / MANIFEST_FILE).write_bytes(manifest.encode())
    return SealedVersion(directory, manifest)


def read_tree(root: Path) -> dict[str, bytes]:
    """Return what `StoreContent` a directory holds; links count as what they lead to."""
    content: dict[str, bytes] = {}
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root).as_posix()
        if path.is_file():
            content[relative] = path.read_bytes()
        elif not any(path.iterdir()):
            content[f"{relative}/"] = b""
    return content


def _write_files(directory: Path, image: str, content: StoreContent) -> Iterable[FileEntry]:
    (directory / image).mkdir(parents=True)
    for name, data in content.items():
        path = directory / image / name
        if name.endswith("/"):
            path.mkdir(parents=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        yield FileEntry(f"{image}/{name}", len(data), zlib.crc32(data))
