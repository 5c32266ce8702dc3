"""From the name of a checkpoint location, as Spark takes it, to its files."""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import urlsplit

import fsspec  # type: ignore[import-untyped] # ships no types
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped] # as above

from statekeep.config.redact import redact, redact_text
from statekeep.errors import ConfigError, StateBackupError

_NAMES_OF_HADOOP: Final[Mapping[str, str]] = {"s3a": "s3", "abfss": "abfs"}
"""Filesystems that fsspec knows by another name."""
_NO_AUTHORITY: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):/(?!/)")
"""``hdfs:/path``: to Hadoop the same as ``hdfs:///path``, to fsspec a local directory."""


@dataclass(frozen=True, slots=True)
class LocationFiles:
    """The files of one checkpoint location."""

    files: Any
    """The filesystem, of fsspec."""
    root: str
    """The path of the location in it, without a slash at its end."""
    shown: str
    """The location, for people: without secrets."""


@contextmanager
def explained_location_errors(location: LocationFiles) -> Generator[None]:
    """Raise the errors of a filesystem, which may be of any class, as one of ours.

    Raises:
        ConfigError: Whatever it was that is none of ours.
    """
    try:
        yield
    except StateBackupError:
        raise
    except Exception as exc:
        raise ConfigError(
            f"the checkpoint location cannot be reached: location={location.shown}",
            hint=f"is its name right, and may this machine access it? {redact_text(repr(exc))}",
        ) from exc


def open_location(uri: str) -> LocationFiles:
    """Return the files of a location. Blocks; most filesystems are not reached yet.

    Args:
        uri: A path, or ``scheme://authority/path`` with a scheme of Hadoop or of fsspec.

    Raises:
        ConfigError: No filesystem for it: a package is missing, or the name is wrong.
    """
    shown = redact(uri, is_secret=False)
    url_to_fs = cast("Any", fsspec).url_to_fs
    try:
        files, root = url_to_fs(_name_for_fsspec(uri, shown))
    except (ImportError, ValueError, TypeError, RuntimeError, OSError) as exc:
        raise ConfigError(
            f"no filesystem for the checkpoint location: location={shown}",
            hint=f"{redact_text(str(exc))}. docs/reference/cli.md says which package reaches "
            "which filesystem; each has its own settings for addresses and credentials",
        ) from exc
    scheme = urlsplit(uri).scheme
    if isinstance(files, LocalFileSystem) and scheme not in ("", "file"):
        raise ConfigError(
            f"not the name of a checkpoint location: location={shown}",
            hint="a local one is a path or file:///path, any other is scheme://authority/path",
        )
    return LocationFiles(files, str(root).rstrip("/"), shown)


def _name_for_fsspec(uri: str, shown: str) -> str:
    parts = urlsplit(uri)
    if parts.scheme == "file":
        if parts.netloc:
            raise ConfigError(
                f"a local checkpoint location has no host: location={shown}",
                hint="name an absolute path, or file:///path",
            )
        return uri
    whole = _NO_AUTHORITY.sub(r"\1:///", uri, count=1)
    scheme, separator, rest = whole.partition("://")
    return f"{_NAMES_OF_HADOOP.get(scheme, scheme)}{separator}{rest}"
