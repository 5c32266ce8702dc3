"""What HDFS clients raise with the text of a Java exception, as the `OSError` that it means."""

import errno
from collections.abc import Generator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

from statekeep.errors import RetriableError

_BELOW_A_FILE: Final = "(is not a directory)"
"""What a NameNode says of such a path, as a refusal of access."""
_ERRNOS: Final = {
    _BELOW_A_FILE: errno.ENOTDIR,
    "QuotaExceededException": errno.EDQUOT,
    "AccessControlException": errno.EACCES,
    "PathIsNotEmptyDirectoryException": errno.ENOTEMPTY,
    "ParentNotDirectoryException": errno.ENOTDIR,
    "FileAlreadyExistsException": errno.EEXIST,
    "FileNotFoundException": errno.ENOENT,
}
"""What the end of a Java exception's name says, or its text; the first that is found counts."""


@contextmanager
def explained_java_errors(root: str) -> Generator[None]:
    """Raise what a Java exception means in place of the error that holds its text.

    That is a RuntimeError, or an error of requests with the answer of a server, whatever its status:
    a NameNode in safe mode and a DataNode that has lost a lease answer 403.

    Args:
        root: The location, for messages.

    Raises:
        RetriableError: The NameNode is in safe mode.
        OSError: Anything else.
    """
    try:
        yield
    except RuntimeError as exc:
        raise _explained(str(exc), root) from exc
    except OSError as exc:
        text = _remote_text(exc)
        if text is None and _BELOW_A_FILE in str(exc):  # as fsspec says it
            raise NotADirectoryError(errno.ENOTDIR, "a file in place of a directory") from exc
        if text is None:
            raise
        raise _explained(text, root) from None  # the text of requests may hold a token


def _explained(text: str, root: str) -> Exception:
    if "SafeModeException" in text or "is in safe mode" in text:  # fsspec drops the name
        return RetriableError(f"the NameNode is in safe mode: root={root}")
    for name, number in _ERRNOS.items():
        if name in text:
            return OSError(number, name)
    return OSError(errno.EIO, "the filesystem did not answer")


def _remote_text(exc: OSError) -> str | None:
    """Return the names and the message of the Java exception in a server's answer; None: there is none."""
    response: Any = getattr(exc, "response", None)
    if response is None:
        return None
    try:
        explained = response.json()["RemoteException"]
    except (ValueError, TypeError, KeyError):  # a page of a proxy
        return None
    return str(explained)


@contextmanager
def explained_sweep(path: str) -> Generator[None]:
    """Explain a temporary file that is missing: a sweep may delete one that is still being written.

    Raises:
        RetriableError: It is gone; the next try finds out what has become of the name.
    """
    msg = f"the temporary file is gone: path={path}"
    try:
        yield
    except FileNotFoundError as exc:
        raise RetriableError(msg) from exc
    except OSError as exc:
        response = getattr(exc, "response", None)  # of requests, whose text may hold a token
        if getattr(response, "status_code", None) != HTTPStatus.NOT_FOUND:
            raise
        raise RetriableError(msg) from None
