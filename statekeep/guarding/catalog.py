"""The catalog of a copy: which files it has, by which the next copy knows those that it need not fetch."""

from collections.abc import Mapping
from typing import Final

import msgspec

from statekeep.checkpoint.checkpoints import StoreName, TaskName
from statekeep.checkpoint.framing import decode_json, frame, unframe
from statekeep.errors import CheckpointCorruptError

TASK: Final = TaskName("Partition 0")
"""A copy is the state of one task."""
FILES_STORE: Final = StoreName("location")
"""Its store with the files of the location."""
CATALOG_STORE: Final = StoreName("catalog")
"""Its store with the catalog, so that it can be read without the files."""
CATALOG_FILE: Final = "catalog"
_KIND: Final = "guard-catalog"


class CopiedFile(msgspec.Struct, frozen=True, array_like=True):
    """A file as it was when it was copied."""

    size: int
    stamp: str
    """As the filesystem listed it; "" where it has none, so that the file is fetched each time."""
    crc32: int


class Catalog(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """What a copy holds."""

    batch: int
    query_id: str
    files: Mapping[str, CopiedFile]
    """By path in the location."""

    def encode(self) -> bytes:
        """Return the bytes of the catalog: JSON in a frame with a CRC."""
        return frame(_KIND, msgspec.json.encode(self))

    @classmethod
    def decode(cls, data: bytes) -> "Catalog":
        """Read a catalog back.

        Raises:
            CheckpointCorruptError: It is damaged.
            UnknownFormatError: A newer version of Statekeep wrote it.
        """
        framed = unframe(data, where=f"store={CATALOG_STORE}")
        if framed.kind != _KIND:
            raise CheckpointCorruptError(f"not the catalog of a copy: kind={framed.kind}")
        return decode_json(_decoder, framed.payload, "the catalog of a copy cannot be read")


_decoder: Final = msgspec.json.Decoder(Catalog)
