"""Versions of a task: sealing, finding, cloning, changes, retention."""

import errno
import shutil
from pathlib import Path
from typing import cast

import pytest

from statekeep.checkpoint.checkpoints import StoreName, VersionId
from statekeep.errors import ConfigError, StateBackupError
from statekeep.stores import local_files, version
from statekeep.stores.task_directory import LocalUsage, TaskDirectory
from statekeep.stores.version import SealedVersion
from statekeep.testing.store_tests import bytes_below
from statekeep.testing.versions import STORE, FakeTask, changes_in, content_of, seal_version

V0, V1, V2, V3 = "0_000000000a", "1_000000000b", "2_000000000c", "3_000000000d"
MANY = {b"%05d" % number: b"v" * 100 for number in range(2_000)}


@pytest.fixture
def task(tmp_path: Path) -> TaskDirectory:
    return TaskDirectory.of(tmp_path, FakeTask())


def test_a_task_has_a_directory_below_job_and_operator(tmp_path: Path) -> None:
    assert TaskDirectory.of(tmp_path, FakeTask()).root == tmp_path / "job" / "main" / "Partition_3"


def test_a_sealed_version_is_found_with_its_content(task: TaskDirectory, tmp_path: Path) -> None:
    sealed = seal_version(task, V0, None, {b"a": b"1"})
    found = task.find(VersionId.parse(V0))
    assert found == sealed
    assert content_of(sealed, tmp_path) == {b"a": b"1"}
    assert task.versions() == [sealed.id]


def test_a_version_that_is_not_here_is_none(task: TaskDirectory) -> None:
    assert task.find(VersionId.parse(V0)) is None
    assert task.versions() == []


def test_what_versions_share_is_counted_once(task: TaskDirectory) -> None:
    assert task.usage() == LocalUsage(0, 0)
    first = seal_version(task, V0, None, MANY)
    alone = task.usage().size_bytes
    assert alone >= sum(entry.size for entry in first.store_files(STORE))
    seal_version(task, V1, first, {b"a": b"1"})
    both = task.usage()
    assert both.versions == 2
    assert alone < both.size_bytes < 1.5 * alone


def test_a_sealed_version_verifies(task: TaskDirectory) -> None:
    first = seal_version(task, V0, None, MANY)
    seal_version(task, V1, first, {b"a": b"1"}).verify()


def test_a_manifest_is_read_back_as_it_was_written(task: TaskDirectory) -> None:
    sealed = seal_version(task, V1, seal_version(task, V0, None, {b"a": b"1"}), {b"b": b"2"})
    manifest = sealed.manifest
    assert version.SealManifest.decode(manifest.encode(), where="x") == manifest
    assert (manifest.job_name, manifest.operator, manifest.task_name) == (
        "job",
        "main",
        "Partition 3",
    )
    assert str(sealed.parent) == V0
    assert [str(ancestor) for ancestor in sealed.lineage] == [V0]


def test_an_image_holds_no_lock_and_no_log_of_the_engine(task: TaskDirectory) -> None:
    names = {entry.path for entry in seal_version(task, V0, None, {b"a": b"1"}).store_files(STORE)}
    assert "CURRENT" in names
    assert not {name for name in names if name.startswith("LO")}


def test_an_image_has_no_files_beside_those_of_its_manifest(task: TaskDirectory) -> None:
    sealed = seal_version(task, V1, seal_version(task, V0, None, MANY), {b"b": b"2"})
    assert set(bytes_below(sealed.directory)) == {
        "SEAL-MANIFEST",
        *(entry.path for entry in sealed.manifest.files),
    }


def test_nothing_is_left_of_a_work_directory(task: TaskDirectory) -> None:
    seal_version(task, V0, None, {b"a": b"1"})
    assert sorted(path.name for path in task.root.iterdir()) == [".lock", V0, "boot-id"]


