"""The settings of a backend's storage: a location, its client, and how long to insist."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from statekeep.backends.retry import RetryPolicy
from statekeep.backends.storage.locations import BucketSettings, bucket_settings
from statekeep.config.backend_section import BackendSection
from statekeep.config.blob_settings import BLOB_PREFIX, BlobStoreSettings, TransferSettings
from statekeep.config.key import keys_of
from statekeep.config.redact import redact
from statekeep.errors import ConfigError

STORAGE_OPTION_PREFIX: Final = "storage.options."
_SECTIONS: Final = (BlobStoreSettings, RetryPolicy, TransferSettings)


@dataclass(frozen=True, slots=True)
class StorageSettings(BlobStoreSettings):
    """The storage of one backend, checked."""

    storage_options: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Handed to the filesystem's client as they are; may hold secrets."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    transfer: TransferSettings = field(default_factory=TransferSettings)
    of_buckets: Mapping[type[BucketSettings], BucketSettings] = field(
        default_factory=dict[type[BucketSettings], BucketSettings]
    )
    """Those of each kind of store with buckets."""

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
        """The location as messages name it: without what may be secret."""
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
        return cls.fill(BackendSection("blob", backend, BLOB_PREFIX, settings))

    @classmethod
    def fill(
        cls,
        section: BackendSection,
        *,
        sections: Iterable[type] = (),
        other_prefixes: tuple[str, ...] = (),
        **values: Any,  # noqa: ANN401 - fields of a class below this one
    ) -> Self:
        """Read a section, beside which a class below this one reads others; raises as `parse`."""
        known = (*_SECTIONS, *bucket_settings(), *sections)
        section.refuse_unknown(known, STORAGE_OPTION_PREFIX, other_prefixes)
        found = section.fill(
            cls,
            storage_options=section.below(STORAGE_OPTION_PREFIX),
            retry=section.fill(RetryPolicy, settings_prefix=f"backends.{section.backend}."),
            transfer=section.fill(TransferSettings),
            of_buckets={kind: section.fill(kind) for kind in bucket_settings()},
            **values,
        )
        if found.uri is None and found.manager_factory is None:
            key = f"backends.{section.backend}.uri"
            name = keys_of(BlobStoreSettings)["uri"].name
            raise ConfigError(
                f"blob backend has no location: backend={section.backend}",
                key=key,
                hint=f"set {key} or {name}, such as file:///backup/path",
            )
        return found
