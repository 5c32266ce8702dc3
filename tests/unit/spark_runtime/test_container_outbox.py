"""What a container that died left behind."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from container_process_kit import submit_slot, submit_versions

from statekeep.spark.container.outbox import Outbox


def test_a_submission_is_pending_until_it_is_removed(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    outbox.replace([submit_versions()])
    assert outbox.pending() == [submit_versions()]
    outbox.remove([submit_versions()])
    assert outbox.pending() == []


def test_leftovers_of_lower_attempts_are_dropped(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    outbox.replace([submit_versions(attempt=2, partition=1)])
    outbox.replace([submit_versions(attempt=1, partition=0)])
    assert outbox.pending() == [submit_versions(attempt=2, partition=1)]
    assert len(list(tmp_path.iterdir())) == 1


def test_submissions_for_which_there_is_no_room_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    def fail(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        Outbox(tmp_path).replace(submit_slot(0, 1, 2).each())
    assert len(synced) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_submission_that_is_repeated_while_it_is_written_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that sent it has died, and another one has sent it again."""
    outbox, sync = Outbox(tmp_path), os.fsync

    def repeat(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        outbox.replace([submit_versions()])
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", repeat)
    outbox.replace([submit_versions()])
    assert len(list(tmp_path.iterdir())) == 1
    assert outbox.pending() == [submit_versions()]


def test_what_a_container_was_writing_that_died_is_removed(tmp_path: Path) -> None:
    (tmp_path / f"{1:012d}-{1:012d}-{0:08d}.0.tmp").write_bytes(b"{")
    assert Outbox(tmp_path).pending() == []
    assert list(tmp_path.iterdir()) == []


def test_an_outbox_that_was_deleted_is_made_anew(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "container" / "outbox")
    outbox.replace([submit_versions(attempt=1)])
    shutil.rmtree(tmp_path / "container")
    outbox.remove([submit_versions(attempt=1)])
    outbox.replace([submit_versions(attempt=2)])
    assert outbox.pending() == [submit_versions(attempt=2)]
