"""Local state is this user's alone: no other user can plant, read or swap it."""

import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from second_user import (
    OTHER_USER,
    give_to_other_user,
    needs_root,
    run_as_other_user,
    shared_directory,
)

from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoints import TaskName, VersionId
from statekeep.errors import ConfigError
from statekeep.stores.local_files import open_temporary, replace_durably
from statekeep.stores.locks import locked
from statekeep.stores.private_directories import is_private, make_private
from statekeep.stores.task_directory import TaskDirectory
from statekeep.testing.versions import STORE, seal_version

TASK = TaskIdentity("job", "main", TaskName("Partition 3"))
VERSION = "0_0123456789abcdef"


@pytest.fixture
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def open_to_others(directory: Path) -> dict[str, str]:
    """Return what other users may read below a directory; they cannot look into a closed one."""
    return {
        str(path): stat.filemode(path.lstat().st_mode)
        for path in directory.iterdir()
        if mode_of(path) & 0o077
    }


@pytest.mark.usefixtures("_open_umask")
def test_local_state_is_made_for_its_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    directory = TaskDirectory.of(tmp_path / "new" / "base", TASK)
    first = seal_version(directory, VERSION, None, {b"k": b"v"})
    first.write_checkpoint(b"{}")
    with directory.begin("u", first, [STORE]) as work:
        assert open_to_others(tmp_path) == {}
        assert open_to_others(directory.root) == {}
        files = [path for path in directory.root.rglob("*") if path.is_file()]
        assert {path.name for path in files} >= {"CHECKPOINT-V2", "SEAL-MANIFEST", ".lock"}
        sealed = [path for path in files if first.directory in path.parents]
        assert [path for path in sealed if mode_of(path) != 0o600] == []
        assert mode_of(work.path) == 0o700


@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o755])
def test_another_users_job_is_refused_whatever_the_base(tmp_path: Path, mode: int) -> None:
    base = tmp_path / "base"
    base.mkdir()
    base.chmod(mode)
    (base / "real").mkdir()
    (base / "job").symlink_to(base / "real")
    calls: list[Callable[[TaskDirectory], object]] = [
        lambda task: task.find(VersionId.parse(VERSION)),
        lambda task: task.begin("u", None, []),
        lambda task: task.retain([], 5),
        lambda task: task.sweep(),
    ]
    for call in calls:
        with pytest.raises(
            ConfigError, match=f"directory={base / 'job'} owner=.* mode=l"
        ) as caught:
            call(TaskDirectory.of(base, TASK))
        assert "run the job as the user" in "".join(caught.value.hints)
    assert list((base / "real").iterdir()) == []


@needs_root
@pytest.mark.parametrize("level", ["job", "job/main", "job/main/Partition_3", "version"])
def test_a_version_that_another_user_has_planted_is_not_read(level: str) -> None:
    with shared_directory() as base:
        sealed = seal_version(TaskDirectory.of(base, TASK), VERSION, None, {b"k": b"planted"})
        planted = sealed.directory if level == "version" else base / level
        give_to_other_user(planted)
        with pytest.raises(ConfigError, match=f"directory={planted} owner={OTHER_USER} mode=d"):
            TaskDirectory.of(base, TASK).find(sealed.id)


@needs_root
def test_a_job_that_another_user_starts_again_gets_a_clear_error() -> None:
    with shared_directory() as base:
        seal_version(TaskDirectory.of(base, TASK), VERSION, None, {b"k": b"v"})
        told = run_as_other_user(
            "from pathlib import Path\n"
            "from statekeep.backends.base import TaskIdentity\n"
            "from statekeep.checkpoint.checkpoints import TaskName\n"
            "from statekeep.errors import ConfigError\n"
            "from statekeep.stores.task_directory import TaskDirectory\n",
            "task = TaskIdentity('job', 'main', TaskName('Partition 3'))\n"
            "try:\n    TaskDirectory.of(Path(sys.argv[1]), task).begin('u', None, [])\n"
            "except ConfigError as exc:\n    print(exc)\n",
            base,
        )
        assert f"directory={base / 'job'} owner=0 mode=drwx------ user={OTHER_USER}" in told
        assert "run the job as the user that has its local state" in told


