"""Faults put on purpose between a backend and its storage."""

import asyncio
import fnmatch
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeVar

from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.storage.memory import MemoryBlobStoreManager
from statekeep.backends.wrappers import WrappedBlobStoreManager
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.errors import RetriableError

T = TypeVar("T")

Moment = Literal["before", "after"]
"""``after``: the operation took effect and its answer was lost."""


def throttled() -> Exception:
    """Return the error of a service that answers later."""
    return RetriableError("throttled on purpose")


@dataclass(slots=True)
class Fault:
    """Makes some operations fail."""

    operation: str
    """Name of a `BlobStoreManager` method, such as ``put``, or ``*``."""
    pattern: str = "*"
    """Of the blob's name or prefix, as in a shell: ``*snapshot-index*``."""
    times: int = 1
    """How many matching calls fail; -1: all."""
    skip: int = 0
    """How many matching calls go well before."""
    moment: Moment = "before"
    make_error: Callable[[], BaseException] = throttled
    """Draws the error; `asyncio.CancelledError` counts as a kill."""

    def strikes(self, operation: str, subject: str) -> bool:
        """Return whether this call fails, and count it."""
        is_match = fnmatch.fnmatchcase(operation, self.operation) and fnmatch.fnmatchcase(
            subject, self.pattern
        )
        if not is_match or self.times == 0:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True


@dataclass(slots=True)
class FaultPlan:
    """The faults of one test; shared by every manager of a factory.

    Attributes:
        calls: (operation, blob or prefix) of every call, failed ones included.
    """

    faults: list[Fault] = field(default_factory=list[Fault])
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def add(self, fault: Fault) -> None:
        """Arm one more fault."""
        self.faults.append(fault)

    def clear(self) -> None:
        """Disarm all faults."""
        self.faults.clear()

    def called(self, operation: str) -> Sequence[str]:
        """Return the blobs or prefixes of the calls of one operation."""
        return [subject for name, subject in self.calls if name == operation]

    def due(self, operation: str, subject: str, moment: Moment) -> BaseException | None:
        """Return the error to raise now, if any."""
        for fault in self.faults:
            if fault.moment == moment and fault.strikes(operation, subject):
                return fault.make_error()
        return None


class FaultyBlobStoreManager(WrappedBlobStoreManager):
    """Passes operations on, but for those that a `FaultPlan` strikes."""

    def __init__(self, inner: BlobStoreManager, plan: FaultPlan) -> None:
        super().__init__(inner)
        self._plan = plan

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        self._plan.calls.append((operation, subject))
        await asyncio.sleep(0)
        self._raise_due(operation, subject, "before")
        result = await call()
        self._raise_due(operation, subject, "after")
        return result

    def _raise_due(self, operation: str, subject: str, moment: Moment) -> None:
        error = self._plan.due(operation, subject, moment)
        if error is not None:
            raise error


def faulty_blob_factory(
    root: str, plan: FaultPlan, settings: Mapping[str, str] = MappingProxyType({})
) -> BlobBackendFactory:
    """Build a blob backend named ``blob`` on blobs in memory that fail as planned.

    Args:
        root: Backends of one root see the same blobs; dropped by
            `statekeep.backends.storage.memory.forget_root`.
        plan: What fails.
        settings: Of the backend, such as its retry policy.
    """

    def make_manager(settings: Mapping[str, str], executor: BlockingExecutor) -> BlobStoreManager:
        return FaultyBlobStoreManager(MemoryBlobStoreManager(settings["uri"], executor), plan)

    merged = {"uri": root, **settings}
    return BlobBackendFactory(BackendName("blob"), merged, make_manager=make_manager)
