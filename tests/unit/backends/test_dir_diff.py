"""The difference between a local image and the base index: Samza's 33 cases and what it lacks."""

from collections.abc import Mapping
from pathlib import PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeep.backends.blob.diff import DirDiff, LocalDir, LocalFile, diff_dirs, local_tree
from statekeep.backends.blob.index import DirIndex, FileBlob, FileIndex, FileMetadata

Tree = Mapping[str, int]
"""``{path: crc32}``; a path that ends with a slash is a directory without files."""


def local(tree: Tree) -> LocalDir:
    files = [LocalFile(PurePosixPath(p), 10, crc) for p, crc in tree.items() if p[-1] != "/"]
    return local_tree(files, [PurePosixPath(p) for p in tree if p[-1] == "/"])


def remote(tree: Tree) -> DirIndex:
    return indexed(local(tree), PurePosixPath())


def indexed(directory: LocalDir, path: PurePosixPath) -> DirIndex:
    return DirIndex(
        dir_name=directory.name,
        files_present=tuple(indexed_file(file) for file in directory.files.values()),
        files_removed=(),
        sub_dirs_present=tuple(
            indexed(sub_dir, path / name) for name, sub_dir in directory.sub_dirs.items()
        ),
        sub_dirs_removed=(),
    )


def indexed_file(file: LocalFile, blob_id: str | None = None) -> FileIndex:
    return FileIndex(
        file_name=file.path.name,
        blobs=(FileBlob(blob_id=blob_id or f"blob:{file.path}:{file.crc32}", offset=0),),
        file_metadata=FileMetadata(
            creation_time_millis=0,
            last_modified_time_millis=0,
            size=file.size,
            owner="o",
            group="g",
            permissions="rw-r--r--",
        ),
        checksum=file.crc32,
        sha256="0" * 64,
    )


def removed_files(diff: DirDiff, path: PurePosixPath) -> set[str]:
    here = {str(path / file.file_name) for file in diff.files_removed}
    for sub_dir in diff.sub_dirs:
        here |= removed_files(sub_dir, path / sub_dir.dir_name)
    for gone in diff.sub_dirs_removed:
        here |= set(flat(gone, path / gone.dir_name))
    return here


def flat(directory: DirIndex, path: PurePosixPath) -> dict[str, int]:
    here = {str(path / file.file_name): file.checksum for file in directory.files_present}
    for sub_dir in directory.sub_dirs_present:
        here |= flat(sub_dir, path / sub_dir.dir_name)
    return here


FILE: Tree = {"f": 1}
DIR: Tree = {"d/": 0}
DIR_WITH_FILE: Tree = {"d/f": 1}
NESTED: Tree = {"d/e/f": 1}
FILE_AND_DIR: Tree = {"f": 1, "d/g": 2}
FILE_DIR_NESTED: Tree = {"f": 1, "d/g": 2, "d/e/h": 3}

SHAPES = {
    "file": FILE,
    "dir": DIR,
    "dir with file": DIR_WITH_FILE,
    "nested dir": NESTED,
    "file and dir": FILE_AND_DIR,
    "file, dir and nested": FILE_DIR_NESTED,
}


def named(shape: Tree, prefix: str) -> dict[str, int]:
    return {prefix + path: crc for path, crc in shape.items()}


