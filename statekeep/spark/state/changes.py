"""What differs between the rows of a variable at two commits."""

from collections.abc import Iterator
from typing import Final

from statekeep.spark.state.store import Rows
from statekeep.spark.state.variable import StateRow

INSERT: Final = "insert"
UPDATE: Final = "update"
DELETE: Final = "delete"

_Entry = tuple[bytes, bytes]


def changed_rows(
    old: Rows | None, new: Rows | None, front: bytes | None
) -> Iterator[tuple[str, StateRow]]:
    """Yield every row that differs, with the kind of change, in order of the encoded key.

    An insert and an update are yielded as the row is now, a delete as it was.

    Args:
        old: None: the task had no such variable.
        new: None: it has none now.
        front: The key that is compared, as `TaskPart.front`.
    """
    # The same bytes are the same rows only if their schemas have the same numbers.
    is_comparable = old is not None and new is not None and old.schemas == new.schemas
    for before, after in _merged(_entries(old, front), _entries(new, front)):
        if before is not None and after is not None and is_comparable and before == after:
            continue
        were = _by_position(old, before)
        are = _by_position(new, after)
        for position, row in are.items():
            if position not in were:
                yield INSERT, row
            elif were[position] != row:
                yield UPDATE, row
        for position, row in were.items():
            if position not in are:
                yield DELETE, row


def _entries(rows: Rows | None, front: bytes | None) -> Iterator[_Entry]:
    return iter(()) if rows is None else rows.entries(front)


def _by_position(rows: Rows | None, entry: _Entry | None) -> dict[int, StateRow]:
    """Return the rows of an entry: those of a list by position, the only one of any other."""
    if rows is None or entry is None:
        return {}
    return dict(enumerate(rows.rows(*entry)))


def _merged(
    old: Iterator[_Entry], new: Iterator[_Entry]
) -> Iterator[tuple[_Entry | None, _Entry | None]]:
    """Yield the entries of both in order of key, those of one key together."""
    before, after = next(old, None), next(new, None)
    while before is not None or after is not None:
        if after is None or (before is not None and before[0] < after[0]):
            yield before, None
            before = next(old, None)
        elif before is None or after[0] < before[0]:
            yield None, after
            after = next(new, None)
        else:
            yield before, after
            before, after = next(old, None), next(new, None)
