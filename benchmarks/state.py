"""State to measure with: numbered keys with random values, which do not compress."""

import random

from statekeep.stores.base import KeyValueStore

VALUE_BYTES = 100
_CHUNK = 10_000


def key_count(size_mb: int) -> int:
    """Return how many keys make up so many megabytes of values."""
    return size_mb * 1_000_000 // VALUE_BYTES


def key(number: int) -> bytes:
    """Return a key; numbers and keys have the same order."""
    return number.to_bytes(8, "big")


def load(store: KeyValueStore, count: int, draw: random.Random) -> None:
    """Write all keys once."""
    for start in range(0, count, _CHUNK):
        change(store, range(start, min(start + _CHUNK, count)), draw)


def change(store: KeyValueStore, numbers: range | list[int], draw: random.Random) -> None:
    """Give keys new values."""
    store.write({key(number): draw.randbytes(VALUE_BYTES) for number in numbers})
