"""A blob backend that can be cut off, and a clock that waits until it is moved."""

import asyncio
from collections.abc import Mapping
from typing import Final

from typing_extensions import override

from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.storage.memory import MemoryBlobStoreManager
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.testing.clock import FakeClock
from statekeep.testing.faults import Fault, FaultPlan, FaultyBlobStoreManager

_plans: Final[dict[str, FaultPlan]] = {}


def plan_of(uri: str) -> FaultPlan:
    """Return what fails in one place; shared by test and backend."""
    return _plans.setdefault(uri, FaultPlan())


def cut_off(uri: str) -> None:
    """Let no call to a place be answered, until its plan is cleared."""
    plan_of(uri).add(Fault("*", times=-1))


class OutageBackendFactory(BlobBackendFactory):
    """The blob backend with its usual timeouts, on blobs in memory that can be cut off."""

    def __init__(self, name: BackendName, settings: Mapping[str, str]) -> None:
        super().__init__(
            name,
            settings,
            make_manager=lambda given, executor: FaultyBlobStoreManager(
                MemoryBlobStoreManager(given["uri"], executor), plan_of(given["uri"])
            ),
        )


class WaitingClock(FakeClock):
    """A clock whose sleepers sleep until `pass_time` has come to their moment."""

    def __init__(self) -> None:
        super().__init__()
        self._sleepers: list[tuple[int, asyncio.Event]] = []

    @property
    def sleeper_count(self) -> int:
        """How many wait for a moment to come."""
        return len(self._sleepers)

    @override
    async def sleep(self, seconds: float) -> None:
        """Wait until so much time has passed; nothing lets it pass but `pass_time`."""
        self.slept.append(seconds)
        sleeper = (self.monotonic_ns() + round(seconds * 1e9), asyncio.Event())
        self._sleepers.append(sleeper)
        try:
            await sleeper[1].wait()
        finally:
            self._sleepers.remove(sleeper)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and wake sleepers whose time is over."""
        self.advance(seconds)
        for moment, event in self._sleepers:
            if moment <= self.monotonic_ns():
                event.set()
