"""Several processes on one task's directory: death in the middle, races, sweeping, adopting."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from statekeep.checkpoint.checkpoints import StoreName, VersionId
from statekeep.config.store_settings import StoreFactoryName
from statekeep.errors import VersionDamagedError
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.work_directory import WorkDirectory
from statekeep.testing.store_tests import bytes_below
from statekeep.testing.versions import STORE, FakeTask, content_at, content_of, seal_version

VERSION = VersionId.parse("1_000000000b")
ENGINES: Final[Mapping[StoreName, StoreFactoryName]] = {STORE: "rocksdb"}

DIES_AT = """
import os, signal, sys
from pathlib import Path
from statekeep.testing.versions import STORE, FakeTask
from statekeep.checkpoint.checkpoints import VersionId
from statekeep.stores import work_directory
from statekeep.stores.task_directory import TaskDirectory

root, owner, step, moment = sys.argv[1:]
task = TaskDirectory(Path(root), FakeTask())
base = task.find(VersionId.parse("0_000000000a"))
with task.begin("dd", base, [STORE], captured=[STORE]) as work:
    work.open_store(STORE, "rocksdb").write({b"b": b"2"})
    target = work_directory if owner == "module" else work_directory.WorkDirectory
    call = getattr(target, step)

    def die(*args, **kwargs):
        if moment == "after":
            call(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(target, step, die)
    work.seal(1, "000000000b", base)
"""

SEALS = """
import sys
from pathlib import Path
from statekeep.testing.versions import STORE, FakeTask
from statekeep.errors import StateBackupError
from statekeep.stores.task_directory import TaskDirectory

root, own, uid = sys.argv[1:]
task = TaskDirectory(Path(root), FakeTask())
with task.begin(own, None, [STORE]) as work:
    work.open_store(STORE, "rocksdb").write({b"owner": own.encode()})
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        work.seal(1, uid, None)
        print("sealed")
    except StateBackupError as exc:
        print(exc)
"""

HOLDS = """
import sys
from pathlib import Path
from statekeep.testing.versions import STORE, FakeTask
from statekeep.stores.task_directory import TaskDirectory

task = TaskDirectory(Path(sys.argv[1]), FakeTask())
work = task.begin(sys.argv[2], None, [STORE])
work.open_store(STORE, "rocksdb").put(b"a", b"1")
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def task(tmp_path: Path) -> TaskDirectory:
    return TaskDirectory(tmp_path / "task", FakeTask())


@contextmanager
def running(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has said that it is ready, and waits for a line."""
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("owner", "step", "moment"),
    [
        ("class", "_write_images", "before"),
        ("class", "_write_images", "after"),
        ("class", "_cut_changes", "after"),
        ("class", "_link_changes", "after"),
        ("class", "_write_manifest", "before"),
        ("class", "_write_manifest", "after"),
        ("module", "publish", "before"),
    ],
)
def test_a_death_in_the_middle_of_a_seal_leaves_nothing_that_is_taken_for_a_version(
    task: TaskDirectory, tmp_path: Path, owner: str, step: str, moment: str
) -> None:
    base = seal_version(task, "0_000000000a", None, {b"a": b"1"})
    before = bytes_below(base.directory)
    died = subprocess.run(
        [sys.executable, "-c", DIES_AT, str(task.root), owner, step, moment], check=False
    )
    assert died.returncode == -9
    assert task.find(VERSION) is None
    assert task.versions() == [base.id]
    assert bytes_below(base.directory) == before
    assert task.sweep() == 1
    left = sorted(path.name for path in task.root.iterdir())
    assert left == [".lock", str(base.id), "boot-id"]
    again = seal_version(task, str(VERSION), base, {b"b": b"2"})
    assert content_of(again, tmp_path) == {b"a": b"1", b"b": b"2"}


def test_a_death_just_after_a_version_got_its_name_leaves_it_whole(
    task: TaskDirectory, tmp_path: Path
) -> None:
    seal_version(task, "0_000000000a", None, {b"a": b"1"})
    subprocess.run(
        [sys.executable, "-c", DIES_AT, str(task.root), "module", "publish", "after"],
        check=False,
    )
    found = task.find(VERSION)
    assert found is not None
    assert task.sweep() == 1
    found.verify()
    assert content_of(found, tmp_path) == {b"a": b"1", b"b": b"2"}


@pytest.mark.parametrize(
    ("uids", "winners"),
    [(("000000000b", "000000000c"), 2), (("000000000b", "000000000b"), 1)],
    ids=["own-names", "one-name"],
)
def test_two_processes_that_seal_at_once_never_mix(
    task: TaskDirectory, tmp_path: Path, uids: tuple[str, str], winners: int
) -> None:
    arguments = [(str(task.root), own, uid) for own, uid in zip(("e1", "e2"), uids, strict=True)]
    with running(SEALS, *arguments[0]) as one, running(SEALS, *arguments[1]) as other:
        answers = [process.communicate("\n")[0] for process in (one, other)]
    assert answers.count("sealed\n") == winners
    assert len(task.versions()) == winners
    for name in task.versions():
        found = task.find(name)
        assert found is not None
        found.verify()
        assert content_of(found, tmp_path)[b"owner"] in {b"e1", b"e2"}


def test_a_sweep_leaves_the_directory_of_a_living_owner_alone(task: TaskDirectory) -> None:
    with running(HOLDS, str(task.root), "aa") as process:
        before = bytes_below(task.root / "work-aa")
        assert task.sweep() == 0
        assert bytes_below(task.root / "work-aa") == before
        process.kill()
        process.wait()
        assert task.sweep() == 1
    assert not (task.root / "work-aa").exists()


def test_a_sweep_leaves_the_own_directories_of_its_process_alone(task: TaskDirectory) -> None:
    with task.begin("aa", None, [STORE]) as work:
        assert task.sweep() == 0
        work.open_store(STORE, "rocksdb").put(b"a", b"1")
        work.seal(0, "000000000a", None)


def test_a_sweep_leaves_versions_alone(task: TaskDirectory) -> None:
    seal_version(task, "0_000000000a", None, {})
    assert task.sweep() == 0
    assert len(task.versions()) == 1


def test_a_uid_is_used_for_one_work_directory(task: TaskDirectory) -> None:
    with task.begin("aa", None, [STORE]) as work:
        with pytest.raises(FileExistsError):
            task.begin("aa", None, [STORE])
        assert work.path.exists()


class TestAdopt:
    """A restored store becomes the committed version that it is."""

    def restored(self, task: TaskDirectory, uid: str, value: bytes = b"1") -> WorkDirectory:
        """What a restore leaves: a store's files, no store open."""
        work = task.begin(uid, None, [STORE])
        work.open_store(STORE, "rocksdb").put(b"a", value)
        return work

    def test_it_is_found_under_its_name(self, task: TaskDirectory, tmp_path: Path) -> None:
        parent = VersionId.parse("0_000000000a")
        adopted = task.adopt(self.restored(task, "aa"), VERSION, parent, [parent], engines=ENGINES)
        assert task.find(VERSION) == adopted
        assert (adopted.parent, adopted.lineage) == (parent, (parent,))
        adopted.verify()
        assert content_of(adopted, tmp_path) == {b"a": b"1"}
        assert not list(task.root.glob("work-*"))

    def test_it_holds_no_lock_of_the_engine(self, task: TaskDirectory) -> None:
        adopted = task.adopt(self.restored(task, "aa"), VERSION, None, [], engines=ENGINES)
        assert not list(adopted.directory.rglob("LO*"))
        assert content_at(adopted.directory / "state" / "db") == {b"a": b"1"}

    def test_a_whole_version_of_that_name_stays(self, task: TaskDirectory, tmp_path: Path) -> None:
        first = task.adopt(self.restored(task, "aa"), VERSION, None, [], engines=ENGINES)
        before = bytes_below(first.directory)
        second = task.adopt(self.restored(task, "bb", b"other"), VERSION, None, [], engines=ENGINES)
        assert second == first
        assert bytes_below(first.directory) == before

    @pytest.mark.parametrize("pattern", ["*.sst", "SEAL-MANIFEST"])
    def test_a_damaged_version_of_that_name_is_replaced(
        self, task: TaskDirectory, tmp_path: Path, pattern: str
    ) -> None:
        first = task.adopt(self.restored(task, "aa"), VERSION, None, [], engines=ENGINES)
        path = next(first.directory.rglob(pattern))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        second = task.adopt(self.restored(task, "bb"), VERSION, None, [], engines=ENGINES)
        second.verify()
        assert content_of(second, tmp_path) == {b"a": b"1"}
        assert task.sweep() == 1
        assert task.versions() == [VERSION]

    def test_a_store_can_go_on_from_it(self, task: TaskDirectory, tmp_path: Path) -> None:
        adopted = task.adopt(self.restored(task, "aa"), VERSION, None, [], engines=ENGINES)
        child = seal_version(task, "2_000000000c", adopted, {b"b": b"2"})
        assert content_of(child, tmp_path) == {b"a": b"1", b"b": b"2"}
        assert len(child.changes_since(STORE, VERSION) or []) == 1

    def test_a_version_that_is_damaged_is_not_found_again_by_its_name(
        self, task: TaskDirectory
    ) -> None:
        adopted = task.adopt(self.restored(task, "aa"), VERSION, None, [], engines=ENGINES)
        (adopted.directory / "state" / "db" / "CURRENT").unlink()
        with pytest.raises(VersionDamagedError):
            task.find(VERSION)
