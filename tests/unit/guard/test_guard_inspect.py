"""``statekeep guard inspect``: what a location of Spark's holds, what is damaged, where it is sound."""

import json
import random
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest
from cli_kit import CommandLine, Result
from spark_locations_kit import FORMS, flip, truncate, unpack_location, without_hadoop

from statekeep.cli.exit_status import ExitStatus
from statekeep.cli.output import size_of

Damaging = Callable[[Path], None]


@pytest.fixture
def inspect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Result]:
    run = CommandLine(tmp_path / "none", monkeypatch, capsys)

    def inspect(location: Path, options: str = "--json") -> Result:
        return run(f"guard inspect '{location}' {options}", has_config=False)

    return inspect


def newest(location: Path, pattern: str) -> Path:
    """Return the last file that matches, by version."""
    found = sorted(location.glob(pattern))
    assert found, pattern
    return found[-1]


@pytest.mark.parametrize("form", FORMS)
def test_what_spark_wrote_is_sound_at_every_batch(
    inspect: Callable[..., Result], tmp_path: Path, form: str
) -> None:
    location = unpack_location(form, tmp_path)
    before = sorted(location.rglob("*"))
    result = inspect(location, "--deep --all --json")
    assert result.json["damage"] == []
    assert result.json["sound"] == [4, 3, 2, 1, 0]
    assert result.status == ExitStatus.FINE
    assert sorted(location.rglob("*")) == before


def test_six_forms_are_looked_at() -> None:
    assert len(FORMS) == 6


def test_operators_stores_and_formats_are_shown(
    inspect: Callable[..., Result], tmp_path: Path
) -> None:
    found = inspect(unpack_location("join-format-2", tmp_path)).json
    assert found["provider"] == "RocksDBStateStoreProvider"
    assert found["formats"] == {"offsets": 1, "commits": 2, "checkpoint": 2}
    assert (found["batches"], found["open-batch"]) == ([0, 1, 2, 3, 4], None)
    sides = ["left", "right"]
    assert [(s["operator"], s["name"], s["store"], s["partitions"]) for s in found["stores"]] == [
        (0, "symmetricHashJoin", f"{side}-{kind}", 2)
        for side in sides
        for kind in ("keyToNumValues", "keyWithIndexToValue")
    ]
    files = [p for p in (tmp_path / "join-format-2").rglob("*") if p.is_file()]
    assert found["files"] == len(files)
    assert found["bytes"] == sum(p.stat().st_size for p in files)
    state = [p for p in files if "state" in p.parts and p.parent.name != "_metadata"]
    of_stores = sum(s["files"] for s in found["stores"])
    assert len(state) < of_stores <= len(state) + 16  # and the schemas of the stores