@needs_root
@pytest.mark.parametrize(
    ("owner", "mode"), [(0, 0o777), (0, 0o770), (12345, 0o755), (12345, 0o1777)]
)
def test_a_base_in_which_others_can_rename_is_refused(owner: int, mode: int) -> None:
    with shared_directory() as base:
        base.chmod(mode)
        os.chown(base, owner, OTHER_USER)
        told = run_as_other_user(
            "from pathlib import Path\n"
            "from statekeep.errors import ConfigError\n"
            "from statekeep.stores.private_directories import make_private\n",
            "try:\n    make_private(Path(sys.argv[1]), 'job')\n"
            "except ConfigError as exc:\n    print(exc)\n"
            "print(make_private(Path(sys.argv[2]), 'job'))\n",
            base,
            base / "own" if mode != 0o755 else base.parent / f"{base.name}-own",
        )
        assert f"directory={base} owner={owner}" in told
        assert "such as one below it" in told
        own = Path(told.splitlines()[-1])
        assert (own.stat().st_uid, mode_of(own), mode_of(own.parent)) == (OTHER_USER, 0o700, 0o700)
        own.rmdir()
        own.parent.rmdir()


@needs_root
def test_another_users_link_on_the_way_to_the_base_is_refused() -> None:
    with shared_directory() as shared:
        (shared / "real").mkdir()
        (shared / "link").symlink_to(shared / "real")
        make_private(shared / "link" / "base", "job")  # a link of ours
        give_to_other_user(shared / "link")
        with pytest.raises(ConfigError, match=f"directory={shared / 'link'} owner={OTHER_USER}"):
            make_private(shared / "link" / "base", "job")


def test_a_directory_of_ours_that_others_can_read_is_closed_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_private(tmp_path / "base", "job", "task")
    (tmp_path / "base" / "job").chmod(0o2775)
    with caplog.at_level(logging.WARNING):
        assert is_private(tmp_path / "base", "job", "task")
        make_private(tmp_path / "base", "job", "task")
    assert mode_of(tmp_path / "base" / "job") == 0o2700
    (record,) = caplog.records
    assert "directory was open to other users, and is closed now" in record.getMessage()
    assert f"directory={tmp_path / 'base' / 'job'} mode=drwxrwsr-x" in record.getMessage()


def test_a_base_of_ours_that_others_write_to_stays_so_with_the_sticky_bit(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base").chmod(0o777)
    make_private(tmp_path / "base", "job")
    assert mode_of(tmp_path / "base") == 0o1777
    assert mode_of(tmp_path / "base" / "job") == 0o700


def test_what_is_not_there_is_no_error_and_is_not_made(tmp_path: Path) -> None:
    assert not is_private(tmp_path / "base", "job")
    assert not is_private(tmp_path, "job")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job").touch()
    with pytest.raises(ConfigError, match=f"directory={tmp_path / 'job'} .*mode=-"):
        make_private(tmp_path, "job", "task")


def test_a_temporary_file_is_made_anew_and_never_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"kept")
    (tmp_path / "file.tmp").symlink_to(tmp_path / "victim")
    replace_durably(tmp_path / "file", b"new")
    assert (tmp_path / "victim").read_bytes() == b"kept"
    assert (tmp_path / "file").read_bytes() == b"new"
    assert mode_of(tmp_path / "file") == 0o600
    (tmp_path / "left").write_bytes(b"half of what a crash")
    with open_temporary(tmp_path / "left") as file:
        file.write(b"new")
    assert (tmp_path / "left").read_bytes() == b"new"


def test_a_lock_is_not_taken_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"), locked(tmp_path / "lock", shared=False):
        pass
    assert not (tmp_path / "elsewhere").exists()
