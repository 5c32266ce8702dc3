"""Where the keys of client-side encryption come from: a file, the environment, a class of the user's."""

import base64
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

from typing_extensions import override

from statekeep.backends.dotted_path import load_object, path_parts
from statekeep.clock import Clock
from statekeep.errors import ConfigError, KeyUnavailableError

SECRET_BYTES: Final = 32
OLDER_HINT: Final = (
    "hint: if it was written before encryption was switched on, or by an earlier release, set "
    "blob.store.encryption.plain.until to a day soon; otherwise another program wrote it"
)
"""Added to the error about data that is not authenticated."""
_MAX_ID_LENGTH: Final = 1024


@dataclass(frozen=True, slots=True)
class EncryptionKey:
    """One key; only its id is ever written or shown."""

    id: str
    """Printable ASCII without blanks, at most 1,024 characters; it stands in what the key encrypts.

    May be the key itself as a key service has wrapped it, so that nothing needs to be kept.
    """
    secret: bytes = field(repr=False)
    """32 random bytes."""

    def __post_init__(self) -> None:
        is_id = self.id.isascii() and self.id.isprintable() and " " not in self.id
        if not self.id or not is_id or len(self.id) > _MAX_ID_LENGTH:
            raise ValueError("the id of a key is not printable ASCII without blanks")
        if len(self.secret) != SECRET_BYTES:
            msg = f"an encryption key has another length: key_id={self.id} needed={SECRET_BYTES}"
            raise ValueError(msg)


class KeyProvider(ABC):
    """Gives keys by id; named by ``blob.store.encryption.keys``.

    A class of the user's is built with one argument, the mapping of ``encryption.options.*`` of the
    backend, in every process that reads or writes blobs: the driver, each container, the command
    line. Building it does no I/O. Both methods may block: they are called on executor threads, by
    several at once, `current` for each store that is uploaded and `find` for each stream that is
    read, so keys are to be remembered. A provider repeats its own requests: an error of it ends the
    commit or the restore.
    """

    @abstractmethod
    def current(self) -> EncryptionKey:
        """Return the key to encrypt with from now on.

        Another one than the last time is a rotation: the next upload of every store is full.

        Raises:
            KeyUnavailableError: There is none.
            RetriableError: The service may answer later.
        """

    @abstractmethod
    def find(self, key_id: str) -> EncryptionKey:
        """Return the key that something was encrypted with.

        Raises:
            KeyUnavailableError: It is not known, or no longer.
            RetriableError: The service may answer later.
        """


class KeyRing(KeyProvider):
    """Keys as text, one a line: its id, a blank, 32 bytes in base64. The first one encrypts.

    Blank lines and those that begin with ``#`` are skipped. The text is read anew for every upload
    and for an id that it did not have, so that a rotation needs no restart where it can change.
    """

    def __init__(self, read: Callable[[], str], where: str) -> None:
        """Read nothing yet.

        Args:
            read: Returns the text; OSError or KeyError if it is not there.
            where: Named in errors; the text never is.
        """
        self._read = read
        self._where = where
        self._known: Mapping[str, EncryptionKey] = {}

    @override
    def current(self) -> EncryptionKey:
        keys = self._read_keys()
        if not keys:
            raise KeyUnavailableError(f"there is no encryption key: keys={self._where}")
        return next(iter(keys.values()))

    @override
    def find(self, key_id: str) -> EncryptionKey:
        key = self._known.get(key_id) or self._read_keys().get(key_id)
        if key is None:
            raise KeyUnavailableError(
                f"the encryption key is missing: key_id={key_id} keys={self._where}",
                hint="put the key back: it is needed until no retained commit was made with it",
            )
        return key

    def _read_keys(self) -> Mapping[str, EncryptionKey]:
        try:
            text = self._read()
        except (OSError, KeyError, UnicodeDecodeError) as exc:
            # Not chained where it could quote the text.
            cause = exc if isinstance(exc, OSError) else None
            msg = f"the encryption keys cannot be read: keys={self._where}"
            raise KeyUnavailableError(msg) from cause
        lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
        given = [self._parse(n, line) for n, line in lines if line and not line.startswith("#")]
        keys = {key.id: key for key in given}
        if len(keys) < len(given):
            raise KeyUnavailableError(f"an encryption key is given twice: keys={self._where}")
        self._known = keys
        return keys

    def _parse(self, number: int, line: str) -> EncryptionKey:
        try:
            key_id, secret = line.split()
            return EncryptionKey(key_id, base64.b64decode(secret, validate=True))
        except ValueError:
            raise KeyUnavailableError(
                f"not an encryption key: keys={self._where} line={number}",
                hint=f"a line is an id, a blank and {SECRET_BYTES} bytes in base64",
            ) from None  # it would quote the line


def is_before_end_of(day: date | None, clock: Clock) -> bool:
    """Return whether a day (UTC) is not over; False where there is none.

    By the clock of who reads: what is read could state any date itself.
    """
    if day is None:
        return False
    seconds = clock.time_ns() // 1_000_000_000
    return datetime.fromtimestamp(seconds, tz=UTC).date() <= day


def load_key_provider(source: str, options: Mapping[str, str], *, key: str) -> KeyProvider:
    """Return the provider that a setting names.

    Args:
        source: ``file:<path>``, ``env:<variable>``, or the dotted path of a `KeyProvider`.
        options: For a class of the user's.
        key: The setting, for errors; its value is not shown, since it may be a key by mistake.

    Raises:
        ConfigError: It names nothing of the kind.
    """
    kind, _, rest = source.partition(":")
    if kind == "file" and rest:
        path = Path(rest.removeprefix("//"))
        return KeyRing(path.read_text, f"file:{path}")
    if kind == "env" and rest:
        return KeyRing(lambda: os.environ[rest], f"env:{rest}")
    if not all(part.isidentifier() for part in path_parts(source)):
        raise ConfigError(
            f"not a location of encryption keys: key={key}",
            key=key,
            hint="file:<path>, env:<variable>, or the dotted path of a KeyProvider",
        )
    make = load_object(source, key=key)
    if not isinstance(make, type) or not issubclass(make, KeyProvider):
        raise ConfigError(f"not a KeyProvider: key={key}", key=key)
    return make(options)  # type: ignore[call-arg]  # a provider of the user's takes its options
