"""An image whose checksums are right, but that its engine cannot open, is damage."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from restore_kit import FIRST, NEW, OLD, SECOND, A, B, Rig, sealed_anew
from typing_extensions import override

from statekeep.backends.base import RestoreContext, TaskRestoreManager
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.memory import MemoryBackendFactory, MemoryRestoreManager, memory_place
from statekeep.commit.pipeline import TaskStorageCommitManager
from statekeep.config.store_settings import StoreFactoryName
from statekeep.errors import CommitFailedError, ConfigError, RestoreFailedError, VersionDamagedError
from statekeep.restore.manager import LOCAL
from statekeep.stores.local_files import clone_image

Spoil = Callable[[Path], None]


def lose(pattern: str) -> Spoil:
    def spoil(image: Path) -> None:
        for path in image.glob(pattern):
            path.unlink()

    return spoil


def flip(pattern: str, offset: int) -> Spoil:
    def spoil(image: Path) -> None:
        path = next(image.glob(pattern))
        data = bytearray(path.read_bytes())
        data[offset] ^= 1
        path.unlink()  # other versions may share it
        path.write_bytes(data)

    return spoil


def cut_manifest(image: Path) -> None:
    """Leave what the manifest of an empty store has: RocksDB opens it without an error."""
    path = next(image.glob("MANIFEST-*"))
    path.write_bytes(path.read_bytes()[:120])


UNREADABLE: Final = {"flipped record": flip("*.sst", 2)}
"""It is opened, and not read."""
UNOPENABLE: Final = {
    "no CURRENT": lose("CURRENT"),
    "no MANIFEST": lose("MANIFEST-*"),
    "no SST": lose("*.sst"),
    "no files": lose("*"),
    "short MANIFEST": cut_manifest,
    "flipped CURRENT": flip("CURRENT", 3),
    "flipped MANIFEST": flip("MANIFEST-*", 30),
    "flipped footer": flip("*.sst", -20),
}


def cases(found: dict[str, Spoil]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("spoil", list(found.values()), ids=list(found))


@pytest.fixture(params=["memory", "blob"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Rig:
    """A task whose images go to backends of two kinds."""
    rig = Rig(tmp_path, "rocksdb")
    if request.param == "blob":
        for name in (FIRST, SECOND):
            rig.factories[name] = BlobBackendFactory(name, {"uri": f"file://{tmp_path}/{name}"})
    return rig


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a commit back up an image without files, as older versions did."""
    monkeypatch.setattr(TaskStorageCommitManager, "_check_images", lambda *_: None)


@pytest.mark.asyncio
async def test_an_image_without_files_is_not_backed_up_as_an_empty_store(rig: Rig) -> None:
    with pytest.raises(CommitFailedError) as caught:
        await rig.commit(b"new", lose("*"))
    assert "no image of stores" in str(caught.value.__cause__)


@pytest.mark.asyncio
@pytest.mark.usefixtures("unchecked")
@cases(UNOPENABLE | UNREADABLE)
async def test_a_backup_that_cannot_be_opened_gives_way_to_an_older_commit(
    rig: Rig, spoil: Spoil
) -> None:
    old = await rig.commit(b"old")
    new = await rig.commit(b"new", spoil)
    rig.lose_disk()
    outcome = await rig.restore(new, old)
    assert (outcome.candidate, rig.content(outcome)) == (old, OLD)
    found = [(failure.backend, failure.store) for failure in outcome.failures]
    assert found == [(FIRST, A), (SECOND, A)]
    assert all(failure.is_marker_bad for failure in outcome.failures)


@pytest.mark.asyncio
@cases({"no SST": lose("*.sst")} | UNREADABLE)
async def test_local_files_of_an_older_version_do_not_hide_a_backup_that_cannot_be_opened(
    rig: Rig, spoil: Spoil
) -> None:
    old = await rig.commit(b"old")
    new = await rig.commit(b"new", spoil)
    rig.directory.retain({rig.versions[0].id}, 99)
    outcome = await rig.restore(new, old)
    assert rig.content(outcome) == OLD


@pytest.mark.asyncio
@cases(UNOPENABLE)
async def test_a_local_version_that_cannot_be_opened_is_fetched_and_replaced(
    rig: Rig, spoil: Spoil
) -> None:
    new = await rig.commit(b"new")
    spoil(rig.versions[0].store_directory(A))
    sealed_anew(rig.versions[0])
    assert LOCAL not in (await rig.restore(new)).sources.values()
    again = await rig.restore(new)
    assert (set(again.sources.values()), again.failures) == ({LOCAL}, ())
    assert rig.content(again) == NEW


