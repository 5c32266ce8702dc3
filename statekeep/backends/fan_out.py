"""Running many coroutines side by side with one outcome."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from statekeep.errors import RetriableError

T = TypeVar("T")


async def run_all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all coroutines side by side and return their results in order.

    The first failure cancels the rest, and every coroutine has ended when this returns. One error
    is raised in place of a group, so that callers keep their ``except`` clauses: the first that
    asking again would not help, else the first `RetriableError`. The others become its notes.
    """
    tasks: list[asyncio.Task[T]] = []
    failures: tuple[BaseException, ...] = ()
    try:
        async with asyncio.TaskGroup() as group:
            tasks.extend([group.create_task(coroutine) for coroutine in coroutines])
    except BaseExceptionGroup as errors:
        failures = errors.exceptions
    if failures:
        raise most_telling(failures)
    return [task.result() for task in tasks]


def most_telling(failures: Sequence[BaseException]) -> BaseException:
    """Return the first failure that asking again would not help, else the first; others as notes."""
    final = [error for error in failures if not isinstance(error, RetriableError)]
    chosen = (final or failures)[0]
    for error in failures:
        if error is not chosen:
            chosen.add_note(f"failed beside it: {error!r}")
    return chosen
