"""What is done ahead of a seal shortens it, and changes nothing."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from statekeep.stores import version, work_directory
from statekeep.stores.local_files import crc32_of
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import KnownChecksums
from statekeep.stores.work_directory import WorkDirectory
from statekeep.testing.versions import STORE, FakeTask, content_of

MANY = {b"%05d" % number: b"v" * 100 for number in range(5_000)}


@pytest.fixture
def work(tmp_path: Path) -> Iterator[WorkDirectory]:
    task = TaskDirectory.of(tmp_path / "local", FakeTask())
    with task.begin("0000000000", None, [STORE], captured=[STORE]) as work:
        yield work


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files whose checksum was computed."""
    names: list[str] = []

    def counting(path: Path) -> int:
        names.append(path.name)
        return crc32_of(path)

    monkeypatch.setattr(version, "crc32_of", counting)
    return names


def test_a_prepared_seal_reads_no_table_again(work: WorkDirectory, read: list[str]) -> None:
    store = work.open_store(STORE, "rocksdb")
    store.write(MANY)
    work.prepare_seal()
    assert any(name.endswith(".sst") for name in read)
    read.clear()
    sealed = work.seal(0, "000000000a", None)
    assert not [name for name in read if name.endswith(".sst")]
    sealed.verify()


def test_what_is_written_after_the_preparation_is_in_the_version(
    work: WorkDirectory, tmp_path: Path
) -> None:
    store = work.open_store(STORE, "rocksdb")
    store.write(MANY)
    work.prepare_seal()
    store.write({b"late": b"1", b"00000": None})
    sealed = work.seal(0, "000000000a", None)
    sealed.verify()
    expected = {key: value for key, value in MANY.items() if key != b"00000"} | {b"late": b"1"}
    assert content_of(sealed, tmp_path) == expected


def test_a_file_that_changes_while_it_is_read_ahead_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "000001.sst"
    table.write_bytes(b"half")

    def growing(path: Path) -> int:
        crc = crc32_of(path)
        path.write_bytes(b"half and half")
        return crc

    known = KnownChecksums()
    with monkeypatch.context() as patch:
        patch.setattr(version, "crc32_of", growing)
        known.read_ahead(tmp_path)
    (entry,) = known.entries(tmp_path)
    assert entry.crc32 == crc32_of(table)


def test_a_file_that_is_gone_before_it_is_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "000001.sst").write_bytes(b"compacted away")

    def vanishing(path: Path) -> int:
        path.unlink()
        return crc32_of(path)

    known = KnownChecksums()
    with monkeypatch.context() as patch:
        patch.setattr(version, "crc32_of", vanishing)
        known.read_ahead(tmp_path)
    assert known.entries(tmp_path) == ()


def test_what_was_merged_between_two_batches_is_read_beside_the_next_one_and_not_by_the_image(
    work: WorkDirectory, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = work.open_store(STORE, "rocksdb")
    store.write(MANY)
    store.flush()
    work.begin_read_ahead()
    assert threads_that_read() == []  # a small store
    monkeypatch.setattr(work_directory, "_LARGE_BYTES", 4096)
    work.begin_read_ahead()
    for thread in threads_that_read():
        thread.join()
    assert [name.rpartition(".")[2] for name in read] == ["sst"]
    work.begin_read_ahead()  # nothing new
    assert threads_that_read() == []
    sealed = work.seal(0, "000000000a", None)
    assert len([name for name in read if name.endswith(".sst")]) == 1
    sealed.verify()


def test_an_image_waits_for_what_is_read_ahead(
    work: WorkDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_a_large_file(work, monkeypatch)
    goes_on, tables_read_by = threading.Event(), list[str]()

    def held(path: Path) -> int:
        goes_on.wait(30)
        if path.suffix == ".sst":
            tables_read_by.append(threading.current_thread().name)
        return crc32_of(path)

    monkeypatch.setattr(version, "crc32_of", held)
    work.begin_read_ahead()
    threading.Timer(0.05, goes_on.set).start()
    work.seal(0, "000000000a", None)
    assert tables_read_by == ["statekeep-read-ahead"]


def test_a_lost_disk_is_met_by_what_comes_next_and_not_by_the_look_for_large_files(
    work: WorkDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = work.open_store(STORE, "rocksdb")
    store.write(MANY)
    monkeypatch.setattr(work_directory, "_LARGE_BYTES", 0)
    shutil.rmtree(work.path)
    work.begin_read_ahead()
    assert threads_that_read() == []


def test_a_host_without_another_thread_reads_the_files_for_the_image(
    work: WorkDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_a_large_file(work, monkeypatch)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        work.begin_read_ahead()
    work.seal(0, "000000000a", None).verify()


def test_what_was_read_ahead_counts_although_another_file_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        (tmp_path / f"00000{number}.sst").write_bytes(b"table")
    read: list[str] = []

    def first_alone(path: Path) -> int:
        if read:
            raise PermissionError
        return counting(path)

    def counting(path: Path) -> int:
        read.append(path.name)
        return crc32_of(path)

    known = KnownChecksums()
    with monkeypatch.context() as patch:
        patch.setattr(version, "crc32_of", first_alone)
        with pytest.raises(PermissionError):
            known.read_ahead(tmp_path)
        read.clear()
        patch.setattr(version, "crc32_of", counting)
        known.entries(tmp_path)
    assert len(read) == 1


def write_a_large_file(work: WorkDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a file in the store, and have it taken for a large one."""
    store = work.open_store(STORE, "rocksdb")
    store.write(MANY)
    store.flush()
    monkeypatch.setattr(work_directory, "_LARGE_BYTES", 4096)


def threads_that_read() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "statekeep-read-ahead"]
