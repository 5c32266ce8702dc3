"""The settings of a blob backend: a place, its client, and how long to insist."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from difflib import get_close_matches
from typing import Final, Self, TypeVar

from statekeep.backends.blob.codec import EncodingSettings, StoreEncoding
from statekeep.backends.blob.managers.object_store_settings import (
    AzureSettings,
    S3Settings,
    TransferSettings,
)
from statekeep.backends.blob.snapshot_policy import SnapshotPolicy
from statekeep.backends.retry import RetryPolicy
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.config import object_store_keys
from statekeep.config.backend_keys import (
    BLOB_BACKOFF_FACTOR,
    BLOB_BACKOFF_MAX_MS,
    BLOB_BACKOFF_MS,
    BLOB_COMPRESSION,
    BLOB_ENCRYPTION,
    BLOB_ENCRYPTION_KEYS,
    BLOB_ENCRYPTION_PLAIN_UNTIL,
    BLOB_JITTER_FACTOR,
    BLOB_MANAGER_FACTORY,
    BLOB_MAX_IN_FLIGHT,
    BLOB_MAX_RETRIES,
    BLOB_MAX_RETRY_MS,
    BLOB_PACK_FILE_BYTES,
    BLOB_SNAPSHOT_DELTA_RATIO,
    BLOB_SNAPSHOT_MAX_DELTAS,
    BLOB_START_TIMEOUT_MS,
    BLOB_URI,
)
from statekeep.config.key import Key
from statekeep.config.redact import is_secret_name, redact
from statekeep.config.resolve import BLOB_DEFAULTS_PREFIX
from statekeep.config.store_keys import BLOB_STORE_COMPRESSION, BLOB_STORE_ENCRYPTION
from statekeep.errors import ConfigError

T = TypeVar("T")

DEFAULTS_PREFIX: Final = BLOB_DEFAULTS_PREFIX
"""What stands before these names in the settings of all blob backends."""

STORAGE_OPTION_PREFIX: Final = "storage.options."
KEY_OPTION_PREFIX: Final = "encryption.options."
_STORE_PREFIX: Final = "stores."
_FREE_PREFIXES: Final = (STORAGE_OPTION_PREFIX, KEY_OPTION_PREFIX, _STORE_PREFIX)

_KEYS: Final[tuple[Key[object], ...]] = (
    BLOB_URI,
    BLOB_MANAGER_FACTORY,
    BLOB_MAX_IN_FLIGHT,
    BLOB_SNAPSHOT_DELTA_RATIO,
    BLOB_SNAPSHOT_MAX_DELTAS,
    BLOB_PACK_FILE_BYTES,
    BLOB_COMPRESSION,
    BLOB_ENCRYPTION,
    BLOB_ENCRYPTION_KEYS,
    BLOB_ENCRYPTION_PLAIN_UNTIL,
    BLOB_START_TIMEOUT_MS,
    BLOB_MAX_RETRIES,
    BLOB_MAX_RETRY_MS,
    BLOB_BACKOFF_MS,
    BLOB_BACKOFF_MAX_MS,
    BLOB_BACKOFF_FACTOR,
    BLOB_JITTER_FACTOR,
    *object_store_keys.KEYS,
)


@dataclass(frozen=True, slots=True)
class BlobSettings:
    """One blob backend, checked."""

    uri: str | None = field(default=None, repr=False)
    """Root of everything that it keeps, such as ``s3://bucket/path``; None only with a
    ``manager_factory``, which may know its place otherwise."""
    manager_factory: str | None = None
    """Dotted path of a `ManagerFactory`; None: the client for the scheme of ``uri``."""
    max_in_flight: int = BLOB_MAX_IN_FLIGHT.default
    """Calls under way at once, of all tasks of a container: what its pool has threads for."""
    snapshots: SnapshotPolicy = field(default_factory=SnapshotPolicy)
    """When files are uploaded, and when changes."""
    pack_file_bytes: int = BLOB_PACK_FILE_BYTES.default
    """Files up to this size share a blob; 0: none do."""
    encoding: EncodingSettings = field(default_factory=EncodingSettings)
    """What is compressed and encrypted."""
    encryption_keys: str | None = field(default=None, repr=False)
    """Where keys come from; hidden, since somebody may have put a key there by mistake."""
    key_options: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """For a provider of keys of the user's; may hold secrets."""
    plain_until: date | None = None
    """The last day on which what is not authenticated is read where it should be."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """For every operation."""
    start_timeout_ms: int = BLOB_START_TIMEOUT_MS.default
    """Milliseconds for which the checks of a start are repeated."""
    storage_options: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Handed to fsspec's client as they are; may hold secrets."""
    transfer: TransferSettings = field(default_factory=TransferSettings)
    s3: S3Settings = field(default_factory=S3Settings)
    azure: AzureSettings = field(default_factory=AzureSettings)

    @property
    def start_retry(self) -> RetryPolicy:
        """For what a start checks."""
        if self.retry.max_duration_ms <= self.start_timeout_ms:
            return self.retry
        return replace(
            self.retry,
            max_duration_ms=self.start_timeout_ms,
            duration_setting="start.timeout.ms",
        )

    @property
    def shown_root(self) -> str:
        """The place as messages name it: without what may be secret."""
        return redact(self.uri or self.manager_factory or "", is_secret=False)

    @classmethod
    def parse(cls, backend: str, settings: Mapping[str, str]) -> Self:
        """Read a backend's section of the configuration.

        Args:
            backend: Name of the backend, for errors.
            settings: Its settings, without ``backends.<name>.`` or ``blob.store.``.

        Raises:
            ConfigError: A setting is unknown, missing, or of the wrong type.
        """
        section = _Section(backend, settings)
        section.refuse_unknown()
        uri = section.read(BLOB_URI)
        manager_factory = section.read(BLOB_MANAGER_FACTORY)
        if uri is None and manager_factory is None:
            raise ConfigError(
                f"blob backend has no place: backend={backend}",
                key=f"backends.{backend}.uri",
                hint=f"set backends.{backend}.uri or {BLOB_URI.name}, such as file:///backup/path",
            )
        encoding = section.encoding()
        encryption_keys = section.read(BLOB_ENCRYPTION_KEYS)
        if encoding.needs_keys and encryption_keys is None:
            raise ConfigError(
                f"encryption without keys: backend={backend}",
                key=f"backends.{backend}.encryption.keys",
                hint=f"set {BLOB_ENCRYPTION_KEYS.name}, such as file:/etc/statekeep/keys",
            )
        return cls(
            uri=uri,
            manager_factory=manager_factory,
            max_in_flight=section.read(BLOB_MAX_IN_FLIGHT),
            snapshots=SnapshotPolicy(
                max_delta_ratio=section.read(BLOB_SNAPSHOT_DELTA_RATIO),
                max_deltas=section.read(BLOB_SNAPSHOT_MAX_DELTAS),
            ),
            pack_file_bytes=section.read(BLOB_PACK_FILE_BYTES),
            encoding=encoding,
            encryption_keys=encryption_keys,
            key_options=section.options(KEY_OPTION_PREFIX),
            plain_until=section.read(BLOB_ENCRYPTION_PLAIN_UNTIL),
            retry=RetryPolicy(
                max_retries=section.read(BLOB_MAX_RETRIES),
                max_duration_ms=section.read(BLOB_MAX_RETRY_MS),
                backoff_delay_ms=section.read(BLOB_BACKOFF_MS),
                backoff_max_delay_ms=section.read(BLOB_BACKOFF_MAX_MS),
                backoff_delay_factor=section.read(BLOB_BACKOFF_FACTOR),
                jitter_factor=section.read(BLOB_JITTER_FACTOR),
                settings_prefix=f"backends.{backend}.",
            ),
            start_timeout_ms=section.read(BLOB_START_TIMEOUT_MS),
            storage_options=section.options(STORAGE_OPTION_PREFIX),
            transfer=TransferSettings.read(section),
            s3=S3Settings.read(section),
            azure=AzureSettings.read(section),
        )


