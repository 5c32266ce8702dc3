"""Finds out that another driver has taken over where no append would tell."""

import logging
from typing import Final

from statekeep.clock import Clock
from statekeep.errors import RetriableError, StateBackupError, TaskFencedError
from statekeep.spark.driver.reign import Reign

logger = logging.getLogger(__name__)

_QUIET_NS: Final = 5_000_000_000
"""How long nothing was appended before the end of the log is read; each append asks by itself."""


async def find_successor(reign: Reign) -> TaskFencedError | None:
    """Return how a driver whose query has failed was fenced; None if it was not, as far as is known.

    Two drivers meet in the query's checkpoint location, too: there Spark refuses to write what is
    there already, to whoever comes second.
    """
    try:
        await reign.look_for_successor()
    except TaskFencedError as exc:
        return exc
    except StateBackupError as exc:
        logger.warning("the end of the job log could not be read: error=%s", exc)
    return None


class FenceWatch:
    """Polls the end of the job log while this driver appends nothing; on the commit thread's loop.

    Without it, a driver that was replaced while its stream was idle would look alive until the
    next batch.
    """

    def __init__(self, reign: Reign, clock: Clock) -> None:
        self._reign = reign
        self._clock = clock
        self._position = -1
        self._quiet_since_ns = 0

    async def look(self) -> None:
        """Look once; at most one request in each `_QUIET_NS`, none while records are appended.

        Raises:
            TaskFencedError: Another driver has taken over.
        """
        self._reign.committer.raise_if_fenced()
        now_ns, position = self._clock.monotonic_ns(), self._reign.view.next_position
        if position != self._position:
            self._position, self._quiet_since_ns = position, now_ns
        if now_ns - self._quiet_since_ns < _QUIET_NS:
            return
        self._quiet_since_ns = now_ns
        try:
            await self._reign.look_for_successor()
        except RetriableError as exc:
            logger.warning("the end of the job log could not be read: error=%s", exc)
