"""The snapshot index: Samza's form is read, ours is of that form, nonsense is refused."""

import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from encoded_kit import full_index
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeep.backends.blob.index import (
    SCHEMA_VERSION,
    DirIndex,
    FileBlob,
    FileIndex,
    FileMetadata,
    SnapshotIndex,
    SnapshotMetadata,
    decode_index,
    encode_index,
)
from statekeep.checkpoint.names import is_file_name
from statekeep.errors import CheckpointCorruptError, UnknownFormatError

EMPTY_DIR = DirIndex(
    dir_name="", files_present=(), files_removed=(), sub_dirs_present=(), sub_dirs_removed=()
)
FILE_METADATA = (
    '{"creation-time-millis":1700000000000,"last-modified-time-millis":1700000000100,'
    '"size":%d,"owner":"samza","group":"samza","permissions":"rw-r-----"}'
)

# Written by Samza 1.8.0's own SnapshotIndexSerde.
GOLDEN = (
    '{"creation-time-millis":1700000000200,"snapshot-metadata":{"checkpoint-id":'
    '"1700000000123-456789","job-name":"job","job-id":"1","task-name":"Partition 3","store-name":'
    '"sessions"},"dir-index":{"dir-name":"","files-present":[{"file-name":"000012.sst","blobs":'
    '[{"blob-id":"blob-1","offset":0},{"blob-id":"blob-2","offset":1}],"file-metadata":'
    + FILE_METADATA
    % 4096
    + ',"checksum":3735928559}],"files-removed":[{"file-name":"000009.sst","blobs":[{"blob-id":'
    '"blob-9","offset":0}],"file-metadata":'
    + FILE_METADATA
    % 4096
    + ',"checksum":7}],"sub-dirs-present":[{"dir-name":"sub","files-present":[{"file-name":'
    '"MANIFEST-000005","blobs":[{"blob-id":"blob-3","offset":0}],"file-metadata":'
    + FILE_METADATA
    % 4096
    + ',"checksum":1}],"files-removed":[],"sub-dirs-present":[],"sub-dirs-removed":[]}],'
    '"sub-dirs-removed":[]},"prev-snapshot-index-blob-id":%s}'
)


def file_index(name: str = "a.sst", blob_id: str = "blob-1", size: int = 3) -> FileIndex:
    return FileIndex(
        file_name=name,
        blobs=(FileBlob(blob_id=blob_id, offset=0),),
        file_metadata=FileMetadata(
            creation_time_millis=1,
            last_modified_time_millis=2,
            size=size,
            owner="o",
            group="g",
            permissions="rw-r--r--",
        ),
        checksum=5,
        sha256="0" * 64,
    )


def directory(name: str = "", **parts: Any) -> DirIndex:
    return msgspec.structs.replace(EMPTY_DIR, dir_name=name, **parts)


def snapshot_index(root: DirIndex, previous: str | None = None) -> SnapshotIndex:
    return SnapshotIndex(
        creation_time_millis=1,
        snapshot_metadata=SnapshotMetadata(
            checkpoint_id="1-2", job_name="job", job_id="1", task_name="Partition 0", store_name="s"
        ),
        dir_index=root,
        prev_snapshot_index_blob_id=previous,
        schema_version=SCHEMA_VERSION,
        version="0_00000000",
    )


@pytest.mark.parametrize("previous", ["null", '"blob-0"'], ids=["first", "later"])
def test_an_index_that_samza_wrote_is_read_and_written_back_byte_for_byte(previous: str) -> None:
    written = GOLDEN % previous
    index = full_index(written.encode(), where="golden")
    assert index.dir_index.files_present[0].checksum == 3735928559
    assert [f.file_name for f in index.dir_index.present_files()] == [
        "000012.sst",
        "MANIFEST-000005",
    ]
    assert index.schema_version == 0
    assert encode_index(index).decode() == written


def test_what_we_add_to_the_form_are_fields_that_samza_skips() -> None:
    ours = json.loads(encode_index(snapshot_index(directory(files_present=(file_index(),)))))
    assert ours.pop("schema-version") == SCHEMA_VERSION
    assert ours.pop("version") == "0_00000000"
    assert ours["dir-index"]["files-present"][0].pop("sha-256") == "0" * 64
    samza = json.loads(GOLDEN % "null")
    assert ours.keys() == samza.keys()
    assert ours["dir-index"].keys() == samza["dir-index"].keys()
    assert (
        ours["dir-index"]["files-present"][0].keys()
        == samza["dir-index"]["files-present"][0].keys()
    )
    assert ours["snapshot-metadata"].keys() == samza["snapshot-metadata"].keys()


def test_unknown_fields_are_ignored_on_reading() -> None:
    written = json.loads(GOLDEN % "null") | {"some-later-field": [1]}
    assert full_index(json.dumps(written).encode(), where="x").creation_time_millis > 0


def test_an_index_of_a_newer_schema_version_is_refused_by_name() -> None:
    newer = msgspec.structs.replace(snapshot_index(EMPTY_DIR), schema_version=SCHEMA_VERSION + 1)
    with pytest.raises(UnknownFormatError, match=f"version={SCHEMA_VERSION + 1}"):
        full_index(encode_index(newer), where="x")


