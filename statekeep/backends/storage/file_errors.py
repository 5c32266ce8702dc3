"""Maps what file stores raise to errors of ours.

fsspec promises no errors of its own: a filesystem raises `OSError`, or what its client library has.
They are distinguished by what they carry and where they come from, since none of these libraries has to
be installed.
"""

import errno
import json
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

from statekeep.config.redact import redact
from statekeep.errors import (
    BlobExistsError,
    BlobNotFoundError,
    ConfigError,
    RetriableError,
    StateBackupError,
    ThrottledError,
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

_FAILURES: Final = range(400, 600)
_DENIED: Final = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
_REFUSED: Final = (ValueError, NotImplementedError)
"""What gcsfs makes of an answer of 400, and what fsspec has for what a filesystem cannot do."""
_DENIED_KINDS: Final = {
    "paramiko.ssh_exception.AuthenticationException",
    "paramiko.ssh_exception.BadHostKeyException",
}
_GOOGLE_AUTH: Final = "google.auth."
_NO_PLACE: Final = (ImportError, ValueError, TypeError)
"""What a filesystem is refused with before it is reached: its package, its URI, its options."""


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
    """Raise an `OSError` of a filesystem as one of ours.

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


@contextmanager
def mapped_foreign_errors(
    root: str, name: str, *, passed: tuple[type[Exception], ...] = ()
) -> Generator[None]:
    """Raise any error of a filesystem's library as one of ours, but for what an `OSError` says plainly.

    That is left to `mapped_errors`, around this one. Texts of
    clients may quote a request with what is secret in it: their errors are named by kind and status,
    and not chained.

    Args:
        root: The URI of the root, for the message.
        name: The blob or prefix; empty for the root itself.
        passed: What is raised on as it is, unless it is an `OSError` too.
    """
    try:
        yield
    except StateBackupError:
        raise
    except Exception as exc:
        if isinstance(exc, passed) and not isinstance(exc, OSError):
            raise
        explained = _explained(exc, name, f"root={root} name={name} kind={type(exc).__name__}")
        if explained is None:
            raise
        raise explained from quotable(exc)


def _explained(exc: Exception, name: str, where: str) -> StateBackupError | None:
    """Return what an error means; None: it is an `OSError` without more to it."""
    if _is_untrusted(exc):
        return ConfigError(f"the certificate of the filesystem's server is not trusted: {where}")
    status = _status(exc)
    if status is not None:
        # gcsfs reports a token that it could not renew just now in the same way.
        is_passing = "Invalid Credentials" in str(exc)
        return _explained_status(status, name, f"{where} status={status}", is_passing=is_passing)
    if isinstance(exc, OSError) and not isinstance(exc, ssl.SSLError):
        return None  # an SSLError has numbers that are not those of the system
    if _is_denied(exc):
        return ConfigError(f"access denied: {where}")
    if isinstance(exc, _REFUSED) and not isinstance(exc, json.JSONDecodeError):
        return ConfigError(f"the filesystem refuses a request: {where}")
    return RetriableError(f"the filesystem did not answer: {where}")


def _explained_status(status: int, name: str, where: str, *, is_passing: bool) -> StateBackupError:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return ThrottledError(f"the filesystem asks for fewer requests: {where}")
    is_late = status == HTTPStatus.REQUEST_TIMEOUT
    if is_late or is_passing or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return RetriableError(f"the filesystem did not answer: {where}")
    if status in _DENIED:
        return ConfigError(f"access denied: {where}")
    if status == HTTPStatus.NOT_FOUND:
        return BlobNotFoundError(name)
    return ConfigError(f"the filesystem refuses a request: {where}")


def _status(exc: Exception) -> int | None:
    """Return the HTTP status that a client's error carries: gcsfs, aiohttp, requests."""
    if getattr(exc, "errno", None) is not None:
        return None
    for carrier in (exc, getattr(exc, "response", None)):
        for attribute in ("status", "status_code", "code"):  # aiohttp warns of the last one
            found = str(getattr(carrier, attribute, None))
            if found.isdecimal() and int(found) in _FAILURES:
                return int(found)
    # An answer of 403 reaches us from gcsfs as an OSError without a number.
    is_forbidden = isinstance(exc, OSError) and str(exc).startswith("Forbidden:")
    return int(HTTPStatus.FORBIDDEN) if is_forbidden else None


def _is_untrusted(exc: Exception) -> bool:
    """Return whether a server's certificate was refused; requests has only its text."""
    is_explained_by_kind = isinstance(exc, ssl.SSLCertVerificationError)
    return is_explained_by_kind or "CERTIFICATE_VERIFY_FAILED" in str(exc)


def _is_denied(exc: Exception) -> bool:
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(exc).__mro__}
    if kinds & _DENIED_KINDS:
        return True
    if not type(exc).__module__.startswith(_GOOGLE_AUTH):
        return False
    # What did not reach Google, or not its metadata server, may do so the next time.
    causes = (exc, exc.__cause__, *exc.args)
    may_be_tried_again: bool = getattr(exc, "retryable", False)
    is_silence = any(type(cause).__name__ == "TransportError" for cause in causes)
    return not (may_be_tried_again or is_silence)


@contextmanager
def explained_storage_errors(root: str, name: str, *, is_read: bool) -> Generator[None]:
    """Map any error of a request; see `mapped_errors` and `mapped_foreign_errors`."""
    with mapped_errors(root, name, is_read=is_read), mapped_foreign_errors(root, name):
        yield


@contextmanager
def explained_reach_errors(root: str) -> Generator[None]:
    """Map what is raised while a filesystem is made or reached for the first time.

    Args:
        root: The URI of the root, for messages.

    Raises:
        ConfigError: There is no such location, or it refuses access.
        RetriableError: It does not answer.
    """
    try:
        with mapped_errors(root, ""), mapped_foreign_errors(root, "", passed=_NO_PLACE):
            yield
    except _NO_PLACE as exc:
        msg = f"no filesystem for this root: root={root}"
        hint = f"is the scheme right, and its package installed? {exc}"
        raise ConfigError(msg, hint=hint) from exc
    except (BlobNotFoundError, BlobExistsError) as exc:
        msg = f"no such location: root={root}"
        raise ConfigError(msg) from exc
