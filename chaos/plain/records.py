"""The input of a schedule: what each record does to the state, drawn from seed and number."""

import random
from dataclasses import dataclass
from typing import Final

_KEYS: Final = 12
_DELETES: Final = 0.15


@dataclass(frozen=True, slots=True)
class Change:
    """What one record does to one key of one store.

    An addition reads the value before it: a record that counts twice, or not at all, shows.
    """

    store: str
    key: bytes
    addend: int | None
    """Added to the number at the key, 0 where there is none; None: the key is deleted."""


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
