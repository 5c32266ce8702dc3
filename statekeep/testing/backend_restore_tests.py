"""Conformance kit, first part: what is backed up is restored, and damage is never accepted."""
# ruff: noqa: D102  # the tests' names are sentences that say it

import json
from pathlib import Path

import pytest

from statekeep.backends.base import BlockingExecutor, StateBackendFactory
from statekeep.checkpoint.checkpoints import CheckpointV2, Marker, StoreName
from statekeep.errors import BlobNotFoundError, CheckpointCorruptError, VersionDamagedError
from statekeep.testing.backend_harness import STORE, BackendHarness, Commit
from statekeep.testing.backend_hooks import FIRST, NOTHING, SECOND, THIRD, StateBackendHooks
from statekeep.testing.clock import FakeClock
from statekeep.testing.sealed_files import StoreContent


class RestoreTests(StateBackendHooks):
    """Backup and restore when nothing fails."""

    @pytest.mark.asyncio
    async def test_restore_gives_back_every_file_and_directory(self, task: BackendHarness) -> None:
        commit = await task.commit(task.seal(FIRST))
        assert (await task.restore(commit.checkpoint)).content == {STORE: FIRST}

    @pytest.mark.asyncio
    async def test_each_retained_commit_restores_its_own_state(self, task: BackendHarness) -> None:
        contents = (FIRST, SECOND, THIRD, NOTHING, FIRST)
        commits = [await task.commit(task.seal(content)) for content in contents]
        for commit, content in zip(commits, contents, strict=True):
            assert (await task.restore(commit.checkpoint)).content == {STORE: content}

    @pytest.mark.asyncio
    async def test_a_file_that_changed_under_its_name_and_size_is_backed_up_anew(
        self, task: BackendHarness
    ) -> None:
        name = "deep/er/000002.sst"
        changed = {**FIRST, name: bytes(reversed(FIRST[name]))}
        first = await task.commit(task.seal(FIRST))
        second = await task.commit(task.seal(changed))
        assert (await task.restore(first.checkpoint)).content == {STORE: FIRST}
        assert (await task.restore(second.checkpoint)).content == {STORE: changed}

    @pytest.mark.asyncio
    async def test_what_is_stored_is_what_was_sealed(
        self, task: BackendHarness, factory: StateBackendFactory
    ) -> None:
        commit = await task.commit(task.seal(FIRST))
        files = {path: data for path, data in FIRST.items() if not path.endswith("/")}
        stored = self.read_back(factory, commit.markers[STORE])
        assert {path: data for path, data in stored.items() if not path.endswith("/")} == files

    @pytest.mark.asyncio
    async def test_an_upload_reports_how_many_bytes_it_has_sent(self, task: BackendHarness) -> None:
        await task.commit(task.seal(FIRST))
        assert sum(task.sent_bytes) > 0

    @pytest.mark.asyncio
    async def test_a_snapshot_reports_the_bytes_of_a_full_upload_before_it_begins(
        self, task: BackendHarness
    ) -> None:
        context = task.open_attempt(task.seal(FIRST))
        snapshot = task.manager.snapshot(context.checkpoint_id)
        files = [entry.size for entry in context.version.store_files(STORE)]
        assert (snapshot.bytes, snapshot.stores[STORE].files) == (sum(files), len(files))

    @pytest.mark.asyncio
    async def test_a_version_sealed_after_the_snapshot_is_not_in_the_upload(
        self, task: BackendHarness
    ) -> None:
        context = task.open_attempt(task.seal(FIRST))
        snapshot = task.manager.snapshot(context.checkpoint_id)
        task.seal(SECOND)
        markers = await task.manager.upload(context.checkpoint_id, snapshot)
        commit = task.record(context, markers)
        assert (await task.restore(commit.checkpoint)).content == {STORE: FIRST}

    @pytest.mark.asyncio
    async def test_uploading_the_same_snapshot_again_restores_the_same_state(
        self, task: BackendHarness
    ) -> None:
        await task.commit(task.seal(FIRST))
        context = task.open_attempt(task.seal(SECOND))
        first, second = await task.upload(context), await task.upload(context)
        for markers in (first, second):
            checkpoint = task.record(context, markers).checkpoint
            assert (await task.restore(checkpoint)).content == {STORE: SECOND}

    @pytest.mark.asyncio
    async def test_a_marker_is_good_after_json_in_another_process(
        self, task: BackendHarness, tmp_path: Path
    ) -> None:
        commit = await task.commit(task.seal(FIRST))
        written = json.dumps(commit.checkpoint.state_markers)
        checkpoint = CheckpointV2(commit.checkpoint.checkpoint_id, {}, json.loads(written))
        other = self.make_factory(tmp_path / "place")
        restored = await task.restore(checkpoint, factory=other)
        assert restored.content == {STORE: FIRST}

    @pytest.mark.asyncio
    @pytest.mark.usefixtures("task")
    async def test_several_stores_are_backed_up_and_restored_apart(
        self,
        factory: StateBackendFactory,
        executor: BlockingExecutor,
        clock: FakeClock,
        tmp_path: Path,
    ) -> None:
        names = (StoreName("s1"), StoreName("s 2/odd"))
        two = self.harness(factory, executor, clock, tmp_path / "two", stores=names)
        await two.start()
        content = {names[0]: FIRST, names[1]: SECOND}
        commit = await two.commit(two.seal(content))
        assert (await two.restore(commit.checkpoint)).content == content
        await two.close()

    @pytest.mark.asyncio
    async def test_progress_adds_up_to_what_was_announced(self, task: BackendHarness) -> None:
        commit = await task.commit(task.seal(FIRST))
        restored = await task.restore(commit.checkpoint)
        assert restored.total_bytes == restored.fetched_bytes == sum(map(len, FIRST.values()))

    @pytest.mark.asyncio
    async def test_a_restore_does_not_mix_with_what_is_there(self, task: BackendHarness) -> None:
        commit = await task.commit(task.seal(FIRST))
        first = await task.restore(commit.checkpoint)
        first.directories[STORE].joinpath("uncommitted").write_bytes(b"x")
        assert (await task.restore(commit.checkpoint)).content == {STORE: FIRST}


