"""A sealed version is used only if it is whole; its checkpoint lies beside it."""

import os
from pathlib import Path

import pytest
from newer_frames import of_next_format

from statekeep.checkpoint.checkpoints import VersionId
from statekeep.errors import UnknownFormatError, VersionDamagedError
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion
from statekeep.testing.versions import STORE, FakeTask, seal_version

V0, V1 = "0_000000000a", "1_000000000b"


@pytest.fixture
def task(tmp_path: Path) -> TaskDirectory:
    return TaskDirectory.of(tmp_path, FakeTask())


class TestDamage:
    """A version is not used unless it is whole."""

    @pytest.fixture
    def sealed(self, task: TaskDirectory) -> SealedVersion:
        with task.begin("ab", None, [STORE], captured=[STORE]) as work:
            work.open_store(STORE, "rocksdb").write(
                {b"%05d" % number: b"v" * 100 for number in range(2_000)}
            )
            return work.seal(0, "000000000a", None)

    @pytest.mark.parametrize(
        "pattern",
        ["*.sst", "CURRENT", "MANIFEST-*", "OPTIONS-*", "*.json", "0*.delta"],
    )
    def test_a_flipped_bit_in_any_kind_of_file_is_found_by_verify(
        self, sealed: SealedVersion, pattern: str
    ) -> None:
        path = next(sealed.directory.rglob(pattern))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
        with pytest.raises(VersionDamagedError, match=f"is damaged: path={path}"):
            sealed.verify()

    @pytest.mark.parametrize("pattern", ["*.sst", "CURRENT", "0*.delta"])
    def test_a_shortened_file_is_found_without_reading_it(
        self, task: TaskDirectory, sealed: SealedVersion, pattern: str
    ) -> None:
        path = next(sealed.directory.rglob(pattern))
        os.truncate(path, path.stat().st_size - 1)
        with pytest.raises(VersionDamagedError, match=f"path={path} expected_bytes="):
            task.find(sealed.id)

    def test_a_missing_file_is_found(self, task: TaskDirectory, sealed: SealedVersion) -> None:
        path = next(sealed.directory.rglob("*.sst"))
        path.unlink()
        with pytest.raises(VersionDamagedError, match=f"is missing: path={path}"):
            task.find(sealed.id)
        with pytest.raises(VersionDamagedError, match="is missing"):
            sealed.verify()

    def test_every_flipped_bit_of_the_manifest_is_found(
        self, task: TaskDirectory, sealed: SealedVersion
    ) -> None:
        path = sealed.directory / "SEAL-MANIFEST"
        whole = path.read_bytes()
        for position in range(0, len(whole) * 8, 37):
            data = bytearray(whole)
            data[position // 8] ^= 1 << position % 8
            path.write_bytes(data)
            with pytest.raises(VersionDamagedError, match="seal manifest is damaged"):
                task.find(sealed.id)

    def test_a_version_of_a_newer_release_is_not_damaged(
        self, task: TaskDirectory, sealed: SealedVersion
    ) -> None:
        path = sealed.directory / "SEAL-MANIFEST"
        path.write_bytes(of_next_format(path.read_bytes()))
        with pytest.raises(UnknownFormatError, match=f"path={path} version=2") as caught:
            task.find(sealed.id)
        assert any(f"remove {sealed.directory}" in hint for hint in caught.value.hints)

    def test_a_directory_without_a_manifest_is_no_version(
        self, task: TaskDirectory, sealed: SealedVersion
    ) -> None:
        (sealed.directory / "SEAL-MANIFEST").unlink()
        with pytest.raises(VersionDamagedError, match="no seal manifest"):
            task.find(sealed.id)

    def test_a_version_under_another_name_is_refused(
        self, task: TaskDirectory, sealed: SealedVersion
    ) -> None:
        sealed.directory.rename(task.root / V1)
        with pytest.raises(VersionDamagedError, match="another one than its directory says"):
            task.find(VersionId.parse(V1))

    def test_a_version_of_another_task_is_refused(
        self, task: TaskDirectory, sealed: SealedVersion
    ) -> None:
        other = TaskDirectory(task.root, FakeTask(task_name="Partition 4"))
        with pytest.raises(VersionDamagedError, match="another one than its directory says"):
            other.find(sealed.id)

    def test_a_work_directory_does_not_start_from_half_a_version(
        self, task: TaskDirectory, sealed: SealedVersion
    ) -> None:
        next(sealed.directory.rglob("*.sst")).unlink()
        with pytest.raises(VersionDamagedError, match=r"not whole.*hint: start again"):
            task.begin("cd", sealed, [STORE])
        assert not list(task.root.glob("work-*"))


class TestCheckpointBesideTheVersion:
    """CHECKPOINT-V2 comes later and is not part of what was sealed."""

    def test_it_is_read_back(self, task: TaskDirectory) -> None:
        sealed = seal_version(task, V0, None, {})
        assert sealed.read_checkpoint() is None
        sealed.write_checkpoint(b"one")
        sealed.write_checkpoint(b"two")
        assert sealed.read_checkpoint() == b"two"
        sealed.verify()
        assert task.find(sealed.id) == sealed

    def test_a_damaged_one_is_as_good_as_none(self, task: TaskDirectory) -> None:
        sealed = seal_version(task, V0, None, {})
        sealed.write_checkpoint(b"content")
        path = sealed.directory / "CHECKPOINT-V2"
        whole = path.read_bytes()
        for position in range(len(whole)):
            data = bytearray(whole)
            data[position] ^= 1
            path.write_bytes(data)
            assert sealed.read_checkpoint() is None
        path.write_bytes(of_next_format(whole))
        assert sealed.read_checkpoint() is None
        path.write_bytes(whole[:-1])
        assert sealed.read_checkpoint() is None

    def test_it_does_not_go_into_the_next_version(self, task: TaskDirectory) -> None:
        base = seal_version(task, V0, None, {})
        base.write_checkpoint(b"content")
        assert seal_version(task, V1, base, {}).read_checkpoint() is None
