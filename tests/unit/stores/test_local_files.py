"""Files on the local disk: clones, errors that name the setting, replacement, removal."""

import errno
import os
from pathlib import Path

import pytest

from statekeep.errors import ConfigError
from statekeep.stores.local_files import (
    clone_image,
    crc32_of,
    explained_errors,
    remove_tree,
    replace_durably,
)


def test_a_clone_shares_what_is_never_rewritten_and_copies_the_rest(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.mkdir()
    for name in ("000012.sst", "000013.blob", "image.delta", "CURRENT", "MANIFEST-000005", "x.log"):
        (image / name).write_bytes(name.encode())
    clone_image(image, tmp_path / "deep" / "clone")
    shared = {
        path.name
        for path in image.iterdir()
        if path.samefile(tmp_path / "deep" / "clone" / path.name)
    }
    assert shared == {"000012.sst", "000013.blob", "image.delta"}
    for path in image.iterdir():
        assert (tmp_path / "deep" / "clone" / path.name).read_bytes() == path.read_bytes()


def test_a_clone_leaves_out_lock_and_logs(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    for name in ("LOCK", "LOG", "LOG.old.123", "CURRENT"):
        (tmp_path / "image" / name).write_bytes(b"")
    clone_image(tmp_path / "image", tmp_path / "clone")
    assert [path.name for path in (tmp_path / "clone").iterdir()] == ["CURRENT"]


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "the local disk is full"),
        (errno.EDQUOT, "the quota of the local disk is used up"),
        (errno.EACCES, "the local directory is not writable"),
        (errno.EROFS, "the local directory is on a read-only file system"),
    ],
    ids=errno.errorcode.get,
)
def test_a_disk_that_takes_nothing_is_reported_with_directory_setting_and_hint(
    tmp_path: Path, number: int, reason: str
) -> None:
    with pytest.raises(ConfigError) as caught, explained_errors(tmp_path):
        raise OSError(number, os.strerror(number))
    assert (
        caught.value.message == f"{reason}: directory={tmp_path} setting=job.logged.store.base.dir"
    )
    assert caught.value.key == "job.logged.store.base.dir"
    assert "make room there" in caught.value.hints[0]
    assert isinstance(caught.value.__cause__, OSError)


def test_an_error_of_another_kind_passes_unchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), explained_errors(tmp_path):
        (tmp_path / "absent").read_bytes()


def test_a_replacement_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    replace_durably(path, b"old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_durably(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_tree_that_another_process_removes_meanwhile_is_no_error(tmp_path: Path) -> None:
    remove_tree(tmp_path / "absent")


def test_the_checksum_is_that_of_the_whole_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"123456789")
    assert crc32_of(tmp_path / "file") == 0xCBF43926
    (tmp_path / "large").write_bytes(b"x" * 3_000_001)
    assert crc32_of(tmp_path / "large") != crc32_of(tmp_path / "file")
