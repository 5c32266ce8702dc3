"""What a container that died left behind."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from container_process_kit import submit_versions

from statekeep.spark.container.outbox import Outbox


def test_a_submission_is_pending_until_it_is_removed(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    outbox.replace(submit_versions())
    assert outbox.pending() == [submit_versions()]
    outbox.remove(submit_versions())
    assert outbox.pending() == []


def test_leftovers_of_lower_attempts_are_dropped(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    outbox.replace(submit_versions(attempt=2, partition=1))
    outbox.replace(submit_versions(attempt=1, partition=0))
    assert outbox.pending() == [submit_versions(attempt=2, partition=1)]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_submission_for_which_there_is_no_room_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        Outbox(tmp_path).replace(submit_versions())
    assert list(tmp_path.iterdir()) == []


def test_an_outbox_that_was_deleted_is_made_anew(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "container" / "outbox")
    outbox.replace(submit_versions(attempt=1))
    shutil.rmtree(tmp_path / "container")
    outbox.remove(submit_versions(attempt=1))
    outbox.replace(submit_versions(attempt=2))
    assert outbox.pending() == [submit_versions(attempt=2)]