class _Section:
    """The settings of one backend, read by key."""

    def __init__(self, backend: str, settings: Mapping[str, str]) -> None:
        self._backend = backend
        self._settings = settings

    def refuse_unknown(self) -> None:
        known = [key.name.removeprefix(f"{DEFAULTS_PREFIX}.") for key in _KEYS]
        for name in self._settings:
            if name in known or name.startswith(_FREE_PREFIXES):
                continue
            nearest = get_close_matches(name, [*known, STORAGE_OPTION_PREFIX], n=1, cutoff=0)[0]
            raise ConfigError(
                f"unknown setting of a blob backend: "
                f"backend={self._backend} key={name} nearest={nearest}",
                key=f"backends.{self._backend}.{name}",
                hint=f"known are {', '.join(known)} and {STORAGE_OPTION_PREFIX}*",
            )

    def read(self, key: Key[T], store: str = "") -> T:
        name = key.of(store).removeprefix(f"{DEFAULTS_PREFIX}.")
        text = self._settings.get(name)
        if text is None:
            return key.default
        try:
            return key.type.parse(text)
        except ValueError as exc:
            shown = redact(text, is_secret=key.is_secret or is_secret_name(name))
            raise ConfigError(
                f"{name} must be {key.type.requirement}: backend={self._backend} value={shown!r}",
                key=f"backends.{self._backend}.{name}",
            ) from exc

    def options(self, prefix: str) -> Mapping[str, str]:
        return {
            name.removeprefix(prefix): value
            for name, value in self._settings.items()
            if name.startswith(prefix)
        }

    def encoding(self) -> EncodingSettings:
        stores = {name.split(".")[1] for name in self._settings if name.startswith(_STORE_PREFIX)}
        return EncodingSettings(
            compression=self.read(BLOB_COMPRESSION),
            is_encrypted=self.read(BLOB_ENCRYPTION) != "none",
            stores={StoreName(store): self._store_encoding(store) for store in sorted(stores)},
        )

    def _store_encoding(self, store: str) -> StoreEncoding:
        encryption = self.read(BLOB_STORE_ENCRYPTION, store)
        return StoreEncoding(
            compression=self.read(BLOB_STORE_COMPRESSION, store),
            is_encrypted=None if encryption is None else encryption != "none",
        )
