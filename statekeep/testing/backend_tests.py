"""The conformance kit for state backends: subclass `StateBackendTests` and fill in its hooks.

``docs/how-to/write-a-backend.md`` shows how. The tests drive a backend as a container does
(`statekeep.testing.backend_harness`), and look at its storage through hooks that must not use the
code under test.
"""
# ruff: noqa: D102  # the tests' names are sentences that say it

import asyncio
from collections.abc import Mapping

import pytest

from statekeep.backends.base import BlockingExecutor, StateBackendFactory
from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.job_log import PositionTakenError
from statekeep.testing.backend_clean_up_tests import CleanUpTests, CrashTests
from statekeep.testing.backend_hooks import StateBackendHooks
from statekeep.testing.backend_restore_tests import DistrustTests, RestoreTests
from statekeep.testing.clock import FakeClock


class JobLogTests(StateBackendHooks):
    """The job log and the checkpoints, where a backend holds them."""

    @pytest.mark.asyncio
    async def test_of_racing_appends_one_wins_and_all_readers_see_it(
        self, factory: StateBackendFactory, executor: BlockingExecutor, clock: FakeClock
    ) -> None:
        if not factory.properties.can_hold_job_log:
            pytest.skip("can_hold_job_log is false")
        logs = [factory.job_log("kit-job", executor, clock) for _ in range(8)]
        for log in logs:
            await log.probe()
        results = await asyncio.gather(
            *(log.append(0, b"from %d" % index) for index, log in enumerate(logs)),
            return_exceptions=True,
        )
        losers = [result for result in results if result is not None]
        assert [type(loser) for loser in losers] == [PositionTakenError] * 7
        winner = results.index(None)
        for log in logs:
            assert list(await log.read(0)) == [(0, b"from %d" % winner)]
            await log.close()

    @pytest.mark.asyncio
    async def test_checkpoints_of_an_attempt_are_gathered_and_deleted(
        self, factory: StateBackendFactory, executor: BlockingExecutor, clock: FakeClock
    ) -> None:
        if not factory.properties.can_hold_job_log:
            pytest.skip("can_hold_job_log is false")
        store = factory.checkpoint_store("kit-job", executor, clock)
        entries = {TaskName(f"Partition {number}"): b"%d" % number for number in (0, 1, 10)}
        for task_name, data in entries.items():
            await store.write("1-2", task_name, data)
        await store.write("1-20", TaskName("Partition 0"), b"other")
        gathered: Mapping[TaskName, bytes] = await store.read("1-2")
        assert dict(gathered) == entries
        await store.delete("1-2")
        assert not await store.read("1-2")
        assert dict(await store.read("1-20")) == {TaskName("Partition 0"): b"other"}
        await store.close()


class StateBackendTests(RestoreTests, DistrustTests, CrashTests, CleanUpTests, JobLogTests):
    """What every state backend promises.

    A test that a backend's `BackendProperties` rule out is skipped, with the property as reason.
    """
