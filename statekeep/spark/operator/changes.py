"""What a batch changes in the store: gathered by the variables, written and digested here."""

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from operator import add
from typing import Final
from zlib import crc32

import numpy as np

from statekeep.stores.base import KeyValueStore

WRITE_KEYS: Final = 10_000
"""Changes that are gathered before they are written: bounds memory, and the time of one call."""

_DELETED: Final = b"\xc1"
"""Stands for a deletion in the digest; no MessagePack value begins with this byte."""

_MASK: Final = (1 << 64) - 1


class ChangeWriter:
    """Writes changes to the store, and keeps their number and digest.

    The digest does not depend on order or on how the changes were cut into writes: it is the sum,
    modulo 2**64, of a mixed CRC-32 of each key with its value. It finds accidents (an entry that
    is missing, doubled, or differs is overlooked once in 2**32), not forgeries.
    """

    def __init__(self, store: KeyValueStore) -> None:
        self.changed_keys = 0
        self._store = store
        self._sum = 0
        self._announced: dict[bytes, bytes | None] = {}
        self._failure: BaseException | None = None

    @contextmanager
    def failing_for_good(self) -> Generator[None]:
        """Remember an error of the body, and raise it again instead of any later write.

        A write holds changes of many keys, and is made while a processor uses the state of one: if
        the processor catches its error, the batch must fail nevertheless.
        """
        self.require_whole()
        try:
            yield
        except BaseException as exc:
            self._failure = exc
            raise

    def require_whole(self) -> None:
        """Raise the error of a write that failed, though nobody else may have noticed."""
        if self._failure is not None:
            raise self._failure

    @property
    def digest(self) -> str:
        """The digest of all that was written, as 16 hexadecimal digits."""
        return f"{self._sum:016x}"

    def announce(self, key: bytes, value: bytes) -> None:
        """Put ``key`` together with the first change, and not at all if there is none."""
        self._announced[key] = value

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Write ``changes`` now; a value of None deletes."""
        if not changes:
            return
        if self._announced:
            announced, self._announced = self._announced, {}
            self.write(announced)
        with self.failing_for_good():
            self._store.write(changes)
        self.changed_keys += len(changes)
        values = [_DELETED if value is None else value for value in changes.values()]
        self._sum = (self._sum + _mixed_sum(changes, values)) & _MASK

    def delete_prefix(self, prefix: bytes) -> None:
        """Delete every entry whose key begins with ``prefix``."""
        doomed: dict[bytes, bytes | None] = {}
        for key, _ in self._store.scan(prefix):
            doomed[key] = None
            if len(doomed) == WRITE_KEYS:
                self.write(doomed)
                doomed = {}
        self.write(doomed)


def _mixed_sum(keys: Iterable[bytes], values: Iterable[bytes]) -> int:
    # A plain sum of CRCs would overlook two values that changed places, as CRC is linear: each is
    # mixed first (the finalizer of SplitMix64).
    x = np.fromiter(map(crc32, map(add, keys, values)), np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return int(x.sum(dtype=np.uint64))
