"""What the libraries under a filesystem of fsspec raise, told as errors of ours.

fsspec promises no errors of its own: a filesystem raises `OSError`, or what its client library has.
They are told apart by what they carry and where they come from, since none of these libraries has to
be installed.
"""

import json
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

from statekeep.backends.blob.managers.place import quotable
from statekeep.errors import (
    BlobNotFoundError,
    ConfigError,
    RetriableError,
    StateBackupError,
    ThrottledError,
)

_FAILURES: Final = range(400, 600)
_DENIED: Final = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
_REFUSED: Final = (ValueError, NotImplementedError)
"""What gcsfs makes of an answer of 400, and what fsspec has for what a filesystem cannot do."""
_DENIED_KINDS: Final = {
    "paramiko.ssh_exception.AuthenticationException",
    "paramiko.ssh_exception.BadHostKeyException",
}
_GOOGLE_AUTH: Final = "google.auth."


@contextmanager
def mapped_foreign_errors(
    root: str, name: str, *, passed: tuple[type[Exception], ...] = ()
) -> Generator[None]:
    """Tell any error of a filesystem's library as one of ours, but for what an `OSError` says plainly.

    That is left to `statekeep.backends.blob.managers.place.mapped_errors`, around this one. Texts of
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
        told = _told(exc, name, f"root={root} name={name} kind={type(exc).__name__}")
        if told is None:
            raise
        raise told from quotable(exc)


def _told(exc: Exception, name: str, where: str) -> StateBackupError | None:
    """Return what an error means; None: it is an `OSError` without more to it."""
    if _is_untrusted(exc):
        return ConfigError(f"the certificate of the filesystem's server is not trusted: {where}")
    status = _status(exc)
    if status is not None:
        # So gcsfs tells also that it could not renew a token just now.
        is_passing = "Invalid Credentials" in str(exc)
        return _told_status(status, name, f"{where} status={status}", is_passing=is_passing)
    if isinstance(exc, OSError) and not isinstance(exc, ssl.SSLError):
        return None  # an SSLError has numbers that are not those of the system
    if _is_denied(exc):
        return ConfigError(f"access denied: {where}")
    if isinstance(exc, _REFUSED) and not isinstance(exc, json.JSONDecodeError):
        return ConfigError(f"the filesystem refuses a request: {where}")
    return RetriableError(f"the filesystem did not answer: {where}")


def _told_status(status: int, name: str, where: str, *, is_passing: bool) -> StateBackupError:
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
    is_told_by_kind = isinstance(exc, ssl.SSLCertVerificationError)
    return is_told_by_kind or "CERTIFICATE_VERIFY_FAILED" in str(exc)


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