def test_writing_on_a_clone_does_not_change_a_byte_of_its_base(task: TaskDirectory) -> None:
    base = seal_version(task, V0, None, MANY)
    before = bytes_below(base.directory)
    seal_version(task, V1, base, dict.fromkeys(MANY))
    assert bytes_below(base.directory) == before


def test_two_children_of_one_base_do_not_see_each_other(
    task: TaskDirectory, tmp_path: Path
) -> None:
    base = seal_version(task, V0, None, {b"a": b"1"})
    one = seal_version(task, V1, base, {b"a": b"one"})
    other = seal_version(task, "1_00000000ff", base, {b"b": b"other"})
    assert content_of(one, tmp_path) == {b"a": b"one"}
    assert content_of(other, tmp_path) == {b"a": b"1", b"b": b"other"}


def test_shared_files_are_not_read_again(
    task: TaskDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = seal_version(task, V0, None, MANY)
    read: list[str] = []

    def crc32_of(path: Path) -> int:
        read.append(path.name)
        return local_files.crc32_of(path)

    monkeypatch.setattr("statekeep.stores.version.crc32_of", crc32_of)
    child = seal_version(task, V1, base, {b"new": b"1"})
    shared = {entry.path for entry in base.store_files(STORE) if entry.path.endswith(".sst")}
    assert shared
    assert shared < {entry.path for entry in child.store_files(STORE)}
    assert not shared & set(read)
    monkeypatch.undo()
    child.verify()


def test_a_store_may_not_have_the_name_of_the_manifest(task: TaskDirectory) -> None:
    with pytest.raises(ConfigError, match="reserved name"):
        task.begin("ab", None, [StoreName("SEAL-MANIFEST")])
    assert not task.root.exists()


def test_a_version_is_sealed_once(task: TaskDirectory) -> None:
    sealed = seal_version(task, V0, None, {b"a": b"1"})
    before = bytes_below(sealed.directory)
    with pytest.raises(StateBackupError, match="version exists already"):
        seal_version(task, V0, None, {b"a": b"2"})
    assert bytes_below(sealed.directory) == before


def test_only_a_child_of_what_the_stores_are_is_sealed(task: TaskDirectory) -> None:
    base = seal_version(task, V0, None, {b"a": b"1"})
    other = seal_version(task, "0_00000000ff", None, {b"a": b"2"})
    with task.begin("ab", base, [STORE]) as work:
        for parent in (None, other):
            with pytest.raises(ValueError, match="not a child"):
                work.seal(1, "000000000b", parent)
        with pytest.raises(ValueError, match="not a child"):
            work.seal(0, "000000000a", base)


def test_a_live_store_is_sealed_many_times(task: TaskDirectory, tmp_path: Path) -> None:
    with task.begin("ab", None, [STORE], captured=[STORE]) as work:
        store = work.open_store(STORE, "rocksdb")
        parent: SealedVersion | None = None
        sealed: list[SealedVersion] = []
        for number, name in enumerate((V0, V1, V2)):
            store.put(b"%d" % number, b"x" * 1000)
            parent = work.seal(number, VersionId.parse(name).uid, parent)
            sealed.append(parent)
            assert work.head == parent.id
        store.put(b"later", b"1")
    for number, found in enumerate(sealed):
        found.verify()
        assert set(content_of(found, tmp_path)) == {b"%d" % key for key in range(number + 1)}


def test_a_seal_that_failed_may_be_tried_again_and_loses_no_change(
    task: TaskDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = seal_version(task, V0, None, {b"a": b"1"})

    def no_room(image: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with task.begin("ab", base, [STORE], captured=[STORE]) as work:
        store = work.open_store(STORE, "rocksdb")
        store.put(b"b", b"2")
        with monkeypatch.context() as patch:
            patch.setattr("statekeep.stores.work_directory.publish", no_room)
            with pytest.raises(ConfigError, match="disk is full"):
                work.seal(1, "000000000b", base)
        store.put(b"c", b"3")
        sealed = work.seal(1, "000000000c", base)
    assert sealed.parent == base.id
    assert content_of(sealed, tmp_path) == {b"a": b"1", b"b": b"2", b"c": b"3"}
    paths = sealed.changes_since(STORE, base.id)
    assert paths is not None
    assert [change for path in paths for change in changes_in(path)] == [(b"b", b"2"), (b"c", b"3")]


def test_a_store_that_the_base_lacks_begins_empty(task: TaskDirectory) -> None:
    base = seal_version(task, V0, None, {b"a": b"1"})
    new = StoreName("new")
    with task.begin("ab", base, [STORE, new], captured=[STORE, new]) as work:
        assert list(work.open_store(new, "memory").scan()) == []
        sealed = work.seal(1, "000000000b", base)
    assert sealed.store_files(new)
    assert sealed.changes_since(new, base.id) is not None


def test_a_store_that_was_not_opened_is_in_the_version_as_it_was(
    task: TaskDirectory, tmp_path: Path
) -> None:
    base = seal_version(task, V0, None, {b"a": b"1"})
    with task.begin("ab", base, [STORE], captured=[STORE]) as work:
        sealed = work.seal(1, "000000000b", base)
    sealed.verify()
    assert content_of(sealed, tmp_path) == {b"a": b"1"}
    paths = sealed.changes_since(STORE, base.id)
    assert paths is not None
    assert [changes_in(path) for path in paths] == [[]]


def test_a_store_is_opened_once_and_only_if_begin_named_it(task: TaskDirectory) -> None:
    with task.begin("ab", None, [STORE]) as work:
        work.open_store(STORE, "rocksdb")
        for name in (STORE, StoreName("other")):
            with pytest.raises(ValueError, match="open already or unknown"):
                work.open_store(name, "rocksdb")


class TestChanges:
    """The deltas that a version carries."""

    @pytest.fixture
    def chain(self, task: TaskDirectory) -> list[SealedVersion]:
        sealed: list[SealedVersion] = []
        for number, name in enumerate((V0, V1, V2, V3)):
            base = sealed[-1] if sealed else None
            sealed.append(seal_version(task, name, base, {b"k%d" % number: b"v"}))
        return sealed

    def test_they_lead_from_any_ancestor_in_order(self, chain: list[SealedVersion]) -> None:
        paths = chain[3].changes_since(STORE, chain[1].id)
        assert paths is not None
        assert [changes_in(path) for path in paths] == [[(b"k2", b"v")], [(b"k3", b"v")]]

    def test_their_size_shows_how_much_has_changed(self, chain: list[SealedVersion]) -> None:
        paths = chain[3].changes_since(STORE, chain[1].id) or []
        assert chain[3].changed_bytes([STORE], chain[1].id) == sum(p.stat().st_size for p in paths)
        assert chain[3].changed_bytes([STORE], chain[3].id) == 0
        assert chain[3].changed_bytes([STORE], None) is None
        assert chain[3].changed_bytes([STORE, StoreName("other")], chain[1].id) is None
        image = chain[3].store_directory(STORE)
        assert chain[3].image_bytes == sum(path.stat().st_size for path in image.iterdir())

    def test_their_size_is_summed_up_without_a_path_for_each_file(
        self, chain: list[SealedVersion]
    ) -> None:
        """Commits ask for it on their event loop: paths of 2,000 files took 20 ms."""
        nowhere = SealedVersion(cast("Path", None), chain[3].manifest)
        expected = chain[3].changed_bytes([STORE], chain[1].id)
        assert nowhere.changed_bytes([STORE], chain[1].id) == expected
        sizes = [entry.size for entry in chain[3].store_files(STORE)]
        assert nowhere.store_sizes(STORE) == sizes

    def test_none_are_needed_from_the_version_itself(self, chain: list[SealedVersion]) -> None:
        assert chain[3].changes_since(STORE, chain[3].id) == []

    def test_they_survive_the_versions_that_made_them(
        self, chain: list[SealedVersion], task: TaskDirectory
    ) -> None:
        task.retain([chain[3].id], 3)
        assert len(chain[3].changes_since(STORE, chain[0].id) or []) == 3

    def test_there_are_none_from_a_version_that_is_no_ancestor(
        self, chain: list[SealedVersion], task: TaskDirectory
    ) -> None:
        other = seal_version(task, "0_00000000ff", None, {})
        assert chain[3].changes_since(STORE, other.id) is None

    def test_they_are_not_carried_beyond_the_committed_version(
        self, chain: list[SealedVersion], task: TaskDirectory
    ) -> None:
        sealed = seal_version(task, "4_000000000e", chain[3], {b"k4": b"v"}, committed=chain[2].id)
        assert len(sealed.changes_since(STORE, chain[2].id) or []) == 2
        assert sealed.changes_since(STORE, chain[1].id) is None
        assert chain[2].id in sealed.lineage
        sealed.verify()

    def test_they_are_unknown_where_they_were_not_captured(self, task: TaskDirectory) -> None:
        base = seal_version(task, V0, None, {})
        with task.begin("ab", base, [STORE]) as work:
            sealed = work.seal(1, "000000000b", base)
        assert sealed.changes_since(STORE, base.id) is None

    def test_lineage_and_deltas_are_bounded(
        self, task: TaskDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("statekeep.stores.work_directory.LINEAGE_LIMIT", 3)
        with task.begin("ab", None, [STORE], captured=[STORE]) as work:
            store = work.open_store(STORE, "memory")
            parent: SealedVersion | None = None
            for number in range(8):
                store.put(b"%d" % number, b"v")
                parent = work.seal(number, f"{number:010x}", parent)
        assert parent is not None
        assert [ancestor.batch for ancestor in parent.lineage] == [6, 5, 4]
        assert (
            len(list(parent.directory.rglob("*.delta"))) == 3 + 1
        )  # with the memory store's image
        assert parent.changes_since(STORE, parent.lineage[2]) is not None


class TestRetention:
    """R13."""

    def test_settled_versions_go_unless_they_are_kept(self, task: TaskDirectory) -> None:
        for name in (V0, V1, "1_00000000ff", V2, V3):
            seal_version(task, name, None, {})
        task.retain([VersionId.parse(V1)], 2)
        assert [str(version) for version in task.versions()] == [V1, V3]
        assert not list(task.root.glob("work-*"))

    def test_a_damaged_version_goes_too(self, task: TaskDirectory) -> None:
        sealed = seal_version(task, V0, None, {})
        (sealed.directory / "SEAL-MANIFEST").unlink()
        task.retain([], 0)
        assert task.versions() == []

    def test_what_shares_files_with_a_removed_version_stays_whole(
        self, task: TaskDirectory
    ) -> None:
        base = seal_version(task, V0, None, MANY)
        child = seal_version(task, V1, base, {b"x": b"1"})
        task.retain([], 0)
        child.verify()

    def test_there_is_nothing_to_do_for_a_task_without_a_directory(
        self, task: TaskDirectory
    ) -> None:
        task.retain([], 0)
        assert task.sweep() == 0

    def test_a_version_that_goes_while_it_is_looked_for_is_absent(
        self, task: TaskDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sealed = seal_version(task, V0, None, {})
        look = SealedVersion.verify_sizes

        def removed_meanwhile(found: SealedVersion) -> None:
            shutil.rmtree(found.directory)
            look(found)

        monkeypatch.setattr(SealedVersion, "verify_sizes", removed_meanwhile)
        assert task.find(sealed.id) is None


def test_a_directory_that_cannot_be_written_is_reported_with_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ConfigError, match="not writable") as caught:
        TaskDirectory(tmp_path / "task", FakeTask()).begin("ab", None, [STORE])
    assert caught.value.key == "job.logged.store.base.dir"
    assert f"directory={tmp_path / 'task'}" in str(caught.value)


def test_a_local_directory_that_is_a_file_is_reported_with_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"job\.logged\.store\.base\.dir"):
        TaskDirectory(tmp_path / "file" / "task", FakeTask()).begin("ab", None, [STORE])
