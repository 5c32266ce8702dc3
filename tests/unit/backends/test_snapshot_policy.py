"""When a snapshot is due: by the sizes of files, deltas and image, and by a count."""

import msgspec
import pytest

from statekeep.backends.blob.index import (
    DeltaBlob,
    DirIndex,
    FileBlob,
    FileIndex,
    FileMetadata,
    SnapshotIndex,
    SnapshotMetadata,
)
from statekeep.backends.blob.settings import SnapshotPolicy

MB = 1_000_000
POLICY = SnapshotPolicy(max_delta_ratio=0.25, max_deltas=100)


def index(image_bytes: int, *delta_bytes: int) -> SnapshotIndex:
    """Return the index of an image of one file, and of deltas of these sizes."""
    times = FileMetadata(
        creation_time_millis=1,
        last_modified_time_millis=1,
        size=image_bytes,
        owner="",
        group="",
        permissions="",
    )
    blobs = (FileBlob(blob_id="b", offset=0),)
    file = FileIndex(file_name="f", blobs=blobs, file_metadata=times, checksum=0)
    return SnapshotIndex(
        creation_time_millis=1,
        snapshot_metadata=SnapshotMetadata(
            checkpoint_id="1-2", job_name="job", job_id="1", task_name="t", store_name="s"
        ),
        dir_index=DirIndex(
            dir_name="",
            files_present=(file,),
            files_removed=(),
            sub_dirs_present=(),
            sub_dirs_removed=(),
        ),
        prev_snapshot_index_blob_id=None,
        version=f"{len(delta_bytes)}_a",
        image_version="0_a",
        deltas=tuple(
            DeltaBlob(
                parent=f"{number}_a",
                version=f"{number + 1}_a",
                blob_id=f"d{number}",
                size=size,
                checksum=0,
                sha256="0" * 64,
            )
            for number, size in enumerate(delta_bytes)
        ),
    )


def is_due(
    base: SnapshotIndex, new_files: int, new_delta: int, policy: SnapshotPolicy = POLICY
) -> bool:
    return policy.is_image_due(
        base, new_file_bytes=new_files, new_delta_bytes=new_delta, new_deltas=1
    )


@pytest.mark.parametrize(
    ("deltas", "new_files", "new_delta", "expected"),
    [
        ((), 50 * MB, MB, False),
        ((), MB, MB, True),
        ((100 * MB,), 50 * MB, MB, False),
        ((130 * MB,), 50 * MB, MB, True),
        ((130 * MB,), 900 * MB, MB, False),
        ((249 * MB,), 900 * MB, MB, False),
        ((249 * MB,), 900 * MB, 2 * MB, True),
        ((125 * MB, 124 * MB), 900 * MB, 2 * MB, True),
    ],
    ids=[
        "files dearer than the changes",
        "files no dearer than the changes",
        "cheap files before half of the bound",
        "cheap files past half of the bound",
        "dear files past half of the bound",
        "at the bound",
        "past the bound",
        "past the bound by all deltas together",
    ],
)
def test_sizes_decide(
    deltas: tuple[int, ...], new_files: int, new_delta: int, *, expected: bool
) -> None:
    assert is_due(index(1_000 * MB, *deltas), new_files, new_delta) is expected


def test_the_count_of_deltas_has_a_bound_too() -> None:
    assert not is_due(index(1_000 * MB, *[1] * 99), 900 * MB, 1)
    assert is_due(index(1_000 * MB, *[1] * 100), 900 * MB, 1)


def test_small_images_may_have_deltas_of_some_megabytes() -> None:
    assert not is_due(index(1_000, 1 * MB), 5 * MB, MB)
    assert is_due(index(1_000, 4 * MB), 5 * MB, MB)


def test_an_image_follows_every_commit_where_deltas_are_off() -> None:
    assert is_due(index(1_000 * MB), 900 * MB, 1, SnapshotPolicy(max_delta_ratio=0))


def test_the_same_version_again_is_no_reason_for_an_image() -> None:
    base = msgspec.structs.replace(index(1_000 * MB, 240 * MB))
    assert not POLICY.is_image_due(base, new_file_bytes=0, new_delta_bytes=0, new_deltas=0)
