"""A pin that lasts as long as a commit is read, and ends some time after its reader was killed."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from statekeep.checkpoint.job_log import JobLog
from statekeep.checkpoint.log_session import LogSession, random_nonce
from statekeep.clock import Clock
from statekeep.errors import StateBackupError

logger = logging.getLogger(__name__)

HOLD_PREFIX: Final = "read-"
"""Begins the names of pins that last as long as the commit is read."""
_HOLD_DIGITS: Final = 12
_LEASE_MS: Final = 48 * 3_600_000
"""Longer than the clocks of reader and job are apart: a day must do no harm."""
_RENEW_S: Final = 3_600.0
"""A renewal may fail for most of two days; and most reads are over before the first."""


@asynccontextmanager
async def reading_pin(log: JobLog, position: int, clock: Clock) -> AsyncGenerator[None]:
    """Keep a commit from being released inside the block.

    The pin says until when it holds, and is renewed meanwhile. Of a reader who was killed it stays
    behind for two days; then the job's own clean-up drops it.

    Args:
        log: Closed by its owner.
        position: Of the commit record.
        clock: Says until when, and when to renew.

    Raises:
        ConfigError: The commit is released already.
        RetriableError: A service may answer later.
    """
    name = f"{HOLD_PREFIX}{random_nonce()[:_HOLD_DIGITS]}"
    await _renew(log, name, position, clock)
    renewing = asyncio.create_task(_keep_renewing(log, name, position, clock), name=f"hold {name}")
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.wait({renewing})
        await _let_go(log, name)


async def _let_go(log: JobLog, name: str) -> None:
    """Take the pin away; what cannot be is a warning, as the pin then goes by itself."""
    try:
        await LogSession(log).unpin(name)
    except StateBackupError as exc:
        logger.warning(
            "the pin of a commit that was read stays until it expires: name=%s error=%s", name, exc
        )


async def _keep_renewing(log: JobLog, name: str, position: int, clock: Clock) -> None:
    while True:
        await clock.sleep(_RENEW_S)
        try:
            await _renew(log, name, position, clock)
        except StateBackupError as exc:
            logger.warning(
                "the pin of a commit that is being read could not be renewed, tried again in an "
                "hour: name=%s commit=%d error=%s",
                name,
                position,
                exc,
            )


async def _renew(log: JobLog, name: str, position: int, clock: Clock) -> None:
    expires_ms = clock.time_ns() // 1_000_000 + _LEASE_MS
    await LogSession(log).pin(name, position, expires_ms=expires_ms)
