"""The settings of a blob backend: its storage, what it does to what it stores, when files go up."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from typing_extensions import override

from statekeep.backends.blob.codec import EncodingSettings, StoreEncoding
from statekeep.backends.blob.index import SnapshotIndex
from statekeep.backends.storage.settings import StorageSettings
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.config.backend_section import BackendSection
from statekeep.config.blob_settings import BLOB_PREFIX, BlobStoreSettings, SnapshotSettings
from statekeep.config.key import keys_of
from statekeep.config.store_settings import StoreSettings
from statekeep.errors import ConfigError

_FREE_DELTA_BYTES: Final = 4 << 20
"""So much is applied within the time of a few requests, however small the image is."""

MAX_ADDED_DELTAS: Final = 32
"""Deltas that an index adds to a full one, at 400 bytes each: so the indexes of all commits together
take least, and half of the time a commit writes less than 6 KB, however many deltas there are."""
MAX_INDEX_DELTA_BYTES: Final = 64 << 10
"""Of a delta that goes into the index instead of a blob of its own: a request costs as much whatever
it transfers. In JSON a delta takes a third more bytes, which matters for larger ones, and each
read of the index reads the delta too."""


@dataclass(frozen=True, slots=True)
class SnapshotPolicy(SnapshotSettings):
    """Decides by sizes; see `docs/decisions/0008-blob-backend-uploads-changes.md` for the figures.

    Deltas cost a restore time, files cost a commit bytes: most of a file that compaction has
    written was uploaded before. The first is bounded here; within the bound an image is taken
    where it is cheap.
    """

    def is_image_due(
        self, base: SnapshotIndex, *, new_file_bytes: int, new_delta_bytes: int, new_deltas: int
    ) -> bool:
        """Return whether a commit is to upload its files.

        It is where these are no more than its changes; where the bounds would be passed; and from
        half way to a bound on where the files are no more than the deltas that they replace, so
        that all files together never cost more than all deltas but for those that a bound asks for.

        Args:
            base: What the commit builds on.
            new_file_bytes: Of files that the base's image does not have.
            new_delta_bytes: Of the changes since the base.
            new_deltas: How many blobs they would be.
        """
        if not self.max_delta_ratio:
            return True
        if new_file_bytes <= new_delta_bytes:
            return new_deltas > 0
        delta_bytes = base.delta_bytes() + new_delta_bytes
        most_bytes = max(self.max_delta_ratio * base.image_bytes(), _FREE_DELTA_BYTES)
        filled = max(delta_bytes / most_bytes, (len(base.deltas) + new_deltas) / self.max_deltas)
        return filled > 1 or (filled > 1 / 2 and new_file_bytes <= delta_bytes)


DEFAULTS_PREFIX: Final = BLOB_PREFIX
KEY_OPTION_PREFIX: Final = "encryption.options."
_STORE_PREFIX: Final = "stores."


@dataclass(frozen=True, slots=True)
class BlobSettings(StorageSettings):
    """One blob backend, checked."""

    encoding: EncodingSettings = field(default_factory=EncodingSettings)
    """What is compressed and encrypted."""
    key_options: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """For a provider of keys of the user's; may hold secrets."""
    snapshots: SnapshotPolicy = field(default_factory=SnapshotPolicy)

    @override
    @classmethod
    def parse(cls, backend: str, settings: Mapping[str, str]) -> Self:
        section = BackendSection("blob", backend, DEFAULTS_PREFIX, settings)
        found = cls.fill(
            section,
            sections=(SnapshotPolicy,),
            other_prefixes=(KEY_OPTION_PREFIX, _STORE_PREFIX),
            encoding=_encoding(section),
            key_options=section.below(KEY_OPTION_PREFIX),
            snapshots=section.fill(SnapshotPolicy),
        )
        if found.encoding.needs_keys and found.encryption_keys is None:
            name = keys_of(BlobStoreSettings)["encryption_keys"].name
            raise ConfigError(
                f"encryption without keys: backend={backend}",
                key=f"backends.{backend}.encryption.keys",
                hint=f"set {name}, such as file:/etc/statekeep/keys",
            )
        return found


def _encoding(section: BackendSection) -> EncodingSettings:
    own, of_stores = keys_of(BlobStoreSettings), keys_of(StoreSettings)
    stores = sorted({name.split(".")[0] for name in section.below(_STORE_PREFIX)})
    encrypted = {name: section.read(of_stores["blob_encryption"], name) for name in stores}
    return EncodingSettings(
        compression=section.read(own["compression"]),
        is_encrypted=section.read(own["encryption"]) != "none",
        stores={
            StoreName(name): StoreEncoding(
                compression=section.read(of_stores["blob_compression"], name),
                is_encrypted=None if encryption is None else encryption != "none",
            )
            for name, encryption in encrypted.items()
        },
    )
