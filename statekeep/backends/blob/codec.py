"""What a backend encodes by: how each store is to be stored, and the keys of what was stored."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.encoded_stream import (
    ENCRYPTION,
    FORMAT_VERSION,
    MAGIC,
    Encoding,
    StreamDecoder,
    StreamEncoder,
)
from statekeep.backends.blob.index import SnapshotIndex, StoredForm
from statekeep.backends.encryption_keys import OLDER_HINT, EncryptionKey, KeyProvider
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.config.values import BlobCompression
from statekeep.errors import CheckpointCorruptError, KeyUnavailableError


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


def accept_nothing_older() -> bool:
    """Say that what is to be encrypted must be, in today's format."""
    return False


class Codec:
    """Encodes and decodes for one backend; every method that blocks says so."""

    def __init__(
        self,
        settings: EncodingSettings,
        keys: KeyProvider | None,
        new_salt: Callable[[], bytes],
        accepts_older: Callable[[], bool] = accept_nothing_older,
    ) -> None:
        """Take what is needed; no I/O.

        Args:
            settings: What is to be encoded.
            keys: None: nothing is, or was, encrypted.
            new_salt: Draws 32 random bytes, never the same again.
            accepts_older: Asked at each read of a store that is to be encrypted: whether what is
                plain, or bound to its place less tightly, is taken all the same.
        """
        self._settings = settings
        self._keys = keys
        self._new_salt = new_salt
        self._accepts_older = accepts_older

    def is_encrypted(self, store: StoreName) -> bool:
        """Return whether a store is to be encrypted."""
        return self._settings.of(store)[1]

    def check_index_form(self, store: StoreName, version: int, where: str) -> None:
        """Refuse an index that is not authenticated.

        Args:
            store: The store that it stands for.
            version: Of the encrypted stream that it was; 0: it was not encrypted.
            where: Named in errors.

        Raises:
            CheckpointCorruptError: The store is to be encrypted, and the index is not, or is bound to
                less than its whole name.
        """
        if self.is_encrypted(store) and version < FORMAT_VERSION and not self._accepts_older():
            what = (
                "is not encrypted" if version == 0 else f"is of an older format: version={version}"
            )
            error = CheckpointCorruptError(
                f"the store is encrypted, but its index {what}: store={store} {where}"
            )
            error.add_note(OLDER_HINT)
            raise error

    def check_files_encrypted(self, store: StoreName, index: SnapshotIndex, where: str) -> None:
        """Refuse an index that names a file which is not encrypted, though its store is.

        Raises:
            CheckpointCorruptError: There is one.
        """
        if self.is_encrypted(store) and None in index.key_ids() and not self._accepts_older():
            error = CheckpointCorruptError(
                f"the store is encrypted, but not every file of its index: store={store} {where}"
            )
            error.add_note(OLDER_HINT)
            raise error

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

    def decoder(self, place: str, form: StoredForm, *, where: str) -> StreamDecoder:
        """Begin to read a stream; `StreamDecoder` says what it raises, and blocks.

        Args:
            place: What it is bound to.
            form: How the index says that it is stored.
            where: Named in errors.
        """
        is_encrypted = form.encryption is not None
        return StreamDecoder(place, self._find_key, where=where, is_encrypted=is_encrypted)

    def decode_index(
        self, stored: bytes, place: str, *, where: str, max_bytes: int
    ) -> tuple[bytes, int]:
        """Return what a stream stands for, and its version if it is encrypted, else 0; blocks.

        Raises:
            CheckpointCorruptError: It is damaged, or stands for more than ``max_bytes``.
        """
        decoder = StreamDecoder(place, self._find_key, where=where)
        frames = list(at_most(decoder.frames(stored), max_bytes, where))
        decoder.finish()
        return b"".join(frames), decoder.version if decoder.is_encrypted else 0

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


def at_most(frames: Iterable[bytes], max_bytes: int, where: str) -> Iterator[bytes]:
    """Pass frames on while all together are no more than ``max_bytes``.

    Raises:
        CheckpointCorruptError: They are more.
    """
    left = max_bytes
    for frame in frames:
        left -= len(frame)
        if left < 0:
            raise CheckpointCorruptError(
                f"an encoded stream would decode to too many bytes: {where} max_bytes={max_bytes}"
            )
        yield frame


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
