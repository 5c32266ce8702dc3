"""What `FsspecBlobStoreManager` asks of a filesystem, and how a filesystem's errors are told."""

import errno
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from statekeep.config.redact import redact
from statekeep.errors import (
    BlobExistsError,
    BlobNotFoundError,
    ConfigError,
    RetriableError,
)

_FINAL: Final = {
    errno.EACCES: "access denied",
    errno.EPERM: "access denied",
    errno.EROFS: "the filesystem is read-only",
    errno.ENOSPC: "no space left",
    errno.EDQUOT: "the disk quota is used up",
    errno.ENAMETOOLONG: "the name is too long for the filesystem",
    errno.ENOTDIR: "a file stands where a directory is needed",
    errno.EISDIR: "a directory stands where a file is needed",
}
_NO_BLOB: Final = frozenset({errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})
"""Of a read: there is no such blob, nor can there be one."""
_QUOTABLE: Final = ("builtins", "asyncio.", "paramiko.", "socket", "statekeep.")
"""Modules whose errors quote nothing secret, unless a library puts a URL into one."""


class Place(Protocol):
    """Blobs below one root; every method blocks and is called on an executor thread.

    Errors are those of the filesystem, mostly `OSError`: the manager maps them.
    """

    def check(self) -> None:
        """Reach the root, creating it where a root is a thing of its own."""
        ...

    def put(self, name: str, content: bytes | Path, *, if_absent: bool) -> None:
        """Store a blob; FileExistsError with ``if_absent`` and a name that is taken."""
        ...

    def size(self, name: str) -> int:
        """Return a blob's size in bytes."""
        ...

    def read(self, name: str, start: int, end: int | None) -> bytes:
        """Return the bytes of a blob from ``start`` up to ``end``; None: to its end."""
        ...

    def delete(self, name: str) -> None:
        """Delete a blob; one that is not there is no error."""
        ...

    def list(self, prefix: str) -> Sequence[str]:
        """Return the names that begin with ``prefix``, in any order."""
        ...

    def list_folders(self, prefix: str) -> Sequence[str]:
        """See `BlobStoreManager.list_folders`; in any order."""
        ...

    def remove_unfinished(self, prefix: str, is_closed: Callable[[str], bool]) -> None:
        """See `BlobStoreManager.remove_unfinished`."""
        ...

    def close(self) -> None:
        """Let go of what is open. Idempotent."""
        ...


def quotable(error: BaseException) -> BaseException | None:
    """Return an error that another may be raised from; None where a traceback must not show it.

    Texts of client libraries may quote a request with what is secret in it: their own errors, of
    which many are an `OSError`, and those that were raised on the way to this one.
    """
    below: BaseException | None = error
    while below is not None:
        text = str(below)
        is_plain = type(below).__module__.startswith(_QUOTABLE)
        if not is_plain or redact(text, is_secret=False) != text:
            return None
        below = below.__cause__ or (None if below.__suppress_context__ else below.__context__)
    return error


@contextmanager
def mapped_errors(root: str, name: str, *, is_read: bool = False) -> Generator[None]:
    """Tell an `OSError` of a filesystem as one of ours.

    What asking again cannot mend is a `ConfigError`: the environment must be mended first.

    Args:
        root: The URI of the root, for the message.
        name: The blob or prefix.
        is_read: A blob is read, so that a name which no blob can have is that of one that is not there.
    """
    try:
        yield
    except FileExistsError as exc:
        raise BlobExistsError(name) from quotable(exc)
    except FileNotFoundError as exc:
        raise BlobNotFoundError(name) from quotable(exc)
    except OSError as exc:
        if is_read and exc.errno in _NO_BLOB:
            raise BlobNotFoundError(name) from quotable(exc)
        reason = _FINAL.get(exc.errno or 0)
        if reason is None and isinstance(exc, PermissionError):
            reason = _FINAL[errno.EACCES]
        if reason is not None:
            msg = f"{reason}: root={root} name={name}"
            raise ConfigError(msg) from quotable(exc)
        kind = type(exc).__name__
        msg = f"the filesystem did not answer: root={root} name={name} kind={kind}"
        raise RetriableError(msg) from quotable(exc)
