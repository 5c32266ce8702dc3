"""What the author of a state backend fills in for the conformance kit."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from statekeep.backends.base import BlockingExecutor, StateBackendFactory
from statekeep.checkpoint.checkpoints import Marker, StoreName
from statekeep.clock import Clock
from statekeep.testing.backend_harness import STORE, BackendHarness
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.key_value_harness import KeyValueHarness
from statekeep.testing.sealed_files import StoreContent

FIRST: Final[StoreContent] = {
    "CURRENT": b"MANIFEST-000001",
    "000001.sst": b"first" * 1000,
    "deep/er/000002.sst": b"nested" * 1000,
    "empty.file": b"",
    "empty dir/": b"",
}
SECOND: Final[StoreContent] = {
    **FIRST,
    "CURRENT": b"MANIFEST-000002",
    "000003.sst": b"second" * 1000,
    "deep/er/000004.sst": b"nested second" * 1000,
}
THIRD: Final[StoreContent] = {
    "CURRENT": b"MANIFEST-000003",
    "000003.sst": SECOND["000003.sst"],
    "000005.sst": b"third" * 1000,
}
NOTHING: Final[StoreContent] = {}


class StateBackendHooks:
    """Hooks and fixtures that the tests of the kit share."""

    # Hooks: not abstract, because pytest would silently not collect a class that lacks one.

    def make_factory(self, place: Path) -> StateBackendFactory:
        """Build a factory; two of one ``place`` see the same backups, as two processes would."""
        raise NotImplementedError

    def read_back(self, factory: StateBackendFactory, marker: Marker) -> StoreContent:
        """Return what a marker's snapshot holds, read without the code under test.

        Empty directories may be left out.
        """
        raise NotImplementedError

    def stored(self, factory: StateBackendFactory) -> set[str]:
        """Return the names of all things that state backups occupy, without the code under test."""
        raise NotImplementedError

    def reached(self, factory: StateBackendFactory, marker: Marker) -> set[str]:
        """Return those of `stored` that a restore from ``marker`` reads."""
        raise NotImplementedError

    def damage(self, factory: StateBackendFactory, name: str) -> None:
        """Flip bits in one of `stored` (one without bytes gets some); a second call undoes it."""
        raise NotImplementedError

    def remove(self, factory: StateBackendFactory, name: str) -> None:
        """Delete one of `stored`."""
        raise NotImplementedError

    def harness(
        self,
        factory: StateBackendFactory,
        executor: BlockingExecutor,
        clock: Clock,
        root: Path,
        *,
        task_name: str = "Partition 0",
        job_uid: str = "77aa",
        stores: Sequence[StoreName] = (STORE,),
    ) -> BackendHarness:
        """Return a task whose versions are made of files, or of keys and values."""
        kind = BackendHarness if factory.properties.needs_files else KeyValueHarness
        return kind(
            factory, executor, clock, root, task_name=task_name, job_uid=job_uid, stores=stores
        )

    # Fixtures: to be overridden where a backend needs others.

    @pytest.fixture
    def factory(self, tmp_path: Path) -> StateBackendFactory:
        """The backend under test."""
        return self.make_factory(tmp_path / "place")

    @pytest.fixture
    def executor(self) -> BlockingExecutor:
        """Where blocking calls go."""
        return SerialExecutor()

    @pytest.fixture
    def clock(self) -> FakeClock:
        """A clock that only tests move."""
        return FakeClock()

    @pytest_asyncio.fixture
    async def task(
        self,
        factory: StateBackendFactory,
        executor: BlockingExecutor,
        clock: FakeClock,
        tmp_path: Path,
    ) -> AsyncIterator[BackendHarness]:
        """One task on the backend."""
        if not (factory.properties.needs_files or factory.properties.needs_changes):
            pytest.skip("the kit is for backends with needs_files or needs_changes")
        harness = self.harness(factory, executor, clock, tmp_path / "local")
        await self._set_up(factory, executor, clock)
        await harness.start()
        yield harness
        await harness.close()

    async def _set_up(
        self, factory: StateBackendFactory, executor: BlockingExecutor, clock: FakeClock
    ) -> None:
        admin = factory.admin(executor, clock)
        await admin.create_resources()
        await admin.validate_resources()
        await admin.close()

    def check_ledger(self, factory: StateBackendFactory, *tasks: BackendHarness) -> None:
        """Check that storage holds exactly what the retained commits reach."""
        markers = [
            marker
            for task in tasks
            for commit in task.commits
            for marker in commit.markers.values()
        ]
        reached: set[str] = set()
        assert self.stored(factory) == reached.union(*(self.reached(factory, m) for m in markers))
