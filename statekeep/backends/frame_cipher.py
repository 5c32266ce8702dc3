"""Keys derived from those of a provider; the only module that imports ``cryptography``, and when needed."""

import hashlib
import struct
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from statekeep.backends.encryption_keys import EncryptionKey
from statekeep.errors import ConfigError

_NONCE: Final = struct.Struct(">IQ")
_CHECK_BYTES: Final = 8


class FrameCipher:
    """AES-256-GCM with a key that is used for one stream, so that frames can be counted as nonces."""

    def __init__(
        self, key: EncryptionKey, salt: bytes, start: bytes, place: str, version: int
    ) -> None:
        """Derive the stream's key.

        Args:
            key: Of the provider.
            salt: Random, of the stream alone.
            start: The beginning of the stream as it is stored.
            place: Where the stream is stored.
            version: Of the stream's format.

        Raises:
            ConfigError: A library is not installed.
        """
        with _explained_absence():
            from cryptography.exceptions import InvalidTag  # noqa: PLC0415
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
        self._wrong_tag = InvalidTag
        bound = hashlib.sha256(start).digest() + place.encode()
        self._aead = AESGCM(_derive(key, salt, b"statekeep stream %d" % version + bound))

    def encrypt(self, number: int, data: bytes, head: bytes) -> bytes:
        """Return a frame's data encrypted, its tag at the end; ``head`` is authenticated with it."""
        return self._aead.encrypt(_NONCE.pack(0, number), data, head)

    def decrypt(self, number: int, data: bytes, head: bytes) -> bytes:
        """Return what was encrypted.

        Raises:
            ValueError: It was encrypted as another frame, elsewhere, or is damaged.
        """
        try:
            return self._aead.decrypt(_NONCE.pack(0, number), data, head)
        except self._wrong_tag as exc:
            raise ValueError("not what was encrypted") from exc


def key_check(key: EncryptionKey) -> str:
    """Return hex that two keys do not share, whatever their ids, and from which neither can be learnt.

    Raises:
        ConfigError: A library is not installed.
    """
    return _derive(key, b"", b"statekeep key check 1")[:_CHECK_BYTES].hex()


def sealing_secret(key: EncryptionKey) -> bytes:
    """Return the secret by which records and entries are authenticated; 32 bytes.

    Raises:
        ConfigError: A library is not installed.
    """
    return _derive(key, b"", b"statekeep seal 1")


def _derive(key: EncryptionKey, salt: bytes, info: bytes) -> bytes:
    with _explained_absence():
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415
    return HKDF(SHA256(), len(key.secret), salt, info).derive(key.secret)


@contextmanager
def _explained_absence() -> Generator[None]:
    """Say what to install where the library is not there."""
    try:
        yield
    except ModuleNotFoundError as exc:
        package, _, _ = str(exc.name).partition(".")
        msg = f"blobs are encrypted by a package that is not installed: package={package}"
        raise ConfigError(msg, hint="pip install 'statekeep[encryption]'") from exc
