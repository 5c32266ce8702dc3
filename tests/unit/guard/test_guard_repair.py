"""``statekeep guard repair``: back to the newest sound batch, with all that it removes beside the location."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_kit import Result
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]  # no types
from guard_kit import Guard, content
from spark_locations_kit import flip, truncate

from statekeep.cli.exit_status import ExitStatus
from statekeep.guarding import repairing

STORE = "state/0/1"


def repair(guard: Guard, options: str = "--yes --json") -> Result:
    return guard._run(f"guard repair {guard.location} {options}", has_config=False)


FORMS: list[tuple[str, str, Callable[[Path], None]]] = [
    ("hdfs", f"{STORE}/4.delta", Path.unlink),
    ("rocksdb-zip", f"{STORE}/5.zip", flip),
    ("rocksdb-changelog", f"{STORE}/5.changelog", truncate),
    ("zip-format-2", f"{STORE}/5_*.zip", Path.unlink),
    ("join-format-2", f"{STORE}/right-keyToNumValues/5_*.changelog", Path.unlink),
]


@pytest.mark.parametrize(
    ("guard", "lost", "damage"), FORMS, indirect=["guard"], ids=[form for form, _, _ in FORMS]
)
def test_a_location_goes_back_to_its_newest_sound_batch(
    guard: Guard, lost: str, damage: Callable[[Path], None]
) -> None:
    (path,) = guard.location.glob(lost)
    damage(path)
    before = content(guard.location)
    planned = repair(guard, "--dry-run --json").json
    assert content(guard.location) == before
    done = repair(guard).json
    newest = guard.inspect(guard.location)
    assert newest["damage"] == []
    assert newest["batches"][-1] == newest["newest-sound"] == done["batch"] < 4
    assert newest["open-batch"] is None
    assert done["removed"] == planned["removed"]
    after = content(guard.location)
    assert {**after, **content(Path(done["kept-in"]))} == before
    # A batch that comes again finds no state of the one before it that had its number.
    assert not any(Path(name).name.startswith(("5.", "5_")) for name in after)
    nothing = {"batch": done["batch"], "removed": [], "kept-in": "", "avoided": []}
    assert repair(guard).json == nothing
    assert guard.run().json["batch"] == done["batch"]


def test_a_sink_that_skips_batches_is_warned_of(guard: Guard) -> None:
    (guard.location / STORE / "5.delta").unlink()
    assert "_spark_metadata" not in repair(guard, "--dry-run").out
    assert "_spark_metadata" in repair(guard, "--yes").out


def test_a_sound_location_is_left_alone(guard: Guard) -> None:
    before = content(guard.location)
    result = repair(guard, "")
    assert result.status == ExitStatus.FINE
    assert "there is nothing to repair" in result.out
    assert content(guard.location) == before


@pytest.mark.parametrize("guard", ["hdfs"], indirect=True)
def test_a_damaged_snapshot_that_stays_is_reported(guard: Guard) -> None:
    flip(guard.location / STORE / "3.snapshot")
    before = content(guard.location)
    done = repair(guard)
    assert (done.json["batch"], done.json["removed"]) == (4, [])
    assert [damage["file"] for damage in done.json["avoided"]] == [f"{STORE}/3.snapshot"]
    told = repair(guard, "--yes").out
    assert f"{STORE}/3.snapshot" in told
    assert "it stays, as an older one can be used" in told
    assert content(guard.location) == before


@pytest.mark.parametrize("file", ["offsets/4", "sources/0/4"])
def test_what_is_damaged_of_the_open_batch_is_removed(guard: Guard, file: str) -> None:
    guard.commit_until(3)
    truncate(guard.location / file)
    done = repair(guard).json
    assert done["batch"] == 3
    assert {"offsets/4", "sources/0/4", f"{STORE}/5.delta"} <= set(done["removed"])
    assert guard.inspect(guard.location)["damage"] == []


def only_batch(location: Path, batch: int, entry: str) -> None:
    """Leave the log of the source behind the batches: the last of them had no new input."""
    for number in range(batch, 5):
        path = location / f"offsets/{number}"
        text = path.read_text().replace(f'"logOffset":{number}', f'"logOffset":{entry}')
        path.write_text(text)
        path.with_name(f".{number}.crc").unlink()


@pytest.mark.parametrize("is_open", [True, False], ids=["open batch", "all committed"])
def test_a_damaged_log_of_a_source_that_is_ahead_is_found_whatever_its_number(
    guard: Guard, *, is_open: bool
) -> None:
    """Spark reads the whole log, and starts with none of it that is damaged."""
    if is_open:
        guard.commit_until(3)
    only_batch(guard.location, 2, "1")  # entry 2 is of the batch after these
    for name in ("3", ".3.crc", "4", ".4.crc"):
        (guard.location / "sources/0" / name).unlink()
    truncate(guard.location / "sources/0/2")
    newest = 3 if is_open else 4
    found = guard.inspect(guard.location)
    assert [(d["batch"], d["file"]) for d in found["damage"]] == [(newest + 1, "sources/0/2")]
    assert found["newest-sound"] == newest
    done = repair(guard).json
    assert done["batch"] == newest
    assert {"sources/0/2", "sources/0/.2.crc"} <= set(done["removed"])
    assert guard.inspect(guard.location)["damage"] == []


def test_state_goes_first_then_batches_then_logs_of_sources_and_the_newest_first(
    guard: Guard,
) -> None:
    """Whatever is left when a repair is cut off: Spark refuses it, or finds the log of its offsets whole."""
    log = guard.location / "sources/0"
    (log / "10").write_bytes((log / "4").read_bytes())
    (guard.location / STORE / "4.delta").unlink()
    removed = repair(guard, "--dry-run --json").json["removed"]
    kinds = [file.split("/")[0] for file in removed]
    count = kinds.count("state")
    assert set(kinds[:count]) == {"state"}
    assert [file for file in removed[count:] if ".crc" not in file] == [
        "commits/4",
        "offsets/4",
        "commits/3",
        "offsets/3",
        "sources/0/10",
        "sources/0/4",
        "sources/0/3",
    ]


def test_a_repair_that_was_cut_off_is_completed_by_the_next(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    (guard.location / STORE / "4.delta").unlink()
    remove, count = LocalFileSystem.rm_file, list[str]()

    def remove_some(files: Any, path: str) -> None:
        count.append(path)
        if len(count) == 6:
            raise OSError("the disk has gone")
        remove(files, path)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, "rm_file", remove_some)
        assert repair(guard).status != ExitStatus.FINE
    # What was not removed yet is damaged, so that Spark does not go on in it.
    assert guard.inspect(guard.location)["newest-sound"] == 2
    assert repair(guard).json["batch"] == 2
    assert guard.inspect(guard.location)["damage"] == []


def test_a_query_that_runs_is_seen_by_what_it_writes(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    (guard.location / STORE / "5.delta").unlink()
    copy = repairing._copy

    def copy_beside(place: Any, file: str, keep: Any) -> None:
        (guard.location / "offsets/5").write_text("v1")
        copy(place, file, keep)

    monkeypatch.setattr(repairing, "_copy", copy_beside)
    before = content(guard.location)
    result = repair(guard)
    assert result.status == ExitStatus.REFUSED
    assert "the location has changed meanwhile, nothing was removed" in result.err
    assert content(guard.location) == {**before, "offsets/5": b"v1"}


def test_a_location_without_a_sound_batch_is_left_alone(guard: Guard) -> None:
    (guard.location / "metadata").unlink()
    result = repair(guard)
    assert result.status == ExitStatus.DAMAGED
    assert "no batch is sound" in result.err


def test_it_asks_first(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    (guard.location / STORE / "5.delta").unlink()
    before = content(guard.location)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: (_ for _ in ()).throw(SystemExit(1)))
    assert repair(guard, "").status == ExitStatus.BUG
    assert content(guard.location) == before
