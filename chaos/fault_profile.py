"""Bad days of a place, as a wrapper around its client: slow, flapping, down, or losing answers."""

import asyncio
import random
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final, TypeVar

from typing_extensions import override

from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.wrappers import WrappedBlobStoreManager
from statekeep.errors import RetriableError

T = TypeVar("T")

LOST_ANSWERS: Final = 0.15
"""Of all, in the lossy profile."""


class FaultProfile(StrEnum):
    """How a place behaves for a while."""

    FAIR = "fair"
    SLOW = "slow"
    """Every call takes longer."""
    FLAPPING = "flapping"
    """Some calls go well, the next ones fail, and so on."""
    OUTAGE = "outage"
    """All calls fail, until retries are used up."""
    LOSSY = "lossy"
    """Some calls take effect and answer an error: a put that landed."""
    THROTTLED = "throttled"
    """Some requests are put off: the server asks for fewer."""


class FaultyManager(WrappedBlobStoreManager):
    """Passes calls on as the fault profile allows."""

    def __init__(self, inner: BlobStoreManager, draw: random.Random, *, slowest_s: float) -> None:
        """Wrap a client.

        Args:
            inner: The client.
            draw: Decides what happens to a call.
            slowest_s: How much longer a call may take in the slow profile.
        """
        super().__init__(inner)
        self._draw = draw
        self._slowest_s = slowest_s
        self._calls = 0
        self._period = draw.randrange(2, 9)

    @abstractmethod
    def profile_now(self) -> FaultProfile:
        """Return what the next call meets."""

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        self._calls += 1
        profile = self.profile_now()
        match profile:
            case FaultProfile.SLOW:
                await asyncio.sleep(self._draw.random() * self._slowest_s)
            case FaultProfile.FLAPPING if self._calls // self._period % 2:
                raise RetriableError(f"flapping on purpose: operation={operation}")
            case FaultProfile.OUTAGE:
                raise RetriableError(f"down on purpose: operation={operation}")
            case _:
                pass
        result = await call()
        if profile is FaultProfile.LOSSY and self._draw.random() < LOST_ANSWERS:
            raise RetriableError(f"answer lost on purpose: operation={operation} blob={subject}")
        return result
