"""Which keys an upload has set already to what they are in its version: once is enough."""

from collections.abc import Iterable, Sequence
from typing import Final

from statekeep.stores.delta import Change

_MAX_BYTES: Final = 64 << 20
"""Of all keys that are kept; others may be written again, which is as right."""
_BYTES_PER_KEY: Final = 100
"""What the interpreter takes for each key beside its own bytes, about."""


class WrittenKeys:
    """Keeps the first keys, as many as fit in memory.

    Not the last ones: an aborted attempt repeats what the one before has written in the same order.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._keys: set[bytes] = set()
        self._bytes = 0

    def new(self, keys: Iterable[bytes]) -> Sequence[bytes]:
        """Return those that are not known to be written, each once; they are about to be."""
        found = [key for key in dict.fromkeys(keys) if key not in self._keys]
        for key in found:
            self._bytes += len(key) + _BYTES_PER_KEY
            if self._bytes > _MAX_BYTES:
                break
            self._keys.add(key)
        return found

    def left(self, changes: Iterable[Change]) -> Sequence[Change]:
        """Return the changes of other keys."""
        return [change for change in changes if change[0] not in self._keys]
