"""The requests of Google Cloud Storage, through gcsfs."""

from collections.abc import Mapping
from inspect import unwrap
from pathlib import Path
from typing import Any, Final, cast

from aiohttp import ClientTimeout
from gcsfs.core import GCSFileSystem  # type: ignore[import-untyped]  # it ships no types
from typing_extensions import override

from statekeep.backends.plain_text import warn_of_plain_url
from statekeep.backends.storage.client import StorageClient
from statekeep.backends.storage.file_errors import explained_reach_errors
from statekeep.backends.storage.fsspec_client import FsspecClient
from statekeep.backends.storage.locations import Location

_CONNECT_S: Final = 10
_ANSWER_S: Final = 60
"""Without a byte of an answer; a request that hangs longer is given up and made again."""
_REQUEST_S: Final = 300
"""Of a whole request: nothing else ends one whose body is not taken."""
_CHUNK_BYTES: Final = 8 << 20
"""Of a file, in memory at a time; by itself gcsfs takes 50 MiB."""


def open_client(location: Location) -> StorageClient:
    """Build a client; it finds the credentials. See the table of stores."""
    with explained_reach_errors(location.shown_uri):
        return GcsClient(location.uri, location.options, location.shown_uri)


class GcsClient(FsspecClient):
    """Objects in a bucket. What is stored is compared with the MD5 that the service returns.

    A request is made once: repeating it is the caller's, who lets all transfers rest after a refusal.
    """

    def __init__(self, root_uri: str, options: Mapping[str, Any], shown_root: str) -> None:
        """Find the credentials.

        Args:
            root_uri: ``gs://bucket/path``.
            options: Of gcsfs; they win over what is set here.
            shown_root: See `FileClient`.
        """
        timeout = ClientTimeout(total=_REQUEST_S, sock_connect=_CONNECT_S, sock_read=_ANSWER_S)
        defaults = {"consistency": "md5", "requests_timeout": timeout}
        filesystem = cast("Any", _OneTryFileSystem)(**{**defaults, **options})
        warn_of_plain_url(filesystem.base, "let storage.options.endpoint_url begin with https://")
        root = filesystem._strip_protocol(root_uri)  # noqa: SLF001  # as fsspec calls it
        super().__init__(filesystem, root, shown_root)

    @override
    def write(self, name: str, content: bytes | Path, *, if_absent: bool) -> None:
        if if_absent or isinstance(content, bytes):
            super().write(name, content, if_absent=if_absent)
        else:
            self._fs.put_file(str(content), self._path(name), chunksize=_CHUNK_BYTES)


class _OneTryFileSystem(GCSFileSystem):  # type: ignore[misc]  # as above
    """Makes each request once, and asks no bucket for its kind, as `gcsfs.GCSFileSystem` does."""

    _request = unwrap(cast("Any", GCSFileSystem)._request)  # noqa: SLF001  # of its retries
