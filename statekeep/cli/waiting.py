"""A sign of life for what takes long and says nothing meanwhile."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

from rich.console import Console

from statekeep.clock import Clock
from statekeep.restore.progress import RestoreProgress

_SHOWN_AFTER_S: Final = 2
"""What comes and goes within a moment only disturbs."""


@asynccontextmanager
async def waiting(
    what: str, clock: Clock, console: Console | None = None
) -> AsyncGenerator[Callable[[], object]]:
    """Say on the terminal what goes on, once the block has lasted longer than two seconds.

    Nothing is shown where stderr is no terminal. Gives what takes it off the terminal before the end
    of the block.

    Args:
        what: Such as ``deleting``.
        clock: For the two seconds.
        console: None: that of stderr.
    """
    shown = asyncio.create_task(_show(what, clock, console or Console(stderr=True)))
    try:
        yield shown.cancel
    finally:
        shown.cancel()
        await asyncio.wait({shown})


@asynccontextmanager
async def waiting_for_progress(
    what: str, clock: Clock, on_progress: Callable[[RestoreProgress], None]
) -> AsyncGenerator[Callable[[RestoreProgress], None]]:
    """Do as `waiting` until the first report of progress: then there is a bar to be seen instead.

    Args:
        what: What goes on before the first report.
        clock: For the two seconds.
        on_progress: Called with every report, through the wrapper that this returns.
    """
    async with waiting(what, clock) as end:

        def report(progress: RestoreProgress) -> None:
            end()
            on_progress(progress)

        yield report


async def _show(what: str, clock: Clock, console: Console) -> None:
    if not console.is_terminal:
        return
    await clock.sleep(_SHOWN_AFTER_S)
    with console.status(what):
        await asyncio.get_running_loop().create_future()
