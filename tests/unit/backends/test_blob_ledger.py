"""The ledger: whatever happens, the place holds exactly the blobs of the retained commits."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from unittest.mock import patch

import pytest
from encoded_kit import KEY_LINE
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from increments_kit import IncrementJob, folded, named_blobs
from typing_extensions import override

from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.storage.memory import MemoryBlobStoreManager, forget_root
from statekeep.checkpoint.checkpoints import Marker, StoreName
from statekeep.errors import BlobNotFoundError
from statekeep.stores.version import SealedVersion
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.faults import Fault, throttled
from statekeep.testing.storage import bare_manager

T = TypeVar("T")

KEYS = st.sampled_from([b"%02d" % number for number in range(30)])
CHANGES = st.dictionaries(KEYS, st.none() | st.binary(max_size=200), max_size=12)
LARGE = {b"large-%02d" % number: b"v" * 100 for number in range(50)}
OPERATIONS = st.sampled_from(["put", "get", "list", "delete", "remove_ttl", "*"])
MOMENTS = st.sampled_from(["before", "after"])
ENDINGS = st.sampled_from([SystemError, asyncio.CancelledError])
"""An unexpected error, and the end of the process."""
ENCRYPTED = {
    "compression": "zstd",
    "encryption": "aes-256-gcm",
    "encryption.keys": "env:STATEKEEP_LEDGER_KEYS",
}
FORMS = st.sampled_from(
    [{}, {"pack.max.file.bytes": "0"}, {"pack.max.file.bytes": "100"}, ENCRYPTED]
)
SLOW = [HealthCheck.too_slow]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
Known = tuple[list[Mapping[StoreName, Marker]], list[tuple[int, int]]]


class Ledger(RuleBasedStateMachine):
    """One task through commits that succeed, fail and crash, and clean-ups that do or sleep.

    Keeps to the rules that the contract of clean-up rests on: one attempt is open at a time, its
    base is the newest commit, and that one is never released.
    """

    is_on_disk: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._exits = contextlib.ExitStack()
        self._loop = asyncio.new_event_loop()
        self._exits.callback(self._loop.close)
        self._root = Path(tempfile.mkdtemp())
        self._exits.callback(shutil.rmtree, self._root)
        self._exits.callback(forget_root, str(self._root))
        self._exits.enter_context(
            patch("statekeep.backends.blob.settings._FREE_DELTA_BYTES", 4_000)
        )
        self._exits.enter_context(patch.dict(os.environ, {"STATEKEEP_LEDGER_KEYS": KEY_LINE}))
        self._head: SealedVersion | None = None
        self._content: Mapping[bytes, bytes] = {}
        self._contents: dict[Marker, Mapping[bytes, bytes]] = {}
        self._pinned: set[Marker] = set()
        self._sleepers: list[Known] = []

    @initialize(form=FORMS)
    def begin(self, form: Mapping[str, str]) -> None:
        self._job = IncrementJob(
            self._root, settings={"snapshot.max.deltas": "3", **form}, make_blobs=self._place
        )
        self._run(self._job.blobs.init())
        self._run(self._job.manager.init())
        self.commit(LARGE)  # else the files of a commit are smaller than its changes

    @rule(changes=CHANGES)
    def commit(self, changes: Mapping[bytes, bytes | None]) -> None:
        made = self._run(self._job.commit(self._seal(changes)))
        self._contents[made.marker] = self._content

    @rule(first=CHANGES, second=CHANGES, third=CHANGES, keep=st.integers(2, 3))
    def commits_in_a_row(
        self,
        first: Mapping[bytes, bytes | None],
        second: Mapping[bytes, bytes | None],
        third: Mapping[bytes, bytes | None],
        keep: int,
    ) -> None:
        for changes in (first, second, third):
            self.commit(changes)
        self.release(keep)

    @rule(changes=CHANGES)
    def seal_without_a_commit(self, changes: Mapping[bytes, bytes | None]) -> None:
        self._seal(changes)

    @rule(
        changes=CHANGES,
        operation=OPERATIONS,
        moment=MOMENTS,
        skip=st.integers(0, 6),
        ending=ENDINGS,
    )
    def commit_that_fails(
        self,
        changes: Mapping[bytes, bytes | None],
        operation: str,
        moment: Any,
        skip: int,
        ending: type[BaseException],
    ) -> None:
        attempt = self._job.open_attempt(self._seal(changes))
        self._job.plan.add(Fault(operation, skip=skip, moment=moment, make_error=ending))
        with contextlib.suppress(SystemError, asyncio.CancelledError):
            self._run(
                self._job.manager.upload(
                    attempt.checkpoint_id, self._job.manager.snapshot(attempt.checkpoint_id)
                )
            )
        self._job.plan.clear()
        # Also one whose upload went well: the process ended before the commit record.
        self._job.closed.append((1, attempt.attempt))

    @rule(changes=CHANGES, operation=OPERATIONS, skip=st.integers(0, 6))
    def commit_with_a_lost_answer(
        self, changes: Mapping[bytes, bytes | None], operation: str, skip: int
    ) -> None:
        self._job.plan.add(
            Fault(operation, times=2, skip=skip, moment="after", make_error=throttled)
        )
        self.commit(changes)
        self._job.plan.clear()

    @precondition(lambda self: bool(self._job.commits))
    @rule(number=st.integers(0, 100))
    def rewind(self, number: int) -> None:
        made = self._job.commits[number % len(self._job.commits)]
        self._head, self._content = made.version, self._contents[made.marker]

    @rule()
    def start_anew_elsewhere(self) -> None:
        self._run(self._job.manager.close())
        self._job.manager = self._job.new_manager()
        self._run(self._job.manager.init())

    @precondition(lambda self: bool(self._job.commits))
    @rule(number=st.integers(0, 100))
    def pin_or_unpin(self, number: int) -> None:
        self._pinned ^= {self._job.commits[number % len(self._job.commits)].marker}

    @rule(keep=st.integers(2, 4))
    def release(self, keep: int) -> None:
        for made in self._job.commits[:-keep]:
            if made.marker not in self._pinned:
                self._job.release(self._job.commits.index(made))

    @precondition(lambda self: bool(self._job.closed))
    @rule(changes=CHANGES)
    def sleep_through_a_commit_and_clean_up(self, changes: Mapping[bytes, bytes | None]) -> None:
        self.fall_asleep_before_a_clean_up()
        self.commit(changes)
        self.wake(len(self._sleepers) - 1)

    @rule()
    def clean_up(self) -> None:
        self._run(self._job.clean_up())

    @rule(operation=OPERATIONS, moment=MOMENTS, skip=st.integers(0, 8), ending=ENDINGS)
    def clean_up_that_fails(
        self, operation: str, moment: Any, skip: int, ending: type[BaseException]
    ) -> None:
        self._job.plan.add(Fault(operation, skip=skip, moment=moment, make_error=ending))
        with contextlib.suppress(SystemError, asyncio.CancelledError):
            self._run(self._job.clean_up())
        self._job.plan.clear()

    @precondition(lambda self: bool(self._job.closed))
    @rule()
    def fall_asleep_before_a_clean_up(self) -> None:
        retained = [
            made.checkpoint.markers_of(self._job.factory.name) for made in self._job.commits
        ]
        self._sleepers.append((retained, list(self._job.closed)))

    @precondition(lambda self: bool(self._sleepers))
    @rule(number=st.integers(0, 100))
    def wake(self, number: int) -> None:
        retained, closed = self._sleepers[number % len(self._sleepers)]
        with contextlib.suppress(BlobNotFoundError):  # what it would retain was released since
            self._run(self._job.manager.clean_up(retained, closed))

    @invariant()
    def what_retained_commits_reach_is_there(self) -> None:
        if hasattr(self, "_job"):
            stored = set(self._run(self._job.blobs.list("")))
            assert self._reached() <= stored

    @override
    def teardown(self) -> None:
        try:
            if hasattr(self, "_job"):
                self._check_at_the_end()
        finally:
            self._exits.close()

    def _check_at_the_end(self) -> None:
        self._job.closed.append((0, 0))  # a clean-up needs something that is closed
        self._run(self._job.clean_up())
        for made in self._job.commits:
            content, _ = self._run(self._job.restore(made.checkpoint))
            assert content == self._contents[made.marker]
        assert set(self._run(self._job.blobs.list(""))) == self._reached()
        self._run(self._job.manager.close())

    def _reached(self) -> set[str]:
        return self._run(named_blobs(self._job.blobs, (made.marker for made in self._job.commits)))

    def _seal(self, changes: Mapping[bytes, bytes | None]) -> SealedVersion:
        self._head = self._job.seal(self._head, changes)
        self._content = folded(self._content, changes)
        return self._head

    def _place(self) -> BlobStoreManager:
        if self.is_on_disk:
            return bare_manager((self._root / "place").as_uri(), {}, SerialExecutor())
        return MemoryBlobStoreManager(str(self._root), SerialExecutor())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(coroutine)


class LedgerOnDisk(Ledger):
    """The same on a directory, where a put is a file that gets its name by a link."""

    is_on_disk: ClassVar[bool] = True


TestLedgerInMemory = Ledger.TestCase
TestLedgerInMemory.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=SLOW
)
TestLedgerOnDisk = LedgerOnDisk.TestCase
TestLedgerOnDisk.settings = settings(
    max_examples=8, stateful_step_count=20, deadline=None, suppress_health_check=SLOW
)
