"""What a backend encodes by: how each store is to be stored, and the keys of what was stored."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.encoded_stream import (
    ENCRYPTION,
    MAGIC,
    Encoding,
    StreamDecoder,
    StreamEncoder,
)
from statekeep.backends.blob.encryption_keys import EncryptionKey, KeyProvider
from statekeep.backends.blob.index import StoredForm
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.config.values import BlobCompression
from statekeep.errors import KeyUnavailableError


@dataclass(frozen=True, slots=True)
class StoreEncoding:
    """What the settings say of one store; None: as the backend has it."""

    compression: BlobCompression | None = None
    is_encrypted: bool | None = None


@dataclass(frozen=True, slots=True)
class EncodingSettings:
    """What the settings say of a backend, and of stores that differ from it."""

    compression: BlobCompression = "none"
    is_encrypted: bool = False
    stores: Mapping[StoreName, StoreEncoding] = field(
        default_factory=dict[StoreName, StoreEncoding]
    )

    def of(self, store: StoreName) -> tuple[BlobCompression, bool]:
        """Return the compression of a store and whether it is encrypted."""
        own = self.stores.get(store, StoreEncoding())
        compression = self.compression if own.compression is None else own.compression
        is_encrypted = self.is_encrypted if own.is_encrypted is None else own.is_encrypted
        return compression, is_encrypted

    @property
    def needs_keys(self) -> bool:
        """Whether anything is to be encrypted."""
        return self.is_encrypted or any(own.is_encrypted for own in self.stores.values())


class Codec:
    """Encodes and decodes for one backend; every method that blocks says so."""

    def __init__(
        self, settings: EncodingSettings, keys: KeyProvider | None, new_salt: Callable[[], bytes]
    ) -> None:
        """Take what is needed; no I/O.

        Args:
            settings: What is to be encoded.
            keys: None: nothing is, or was, encrypted.
            new_salt: Draws 32 random bytes, never the same again.
        """
        self._settings = settings
        self._keys = keys
        self._new_salt = new_salt

    async def encoding_of(self, store: StoreName, executor: BlockingExecutor) -> Encoding:
        """Return how a store is to be stored from now on.

        Raises:
            KeyUnavailableError: There is no key to encrypt with.
            RetriableError: The provider may answer later.
        """
        compression, is_encrypted = self._settings.of(store)
        key = await executor.run(self._current_key) if is_encrypted else None
        return Encoding(compression, key)

    async def check(self, executor: BlockingExecutor) -> None:
        """Try what the settings ask for: a key, and the packages.

        Raises:
            ConfigError: Something is missing.
            RetriableError: The provider may answer later.
        """
        key = await executor.run(self._current_key) if self._settings.needs_keys else None
        compressions: set[BlobCompression] = {self._settings.compression}
        compressions.update(self._compression(store) for store in self._settings.stores)
        for compression in compressions:
            encoding = Encoding(compression, key)
            if not encoding.is_plain:
                await executor.run(self.encode, b"", encoding, "check")

    def encoder(self, encoding: Encoding, place: str) -> StreamEncoder:
        """Begin a stream; blocks."""
        return StreamEncoder(encoding, place, self._new_salt())

    def encode(self, raw: bytes, encoding: Encoding, place: str) -> bytes:
        """Return a whole stream, or the bytes as they are where nothing is to be encoded; blocks."""
        if encoding.is_plain:
            return raw
        return self.encoder(encoding, place).encode(raw, is_last=True)

    def decoder(self, place: str, *, where: str) -> StreamDecoder:
        """Begin to read a stream; `StreamDecoder` says what it raises, and blocks."""
        return StreamDecoder(place, self._find_key, where=where)

    def decode(self, stored: bytes, place: str, *, where: str) -> bytes:
        """Return what a whole stream stands for; blocks."""
        decoder = self.decoder(place, where=where)
        raw = decoder.decode(stored)
        decoder.finish()
        return raw

    def _compression(self, store: StoreName) -> BlobCompression:
        return self._settings.of(store)[0]

    def _current_key(self) -> EncryptionKey:
        return self._provider("").current()

    def _find_key(self, key_id: str) -> EncryptionKey:
        return self._provider(f" key_id={key_id}").find(key_id)

    def _provider(self, detail: str) -> KeyProvider:
        if self._keys is None:
            raise KeyUnavailableError(
                f"something is encrypted and no keys are configured:{detail}",
                hint="set blob.store.encryption.keys, such as file:/etc/statekeep/keys",
            )
        return self._keys


def is_stream(stored: bytes) -> bool:
    """Return whether bytes that may also be JSON are a stream."""
    return stored.startswith(MAGIC)


def stored_form(encoding: Encoding) -> StoredForm | None:
    """Return how an index says that a file is stored."""
    if encoding.is_plain:
        return None
    if encoding.key is None:
        return StoredForm(compression=encoding.compression)
    return StoredForm(
        compression=encoding.compression, encryption=ENCRYPTION, key_id=encoding.key.id
    )
