"""Every file of the HDFS backend has a digest that leads back to the marker."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from hdfs_kit import header_of
from hdfs_task_kit import Task, rewrite, upload_of, with_old_marker

from statekeep.backends.hdfs.names import FileDigest, FileKind, UploadMarker
from statekeep.checkpoint.checkpoints import Marker, VersionId
from statekeep.errors import CheckpointCorruptError, UnknownFormatError
from statekeep.testing.backend_harness import STORE

ROWS = {f"row {number:04d}": b"value" for number in range(2_000)}
LEFT_OUT = 302


@pytest_asyncio.fixture
async def task(tmp_path: Path) -> AsyncIterator[Task]:
    made = Task(tmp_path / "place", tmp_path / "local")
    await made.start()
    yield made
    await made.close()


@pytest.mark.asyncio
async def test_a_snapshot_that_was_rewritten_with_right_checksums_is_not_restored(
    task: Task,
) -> None:
    commit = await task.commit_next(**ROWS)
    rewrite(task.file(commit, "snapshot"), LEFT_OUT)
    with pytest.raises(CheckpointCorruptError, match="differs from its digest"):
        await task.restore(commit.checkpoint)


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [0, 1, 2])
async def test_no_file_of_a_lineage_can_be_rewritten_unseen(task: Task, number: int) -> None:
    commits = [
        await task.commit_next(**{f"{n} {row}": value for row, value in ROWS.items()})
        for n in range(3)
    ]
    kind = "delta" if number else "snapshot"
    rewrite(task.file(commits[number], kind), LEFT_OUT)
    with pytest.raises(CheckpointCorruptError, match="differs from its digest"):
        await task.restore(commits[2].checkpoint)


@pytest.mark.asyncio
async def test_a_later_snapshot_that_was_rewritten_gives_way_to_the_older_one(task: Task) -> None:
    commits = [await task.commit_next(**ROWS, last=bytes([n])) for n in range(5)]
    rewrite(task.file(commits[3], "snapshot"), LEFT_OUT)
    assert (await task.restore(commits[4].checkpoint)).content == {STORE: task.content}
    for commit in commits[:4]:
        task.release(commit)
    await task.clean_up()
    assert (await task.restore(commits[4].checkpoint)).content == {STORE: task.content}


@pytest.mark.asyncio
async def test_behind_a_later_snapshot_that_was_rewritten_digests_hold_too(task: Task) -> None:
    commits = [await task.commit_next(**ROWS, last=bytes([n])) for n in range(5)]
    rewrite(task.file(commits[3], "snapshot"), LEFT_OUT)
    rewrite(task.file(commits[3], "delta"), 0)
    with pytest.raises(CheckpointCorruptError, match="differs from its digest"):
        await task.restore(commits[4].checkpoint)


@pytest.mark.asyncio
async def test_a_snapshot_that_nothing_names_is_not_used(task: Task, tmp_path: Path) -> None:
    commits = [await task.commit_next(a=bytes([n])) for n in range(3)]
    forged = task.file(commits[2], "delta").with_name(f"{upload_of(commits[1])}.snapshot")
    forged.write_bytes(task.file(commits[0], "snapshot").read_bytes())
    assert (await task.restore(commits[2].checkpoint)).content == {STORE: {"a": bytes([2])}}
    following = await task.commit_next(b=b"1")
    header = header_of(task.file(following, "delta").read_bytes())
    assert header["lineage"][-1] == upload_of(commits[0])


@pytest.mark.asyncio
async def test_a_marker_does_not_grow_with_its_lineage(tmp_path: Path) -> None:
    task = Task(tmp_path / "p", tmp_path / "l", **{"min.deltas.for.snapshot": "100"})
    await task.start()
    sizes = [len((await task.commit_next(a=bytes([n]))).markers[STORE]) for n in range(30)]
    assert max(sizes) - min(sizes) <= len("snapshot") - len("delta") + 1  # a digit of the batch
    await task.close()


@pytest.mark.asyncio
async def test_a_marker_without_a_digest_is_restored_and_the_next_upload_is_full(
    task: Task,
) -> None:
    commits = [await task.commit_next(a=bytes([n])) for n in range(5)]
    old = with_old_marker(commits[4])
    assert (await task.restore(old)).content == {STORE: task.content}
    task.record(commits[4].context, next(iter(old.state_markers.values())))
    following = await task.commit_next(b=b"1")
    assert task.file(following, "snapshot").exists()
    await task.clean_up()
    assert (await task.restore(old)).content == {STORE: {"a": bytes([4])}}


PREFIX = "job/state-77aa/hdfs/main/Partition%203/state/"
DIGEST = "ab" * 32


@pytest.mark.parametrize("kind", FileKind)
def test_a_marker_is_read_as_it_was_written(kind: FileKind) -> None:
    marker = UploadMarker(PREFIX, VersionId.parse("7_0c1f0c1f"), FileDigest(kind, DIGEST))
    assert marker.encode() == f"{PREFIX}7_0c1f0c1f.{kind.value};v=2;sha256={DIGEST}"
    assert UploadMarker.parse(marker.encode()) == marker
    old = UploadMarker(PREFIX, marker.id, None)
    assert UploadMarker.parse(old.encode()) == old


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (f"7_0c1f0c1f.delta;v=3;sha256={DIGEST}", UnknownFormatError),
        ("7_0c1f0c1f.delta;v=12;crc=1", UnknownFormatError),
        (f"7_0c1f0c1f;v=2;sha256={DIGEST}", CheckpointCorruptError),
        (f"7_0c1f0c1f.delta;v=2;sha256={DIGEST[1:]}", CheckpointCorruptError),
        (f"7_0c1f0c1f.delta;v=1;sha256={DIGEST}", CheckpointCorruptError),
        ("7_0c1f0c1f.delta", CheckpointCorruptError),
        ("7_0c1f0c1f.delta;", CheckpointCorruptError),
    ],
)
def test_other_markers_are_refused(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        UploadMarker.parse(Marker(f"{PREFIX}{text}"))
