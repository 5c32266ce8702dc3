"""What a store's content adds up to, whatever the order in which it is seen."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from xxhash import xxh3_128_intdigest

_MODULUS: Final = 1 << 128


@dataclass(frozen=True, slots=True)
class ContentSummary:
    """Count, size and digest of the live entries of a store.

    The digest is the sum modulo 2**128 of the XXH3-128 of ``key + value``, seeded with the length
    of the key. It tells content that was lost or came back from what was committed; it is no
    defence against somebody who forges records.
    """

    live_keys: int = 0
    live_bytes: int = 0
    """Of keys and values."""
    digest: int = 0

    @classmethod
    def of(cls, entries: Iterable[tuple[bytes, bytes]]) -> Self:
        """Add up all entries of a store; each key occurs once."""
        live_keys, live_bytes, digest = 0, 0, 0
        for key, value in entries:
            record = key + value
            live_keys += 1
            live_bytes += len(record)
            digest += xxh3_128_intdigest(record, len(key))
        return cls(live_keys, live_bytes, digest % _MODULUS)

    def plus(self, other: "ContentSummary") -> "ContentSummary":
        """Return the summary of both contents, which share no key."""
        return ContentSummary(
            self.live_keys + other.live_keys,
            self.live_bytes + other.live_bytes,
            (self.digest + other.digest) % _MODULUS,
        )

    def changed(self, changes: Iterable[tuple[bytes, bytes | None, bytes | None]]) -> Self:
        """Return the summary after some changes.

        Args:
            changes: Key, value before and value after, None where there is none; each key once.
        """
        live_keys, live_bytes, digest = self.live_keys, self.live_bytes, self.digest
        for key, before, after in changes:
            if before is not None:
                live_keys -= 1
                live_bytes -= len(key) + len(before)
                digest -= xxh3_128_intdigest(key + before, len(key))
            if after is not None:
                live_keys += 1
                live_bytes += len(key) + len(after)
                digest += xxh3_128_intdigest(key + after, len(key))
        return type(self)(live_keys, live_bytes, digest % _MODULUS)

    @property
    def hexdigest(self) -> str:
        """The digest as 32 hexadecimal digits."""
        return f"{self.digest:032x}"