def test_the_pace_of_batches_and_what_they_write_are_shown(
    inspect: Callable[..., Result], tmp_path: Path
) -> None:
    location = unpack_location("hdfs", tmp_path)
    began = [json.loads((location / f"offsets/{n}").read_text().splitlines()[1]) for n in (0, 4)]
    first, newest = (noted["batchTimestampMs"] for noted in began)
    found = inspect(location).json
    assert (found["began-ms"], found["interval-ms"]) == (newest, (newest - first) // 4)
    # The logs of batches and source have one file a batch, each of two partitions a delta and sometimes a snapshot.
    assert found["writes-per-batch"] == 3 + found["stores"][0]["files-per-batch"]
    shown = inspect(location, "").out
    assert f"a batch writes {found['writes-per-batch']:g} files" in shown
    assert "ago; one in" in shown


def test_people_see_the_same_in_words(inspect: Callable[..., Result], tmp_path: Path) -> None:
    location = unpack_location("hdfs", tmp_path)
    (location / "state/0/1/5.delta").unlink()
    result = inspect(location, "")
    assert "batches 0 to 4 are committed" in result.out
    assert "state of HDFSBackedStateStoreProvider" in result.out
    assert "formats: offsets 1, commits 1, checkpoint 1" in result.out
    assert "state/0/1/5.delta" in result.out
    assert "sound up to batch 3" in result.out
    assert "--deep compares checksums" in result.out
    assert result.status == ExitStatus.DAMAGED


STORE = "state/0/1"


@dataclass(frozen=True)
class Case:
    """A file that is damaged, and what should be found."""

    form: str
    pattern: str
    damage: Damaging
    options: str
    newest_sound: int | None


DAMAGE = [
    Case("hdfs", f"{STORE}/5.delta", Path.unlink, "", 3),
    Case("hdfs", f"{STORE}/4.delta", Path.unlink, "", 2),
    Case("hdfs", f"{STORE}/5.delta", flip, "--deep", 3),
    Case("hdfs", f"{STORE}/5.delta", truncate, "--deep", 3),
    Case("hdfs", "offsets/4", truncate, "", 3),
    Case("hdfs", "offsets/3", Path.unlink, "", 2),
    Case("hdfs", "commits/4", truncate, "", 3),
    Case("hdfs", "sources/0/3", Path.unlink, "", 2),
    Case("hdfs", "metadata", Path.unlink, "", None),
    Case("hdfs", "state/0/_metadata/metadata", truncate, "", None),
    Case("rocksdb-zip", f"{STORE}/5.zip", Path.unlink, "", 3),
    Case("rocksdb-zip", f"{STORE}/5.zip", truncate, "", 3),
    Case("rocksdb-zip", f"{STORE}/5.zip", flip, "--deep", 3),
    Case("rocksdb-changelog", f"{STORE}/5.changelog", Path.unlink, "", 3),
    Case("rocksdb-changelog", f"{STORE}/5.changelog", flip, "--deep", 3),
    Case("zip-format-2", f"{STORE}/5_*.zip", Path.unlink, "", 3),
    Case("join-format-2", f"{STORE}/right-keyToNumValues/5_*.changelog", Path.unlink, "", 3),
    Case("join-format-2", f"{STORE}/right-keyToNumValues/5_*.changelog", truncate, "--deep", 3),
    Case("transform-format-2", "state/0/_stateSchema/default/0_*", Path.unlink, "", None),
    Case("transform-format-2", "state/0/_metadata/v2/0", Path.unlink, "", None),
]


@pytest.mark.parametrize("has_hadoop", [True, False], ids=["local disk", "object store"])
@pytest.mark.parametrize(
    "case", DAMAGE, ids=[f"{c.form} {c.damage.__name__} {c.pattern}" for c in DAMAGE]
)
def test_damage_is_named_and_the_newest_sound_batch_is_found(
    inspect: Callable[..., Result], tmp_path: Path, case: Case, *, has_hadoop: bool
) -> None:
    location = unpack_location(case.form, tmp_path)
    if not has_hadoop:
        without_hadoop(location)
    damaged = newest(location, case.pattern)
    case.damage(damaged)
    if damaged.name.startswith("5_"):  # with the changelog, not what stands for it
        for snapshot in damaged.parent.glob("5_*.zip"):
            snapshot.unlink(missing_ok=True)
    result = inspect(location, f"{case.options} --json")
    assert result.json["newest-sound"] == case.newest_sound
    # Where all files of a version are gone, it is named with a star.
    named = [row["file"] for row in result.json["damage"]]
    assert any(fnmatch(str(damaged.relative_to(location)), name) for name in named)
    assert result.status == ExitStatus.DAMAGED


@pytest.mark.parametrize("damage", [Path.unlink, truncate])
@pytest.mark.parametrize("form", ["rocksdb-zip", "zip-format-2"])
def test_an_sst_file_that_a_snapshot_names_is_needed_in_its_size(
    inspect: Callable[..., Result], tmp_path: Path, form: str, damage: Damaging
) -> None:
    location = unpack_location(form, tmp_path)
    with zipfile.ZipFile(newest(location, f"{STORE}/5*.zip")) as archive:
        named = json.loads(archive.read("metadata").partition(b"\n")[2])["sstFiles"]
    with zipfile.ZipFile(newest(location, f"{STORE}/4*.zip")) as archive:
        before = json.loads(archive.read("metadata").partition(b"\n")[2])["sstFiles"]
    new = min({e["dfsSstFileName"] for e in named} - {e["dfsSstFileName"] for e in before})
    damage(location / STORE / "SSTs" / new)
    result = inspect(location)
    assert result.json["newest-sound"] == 3
    assert [row["file"] for row in result.json["damage"]] == [f"{STORE}/SSTs/{new}"]


def test_a_damaged_snapshot_is_named_where_an_older_one_serves(
    inspect: Callable[..., Result], tmp_path: Path
) -> None:
    location = unpack_location("hdfs", tmp_path)
    flip(location / STORE / "3.snapshot")
    result = inspect(location, "--deep --json")
    assert result.json["newest-sound"] == 4
    assert [row["file"] for row in result.json["avoided"]] == [f"{STORE}/3.snapshot"]
    assert result.status == ExitStatus.DAMAGED
    assert inspect(location).status == ExitStatus.FINE  # without reading, it is not seen


def test_a_batch_that_was_begun_is_not_taken_for_one_that_is_committed(
    inspect: Callable[..., Result], tmp_path: Path
) -> None:
    location = unpack_location("hdfs", tmp_path)
    (location / "commits/4").unlink()
    result = inspect(location)
    assert (result.json["open-batch"], result.json["newest-sound"]) == (4, 3)
    assert result.status == ExitStatus.FINE


def test_a_directory_that_is_no_location_is_refused(
    inspect: Callable[..., Result], tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    assert "not the checkpoint location of a query" in inspect(tmp_path / "other").err
    result = inspect(tmp_path / "gone")
    assert result.status == ExitStatus.REFUSED


def test_files_of_a_newer_spark_are_not_guessed_at(
    inspect: Callable[..., Result], tmp_path: Path
) -> None:
    location = unpack_location("hdfs", tmp_path)
    without_hadoop(location)
    commit = location / "commits/4"
    commit.write_text(commit.read_text().replace("v1", "v9"))
    result = inspect(location)
    assert "file of a newer Spark" in result.err
    assert result.status == ExitStatus.USAGE


def test_a_file_source_is_sound_by_its_newest_compact_file(
    inspect: Callable[..., Result], tmp_path: Path
) -> None:
    location = unpack_location("hdfs", tmp_path)
    log = location / "sources/0"
    shutil.copy(log / "2", log / "2.compact")
    for name in ("0", "1", "2"):
        (log / name).unlink()
    assert inspect(location).json["newest-sound"] == 4


@pytest.mark.parametrize("form", ["hdfs", "rocksdb-changelog", "rocksdb-zip"])
def test_an_operator_that_spark_did_not_describe_is_known_by_its_files(
    inspect: Callable[..., Result], tmp_path: Path, form: str
) -> None:
    location = unpack_location(form, tmp_path)
    described = inspect(location).json["stores"]
    shutil.rmtree(location / "state/0/_metadata")
    result = inspect(location)
    assert result.json["stores"] == [row | {"name": ""} for row in described]
    assert result.status == ExitStatus.FINE


@pytest.mark.parametrize("form", ["hdfs", "rocksdb-zip", "join-format-2"])
def test_no_flipped_bit_ends_in_a_traceback_or_is_called_sound_where_spark_reads_it(
    inspect: Callable[..., Result], tmp_path: Path, form: str
) -> None:
    location = unpack_location(form, tmp_path)
    without_hadoop(location)
    files = sorted(p for p in location.rglob("*") if p.is_file() and p.suffix != ".sst")
    draw = random.Random(form)
    for _ in range(60):
        path = draw.choice(files)
        data = path.read_bytes()
        at = draw.randrange(len(data))
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :])
        result = inspect(location, "--deep --all --json")
        assert result.status in {ExitStatus.FINE, ExitStatus.DAMAGED, ExitStatus.USAGE}, path
        whole = any(path.with_suffix(ending).exists() for ending in (".snapshot", ".zip"))
        if path.suffix in {".delta", ".changelog"} and not whole:
            damage = [*result.json["damage"], *result.json["avoided"]]
            assert str(path.relative_to(location)) in {row["file"] for row in damage}, (path, at)
        path.write_bytes(data)