def test_an_index_of_a_newer_schema_version_is_refused_by_name_whatever_else_is_in_it() -> None:
    with pytest.raises(UnknownFormatError, match="version=99"):
        full_index(b'{"schema-version":99,"dir-index":7}', where="x")


@settings(deadline=None)
@given(st.data())
def test_an_index_cut_short_is_refused(data: st.DataObject) -> None:
    whole = (GOLDEN % "null").encode()
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(CheckpointCorruptError, match="where-it-was"):
        full_index(whole[:cut], where="where-it-was")


def test_the_same_blob_may_not_be_present_and_removed_in_one_directory() -> None:
    root = directory(files_present=(file_index("a"),), files_removed=(file_index("b"),))
    with pytest.raises(ValueError, match="both present and removed"):
        snapshot_index(root)


def test_the_same_blob_may_not_be_present_and_removed_across_the_tree() -> None:
    below = directory("sub", files_removed=(file_index("b"),))
    root = directory(files_present=(file_index("a"),), sub_dirs_present=(below,))
    with pytest.raises(ValueError, match="both present and removed"):
        snapshot_index(root)


def test_a_name_may_be_present_and_removed_when_the_file_changed() -> None:
    changed = directory(
        files_present=(file_index("CURRENT", "blob-2"),),
        files_removed=(file_index("CURRENT", "blob-1"),),
    )
    assert [file.blobs[0].blob_id for file in changed.removed_files()] == ["blob-1"]


def test_a_blob_that_is_both_present_and_removed_is_refused_on_reading_too() -> None:
    written = (GOLDEN % "null").replace("blob-9", "blob-1")
    with pytest.raises(CheckpointCorruptError):
        full_index(written.encode(), where="x")


@pytest.mark.parametrize("name", ["", " ", ".", "..", "a/b", "/etc/passwd", "a\0b"])
def test_a_name_that_would_leave_its_directory_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a file name"):
        file_index(name)
    with pytest.raises(ValueError, match="not a file name"):
        directory(sub_dirs_present=(directory(name),))


def with_many(present: str, entry: Any, name: str, count: int) -> bytes:
    """Return an index that names so many files or directories, as an attacker would write it."""
    index = json.loads(encode_index(snapshot_index(directory())))
    written: Any = json.loads(msgspec.json.encode(entry))
    index["dir-index"][present] = [{**written, name: f"x{number}"} for number in range(count)]
    return json.dumps(index).encode()


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("present", "entry", "name", "reason"),
    [
        ("files-present", file_index(), "file-name", "more files than 32768"),
        ("sub-dirs-present", directory("d"), "dir-name", "more directories than 32768"),
    ],
    ids=["files", "directories"],
)
def test_an_index_of_300_000_entries_is_refused_and_costs_little(
    present: str, entry: Any, name: str, reason: str
) -> None:
    data = with_many(present, entry, name, 300_000)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointCorruptError) as caught:
            decode_index(data, where="x")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reason in str(caught.value.__cause__)
    assert peak < 400 << 20


def test_a_name_twice_in_one_directory_is_refused() -> None:
    with pytest.raises(ValueError, match="present twice"):
        directory(files_present=(file_index("a"),), sub_dirs_present=(directory("a"),))


@pytest.mark.parametrize(
    "make",
    [
        lambda: FileBlob(blob_id=" ", offset=0),
        lambda: FileBlob(blob_id="b", offset=-1),
        lambda: FileBlob(blob_id="b", offset=2**63),
        lambda: file_index(size=-1),
        lambda: msgspec.structs.replace(file_index(), checksum=-1),
        lambda: msgspec.structs.replace(file_index(), checksum=2**32),
        lambda: msgspec.structs.replace(file_index(), blobs=()),
        lambda: msgspec.structs.replace(file_index(), sha256="abc"),
        lambda: snapshot_index(directory("root")),
        lambda: msgspec.structs.replace(
            snapshot_index(EMPTY_DIR).snapshot_metadata, store_name=" "
        ),
    ],
    ids=[
        "blank blob id",
        "negative offset",
        "offset that samza cannot read",
        "negative size",
        "negative checksum",
        "checksum over 32 bits",
        "no blobs",
        "no digest",
        "named root",
        "blank store",
    ],
)
def test_nonsense_is_refused(make: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # each case has its own message
        make()


NAMES = st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1).filter(
    is_file_name
)


@st.composite
def trees(draw: st.DrawFn, depth: int = 2, name: str = "") -> DirIndex:
    names = draw(st.lists(NAMES, unique=True, max_size=4))
    cut = draw(st.integers(0, len(names))) if depth else len(names)
    files = tuple(
        file_index(file, draw(st.uuids()).hex, draw(st.integers(0, 2**40))) for file in names[:cut]
    )
    below = tuple(draw(trees(depth=depth - 1, name=sub_dir)) for sub_dir in names[cut:])
    return directory(name, files_present=files, sub_dirs_present=below)


@settings(deadline=None)
@given(trees(), st.none() | NAMES)
def test_an_index_round_trips(root: DirIndex, previous: str | None) -> None:
    index = snapshot_index(root, previous)
    assert full_index(encode_index(index), where="x") == index
