"""Whether every task of a job in plain Python was named, each of which has a log of its own."""

import re
from collections.abc import Sequence
from typing import Final

from statekeep.clock import SystemClock
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.inspection.job import open_log_place

_NUMBERED: Final = re.compile(r"Partition ([0-9]+)")


async def require_all_tasks(settings: Config, names: Sequence[str]) -> None:
    """Make sure that no task of a job in plain Python is left out or named twice.

    Its state would be, and the task would begin empty beside all others.

    Raises:
        ConfigError: One is, as far as their numbers tell.
    """
    numbers = sorted(int(match[1]) for match in map(_NUMBERED.fullmatch, names) if match)
    if len(numbers) < len(names):
        return  # the program gives its tasks names of its own
    for expected, number in enumerate(numbers):
        if number != expected:
            raise ConfigError(
                f"a task is left out or named twice: expected=Partition {expected} "
                f"named={','.join(sorted(names))}",
                hint="name every task of the job with --task, once",
            )
    following = f"Partition {len(numbers)}"
    async with open_log_place(settings, SystemClock(), task=following) as place:
        if await place.log.is_there():
            raise ConfigError(
                f"a task is left out: task={following}",
                hint="name every task of the job with --task; `statekeep reset` removes one that "
                "the job no longer has",
            )