CHANGES = {
    "added": ("a",),
    "retained": ("k",),
    "removed": ("r",),
    "added and removed": ("a", "r"),
    "added and retained": ("a", "k"),
    "added, retained and removed": ("a", "k", "r"),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("kinds", CHANGES.values(), ids=CHANGES.keys())
def test_what_is_added_retained_and_removed_is_distinguished(
    shape: Tree, kinds: tuple[str, ...]
) -> None:
    parts = {kind: named(shape, kind) for kind in kinds}
    here: dict[str, int] = {**parts.get("a", {}), **parts.get("k", {})}
    there: dict[str, int] = {**parts.get("r", {}), **parts.get("k", {})}
    diff = diff_dirs(local(here), remote(there))
    files = {kind: {p for p in tree if p[-1] != "/"} for kind, tree in parts.items()}
    assert {str(file.path) for file in diff.added_files()} == files.get("a", set())
    assert {b.blob_id for f in diff.retained_files() for b in f.blobs} == {
        f"blob:{path}:{parts['k'][path]}" for path in files.get("k", set())
    }
    assert removed_files(diff, PurePosixPath()) == files.get("r", set())
    assert {d.dir_name for d in diff.sub_dirs_added} == top_dirs(parts.get("a", {}))
    assert {d.dir_name for d in diff.sub_dirs_retained} == top_dirs(parts.get("k", {}))
    assert {d.dir_name for d in diff.sub_dirs_removed} == top_dirs(parts.get("r", {}))


def top_dirs(tree: Tree) -> set[str]:
    return {path.partition("/")[0] for path in tree if "/" in path}


def test_nothing_on_both_sides_is_no_difference() -> None:
    diff = diff_dirs(local({}), remote({}))
    assert diff == diff_dirs(local({}), None)
    assert not list(diff.added_files())
    assert not list(diff.retained_files())


def test_a_file_that_changed_in_a_retained_directory_is_added_and_removed_there() -> None:
    diff = diff_dirs(local({"d/f": 2, "d/g": 3}), remote({"d/f": 1, "d/g": 3}))
    assert [str(file.path) for file in diff.added_files()] == ["d/f"]
    assert removed_files(diff, PurePosixPath()) == {"d/f"}
    assert not diff.sub_dirs_added
    assert not diff.sub_dirs_removed


def test_a_further_file_in_a_retained_nested_directory_is_added_alone() -> None:
    diff = diff_dirs(local({"d/e/f": 1, "d/e/new": 2}), remote({"d/e/f": 1}))
    assert [str(file.path) for file in diff.added_files()] == ["d/e/new"]
    assert [file.file_name for file in diff.retained_files()] == ["f"]


def test_a_large_file_with_the_same_name_and_size_but_other_content_is_uploaded_anew() -> None:
    size = 64 << 20
    file = LocalFile(PurePosixPath("sub/000012.sst"), size, crc32=2)
    base = indexed(
        local_tree([LocalFile(PurePosixPath("sub/000012.sst"), size, crc32=1)]), PurePosixPath()
    )
    diff = diff_dirs(local_tree([file]), base)
    assert list(diff.added_files()) == [file]
    assert not list(diff.retained_files())


def test_a_file_with_the_same_checksum_but_another_size_is_uploaded_anew() -> None:
    file = LocalFile(PurePosixPath("f"), 11, crc32=1)
    assert list(diff_dirs(local_tree([file]), remote({"f": 1})).added_files()) == [file]


def test_the_same_content_at_another_path_is_uploaded_anew() -> None:
    diff = diff_dirs(local({"d/g": 1}), remote({"d/f": 1}))
    assert [str(file.path) for file in diff.added_files()] == ["d/g"]


def test_owner_times_and_permissions_are_not_compared() -> None:
    assert not list(diff_dirs(local({"f": 1}), remote({"f": 1})).added_files())


def test_a_directory_that_became_a_file_is_removed_and_the_file_added() -> None:
    diff = diff_dirs(local({"x": 1}), remote({"x/y": 1}))
    assert [str(file.path) for file in diff.added_files()] == ["x"]
    assert [d.dir_name for d in diff.sub_dirs_removed] == ["x"]


def test_an_empty_directory_is_kept() -> None:
    index = diff_dirs(local({"d/e/": 0}), None).to_index({})
    assert index.sub_dirs_present[0].sub_dirs_present[0].dir_name == "e"


PATHS = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)


@st.composite
def tree_of_files(draw: st.DrawFn) -> dict[str, int]:
    paths = draw(st.sets(PATHS, max_size=8))
    prefixes = {"/".join(p.split("/")[:n]) for p in paths for n in range(1, p.count("/") + 1)}
    return {path: draw(st.integers(0, 2)) for path in sorted(paths - prefixes)}


@settings(deadline=None)
@given(tree_of_files(), tree_of_files())
def test_the_new_index_holds_exactly_the_local_files_and_names_what_went(
    here: dict[str, int], there: dict[str, int]
) -> None:
    diff = diff_dirs(local(here), remote(there))
    uploaded = {file.path: indexed_file(file, f"new:{file.path}") for file in diff.added_files()}
    index = diff.to_index(uploaded)
    assert flat(index, PurePosixPath()) == here
    kept = {path for path in here if there.get(path) == here[path]}
    assert {str(path) for path in uploaded} == set(here) - kept
    assert {b.blob_id for f in index.removed_files() for b in f.blobs} == {
        f"blob:{path}:{there[path]}" for path in set(there) - kept
    }
