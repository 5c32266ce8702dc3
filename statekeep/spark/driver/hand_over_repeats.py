"""Hands an attempt over once more if it takes long: its container may have died."""

# The JVM's errors have no types.
# pyright: reportMissingTypeStubs=false

import logging
from collections.abc import Awaitable, Callable, Mapping

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark.errors import PySparkException

from statekeep.clock import Clock
from statekeep.errors import StateBackupError
from statekeep.spark.driver.committer import Committer
from statekeep.spark.worker.job_spec import VERSION_NOT_HERE, HandOverPlan

logger = logging.getLogger(__name__)


class HandOverRepeats:
    """Watches the open attempt; on the commit thread's loop.

    A container ignores what it works on already or has finished; a new one begins.
    """

    def __init__(
        self,
        committer: Committer,
        hand_over: Callable[[HandOverPlan], Awaitable[Mapping[int, str]]],
        clock: Clock,
        patience_ms: int,
    ) -> None:
        """Take what to watch.

        Args:
            committer: Has the open attempt.
            hand_over: Hands a plan over; returns ``{partition: why not}``.
            clock: Tells how long it takes.
            patience_ms: How long an attempt is left alone, each time.
        """
        self._committer = committer
        self._hand_over = hand_over
        self._clock = clock
        self._patience_ns = patience_ms * 1_000_000
        self._awaited: HandOverPlan | None = None
        self._repeat_at_ns = 0

    async def look(self) -> None:
        """Look once; repeat the hand-over if the same attempt has been open for long."""
        plan, now_ns = self._committer.open_plan, self._clock.monotonic_ns()
        if plan is not self._awaited:
            self._awaited, self._repeat_at_ns = plan, now_ns + self._patience_ns
        if plan is None or now_ns < self._repeat_at_ns:
            return
        self._repeat_at_ns = now_ns + self._patience_ns
        logger.warning("commit takes long, its versions are submitted again: batch=%d", plan.batch)
        try:
            errors = await self._hand_over(plan)
        except (StateBackupError, PySparkException, Py4JError, OSError) as exc:
            logger.warning("versions could not be submitted again: error=%s", exc)
            return
        lost = [p for p, error in errors.items() if error.startswith(VERSION_NOT_HERE)]
        await self._committer.void_if_lost({p: plan.versions[p] for p in lost})