@pytest.mark.parametrize("form", FORMS)
def test_what_a_batch_needs_is_no_orphan(
    inspect: Callable[..., Result], tmp_path: Path, form: str
) -> None:
    found = inspect(unpack_location(form, tmp_path), "--all --json").json
    assert found["orphans"] == []


ORPHANS = [
    # The form, the file that is left, and one whose content it gets.
    ("hdfs", "state/0/1/.6.delta.5a0e.tmp", "state/0/1/5.delta"),
    ("hdfs", "state/0/1/..6.delta.5a0e.tmp.crc", "state/0/1/.5.delta.crc"),
    ("hdfs", "offsets/.5.5a0e.tmp", "offsets/4"),
    ("hdfs", "state/0/7/5.delta", "state/0/1/5.delta"),
    ("hdfs", "state/0/7/.5.delta.crc", "state/0/1/.5.delta.crc"),
    ("rocksdb-zip", "state/0/1/SSTs/000099-5a0e.sst", "state/0/1/5.zip"),
    ("join-format-2", "state/0/1/right-keyToNumValues/5_5a0e.changelog", "metadata"),
    ("join-format-2", "state/0/1/right-keyToNumValues/5_5a0e.changelog.crc", "metadata"),
    ("zip-format-2", "state/0/1/4_5a0e.zip", "state/0/1/5_*.zip"),
]


