"""What lies in a directory is opened as it is, or is damage: nothing is created unless it is new."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import pytest

from statekeep.errors import ConfigError, VersionDamagedError
from statekeep.stores.base import KeyValueStore
from statekeep.stores.factory import check_image, open_store, open_to_load
from statekeep.stores.rocksdb import RocksDbStore
from statekeep.stores.task_directory import TaskDirectory
from statekeep.testing.versions import STORE, FakeTask, content_at, seal_version

Kind = Literal["rocksdb", "memory"]
KINDS: Final = pytest.mark.parametrize("kind", ["rocksdb", "memory"])
CUTS_APART: Final = 13
"""Each opens a database, which takes a millisecond or two."""


def make_image(directory: Path, kind: Kind = "rocksdb") -> Path:
    """Write an image whose manifest tells of several flushes."""
    store = open_store(STORE, kind, directory / "live", is_new=True)
    for number in range(3):
        store.write({b"%d-%d" % (number, key): b"v" * 50 for key in range(100)})
        store.flush()
    store.checkpoint(directory / "image")
    store.close()
    return directory / "image"


@KINDS
@pytest.mark.parametrize("open_any", [open_store, open_to_load])
@pytest.mark.parametrize("is_there", [False, True], ids=["no directory", "empty directory"])
def test_only_a_new_store_is_created(
    tmp_path: Path, kind: Kind, open_any: Callable[..., KeyValueStore], *, is_there: bool
) -> None:
    directory = tmp_path / "db"
    if is_there:
        directory.mkdir()
    for _ in range(2):
        with pytest.raises(VersionDamagedError):
            open_any(STORE, kind, directory, is_new=False)
    open_any(STORE, kind, directory, is_new=True).close()
    open_any(STORE, kind, directory, is_new=False).close()


def test_a_store_that_the_base_has_is_not_created(tmp_path: Path) -> None:
    task = TaskDirectory(tmp_path, FakeTask())
    base = seal_version(task, "1_0000000001", None, {b"a": b"1"})
    with task.begin("02", base, [STORE]) as work:
        shutil.rmtree(work.store_directory(STORE))
        work.store_directory(STORE).mkdir()
        with pytest.raises(VersionDamagedError):
            work.open_store(STORE, "rocksdb")


def test_a_store_that_is_to_begin_empty_is_created(tmp_path: Path) -> None:
    task = TaskDirectory(tmp_path, FakeTask())
    base = seal_version(task, "1_0000000001", None, {b"a": b"1"})
    with task.begin("02", base, [STORE]) as work:
        work.begin_empty(STORE)
        assert work.open_store(STORE, "rocksdb").get(b"a") is None


def test_a_manifest_that_ends_too_early_is_damage_or_loses_nothing(tmp_path: Path) -> None:
    image = make_image(tmp_path)
    content = content_at(shutil.copytree(image, tmp_path / "copy"))
    manifest = next(path.name for path in image.glob("MANIFEST-*"))
    whole = (image / manifest).read_bytes()
    found_short: list[int] = []
    for size in range(0, len(whole), CUTS_APART):
        short = tmp_path / f"short-{size}"
        shutil.copytree(image, short)
        (short / manifest).write_bytes(whole[:size])
        try:
            check_image(STORE, "rocksdb", short, is_deep=False)
        except VersionDamagedError:
            found_short.append(size)
        else:
            assert content_at(short) == content
        shutil.rmtree(short)
    assert found_short


@KINDS
def test_an_image_that_is_whole_passes_and_opens_afterwards(tmp_path: Path, kind: Kind) -> None:
    image = make_image(tmp_path, kind)
    for is_deep in (False, True):
        check_image(STORE, kind, image, is_deep=is_deep)
    store = open_store(STORE, kind, image, is_new=False)
    assert sum(1 for _ in store.scan()) == 300
    store.close()


def test_a_damaged_block_is_found_by_a_deep_check_alone(tmp_path: Path) -> None:
    image = make_image(tmp_path)
    path = next(image.glob("*.sst"))
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.unlink()
    path.write_bytes(data)
    check_image(STORE, "rocksdb", image, is_deep=False)
    with pytest.raises(VersionDamagedError):
        check_image(STORE, "rocksdb", image, is_deep=True)


@KINDS
def test_an_image_of_the_other_engine_is_no_damage(tmp_path: Path, kind: Kind) -> None:
    other: Kind = "memory" if kind == "rocksdb" else "rocksdb"
    image = make_image(tmp_path, other)
    with pytest.raises(ConfigError) as caught:
        check_image(STORE, kind, image, is_deep=True)
    assert caught.value.key == "stores.state.factory"


def test_a_want_of_descriptors_is_no_damage(tmp_path: Path) -> None:
    store = RocksDbStore(STORE, tmp_path, is_new=True)
    text = "Corruption: IO error: While open a file for random read: x.sst: Too many open files"
    assert not isinstance(store._explain(Exception(text), "cannot read"), VersionDamagedError)
    store.close()
