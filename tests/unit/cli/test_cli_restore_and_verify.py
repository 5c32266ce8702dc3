"""``statekeep verify`` and ``statekeep restore``."""

from pathlib import Path

import pytest
from cli_kit import TASK, CommandLine

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.config.model import StoreSettings
from statekeep.stores.factory import open_store
from statekeep.stores.rocksdb import RocksDbOptions

LOG = f"--task '{TASK}'"


def damage_a_blob(place: Path) -> Path:
    """Flip a bit in the largest blob of a backend."""
    path = max((p for p in place.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


def content(directory: Path) -> dict[bytes, bytes]:
    settings = StoreSettings(name="counts")
    store = open_store(
        StoreName("counts"), settings.factory, directory, RocksDbOptions.of(settings)
    )
    try:
        return dict(store.scan())
    finally:
        store.close()


def test_every_backend_of_a_commit_is_verified(statekeep: CommandLine) -> None:
    result = statekeep(f"verify {LOG} --json")
    assert result.status == 0
    assert [(row["backend"], row["error"]) for row in result.json] == [
        ("far", None),
        ("near", None),
    ]
    assert all(row["bytes"] > 0 for row in result.json)


def test_damage_is_found_in_the_backend_that_has_it(statekeep: CommandLine, job: Path) -> None:
    damage_a_blob(job / "far")
    result = statekeep(f"verify {LOG} --json")
    assert result.status == 3
    errors = {row["backend"]: row["error"] for row in result.json}
    assert errors["near"] is None
    assert "counts" in errors["far"]


def test_a_backend_that_holds_nothing_of_the_commit_is_refused(statekeep: CommandLine) -> None:
    result = statekeep(f"verify {LOG} --backend elsewhere")
    assert result.status == 2
    assert "the commit has no marker of the backend" in result.err


@pytest.mark.parametrize("backend", ["near", "far"])
def test_a_commit_is_restored_to_a_directory_of_ones_own(
    statekeep: CommandLine, tmp_path: Path, backend: str
) -> None:
    result = statekeep(f"restore {tmp_path / 'mine'} {LOG} --backend {backend} --json")
    assert result.status == 0
    (row,) = result.json
    assert row["sources"] == {"counts": backend}
    assert content(Path(row["directory"]) / "counts" / "db") == {
        b"key-1": b"1",
        b"key-2": b"2",
        b"key-3": b"3",
        b"key-4": b"4",
    }


def test_an_older_commit_is_restored_as_it_was(statekeep: CommandLine, tmp_path: Path) -> None:
    old = statekeep(f"checkpoints list {LOG} --json").json[2]["commit"]
    (row,) = statekeep(f"restore {tmp_path / 'mine'} {old} {LOG} --json").json
    assert content(Path(row["directory"]) / "counts" / "db") == {b"key-1": b"1", b"key-2": b"2"}


def test_a_restore_without_any_whole_copy_fails_and_says_why(
    statekeep: CommandLine, job: Path, tmp_path: Path
) -> None:
    damage_a_blob(job / "near")
    damage_a_blob(job / "far")
    result = statekeep(f"restore {tmp_path / 'mine'} {LOG}")
    assert result.status == 3
    assert "no retained commit can be restored" in result.err
    assert "backend=near" in result.err
    assert "backend=far" in result.err
