"""What HDFS clients raise with the text of a Java exception, as the `OSError` that it means."""

import errno
from collections.abc import Generator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

from statekeep.errors import RetriableError

_ERRNOS: Final = {
    "QuotaExceededException": errno.EDQUOT,
    "AccessControlException": errno.EACCES,
    "PathIsNotEmptyDirectoryException": errno.ENOTEMPTY,
    "ParentNotDirectoryException": errno.ENOTDIR,
}
"""What the end of a Java exception's name says."""


@contextmanager
def told_java_errors(root: str) -> Generator[None]:
    """Raise what a Java exception means in place of the RuntimeError that holds its text.

    Args:
        root: The place, for messages.

    Raises:
        RetriableError: The NameNode is in safe mode.
        OSError: Anything else.
    """
    try:
        yield
    except RuntimeError as exc:
        text = str(exc)
        if "SafeModeException" in text:
            raise RetriableError(f"the NameNode is in safe mode: root={root}") from exc
        for name, number in _ERRNOS.items():
            if name in text:
                raise OSError(number, name) from exc
        raise OSError(errno.EIO, "the filesystem did not answer") from exc


@contextmanager
def told_if_swept(path: str) -> Generator[None]:
    """Tell a temporary file that is gone: a sweep may take one that is still being written.

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