@pytest.mark.parametrize(("form", "orphan", "source"), ORPHANS)
def test_what_no_batch_needs_is_an_orphan(
    inspect: Callable[..., Result], tmp_path: Path, form: str, orphan: str, source: str
) -> None:
    location = unpack_location(form, tmp_path)
    (location / orphan).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(newest(location, source), location / orphan)
    found = inspect(location, "--all --json")
    size = (location / orphan).stat().st_size
    assert found.json["orphans"] == [{"file": orphan, "bytes": size}]
    assert found.status == ExitStatus.FINE
    words = inspect(location, "--all --full").out
    assert f"files of state that no batch needs: 1, {size_of(size)}" in words
    assert orphan in words
    assert inspect(location).json["orphans"] is None  # not every batch was looked at


def test_old_versions_are_orphans_once_no_batch_is_left_that_needs_them(
    inspect: Callable[..., Result], tmp_path: Path
) -> None:
    location = unpack_location("rocksdb-zip", tmp_path)
    for log in ("offsets", "commits"):
        for number in range(3):
            (location / log / str(number)).unlink()
    found = inspect(location, "--all --json").json
    assert found["looked-at"] == [4]
    names = [orphan["file"] for orphan in found["orphans"]]
    assert "state/0/1/4.zip" in names
    assert "state/0/1/5.zip" not in names
    for name in names:
        (location / name).unlink()
    again = inspect(location, "--all --deep --json")
    assert (again.status, again.json["sound"], again.json["orphans"]) == (ExitStatus.FINE, [4], [])


def test_files_of_a_batch_that_has_begun_are_no_orphans(
    inspect: Callable[..., Result], tmp_path: Path
) -> None:
    location = unpack_location("rocksdb-zip", tmp_path)
    (location / "commits/4").unlink()
    found = inspect(location, "--all --json").json
    assert (found["open-batch"], found["orphans"]) == (4, [])
