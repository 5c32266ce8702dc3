"""Memory for the parts of blobs: bounded, and used again by the next part."""

import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from statekeep.backends.pacing import ByteBudget


class PartBuffers:
    """Buffers of one size, never more than there are holders of a share of a budget.

    Memory that was just used is in the processor's caches and mapped; new memory costs the system a
    page at a time, which for large parts is more than their transfer. `hold` is for the event loop,
    `take` and `give_back` for any thread.
    """

    def __init__(self, budget: ByteBudget, part_bytes: int) -> None:
        """Hold nothing yet.

        Args:
            budget: Of the container, which others share.
            part_bytes: Size of the buffers.
        """
        self._budget = budget
        self._part_bytes = part_bytes
        self._changing = threading.Lock()
        self._idle: list[bytearray] = []
        self._taken_count = 0
        self._holder_count = 0

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncGenerator[None]:
        """Hold ``size`` bytes of the budget for the length of the block; one buffer may be taken."""
        async with self._budget.hold(size):
            with self._changing:
                self._holder_count += 1
            try:
                yield
            finally:
                with self._changing:
                    self._holder_count -= 1
                    self._drop_surplus()

    def take(self) -> bytearray:
        """Return a buffer with anything in it."""
        with self._changing:
            self._taken_count += 1
            if self._idle:
                return self._idle.pop()
        return bytearray(self._part_bytes)

    def give_back(self, buffer: bytearray) -> None:
        """Let others have a buffer that nobody reads or writes any more."""
        with self._changing:
            self._taken_count -= 1
            self._idle.append(buffer)
            self._drop_surplus()

    def _drop_surplus(self) -> None:
        while self._idle and len(self._idle) + self._taken_count > self._holder_count:
            self._idle.pop()