@pytest.mark.asyncio
async def test_a_local_version_in_which_a_damaged_block_was_met_is_fetched_at_the_next_start(
    rig: Rig,
) -> None:
    new = await rig.commit(b"new")
    flip("*.sst", 2)(rig.versions[0].store_directory(A))
    version = sealed_anew(rig.versions[0])
    assert set((await rig.restore(new)).sources.values()) == {LOCAL}
    with rig.directory.begin("aa", version, (A, B)) as work:
        store = work.open_store(A, "rocksdb")
        with pytest.raises(VersionDamagedError):
            store.get(b"text")
    outcome = await rig.restore(new)
    assert set(outcome.sources.values()) == {FIRST}
    again = await rig.restore(new)
    assert set(again.sources.values()) == {LOCAL}
    assert rig.content(again) == NEW
    assert not list(rig.directory.root.glob(".suspect"))


@pytest.mark.asyncio
async def test_the_check_of_a_local_version_changes_nothing_in_it_and_leaves_nothing(
    rig: Rig,
) -> None:
    new = await rig.commit(b"new")
    directory = rig.versions[0].directory
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    outcome = await rig.restore(new)
    assert set(outcome.sources.values()) == {LOCAL}
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*")} == before
    assert not list(rig.directory.root.glob("work-*"))


@pytest.mark.asyncio
@pytest.mark.usefixtures("unchecked")
@cases({"no files": lose("*"), "flipped": flip("*", -3)})
async def test_so_it_is_for_stores_in_memory(tmp_path: Path, spoil: Spoil) -> None:
    rig = Rig(tmp_path)
    old = await rig.commit(b"old")
    new = await rig.commit(b"new", spoil)
    rig.lose_disk()
    assert rig.content(await rig.restore(new, old)) == OLD


@pytest.mark.asyncio
async def test_an_image_of_another_engine_is_a_setting_to_mend_and_no_damage(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path)
    new = await rig.commit(b"new")
    rig.lose_disk()
    rig.stores = {name: replace(found, factory="rocksdb") for name, found in rig.stores.items()}
    with pytest.raises(RestoreFailedError) as caught:
        await rig.restore(new)
    assert isinstance(caught.value.__cause__, ConfigError)
    assert caught.value.__cause__.key == "stores.a.factory"
    assert not caught.value.is_for_good


class IdleManager(MemoryRestoreManager):
    """Says that it has restored, and has written nothing."""

    @override
    async def restore(self) -> None:
        pass


class LendingManager(MemoryRestoreManager):
    """Takes what a local version has of store `A`, whatever it is."""

    @override
    async def restore(self) -> None:
        if A not in self._context.directories or not self._context.reusable:
            await super().restore()
        else:
            source = self._context.reusable[0].store_directory(A)
            clone_image(source, self._context.directories[A])


class OtherBackend(MemoryBackendFactory):
    manager: type[MemoryRestoreManager] = IdleManager
    properties = replace(MemoryBackendFactory.properties, needs_files=False)

    @override
    def restore_manager(self, context: RestoreContext) -> TaskRestoreManager:
        return self.manager(context, self.name, memory_place(self.settings["place"]))


@pytest.mark.asyncio
@pytest.mark.parametrize("engine", ["rocksdb", "memory"])
async def test_a_backend_that_leaves_nothing_has_not_restored_an_empty_store(
    tmp_path: Path, engine: StoreFactoryName
) -> None:
    rig = Rig(tmp_path, engine)
    new = await rig.commit(b"new")
    rig.lose_disk()
    rig.factories[FIRST] = OtherBackend(FIRST, {"place": f"{tmp_path}/{FIRST}"})
    outcome = await rig.restore(new)
    assert (set(outcome.sources.values()), rig.content(outcome)) == ({SECOND}, NEW)


@pytest.mark.asyncio
async def test_a_local_version_that_lends_files_of_no_use_is_no_damage_of_the_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OtherBackend, "manager", LendingManager)
    rig = Rig(tmp_path, "rocksdb")
    await rig.commit(b"old")
    new = await rig.commit(b"new")
    lose("MANIFEST-*")(rig.versions[0].store_directory(A))
    sealed_anew(rig.versions[0])
    shutil.rmtree(rig.versions[1].directory)
    rig.factories[FIRST] = OtherBackend(FIRST, {"place": f"{tmp_path}/{FIRST}"})
    outcome = await rig.restore(new)
    assert (set(outcome.sources.values()), outcome.failures) == ({FIRST}, ())
    assert rig.content(outcome) == NEW
