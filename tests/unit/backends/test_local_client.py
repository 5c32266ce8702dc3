"""A directory as a place for blobs: threads and processes that race in it."""

import errno
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from statekeep.backends.storage import local as local_files
from statekeep.backends.storage.local import LocalClient


def files_below(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def test_directory_that_goes_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = Path.mkdir
    meddling = iter([True])

    def mkdir_late(path: Path, mode: int = 0o777) -> None:
        if next(meddling, False):
            raise FileExistsError(path)  # as it was, when another made it and removed it again
        mkdir(path, mode)

    monkeypatch.setattr(Path, "mkdir", mkdir_late)

    LocalClient(tmp_path).write("a/b", b"x", if_absent=True)

    assert files_below(tmp_path) == ["a/b"]


def test_of_eight_racing_threads_one_creates(tmp_path: Path) -> None:
    def create(racer: int, position: int) -> bool:
        try:
            LocalClient(tmp_path).write(f"log/{position}", b"%d" % racer, if_absent=True)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        for position in range(5):
            won = list(pool.map(create, range(8), [position] * 8))
            assert won.count(True) == 1
            assert (tmp_path / f"log/{position}").read_bytes() == b"%d" % won.index(True)
    assert len(files_below(tmp_path)) == 5


_RACER = """
import sys
from pathlib import Path
from statekeep.backends.storage import local as local_files
from statekeep.backends.storage.local import LocalClient
place, won = LocalClient(Path(sys.argv[1])), []
sys.stdin.readline()
for position in range(20):
    try:
        place.write(f"log/{position}", sys.argv[2].encode(), if_absent=True)
    except FileExistsError:
        continue
    won.append(position)
print(*won)
"""


@pytest.mark.slow
def test_of_four_racing_processes_one_creates(tmp_path: Path) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _RACER, str(tmp_path), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = [sorted(map(int, racer.communicate()[0].split())) for racer in racers]

    assert sorted(position for positions in won for position in positions) == list(range(20))
    for number, positions in enumerate(won):
        for position in positions:
            assert (tmp_path / f"log/{position}").read_text() == str(number)


def test_puts_and_deletes_in_one_directory_do_not_disturb_each_other(tmp_path: Path) -> None:
    place = LocalClient(tmp_path)

    def put_and_delete(racer: int) -> None:
        for turn in range(10):
            place.write(f"a/b/{racer}-{turn}", b"x", if_absent=True)
            place.delete(f"a/b/{racer}-{turn}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(put_and_delete, range(4)))

    assert list(tmp_path.iterdir()) == []


def test_put_whose_directory_goes_while_its_file_is_opened_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = LocalClient(tmp_path)
    really_open = os.open
    removals = 0

    def open_as_ext4_does(path: Path, flags: int, mode: int = 0o777) -> int:
        nonlocal removals
        if flags & os.O_TMPFILE == os.O_TMPFILE and removals == 0:
            removals += 1
            Path(path).rmdir()
            raise PermissionError(errno.EPERM, "Operation not permitted", str(path))
        return really_open(path, flags, mode)

    monkeypatch.setattr(os, "open", open_as_ext4_does)
    place.write("a/b", b"x", if_absent=True)

    assert removals == 1
    assert place.read("a/b", 0, 9).data == b"x"


@pytest.mark.parametrize("has_unnamed_files", [True, False], ids=["unnamed", "named"])
def test_blobs_are_for_their_user_alone_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_unnamed_files: bool
) -> None:
    if not has_unnamed_files:
        monkeypatch.setattr(local_files, "_OPEN_FILES", tmp_path / "nothing")
    before = os.umask(0)
    try:
        place = LocalClient(tmp_path / "new" / "root")
        place.check()
        place.write("a/b", b"x", if_absent=True)
        place.write("a/b", b"y", if_absent=False)
    finally:
        os.umask(before)
    assert [mode for mode in modes_below(tmp_path) if mode & 0o077] == []


def test_blobs_below_a_root_that_is_shared_with_its_group_are_shared_too(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    place = LocalClient(tmp_path)
    place.check()
    place.write("a/b", b"x", if_absent=True)
    assert modes_below(tmp_path) == [0o2770, 0o660]


def modes_below(directory: Path) -> list[int]:
    return [stat.S_IMODE(path.lstat().st_mode) for path in sorted(directory.rglob("*"))]
