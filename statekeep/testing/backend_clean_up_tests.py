"""Conformance kit, second part: crashes, cancels, and deleting no more and no less than garbage."""
# ruff: noqa: D102  # the tests' names are sentences that say it

import asyncio
import threading
from pathlib import Path

import pytest

from statekeep.backends.base import BlockingExecutor, StateBackendFactory
from statekeep.errors import BackendClosedError
from statekeep.testing.backend_harness import STORE, BackendHarness
from statekeep.testing.backend_hooks import FIRST, NOTHING, SECOND, THIRD, StateBackendHooks
from statekeep.testing.clock import FakeClock


class CrashTests(StateBackendHooks):
    """Uploads and restores that end early, and managers that are closed."""

    @pytest.mark.asyncio
    @pytest.mark.parametrize("steps", [1, 2, 3, 5, 8, 13, 21])
    async def test_a_cancelled_upload_harms_no_commit_and_the_next_upload_succeeds(
        self, task: BackendHarness, factory: StateBackendFactory, steps: int
    ) -> None:
        first = await task.commit(task.seal(FIRST))
        context = task.open_attempt(task.seal(SECOND))
        upload = asyncio.create_task(task.upload(context))
        for _ in range(steps):
            await asyncio.sleep(0)
        upload.cancel()
        await asyncio.wait([upload])
        task.abort(context)
        assert (await task.restore(first.checkpoint)).content == {STORE: FIRST}
        second = await task.commit(task.seal(SECOND))
        assert (await task.restore(second.checkpoint)).content == {STORE: SECOND}
        await task.clean_up()
        self.check_ledger(factory, task)

    @pytest.mark.asyncio
    @pytest.mark.parametrize("steps", [1, 3, 9])
    async def test_a_cancelled_restore_can_be_begun_anew(
        self, task: BackendHarness, steps: int
    ) -> None:
        commit = await task.commit(task.seal(FIRST))
        restore = asyncio.create_task(task.restore(commit.checkpoint))
        for _ in range(steps):
            await asyncio.sleep(0)
        restore.cancel()
        await asyncio.wait([restore])
        assert (await task.restore(commit.checkpoint)).content == {STORE: FIRST}

    @pytest.mark.asyncio
    async def test_nothing_is_left_running_after_close(self, task: BackendHarness) -> None:
        threads = set(threading.enumerate())
        commit = await task.commit(task.seal(FIRST))
        await task.restore(commit.checkpoint)
        await task.close()
        await task.close()
        assert set(threading.enumerate()) <= threads
        assert asyncio.all_tasks() == {asyncio.current_task()}

    @pytest.mark.asyncio
    async def test_use_after_close_is_refused(self, task: BackendHarness) -> None:
        context = task.open_attempt(task.seal(FIRST))
        await task.close()
        with pytest.raises(BackendClosedError):
            await task.upload(context)


class CleanUpTests(StateBackendHooks):
    """Clean-up by R8."""

    @pytest.mark.asyncio
    async def test_clean_up_leaves_exactly_what_retained_commits_reach(
        self, task: BackendHarness, factory: StateBackendFactory
    ) -> None:
        for content in (FIRST, SECOND, THIRD, SECOND, NOTHING, FIRST):
            failed = task.open_attempt(task.seal(content))
            await task.upload(failed)
            task.abort(failed)
            await task.commit(task.seal(content))
            if len(task.commits) > 2:
                task.release(task.commits[0])
            await task.clean_up()
            self.check_ledger(factory, task)

    @pytest.mark.asyncio
    async def test_clean_up_twice_is_clean_up_once(
        self, task: BackendHarness, factory: StateBackendFactory
    ) -> None:
        for content in (FIRST, SECOND):
            await task.commit(task.seal(content))
        task.release(task.commits[0])
        await task.clean_up()
        await task.clean_up()
        self.check_ledger(factory, task)
        assert (await task.restore(task.commits[0].checkpoint)).content == {STORE: SECOND}

    @pytest.mark.asyncio
    async def test_clean_up_leaves_an_attempt_that_is_still_open_alone(
        self, task: BackendHarness
    ) -> None:
        await task.commit(task.seal(FIRST))
        context = task.open_attempt(task.seal(SECOND))
        markers = await task.upload(context)
        await task.clean_up()
        commit = task.record(context, markers)
        assert (await task.restore(commit.checkpoint)).content == {STORE: SECOND}

    @pytest.mark.asyncio
    async def test_what_a_retained_marker_reaches_stays_though_its_attempt_is_closed(
        self, task: BackendHarness
    ) -> None:
        commits = [await task.commit(task.seal(content)) for content in (FIRST, SECOND)]
        known = task.log_snapshot()
        await task.manager.clean_up(known.retained, [commit.attempt for commit in commits])
        for commit, content in zip(commits, (FIRST, SECOND), strict=True):
            assert (await task.restore(commit.checkpoint)).content == {STORE: content}

    @pytest.mark.asyncio
    async def test_a_clean_up_that_slept_deletes_nothing_that_later_commits_reach(
        self, task: BackendHarness, factory: StateBackendFactory
    ) -> None:
        contents = (FIRST, SECOND, FIRST, SECOND, THIRD, SECOND, FIRST, FIRST)
        sleepers = [task.log_snapshot()]
        for content in contents:
            await task.commit(task.seal(content))
            if len(task.commits) > 2:
                task.release(task.commits[0])
            sleepers.append(task.log_snapshot())
        retained = list(zip(task.commits, contents[-2:], strict=True))
        lost = {m for known in sleepers for ms in known.retained for m in ms.values()}
        assert len(lost) == len(contents)
        for known in sleepers:
            await task.clean_up(known)
            for commit, content in retained:
                assert (await task.restore(commit.checkpoint)).content == {STORE: content}
        self.check_ledger(factory, task)

    @pytest.mark.asyncio
    async def test_a_clean_up_of_a_log_that_was_reset_leaves_the_new_logs_backups_alone(
        self,
        task: BackendHarness,
        factory: StateBackendFactory,
        executor: BlockingExecutor,
        clock: FakeClock,
        tmp_path: Path,
    ) -> None:
        zombie = self.harness(factory, executor, clock, tmp_path / "old", job_uid="90bc")
        await zombie.start()
        old = await zombie.commit(zombie.seal(FIRST))
        new = await task.commit(task.seal(SECOND))
        assert old.attempt == new.attempt
        await zombie.manager.clean_up([], [old.attempt])
        assert (await task.restore(new.checkpoint)).content == {STORE: SECOND}
        self.check_ledger(factory, task)
        await zombie.close()

    @pytest.mark.asyncio
    async def test_tasks_side_by_side_do_not_touch_each_other(
        self,
        task: BackendHarness,
        factory: StateBackendFactory,
        executor: BlockingExecutor,
        clock: FakeClock,
        tmp_path: Path,
    ) -> None:
        others = [
            self.harness(factory, executor, clock, tmp_path / "local", task_name=name)
            for name in ("Partition 1", "Partition 10")
        ]
        tasks = [task, *others]
        for other in others:
            await other.start()
        for content in (FIRST, SECOND):
            await asyncio.gather(*(each.commit(each.seal(content)) for each in tasks))
        task.release(task.commits[0])
        await task.clean_up()
        for other in others:
            for commit, content in zip(other.commits, (FIRST, SECOND), strict=True):
                assert (await other.restore(commit.checkpoint)).content == {STORE: content}
        self.check_ledger(factory, *tasks)
        for other in others:
            await other.close()
