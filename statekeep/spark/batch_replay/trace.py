"""What a batch does to its keys, step by step, and how that is written as plain values."""

import datetime as dt
import math
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import numpy as np
import pandas as pd

SHOWN_ITEMS: Final = 100
"""Most elements of a list, and most entries of a map, that a step shows before or after it."""
TRACED_KEYS: Final = 10_000
"""Most keys whose steps are kept where no key is named: bounds memory."""
TIMERS: Final = "timers"
"""Stands where steps of variables have the name of theirs."""


@dataclass(frozen=True, slots=True)
class Step:
    """One use of state, or of a timer, by the processor."""

    variable: str
    """Its name, or `TIMERS`."""
    operation: str
    """The method that was called: ``get``, ``updateValue``, ``registerTimer``; ``fired`` of a timer."""
    before: Any
    """What the key had; of a map with a key of its own, what that had. None: nothing."""
    after: Any
    """What the key has then; of a timer, its time in milliseconds."""
    map_key: Any = None
    """The key within a map, where one is named."""

    @property
    def is_write(self) -> bool:
        """Whether the state is another one after it."""
        return bool(self.before != self.after) and self.variable != TIMERS


@dataclass(slots=True)
class KeyTrace:
    """All that one grouping key had and did in a batch, in order."""

    key: tuple[Any, ...]
    task: int
    """Number of the task that has it."""
    rows_in: list[Any] = field(default_factory=list[Any])
    """Each row as ``{column: value}``."""
    steps: list[Step] = field(default_factory=list[Step])
    rows_out: list[Any] = field(default_factory=list[Any])


class Tracer:
    """Keeps the traces of a batch. Used by the thread of the processor alone."""

    def __init__(self, wanted: bytes | None, *, is_stopping: bool) -> None:
        """Begin without a key.

        Args:
            wanted: The one encoded key to trace; None: the first `TRACED_KEYS`.
            is_stopping: Whether ``breakpoint()`` stops while a key is traced.
        """
        self._wanted = wanted
        self._is_stopping = is_stopping
        self._hook = sys.breakpointhook
        self._traces: dict[bytes, KeyTrace] = {}
        self._current: KeyTrace | None = None
        self.left_out = 0
        """Calls of the processor for keys that were too many to trace."""

    @property
    def traces(self) -> list[KeyTrace]:
        """Those of the keys, in the order in which they came."""
        return list(self._traces.values())

    @contextmanager
    def guarding(self) -> Generator[None]:
        """Let ``breakpoint()`` do nothing inside but for keys that are traced, if it is to stop there."""
        try:
            sys.breakpointhook = _pass_by
            yield
        finally:
            sys.breakpointhook = self._hook

    def begin(self, key_bytes: bytes, key: tuple[Any, ...], task: int) -> KeyTrace | None:
        """Go to a key; return its trace, None where it is not traced.

        Inside `guarding`, if ``breakpoint()`` is to stop.
        """
        found = self._traces.get(key_bytes)
        if found is None and self._is_wanted(key_bytes):
            found = self._traces[key_bytes] = KeyTrace(tuple(map(plain, key)), task)
        self._current = found
        if self._is_stopping:
            sys.breakpointhook = _pass_by if found is None else self._hook
        return found

    def add(self, step: Step) -> None:
        """Record what was done for the key at hand."""
        if self._current is not None:
            self._current.steps.append(step)

    def _is_wanted(self, key_bytes: bytes) -> bool:
        if self._wanted is not None:
            return key_bytes == self._wanted
        if len(self._traces) < TRACED_KEYS:
            return True
        self.left_out += 1
        return False


def _pass_by(*_: object, **__: object) -> None:
    """Ignore a ``breakpoint()``."""


def plain(value: Any) -> Any:  # noqa: ANN401 - of any type
    """Return a value as JSON has it, and as it is now; bytes are hexadecimal, times ISO 8601."""
    found: Any
    match value:
        case None | bool() | int() | str():
            found = value
        case np.generic() | pd.Timestamp():
            found = plain(value.item()) if isinstance(value, np.generic) else value.isoformat()
        case float():
            found = value if math.isfinite(value) else str(value)
        case bytes() | bytearray():
            found = value.hex()
        case dt.date() | dt.time():
            found = value.isoformat()
        case Mapping():
            found = {str(plain(k)): plain(item) for k, item in value.items()}
        case Sequence() | np.ndarray():
            found = _sequence(value)
        case _:
            found = str(value)
    return found


def _sequence(value: Any) -> Any:  # noqa: ANN401 - a list, a tuple, a row
    names: Any = getattr(value, "__fields__", None)
    if names is not None and len(names) == len(value):
        return {str(name): plain(item) for name, item in zip(names, value, strict=True)}
    return [plain(item) for item in value]


def named(value: Sequence[Any] | None, names: Sequence[str]) -> Any:  # noqa: ANN401 - plain
    """Return the fields of a value of state by name; None for nothing."""
    if value is None:
        return None
    return {name: plain(item) for name, item in zip(names, value, strict=True)}


def first_of(items: Iterator[Any], show: Callable[[Any], Any]) -> list[Any]:
    """Return the first `SHOWN_ITEMS` as plain values, then a text where there are more."""
    shown = [show(item) for item in islice(items, SHOWN_ITEMS)]
    more = sum(1 for _ in items)
    return [*shown, f"... {more} more"] if more else shown


def rows_of(given: Any, names: Sequence[str]) -> list[Any]:  # noqa: ANN401 - what a processor gets or yields
    """Return rows as ``{column: value}``: of a frame of pandas, a row with names, or a tuple."""
    if isinstance(given, pd.DataFrame):
        return [{str(k): plain(v) for k, v in row.items()} for row in given.to_dict("records")]
    if isinstance(given, tuple) and not hasattr(given, "__fields__") and len(given) == len(names):
        return [named(given, names)]
    return [plain(given)]
