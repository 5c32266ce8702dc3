"""What a sidecar leaves in its directory when it goes, and what is swept when it could not."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from sidecar_process_kit import spec_in, submit_versions

from statekeep.spark.sidecar import client
from statekeep.spark.sidecar.client import SidecarError, ask, ask_to_stop, start_ahead
from statekeep.spark.sidecar.launch import (
    SidecarLock,
    has_ended,
    has_living_holder,
    note_end,
    sweep_dead_sidecars,
    take_lock,
)
from statekeep.spark.sidecar.outbox import Outbox
from statekeep.spark.sidecar.paths import SidecarPaths
from statekeep.spark.sidecar.protocol import Restore

_HOLD_LOCK = """
import pathlib, sys
from statekeep.spark.sidecar.launch import take_lock
from statekeep.spark.sidecar.paths import SidecarPaths
lock = take_lock(SidecarPaths(pathlib.Path(sys.argv[1])))
print("held", flush=True)
sys.stdin.read()
"""
NOW_NS = 10**18


def paths_of(root: Path, name: str) -> SidecarPaths:
    paths = SidecarPaths(root / "job" / name)
    paths.prepare()
    paths.log.write_text("what happened")
    os.utime(paths.log, ns=(NOW_NS, NOW_NS))
    return paths


def leftovers(paths: SidecarPaths) -> set[str]:
    return {path.name for path in paths.directory.iterdir()}


def test_a_sidecar_that_goes_leaves_its_log_and_nothing_else(tmp_path: Path) -> None:
    paths = paths_of(tmp_path, "container-app-1")
    paths.socket.touch()
    lock = take_lock(paths)
    assert lock is not None
    lock.leave()
    assert leftovers(paths) == {"container.log"}
    assert not paths.socket.exists()


def test_a_sidecar_that_goes_leaves_what_its_successor_was_just_given(tmp_path: Path) -> None:
    paths = paths_of(tmp_path, "container-app-1")
    lock = take_lock(paths)
    assert lock is not None
    with paths.start_lock.open("w") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        lock.leave()
    assert leftovers(paths) == {"container.log", "outbox", "start-lock"}


def test_a_sidecar_whose_directory_was_lost_leaves_its_successor_alone(tmp_path: Path) -> None:
    """Else no stop reached that one, which stayed, and a third was started beside it."""
    paths = paths_of(tmp_path, "container-app-1")
    first = take_lock(paths)
    assert first is not None
    shutil.rmtree(paths.directory)
    paths.prepare()
    second = take_lock(paths)
    assert second is not None
    paths.socket.touch()
    first.leave()
    assert paths.socket.exists()
    assert take_lock(paths) is None
    second.leave()
    assert not paths.socket.exists()
    assert leftovers(paths) == set()


def test_a_sidecar_whose_directory_was_lost_removes_its_socket(tmp_path: Path) -> None:
    paths = paths_of(tmp_path, "container-app-1")
    lock = take_lock(paths)
    assert lock is not None
    paths.socket.touch()
    shutil.rmtree(paths.directory)
    lock.leave()
    assert not paths.socket.exists()


def test_the_directory_of_a_killed_sidecar_is_swept_and_that_of_a_living_one_is_not(
    tmp_path: Path,
) -> None:
    own = paths_of(tmp_path, "container-new-1")
    other = paths_of(tmp_path, "container-old-1")
    Outbox(other.outbox).replace([submit_versions()])
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD_LOCK, str(other.directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert sweep_dead_sidecars(own, "new", NOW_NS) == 0
        holder.send_signal(signal.SIGKILL)
    assert sweep_dead_sidecars(own, "new", NOW_NS) == 1
    assert leftovers(other) == {"container.log"}


def test_a_submission_that_an_earlier_application_left_in_good_order_is_swept(
    tmp_path: Path,
) -> None:
    own = paths_of(tmp_path, "container-new-1")
    other = paths_of(tmp_path, "container-old-1")
    lock = take_lock(other)
    assert lock is not None
    Outbox(other.outbox).replace([submit_versions()])
    lock.leave()
    assert "outbox" in leftovers(other)
    assert sweep_dead_sidecars(own, "new", NOW_NS) == 1
    assert leftovers(other) == {"container.log"}


def test_a_submission_is_held_while_its_sidecar_lives_and_is_not_done(tmp_path: Path) -> None:
    paths = paths_of(tmp_path, "container-old-1")
    paths_of(tmp_path, "container-new-1")
    Outbox(paths.outbox).replace([submit_versions(attempt=3, partition=2)])

    def is_held(partition: int = 2, attempt: int = 3) -> bool:
        return has_living_holder(paths.directory.parent, 1, attempt, partition)

    with subprocess.Popen(
        [sys.executable, "-c", _HOLD_LOCK, str(paths.directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert is_held()
        assert not is_held(partition=1)
        assert not is_held(attempt=2)
        holder.send_signal(signal.SIGKILL)
    assert not is_held()


def test_directories_of_the_own_application_are_left_alone(tmp_path: Path) -> None:
    own, sibling = paths_of(tmp_path, "container-app-1"), paths_of(tmp_path, "container-app-2")
    Outbox(sibling.outbox).replace([submit_versions()])
    assert sweep_dead_sidecars(own, "app", NOW_NS) == 0
    assert Outbox(sibling.outbox).pending()


def test_old_logs_of_dead_sidecars_go_with_their_directories(tmp_path: Path) -> None:
    own, other = paths_of(tmp_path, "container-new-1"), paths_of(tmp_path, "container-old-1")
    sweep_dead_sidecars(own, "new", NOW_NS + 8 * 24 * 3600 * 10**9)
    assert not other.directory.exists()


def test_what_the_end_of_a_session_left_where_no_sidecar_ever_was_goes_when_it_is_old(
    tmp_path: Path,
) -> None:
    own, other = (
        SidecarPaths(tmp_path / "job" / name) for name in ("container-new-1", "container-old-1")
    )
    ask_to_stop(other, spec_in(tmp_path), epoch=1)
    os.utime(other.directory, ns=(NOW_NS, NOW_NS))
    sweep_dead_sidecars(own, "new", NOW_NS + 6 * 24 * 3600 * 10**9)
    assert other.directory.exists()
    sweep_dead_sidecars(own, "new", NOW_NS + 8 * 24 * 3600 * 10**9)
    assert not other.directory.exists()


def test_a_lock_on_a_file_that_its_holder_has_removed_meanwhile_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = paths_of(tmp_path, "container-app-1")
    leaving = take_lock(paths)
    assert leaving is not None
    real = fcntl.flock
    calls: list[int] = []

    def flock(descriptor: int, operation: int) -> None:
        if not calls:
            leaving.leave()
        calls.append(descriptor)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    mine = take_lock(paths)
    assert mine is not None
    assert take_lock(paths) is None
    mine.leave()


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("temporary", ["t", "t" * 100], ids=["short", "long"])
def test_a_real_sidecar_starts_answers_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary: str
) -> None:
    """Also where a socket in the temporary directory would have too long a path."""
    (tmp_path / temporary).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)  # else the directory found before stays
    paths, spec = paths_of(tmp_path, "container-app-1"), spec_in(tmp_path)
    request = Restore(epoch=1, partition=0, candidates=[])
    try:
        with pytest.raises(SidecarError, match="no retained commit"):
            ask(paths, spec, request)
        assert _processes_of(paths)
    finally:
        ask_to_stop(paths, spec, epoch=1)
    assert leftovers(paths) == {"container.log", "ended-a1"}
    assert not paths.socket.exists()
    assert _has_gone(paths)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_sidecar_that_was_started_ahead_serves_the_first_request(tmp_path: Path) -> None:
    paths, spec = paths_of(tmp_path, "container-app-1"), spec_in(tmp_path)
    start_ahead(paths, spec)
    started = _processes_of(paths)
    assert len(started) == 1
    start_ahead(paths, spec)
    with pytest.raises(SidecarError, match="no retained commit"):
        ask(paths, spec, Restore(epoch=1, partition=0, candidates=[]))
    assert _processes_of(paths) == started
    ask_to_stop(paths, spec, epoch=1)
    assert _has_gone(paths)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_sidecar_that_boots_when_the_stop_comes_goes_by_itself(tmp_path: Path) -> None:
    paths, spec = paths_of(tmp_path, "container-app-1"), spec_in(tmp_path)
    start_ahead(paths, spec)
    assert _processes_of(paths)
    ask_to_stop(paths, spec, epoch=1)
    assert _has_gone(paths)
    assert leftovers(paths) == {"container.log", "ended-a1"}


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_task_that_comes_after_a_stop_finds_a_sidecar_all_the_same(tmp_path: Path) -> None:
    paths, spec = paths_of(tmp_path, "container-app-1"), spec_in(tmp_path)
    start_ahead(paths, spec)
    ask_to_stop(paths, spec, epoch=1)
    later = msgspec.structs.replace(spec, session="b2")
    with pytest.raises(SidecarError, match="no retained commit"):
        ask(paths, later, Restore(epoch=1, partition=0, candidates=[]))
    ask_to_stop(paths, later, epoch=1)
    assert _has_gone(paths)
    assert leftovers(paths) == {"container.log", "ended-a1", "ended-b2"}


def test_a_task_that_outlives_its_driver_starts_no_sidecar(tmp_path: Path) -> None:
    """Its worker still booted when the stage failed: the sidecar would stay."""
    paths, spec = SidecarPaths(tmp_path / "job" / "container-app-1"), spec_in(tmp_path)
    ask_to_stop(paths, spec, epoch=1)
    start_ahead(paths, spec)
    with pytest.raises(SidecarError, match="the query of this task has ended: session=a1"):
        ask(paths, spec, Restore(epoch=1, partition=0, candidates=[]))
    assert not _processes_of(paths)
    assert leftovers(paths) == {"ended-a1"}


def test_a_stop_that_comes_while_the_lock_is_taken_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, spec = paths_of(tmp_path, "container-app-1"), spec_in(tmp_path)

    def take(of: SidecarPaths) -> SidecarLock | None:
        lock = take_lock(of)
        ask_to_stop(paths, spec, epoch=1)
        return lock

    monkeypatch.setattr(client, "take_lock", take)
    start_ahead(paths, spec)
    assert not _processes_of(paths)
    assert leftovers(paths) == {"container.log", "ended-a1"}


def test_marks_of_sessions_that_ended_long_ago_go(tmp_path: Path) -> None:
    paths = paths_of(tmp_path, "container-app-1")
    for number in range(20):
        note_end(paths, f"{number}")
        os.utime(paths.directory / f"ended-{number}", ns=(number, number))
    note_end(paths, "last")
    kept = [f"{number}" for number in range(20) if has_ended(paths, f"{number}")]
    assert kept == [f"{number}" for number in range(5, 20)]
    assert has_ended(paths, "last")


def test_a_stop_where_nothing_can_be_written_still_reaches_the_sidecar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    paths, spec = paths_of(tmp_path, "container-app-1"), spec_in(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(client, "note_end", full)
    with pytest.raises(SidecarError, match="no retained commit"):
        ask(paths, spec, Restore(epoch=1, partition=0, candidates=[]))
    ask_to_stop(paths, spec, epoch=1)
    assert _has_gone(paths)
    assert "No space left on device" in caplog.text


def _has_gone(paths: SidecarPaths) -> bool:
    """Wait for the end of the sidecar's process."""
    pause = threading.Event()  # never set: the process ends by itself
    for _ in range(1000):
        if not _processes_of(paths):
            return True
        pause.wait(0.02)
    return False


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_killed_sidecar_leaves_no_secret_on_disk_and_shows_none_in_the_process_list(
    tmp_path: Path,
) -> None:
    hidden = "Zq9silence"
    paths = paths_of(tmp_path, "container-app-1")
    spec = spec_in(tmp_path, **{"blob.store.s3.proxy": f"http://me:{hidden}@proxy"})
    with pytest.raises(SidecarError, match="no retained commit"):
        ask(paths, spec, Restore(epoch=1, partition=0, candidates=[]))
    commands = _processes_of(paths)
    assert commands
    assert not any(hidden in command for command in commands.values())
    assert not _files_with(hidden, tmp_path)
    for pid in commands:
        os.kill(pid, signal.SIGKILL)
    assert not _files_with(hidden, tmp_path)


def test_the_settings_of_a_sidecar_are_in_no_text_of_it(tmp_path: Path) -> None:
    spec = spec_in(tmp_path, **{"blob.store.s3.proxy": "http://me:Zq9silence@proxy"})
    printed = StringIO()
    Console(file=printed, width=10_000).print(spec)
    texts = [repr(spec), str(spec), f"{[spec]}", printed.getvalue()]
    assert all("SidecarSpec" in text and "job_uid='u'" in text for text in texts)
    assert not any("Zq9" in text for text in texts)


def _files_with(text: str, root: Path) -> list[Path]:
    files = [path for path in root.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if text.encode() in path.read_bytes()]


def _processes_of(paths: SidecarPaths) -> dict[int, str]:
    """Return the command lines of living processes that name the directory, by pid."""
    found: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(paths.directory).encode() in command:
            found[int(entry.parent.name)] = command.decode()
    return found
