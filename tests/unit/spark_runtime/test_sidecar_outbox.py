"""What a sidecar that died left behind."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sidecar_process_kit import submit_slot, submit_versions

from statekeep.spark.sidecar import outbox as outbox_module
from statekeep.spark.sidecar.outbox import Outbox
from statekeep.spark.sidecar.protocol import SubmitVersion, encode


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
    written: list[int] = []

    def fail(request: SubmitVersion) -> bytes:
        written.append(request.partition)
        if len(written) == 2:
            raise OSError(errno.ENOSPC, "no space left")
        return encode(request)

    monkeypatch.setattr(outbox_module, "encode", fail)
    with pytest.raises(OSError, match="no space left"):
        Outbox(tmp_path).replace(submit_slot(0, 1, 2).each())
    assert written == [0, 1]
    assert list(tmp_path.iterdir()) == []


def test_a_submission_that_is_repeated_while_it_is_written_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that sent it has died, and another one has sent it again."""
    outbox = Outbox(tmp_path)

    def repeat(request: SubmitVersion) -> bytes:
        monkeypatch.setattr(outbox_module, "encode", encode)
        outbox.replace([request])
        return encode(request)

    monkeypatch.setattr(outbox_module, "encode", repeat)
    outbox.replace([submit_versions()])
    assert len(list(tmp_path.iterdir())) == 1
    assert outbox.pending() == [submit_versions()]


def zeros_within(data: bytes) -> bytes:
    return data.replace(b"0_01234567", b"0_0123\0\0\0\0")


@pytest.mark.parametrize(
    "tear",
    [lambda data: b"", lambda data: data[:-20], lambda data: bytes(len(data)), zeros_within],
    ids=["empty", "cut off", "zeros", "zeros within"],
)
def test_what_a_power_loss_has_torn_is_left_to_its_driver_and_the_rest_is_taken_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tear: Callable[[bytes], bytes]
) -> None:
    Outbox(tmp_path).replace(submit_slot(0, 1).each())
    torn = min(tmp_path.iterdir())
    data = torn.read_bytes()
    torn.write_bytes(tear(data))
    assert torn.read_bytes() != data
    assert Outbox(tmp_path).pending() == [submit_versions(partition=1)]
    assert not torn.exists()
    assert f"path={torn}" in caplog.text


def test_what_a_sidecar_was_writing_that_died_is_removed(tmp_path: Path) -> None:
    (tmp_path / f"{1:012d}-{1:012d}-{0:08d}.0.tmp").write_bytes(b"{")
    assert Outbox(tmp_path).pending() == []
    assert list(tmp_path.iterdir()) == []


def test_an_outbox_that_was_deleted_is_made_anew(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "sidecar" / "outbox")
    outbox.replace([submit_versions(attempt=1)])
    shutil.rmtree(tmp_path / "sidecar")
    outbox.remove([submit_versions(attempt=1)])
    outbox.replace([submit_versions(attempt=2)])
    assert outbox.pending() == [submit_versions(attempt=2)]
