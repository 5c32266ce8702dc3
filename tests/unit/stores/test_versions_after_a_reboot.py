"""What lay on the disk when the host was started is compared with its digests, once, before use."""

from pathlib import Path

import pytest

from statekeep.checkpoint.checkpoints import VersionId
from statekeep.config.load import load_dict
from statekeep.stores import boot_mark
from statekeep.stores.change_set import ChangeSet
from statekeep.stores.open_task import OpenTask
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion
from statekeep.testing.versions import STORE, FakeTask, seal_version

V0, V1 = VersionId.parse("0_000000000a"), VersionId.parse("1_000000000b")


class Host:
    """Counts its starts."""

    def __init__(self) -> None:
        self.boot = 1

    def boot_id(self) -> str:
        return f"boot {self.boot}"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host()
    monkeypatch.setattr(boot_mark, "boot_id", made.boot_id)
    return made


@pytest.fixture
def task(tmp_path: Path, host: Host) -> TaskDirectory:
    return TaskDirectory.of(tmp_path, FakeTask())


def zeroed(version: SealedVersion) -> None:
    """Leave the sizes of all files as they were, as a power loss may."""
    for entry in version.store_files(STORE):
        path = version.directory / entry.path
        path = path if path.exists() else next(version.directory.rglob(entry.path))
        size = path.stat().st_size
        path.unlink()
        path.write_bytes(bytes(size))


def is_here(task: TaskDirectory, version: VersionId) -> bool:
    return task.find_path(version, None, [STORE]) is not None


def test_after_a_start_of_the_host_a_version_of_the_right_sizes_is_read(
    task: TaskDirectory, host: Host
) -> None:
    first = seal_version(task, str(V0), None, {b"a": b"1"})
    second = seal_version(task, str(V1), first, {b"b": b"2"})
    zeroed(second)
    assert is_here(task, V1)
    host.boot = 2
    assert not is_here(task, V1)
    assert is_here(task, V0)
    assert not second.directory.exists()


def test_a_change_set_is_read_too(tmp_path: Path, host: Host) -> None:
    task = OpenTask(
        TaskDirectory(tmp_path / "t", FakeTask()),
        {STORE: load_dict({"job.name": "j"}).store(STORE)},
        "1-",
    )
    assert task.go_to(None)
    with task.batch():
        task.store(STORE).write({b"a": b"1"})
        version = task.publish_changes(0).version
    delta = ChangeSet(tmp_path / "t" / f"{version}.changes", version).delta_path(STORE)
    data = delta.read_bytes()
    delta.unlink()
    delta.write_bytes(bytes([*data[:-30], *bytes(10), *data[-20:]]))
    assert is_here(task.directory, version)
    host.boot = 2
    assert not is_here(task.directory, version)


def test_versions_are_read_once_for_each_start(
    task: TaskDirectory, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal_version(task, str(V0), None, {b"a": b"1"})
    read: list[VersionId] = []

    def verify(version: SealedVersion) -> None:
        read.append(version.id)

    monkeypatch.setattr(SealedVersion, "verify", verify)
    assert is_here(task, V0)
    assert read == []
    for boot in (2, 2, 3):
        host.boot = boot
        assert is_here(task, V0)
    assert read == [V0, V0]


def test_a_directory_of_an_earlier_release_is_read_once(task: TaskDirectory) -> None:
    version = seal_version(task, str(V0), None, {b"a": b"1"})
    (task.root / boot_mark.BOOT_FILE).unlink()
    zeroed(version)
    assert not is_here(task, V0)
    assert (task.root / boot_mark.BOOT_FILE).exists()
