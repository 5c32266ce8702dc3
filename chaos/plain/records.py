"""The input of a schedule: what each record does to the state, drawn from seed and number."""

import hashlib
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_KEYS: Final = 12
_DELETES: Final = 0.15
_MOST_SHOWN_BYTES: Final = 100


@dataclass(frozen=True, slots=True)
class Change:
    """What one record does to one key of one store.

    An addition reads the value before it: a record that counts twice, or not at all, shows.
    """

    store: str
    key: bytes
    addend: int | None
    """Added to the number at the key, 0 where there is none; None: the key is deleted."""


@dataclass(frozen=True, slots=True)
class LargeValue:
    """A value that object stores move in parts, put at a key of its own by one record."""

    task: str
    number: int
    """Of the record."""
    store: str
    size: int
    seed: str
    """Of its bytes, which do not compress."""

    @property
    def key(self) -> bytes:
        """Where it is put."""
        return b"large"

    @property
    def value(self) -> bytes:
        """Its bytes."""
        return _random_bytes(self.seed, self.size)


def changes_of(seed: int, task: str, number: int, stores: tuple[str, ...]) -> list[Change]:
    """Return the changes of one record, at least one."""
    draw = random.Random(f"{seed}/{task}/{number}")  # noqa: S311 - the same input each time
    return [
        Change(
            draw.choice(stores),
            b"key-%d" % draw.randrange(_KEYS),
            None if draw.random() < _DELETES else draw.randrange(1, 1000),
        )
        for _ in range(draw.randrange(1, 5))
    ]


def shown(value: bytes) -> str:
    """Return what a journal says of a value: itself, or what tells a long one from others."""
    if len(value) <= _MOST_SHOWN_BYTES:
        return value.decode()
    return f"{len(value)} bytes, sha-256 {hashlib.sha256(value).hexdigest()}"


@lru_cache(maxsize=1)
def _random_bytes(seed: str, size: int) -> bytes:
    return random.Random(seed).randbytes(size)  # noqa: S311 - the same input each time
