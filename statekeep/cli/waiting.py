"""A sign of life for what takes long and says nothing meanwhile."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from rich.console import Console

from statekeep.clock import Clock

_SHOWN_AFTER_S: Final = 2
"""What comes and goes within a moment only disturbs."""


@asynccontextmanager
async def waiting(what: str, clock: Clock, console: Console | None = None) -> AsyncGenerator[None]:
    """Say on the terminal what goes on, once the block has lasted longer than two seconds.

    Nothing is shown where stderr is no terminal.

    Args:
        what: Such as ``deleting``.
        clock: For the two seconds.
        console: None: that of stderr.
    """
    shown = asyncio.create_task(_show(what, clock, console or Console(stderr=True)))
    try:
        yield
    finally:
        shown.cancel()
        await asyncio.wait({shown})


async def _show(what: str, clock: Clock, console: Console) -> None:
    if not console.is_terminal:
        return
    await clock.sleep(_SHOWN_AFTER_S)
    with console.status(what):
        await asyncio.get_running_loop().create_future()
