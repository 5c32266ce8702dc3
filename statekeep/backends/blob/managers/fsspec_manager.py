"""Blobs on a local directory or any filesystem that fsspec reaches."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast
from urllib.parse import urlsplit

import fsspec.core  # type: ignore[import-untyped]  # it ships no types
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]  # as above
from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped]  # as above
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.managers.foreign_errors import mapped_foreign_errors
from statekeep.backends.blob.managers.local_copy import LocalCopy
from statekeep.backends.blob.managers.local_place import LocalPlace
from statekeep.backends.blob.managers.object_places import missing_package_told
from statekeep.backends.blob.managers.place import Place, mapped_errors
from statekeep.backends.blob.managers.remote_place import RemotePlace
from statekeep.backends.blob.managers.renaming_place import RenamingPlace, renames_atomically
from statekeep.backends.blob.managers.sftp_place import SftpPlace, is_sftp
from statekeep.backends.blob.names import check_blob_id, check_blob_name, is_blob_name
from statekeep.backends.blob_store import (
    MAX_DOCUMENT_BYTES,
    BlobMetadata,
    BlobStoreManager,
    check_blob_size,
)
from statekeep.backends.plain_text import warn_of_plain_url
from statekeep.backends.run_to_end import run_to_end
from statekeep.config.redact import redact
from statekeep.errors import (
    BackendClosedError,
    BlobExistsError,
    BlobNotFoundError,
    ConfigError,
    RetriableError,
    VersionDamagedError,
)

P = ParamSpec("P")
T = TypeVar("T")

_url_to_fs: Callable[..., tuple[AbstractFileSystem, str]] = cast("Any", fsspec.core).url_to_fs
_CHUNK_BYTES: Final = 8 << 20
"""Read at a time by `download`: its bound on memory, and how far a cancel has to wait."""

_GCS: Final = frozenset({"gs", "gcs"})

_NO_PLACE: Final = (ImportError, ValueError, TypeError)
"""What a filesystem is refused with before it is reached: its package, its URI, its options."""


class FsspecBlobStoreManager(BlobStoreManager):
    """A `BlobStoreManager` below a directory or an fsspec URI; a blob's id is its name.

    On the local filesystem every blob is durable and whole, and racing creates are exact. On others
    that is up to the filesystem; `BlobJobLog.probe` finds out. Metadata are not kept.
    """

    def __init__(
        self, root_uri: str, storage_options: Mapping[str, Any], executor: BlockingExecutor
    ) -> None:
        """Take note of where the blobs are; nothing is reached before `init`.

        Args:
            root_uri: ``file:///srv/backups``, a plain path, or a URI of any fsspec filesystem.
            storage_options: Passed to the fsspec filesystem.
            executor: For every call that blocks.
        """
        self._root_uri = root_uri
        self._shown_root = redact(root_uri, is_secret=False)
        self._storage_options = dict(storage_options)
        self._executor = executor
        self._place: Place | None = None
        self._is_closed = False

    @override
    async def init(self) -> None:
        if self._is_closed:
            raise BackendClosedError(f"blob store is closed: root={self._shown_root}")
        if self._place is None:
            self._place = await self._executor.run(_reach, self._root_uri, self._storage_options)

    @override
    async def put(
        self, name: str, content: bytes | Path, metadata: BlobMetadata, *, if_absent: bool = False
    ) -> str:
        check_blob_name(name)
        place = self._open_place()
        try:
            await self._run(name, place.put, name, content, if_absent=if_absent)
        except BlobNotFoundError as exc:
            if isinstance(content, bytes) or await self._executor.run(content.exists):
                raise ConfigError(f"no such place: root={self._shown_root} name={name}") from exc
            raise VersionDamagedError(f"the file to store is gone: path={content}") from exc
        return name

    @override
    async def get(self, blob_id: str, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
        # A byte more than may come, so that no look at the size is needed before.
        data = await self._read(blob_id, self._open_place().read, blob_id, 0, max_bytes + 1)
        check_blob_size(blob_id, len(data), max_bytes)
        return data

    @override
    async def get_range(self, blob_id: str, start: int, size: int) -> bytes:
        return await self._read(blob_id, self._open_place().read, blob_id, start, start + size)

    @override
    async def download(
        self, blob_id: str, target: Path, on_bytes: Callable[[int], None], *, max_bytes: int
    ) -> str:
        place = self._open_place()
        size = await self._read(blob_id, place.size, blob_id)
        check_blob_size(blob_id, size, max_bytes)
        copy = LocalCopy(target, self._executor)
        await copy.create()
        # One call per chunk: each ends by itself, and between two of them a cancel takes effect.
        for start in range(0, size, _CHUNK_BYTES):
            end = min(start + _CHUNK_BYTES, size)
            chunk = await self._read(blob_id, _read_range, place, blob_id, start, end)
            await copy.append(chunk)
            on_bytes(len(chunk))
        return await copy.finish()

    @override
    async def delete(self, blob_id: str) -> None:
        place = self._open_place()
        if is_blob_name(blob_id):
            await self._run(blob_id, place.delete, blob_id)

    @override
    async def list(self, prefix: str) -> Sequence[str]:
        return sorted(await self._run(prefix, self._open_place().list, prefix))

    @override
    async def list_folders(self, prefix: str) -> Sequence[str]:
        return sorted(await self._run(prefix, self._open_place().list_folders, prefix))

    @override
    async def remove_unfinished(self, prefix: str, is_closed: Callable[[str], bool]) -> None:
        await self._run(prefix, self._open_place().remove_unfinished, prefix, is_closed)

    @override
    async def remove_ttl(self, blob_id: str) -> None:
        self._open_place()

    @override
    async def close(self) -> None:
        place, self._place = self._place, None
        self._is_closed = True
        if place is not None:
            await run_to_end(self._executor, place.close)

    def _open_place(self) -> Place:
        if self._is_closed:
            raise BackendClosedError(f"blob store is closed: root={self._shown_root}")
        if self._place is None:
            msg = f"init comes first: root={self._shown_root}"
            raise RuntimeError(msg)
        return self._place

    async def _run(self, name: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        root = self._shown_root
        with mapped_errors(root, name), mapped_foreign_errors(root, name):
            return await self._executor.run(call, *args, **kwargs)

    async def _read(self, name: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        check_blob_id(name)
        root = self._shown_root
        with mapped_errors(root, name, is_read=True), mapped_foreign_errors(root, name):
            return await self._executor.run(call, *args, **kwargs)


def _reach(root_uri: str, storage_options: Mapping[str, Any]) -> Place:
    if not root_uri:
        msg = "the root of a blob store is empty"
        raise ConfigError(msg)
    shown_root = redact(root_uri, is_secret=False)
    warn_of_plain_url(root_uri, "take a scheme with TLS")
    try:
        with mapped_errors(shown_root, ""), mapped_foreign_errors(shown_root, "", passed=_NO_PLACE):
            place = _place(root_uri, storage_options)
            place.check()
            return place
    except _NO_PLACE as exc:
        msg = f"no filesystem for this root: root={shown_root}"
        hint = f"is the scheme right, and its package installed? {exc}"
        raise ConfigError(msg, hint=hint) from exc
    except (BlobNotFoundError, BlobExistsError) as exc:
        msg = f"no such place: root={shown_root}"
        raise ConfigError(msg) from exc


def _place(root_uri: str, storage_options: Mapping[str, Any]) -> Place:
    if is_sftp(root_uri):
        return SftpPlace(partial(_connect_sftp, root_uri, storage_options))
    if urlsplit(root_uri).scheme in _GCS:
        with missing_package_told("gcs"):
            from statekeep.backends.blob.managers.gcs_place import (  # noqa: PLC0415  # it needs gcsfs
                GcsPlace,
            )
        return GcsPlace(root_uri, storage_options)
    filesystem, path = _url_to_fs(root_uri, **storage_options)
    if isinstance(filesystem, LocalFileSystem):
        return LocalPlace(Path(path))
    if renames_atomically(filesystem):
        return RenamingPlace(filesystem, path)
    return RemotePlace(filesystem, path)


def _connect_sftp(
    root_uri: str, storage_options: Mapping[str, Any], **options: object
) -> tuple[AbstractFileSystem, str]:
    from statekeep.backends.blob.managers.sftp_connection import (  # noqa: PLC0415  # it needs paramiko
        connect_sftp,
    )

    return connect_sftp(root_uri, storage_options, **options)


def _read_range(place: Place, name: str, start: int, end: int) -> bytes:
    data = place.read(name, start, end)
    if len(data) != end - start:
        msg = f"short read: name={name} expected_bytes={end - start} actual_bytes={len(data)}"
        raise RetriableError(msg)
    return data
