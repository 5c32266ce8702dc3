"""What has the name of a file of ours and is none, or is far too large, ends nothing and holds up nothing."""

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from statekeep.backends.blob.diff import LocalFile
from statekeep.backends.blob.image import digest_sealed_file, read_sealed_file
from statekeep.backends.storage.local import LocalClient
from statekeep.checkpoint.checkpoints import VersionId
from statekeep.errors import CheckpointCorruptError, VersionDamagedError
from statekeep.stores.change_set import ChangeSet, delta_name
from statekeep.stores.local_files import clone_image, crc32_of, read_document
from statekeep.stores.memory import IMAGE_FILE, check_memory_image
from statekeep.stores.rocksdb import RocksDbStore
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import CHECKPOINT_FILE, MANIFEST_FILE, SealedVersion
from statekeep.testing.versions import STORE, FakeTask, seal_version

HUGE = 1 << 40


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


no_files = pytest.mark.parametrize("put", [_pipe, _endless], ids=["pipe", "endless"])


@pytest.mark.timeout(5)
@no_files
def test_what_is_no_file_is_not_there(put: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "thing"
    put(path)
    sealed = LocalFile(PurePosixPath("thing"), 0, 0)

    for read in (crc32_of, read_document):
        with pytest.raises(FileNotFoundError):
            read(path)
    with pytest.raises(FileNotFoundError):
        LocalClient(tmp_path).read("thing", 0, 1)
    for read_sealed in (digest_sealed_file, read_sealed_file):
        with pytest.raises(VersionDamagedError):
            read_sealed(path, sealed)


@pytest.mark.timeout(5)
@no_files
def test_no_image_is_made_of_a_store_a_file_of_which_was_replaced(
    put: Callable[[Path], None], tmp_path: Path
) -> None:
    """RocksDB would wait for a pipe without end, and keep all threads of Python waiting."""
    damaged: list[str] = []
    store = RocksDbStore(
        STORE, tmp_path / "db", is_new=True, on_damage=lambda: damaged.append("damaged")
    )
    store.put(b"k", b"1")
    (manifest,) = (tmp_path / "db").glob("MANIFEST-*")
    manifest.unlink()
    put(manifest)
    with pytest.raises(VersionDamagedError, match=manifest.name) as caught:
        store.checkpoint(tmp_path / "image")
    assert caught.value.__cause__ is None
    assert damaged
    store.close()


def test_document_that_is_huge_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "document"
    path.touch()
    os.truncate(path, HUGE)
    with pytest.raises(CheckpointCorruptError, match="larger than it may be"):
        read_document(path)


@pytest.mark.timeout(5)
@pytest.mark.parametrize("read", [digest_sealed_file, read_sealed_file])
def test_file_that_has_grown_since_it_was_sealed_is_not_read_to_its_end(
    read: Callable[[Path, LocalFile], object], tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"sealed")
    sealed = LocalFile(PurePosixPath("file"), 6, crc32_of(path))
    read(path, sealed)
    os.truncate(path, HUGE)
    with pytest.raises(VersionDamagedError, match="differs from the seal manifest"):
        read(path, sealed)


def _sealed(local_dir: Path) -> tuple[TaskDirectory, SealedVersion]:
    task = TaskDirectory.of(local_dir, FakeTask())
    return task, seal_version(task, "0_000000000a", None, {b"key": b"value"})


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", [MANIFEST_FILE, f"{STORE}/db/CURRENT"])
@pytest.mark.parametrize("put", [_pipe, _endless, Path.mkdir], ids=["pipe", "endless", "directory"])
def test_version_in_which_a_file_is_none_is_damaged(
    put: Callable[[Path], None], name: str, tmp_path: Path
) -> None:
    task, version = _sealed(tmp_path)
    path = version.directory / name
    path.unlink()
    put(path)

    with pytest.raises(VersionDamagedError):  # noqa: PT012 - found damaged here or there
        found = task.find(version.id)
        assert found is not None
        found.verify()


@pytest.mark.timeout(10)
def test_manifest_that_is_huge_is_damage(tmp_path: Path) -> None:
    task, version = _sealed(tmp_path)
    os.truncate(version.directory / MANIFEST_FILE, HUGE)
    with pytest.raises(VersionDamagedError):
        task.find(version.id)


def test_checkpoint_that_is_none_counts_as_missing(tmp_path: Path) -> None:
    _, version = _sealed(tmp_path)
    (version.directory / CHECKPOINT_FILE).mkdir()
    assert version.read_checkpoint() is None


@pytest.mark.timeout(5)
@no_files
def test_image_in_which_a_file_is_none_is_neither_loaded_nor_cloned(
    put: Callable[[Path], None], tmp_path: Path
) -> None:
    image = tmp_path / "image"
    image.mkdir()
    put(image / IMAGE_FILE)
    with pytest.raises(VersionDamagedError):
        check_memory_image(image)
    with pytest.raises(VersionDamagedError):
        clone_image(image, tmp_path / "clone")


@pytest.mark.timeout(5)
@no_files
def test_change_set_in_which_a_delta_is_none_is_damaged(
    put: Callable[[Path], None], tmp_path: Path
) -> None:
    put(tmp_path / delta_name(STORE))
    changes = ChangeSet(tmp_path, VersionId.parse("0_000000000a"))
    with pytest.raises(VersionDamagedError):
        changes.verify([STORE])