class DistrustTests(StateBackendHooks):
    """What must not be accepted."""

    @pytest.mark.asyncio
    async def test_damage_of_anything_stored_is_found_before_use(
        self, task: BackendHarness, factory: StateBackendFactory
    ) -> None:
        commit = await task.commit(task.seal(FIRST))
        for name in sorted(self.reached(factory, commit.markers[STORE])):
            self.damage(factory, name)
            with pytest.raises(CheckpointCorruptError):
                await task.restore(commit.checkpoint)
            self.damage(factory, name)
        assert (await task.restore(commit.checkpoint)).content == {STORE: FIRST}

    @pytest.mark.asyncio
    async def test_a_loss_of_anything_stored_is_found(
        self, task: BackendHarness, factory: StateBackendFactory
    ) -> None:
        commit = await task.commit(task.seal(FIRST))
        names = sorted(self.reached(factory, commit.markers[STORE]))
        for index in range(len(names)):
            commit = await self._commit_in_full(task, FIRST)
            name = sorted(self.reached(factory, commit.markers[STORE]))[index]
            self.remove(factory, name)
            with pytest.raises((BlobNotFoundError, CheckpointCorruptError)):
                await task.restore(commit.checkpoint)

    async def _commit_in_full(self, task: BackendHarness, content: StoreContent) -> Commit:
        """Commit without a base that could be built on."""
        task.commits.clear()
        return await task.commit(task.seal(content))

    @pytest.mark.asyncio
    @pytest.mark.parametrize(
        "marker", ["", "nothing", "kit-job/s1/nothing-here", "9999:unknown-version"]
    )
    async def test_a_marker_that_the_backend_never_made_is_refused(
        self, task: BackendHarness, factory: StateBackendFactory, marker: str
    ) -> None:
        commit = await task.commit(task.seal(FIRST))
        markers = {factory.name: {STORE: Marker(marker)}}
        unknown = CheckpointV2(commit.checkpoint.checkpoint_id, {}, markers)
        with pytest.raises((BlobNotFoundError, CheckpointCorruptError)):
            await task.restore(unknown)

    @pytest.mark.asyncio
    async def test_a_checkpoint_without_a_marker_is_refused_and_not_restored_as_empty(
        self, task: BackendHarness
    ) -> None:
        commit = await task.commit(task.seal(FIRST))
        with pytest.raises((BlobNotFoundError, CheckpointCorruptError)):
            await task.restore(CheckpointV2(commit.checkpoint.checkpoint_id, {}, {}))

    @pytest.mark.asyncio
    async def test_a_damaged_local_version_does_not_become_a_backup(
        self, task: BackendHarness
    ) -> None:
        version = task.seal(FIRST)
        version.store_directory(STORE).joinpath("000001.sst").write_bytes(b"FIRST" * 1000)
        with pytest.raises(VersionDamagedError):
            await task.commit(version)

    @pytest.mark.asyncio
    async def test_a_lost_base_makes_the_next_upload_full(
        self, task: BackendHarness, factory: StateBackendFactory
    ) -> None:
        first = await task.commit(task.seal(FIRST))
        self.remove(factory, first.markers[STORE])
        second = await task.commit(task.seal(SECOND))
        assert (await task.restore(second.checkpoint)).content == {STORE: SECOND}

    @pytest.mark.asyncio
    async def test_a_base_of_another_lineage_is_not_built_on(
        self, task: BackendHarness, factory: StateBackendFactory
    ) -> None:
        root = task.seal(FIRST)
        first = await task.commit(task.seal(SECOND, parent=root))
        second = await task.commit(task.seal(SECOND, parent=root))
        shared = self.reached(factory, first.markers[STORE]) & self.reached(
            factory, second.markers[STORE]
        )
        assert not shared
        assert (await task.restore(second.checkpoint)).content == {STORE: SECOND}
