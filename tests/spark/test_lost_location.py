"""A checkpoint location that is gone or damaged: an error with its remedy, and nothing is changed."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Stream

from statekeep.errors import CheckpointLocationError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


def lose(location: Path) -> None:
    shutil.rmtree(location)


def empty_metadata(location: Path) -> None:
    (location / "metadata").write_text("")


def cut_commits_off(location: Path) -> None:
    shutil.rmtree(location / "commits")


def empty_newest_commit(location: Path) -> None:
    _cut_off(location / "commits" / "2", 0)


def cut_newest_offsets_off(location: Path) -> None:
    _cut_off(location / "offsets" / "2", 20)


def _cut_off(file: Path, size: int) -> None:
    """Cut off a file that Spark wrote, and drop the checksum that it keeps beside it."""
    file.write_bytes(file.read_bytes()[:size])
    file.with_name(f".{file.name}.crc").unlink()


@pytest.mark.parametrize(
    ("spoil", "text", "remedy"),
    [
        (
            lose,
            "checkpoint location is empty, the job log is of query_id=",
            "put a copy of it back",
        ),
        (empty_metadata, "metadata of the checkpoint location is damaged", "from a copy"),
        (
            cut_commits_off,
            "are of different times: commits=-1 logged=2",
            "as it was at the job's last batch",
        ),
        (empty_newest_commit, "is cut off: .*/commits/2", "a copy"),
        (cut_newest_offsets_off, "is cut off: .*/offsets/2", "a copy"),
    ],
    ids=["lost", "metadata", "all commits", "a commit", "offsets"],
)
def test_the_start_ends_with_the_remedy_and_a_copy_put_back_goes_on(
    stream: Stream, spoil: Callable[[Path], None], text: str, remedy: str
) -> None:
    stream.settings = {"blob.store.uri": str(stream.root / "backup")}
    stream.add_batches(3)
    stream.run()
    shutil.copytree(stream.location, stream.root / "copy")
    log = sorted((stream.root / "backup" / "counts" / "log").iterdir())
    spoil(stream.location)

    with pytest.raises(CheckpointLocationError, match=text) as caught:
        stream.run()

    assert remedy in "".join(caught.value.hints)
    assert sorted((stream.root / "backup" / "counts" / "log").iterdir()) == log
    if stream.location.exists():
        shutil.rmtree(stream.location)
    shutil.copytree(stream.root / "copy", stream.location)
    stream.add_batches(1)
    stream.run()
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3]
    assert stream.received() == stream.expected(4)
