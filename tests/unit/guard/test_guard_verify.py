"""``statekeep guard verify``: whether a copy can be restored, in each backend."""

import shutil
from pathlib import Path

import pytest
from guard_kit import Guard
from spark_locations_kit import FORMS, flip

from statekeep.cli.exit_status import ExitStatus
from statekeep.guarding import catalog, fetching


@pytest.mark.parametrize("guard", FORMS, indirect=True)
def test_a_copy_is_verified_without_its_location(guard: Guard) -> None:
    guard.commit_until(2)
    first = guard.run()
    guard.commit_until(4)
    guard.run()
    shutil.rmtree(guard.location)
    for copy, batch in (("", 4), (first.json["commit"], 2)):
        found = guard.verify(copy)
        assert (found.status, found.json["batch"]) == (ExitStatus.FINE, batch)
        (backend,) = found.json["backends"]
        assert backend["backend"] == "blob"
        assert backend["damage"] is None
        new = guard.root / f"new-{batch}"
        guard.restore(new, copy)
        assert backend["files"] == sum(path.is_file() for path in new.rglob("*"))
    assert not guard.location.exists()


def test_a_flipped_bit_in_one_of_two_backends_is_damage_of_that_one(guard: Guard) -> None:
    far = guard.root / "far"
    two = (
        "--set stores.backup.factories=blob,far --set backends.far.factory=blob"
        f" --set backends.far.uri={far.as_uri()}"
    )
    guard.run(two)
    sound = guard.verify(options=two)
    assert sound.status == ExitStatus.FINE
    assert [one["backend"] for one in sound.json["backends"]] == ["blob", "far"]
    flip(largest(far))
    found = guard.verify(options=two)
    assert found.status == ExitStatus.DAMAGED
    good, bad = found.json["backends"]
    assert good == sound.json["backends"][0]
    assert "far" in bad["backend"]
    assert bad["damage"]


def largest(root: Path) -> Path:
    files = [path for path in root.rglob("*") if path.is_file() and "/state-" in str(path)]
    return max(files, key=lambda path: path.stat().st_size)


def test_a_copy_that_differs_from_its_catalog_is_damaged_though_all_checksums_are_right(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = catalog.Catalog.encode

    def encode_without_metadata(whole: catalog.Catalog) -> bytes:
        files = {name: f for name, f in whole.files.items() if name != lost}
        return encode(catalog.Catalog(batch=whole.batch, query_id=whole.query_id, files=files))

    lost = "offsets/3"
    monkeypatch.setattr(catalog.Catalog, "encode", encode_without_metadata)
    guard.run()
    monkeypatch.undo()
    found = guard.verify()
    assert found.status == ExitStatus.DAMAGED
    assert "not whole" in found.json["backends"][0]["damage"]


def test_what_spark_needs_is_looked_for_in_the_files_of_a_copy(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard.run()
    whole = fetching._whole

    def without_offsets(root: Path, described: Path) -> list[str]:
        files = whole(root, described)
        (root / "offsets/3").unlink()
        return [file for file in files if file != "offsets/3"]

    monkeypatch.setattr(fetching, "_whole", without_offsets)
    found = guard.verify()
    assert found.status == ExitStatus.DAMAGED
    assert "offsets/3" in found.json["backends"][0]["damage"]


def test_a_backend_that_has_no_copies_is_named(guard: Guard) -> None:
    guard.run()
    far = guard.root / "far"
    other = (
        "--set stores.backup.factories=blob --set stores.location.backup.factories=far"
        f" --set backends.far.factory=blob --set backends.far.uri={far.as_uri()}"
    )
    found = guard.verify(options=other)
    assert found.status == ExitStatus.USAGE
    assert "no backend of the settings has the copy" in found.err
    assert "backends=far" in found.err


def test_verify_of_jobs_names_the_command_for_copies(guard: Guard) -> None:
    made = guard.run()
    told = guard.about("verify", made.json["job"])
    assert told.status == ExitStatus.USAGE
    assert "statekeep guard verify" in told.err
