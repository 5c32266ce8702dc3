"""A checkpoint location is copied as it was at a commit."""

import json
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped] # ships no types
import pytest
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped] # as above

from statekeep.checkpoint.records import CommitRecord, JobIdentity, QueryState
from statekeep.errors import CheckpointLocationError, ConfigError
from statekeep.inspection.locations import check_locations, copy_location

FILES = {
    "metadata": '{"id":"query-1"}',
    ".metadata.crc": "crc",
    "offsets/6": "v1\n{}\n6",
    "offsets/7": "v1\n{}\n7",
    "offsets/.7.crc": "crc",
    "offsets/8": "v1\n{}\n8",
    "offsets/.8.crc": "crc",
    "commits/6": "v1\n{}",
    "commits/7": "v1\n{}",
    "commits/8": "v1\n{}",
    "sources/0/7": "v1\n7",
    "sources/0/8": "v1\n8",
    "sources/0/.8.crc": "crc",
}


def commit(query_id: str = "query-1", *, commit_text: str | None = "v1\n{}") -> CommitRecord:
    return CommitRecord(
        epoch=1,
        nonce="n",
        attempt_epoch=1,
        attempt=1,
        batch=7,
        checkpoint_id="1-1",
        identity=JobIdentity(job_uid="77aa", job_name="job", partitions=4),
        query=QueryState(query_id=query_id, metadata="", offsets="v1\n{}\n7", commit=commit_text),
    )


def write(directory: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return directory.as_uri()


def read(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): path.read_text(encoding="utf-8")
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_the_copy_ends_at_the_commit_and_has_an_id_of_its_own(tmp_path: Path) -> None:
    old = write(tmp_path / "old", FILES)
    query = copy_location(old, (tmp_path / "new").as_uri(), commit())
    found = read(tmp_path / "new")
    metadata = found.pop("metadata")
    assert json.loads(metadata)["id"] == query.query_id != "query-1"
    assert query.metadata == metadata
    left_out = {"metadata", ".metadata.crc", "offsets/8", "offsets/.8.crc", "commits/8"}
    assert found == {name: text for name, text in FILES.items() if name not in left_out}
    assert read(tmp_path / "old") == FILES


def test_what_spark_has_purged_comes_from_the_commit_record(tmp_path: Path) -> None:
    kept = {name: text for name, text in FILES.items() if not name.endswith(("/6", "/7"))}
    old = write(tmp_path / "old", kept)
    copy_location(old, (tmp_path / "new").as_uri(), commit())
    found = read(tmp_path / "new")
    assert (found["offsets/7"], found["commits/7"]) == ("v1\n{}\n7", "v1\n{}")


def test_a_location_that_lacks_what_no_record_has_is_refused(tmp_path: Path) -> None:
    kept = {name: text for name, text in FILES.items() if name != "commits/7"}
    old = write(tmp_path / "old", kept)
    for refuse in (check_locations, copy_location):
        with pytest.raises(CheckpointLocationError, match=r"file is missing.*commits/7"):
            refuse(old, (tmp_path / "new").as_uri(), commit(commit_text=None))


@pytest.mark.parametrize(
    ("files", "query_id", "complaint"),
    [
        (FILES, "query-2", "is of another query: .*query_id=query-1 expected=query-2"),
        ({"offsets/7": "v1"}, "query-1", "not the checkpoint location of a query"),
        ({"metadata": "?"}, "query-1", "not the checkpoint location of a query"),
    ],
    ids=["another query", "no query", "damaged"],
)
def test_a_location_that_is_not_the_jobs_is_refused(
    tmp_path: Path, files: dict[str, str], query_id: str, complaint: str
) -> None:
    old = write(tmp_path / "old", files)
    for refuse in (check_locations, copy_location):
        with pytest.raises(CheckpointLocationError, match=complaint):
            refuse(old, (tmp_path / "new").as_uri(), commit(query_id))
    assert not (tmp_path / "new").exists()


def test_a_location_that_is_in_use_is_not_written_to(tmp_path: Path) -> None:
    old, new = write(tmp_path / "old", FILES), write(tmp_path / "new", {"metadata": "mine"})
    for refuse in (check_locations, copy_location):
        with pytest.raises(CheckpointLocationError, match="is in use"):
            refuse(old, new, commit())
    assert read(tmp_path / "new") == {"metadata": "mine"}


class Vanishing(LocalFileSystem):  # type: ignore[misc] # ships no types
    """Local files of which one is gone when it is read, as Spark purges and compacts."""

    cachable = False
    gone = ""

    def cat_file(self, path: str, **options: Any) -> bytes:
        if self.gone and path.endswith(self.gone):
            raise FileNotFoundError(path)
        return bytes(super().cat_file(path, **options))


def let_go(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(Vanishing, "gone", name)
    monkeypatch.setattr(
        fsspec, "url_to_fs", lambda uri: (Vanishing(), Vanishing._strip_protocol(uri))
    )


def test_a_batch_that_is_purged_during_the_copy_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write(tmp_path / "old", FILES)
    let_go(monkeypatch, "/offsets/6")
    copy_location(old, (tmp_path / "new").as_uri(), commit())
    assert "offsets/6" not in read(tmp_path / "new")
    assert read(tmp_path / "new")["offsets/7"] == "v1\n{}\n7"


def test_what_the_commit_needs_comes_from_its_record_if_it_is_purged_during_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write(tmp_path / "old", FILES)
    let_go(monkeypatch, "/offsets/7")
    copy_location(old, (tmp_path / "new").as_uri(), commit())
    assert read(tmp_path / "new")["offsets/7"] == "v1\n{}\n7"


def test_a_copy_that_fails_leaves_nothing_and_may_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = write(tmp_path / "old", FILES), (tmp_path / "new").as_uri()
    with monkeypatch.context() as patched:
        let_go(patched, "/sources/0/8")
        with pytest.raises(CheckpointLocationError, match=r"went while it was copied.*sources/0/8"):
            copy_location(old, new, commit())
    assert read(tmp_path / "new") == {}
    copy_location(old, new, commit())
    assert "metadata" in read(tmp_path / "new")


def test_what_spark_is_just_writing_is_left_out(tmp_path: Path) -> None:
    passing = {
        "sources/0/.9.0d9e.tmp": "half",
        "sources/0/..9.0d9e.tmp.crc": "crc",
        "offsets/.9.0d9e.tmp": "half",
    }
    old = write(tmp_path / "old", FILES | passing)
    copy_location(old, (tmp_path / "new").as_uri(), commit())
    assert not passing.keys() & read(tmp_path / "new").keys()


def test_a_check_of_what_may_be_copied_writes_nothing(tmp_path: Path) -> None:
    old = write(tmp_path / "old", FILES)
    check_locations(old, (tmp_path / "new").as_uri(), commit())
    assert not (tmp_path / "new").exists()
    assert read(tmp_path / "old") == FILES


@pytest.mark.parametrize("error", [PermissionError("denied"), RuntimeError("of a client")])
def test_a_location_that_cannot_be_written_is_an_error_before_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(self: Vanishing, path: str, **options: Any) -> bytes:
        raise error

    let_go(monkeypatch, "")
    monkeypatch.setattr(Vanishing, "cat_file", refuse)
    old = write(tmp_path / "old", FILES)
    with pytest.raises(ConfigError, match="cannot be reached"):
        check_locations(old, (tmp_path / "new").as_uri(), commit())
