"""Functions of ``applyInPandasWithState``, in a module that executors can import."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql.streaming.state import GroupState

BASE_MS = 1_704_067_200_000
"""2024-01-01, when the event times of the tests begin."""


def obey(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Do to the state what the rows say, and tell what is seen; ``key`` says what a timeout does."""
    (name, number) = key
    seen = [f"{state.getOption} {state.exists} {type(number).__name__}"]
    if state.hasTimedOut:
        (frame,) = frames
        seen.append(f"{list(frame.columns)} {len(frame)}")
        if name == "again":
            _do("soon", state)
        elif name != "keeps":
            state.remove()
        yield _row(name, "timed out", seen)
        return
    for frame in frames:
        seen.append(str(dict(frame.dtypes.astype(str))))
        for order in frame["op"]:
            _do(order, state)
    yield _row(name, "rows", seen)
    seen.append(str(state))
    yield _row(name, "after", seen[-1:])


def count(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Count the rows of a key."""
    (before,) = state.getOption or (0,)
    state.update((before + sum(map(len, frames)),))
    yield pd.DataFrame({"key": [key[0]], "n": [state.get[0]]})


def _do(order: str, state: GroupState) -> None:
    match order.split():
        case ["add", text]:
            (n, texts) = state.getOption or (0, "")
            state.update((n + int(text), f"{texts} {text}"))
        case ["remove"]:
            state.remove()
        case ["soon"]:
            state.setTimeoutDuration(1)
        case ["never"]:
            state.setTimeoutDuration(10**12)
        case ["at", seconds]:
            state.setTimeoutTimestamp(BASE_MS + 1000 * int(seconds))
        case _:
            assert order == "look"


def _row(name: str, what: str, seen: list[str]) -> pd.DataFrame:
    return pd.DataFrame({"key": [name], "what": [what], "text": ["; ".join(seen)]})
