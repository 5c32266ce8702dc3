"""``statekeep guard run`` and ``restore``: what is copied, what is not, and what comes back."""

import base64
import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]  # no types
from golden_kit import GOLDEN
from guard_kit import Guard, content, daemon
from pages_kit import commands
from spark_locations_kit import FORMS, flip, without_hadoop

from statekeep.cli.exit_status import ExitStatus
from statekeep.errors import RetriableError
from statekeep.guarding import copy_base, copy_commit
from statekeep.guarding.catalog import Catalog, CopiedFile
from statekeep.guarding.spark_location import SparkLocation

STORE = "state/0/1"


@pytest.mark.parametrize("guard", FORMS, indirect=True)
def test_each_copy_comes_back_as_it_was_and_only_new_files_are_copied(guard: Guard) -> None:
    guard.commit_until(2)
    first = guard.run()
    assert (first.status, first.json["batch"], first.json["is-new"]) == (0, 2, True)
    guard.commit_until(4)
    second = guard.run()
    assert (second.status, second.json["batch"]) == (0, 4)
    shutil.rmtree(guard.location)
    for made, batch in ((first, 2), (second, 4)):
        new = guard.root / f"new-{batch}"
        assert guard.restore(new, made.json["commit"]).json == {"batch": batch}
        found = content(new)
        original = content(guard.full)
        changed = {name for name, data in found.items() if data != original[name]}
        # What names the place of its schemas names the new one.
        assert changed == {name for name in found if "_metadata/v2/" in name}
        assert all(f"file:{new}/state".encode() in found[name] for name in changed)
        assert not any(f"/{guard.full.name}/".encode() in found[name] for name in changed)
        looked = guard.inspect(new)
        assert (looked["batches"], looked["newest-sound"]) == ([batch], batch)
        assert {"metadata", f"offsets/{batch}", f"offsets/{batch - 1}"} <= found.keys()
        assert f"sources/0/{batch}" in found
        assert f"sources/0/{batch + 1}" not in found
    both = content(guard.root / "new-4").keys() - content(guard.root / "new-2").keys()
    assert second.json["new-files"] == len(both)


def test_a_batch_that_was_copied_is_not_copied_again(guard: Guard) -> None:
    first = guard.run()
    blobs = guard.blobs()
    second = guard.run()
    assert second.json == first.json | {"is-new": False, "new-files": 0, "new-bytes": 0}
    assert guard.blobs() == blobs


def test_a_backend_is_tried_out_before_its_first_copy_only(guard: Guard) -> None:
    (guard.root / "copies").mkdir(exist_ok=True)
    no_probes = guard.root / "copies" / "probes"
    shutil.rmtree(no_probes, ignore_errors=True)
    no_probes.write_text("what tries the backend out cannot write here")
    guard.commit_until(2)
    assert guard.run().status == ExitStatus.USAGE
    no_probes.unlink()
    assert guard.run().json["batch"] == 2
    shutil.rmtree(no_probes, ignore_errors=True)
    no_probes.write_text("nor now")
    guard.commit_until(3)
    assert guard.run().json["batch"] == 3


def test_a_batch_after_a_rewind_is_copied_though_its_number_is_lower(guard: Guard) -> None:
    guard.run()
    guard.commit_until(2)
    made = guard.run()
    assert (made.json["batch"], made.json["is-new"]) == (2, True)


def test_the_same_batch_is_copied_again_after_a_rewind(guard: Guard) -> None:
    guard.run()
    delta = guard.location / STORE / "5.delta"
    delta.with_name(".5.delta.crc").unlink()
    shutil.copy(guard.location / "state/0/0/5.delta", delta)
    made = guard.run()
    assert (made.json["batch"], made.json["is-new"], made.json["new-files"]) == (4, True, 1)
    guard.restore(guard.root / "new")
    assert (guard.root / "new" / STORE / "5.delta").read_bytes() == delta.read_bytes()


def test_what_a_first_copy_left_that_failed_is_deleted(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> bytes:
        raise RetriableError("the service does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(copy_commit, "encode_checkpoint_v2", fail)
        assert guard.run().status == ExitStatus.UNAVAILABLE
    left = guard.blobs()
    assert left
    assert guard.run().json["batch"] == 4
    assert not guard.blobs() & left


@pytest.mark.parametrize("guard", ["transform-format-2"], indirect=True)
def test_the_description_of_a_later_start_is_not_copied(guard: Guard) -> None:
    described = guard.location / "state/0/_metadata/v2"
    shutil.copy(described / "0", described / "4")
    guard.commit_until(3)
    assert guard.run().json["batch"] == 3
    guard.restore(guard.root / "new")
    assert [p.name for p in (guard.root / "new/state/0/_metadata/v2").iterdir()] == ["0"]


def test_the_newest_sound_batch_is_copied_and_the_damaged_one_is_named(guard: Guard) -> None:
    (guard.location / STORE / "5.delta").unlink()
    made = guard.run()
    assert (made.status, made.json["batch"]) == (ExitStatus.FINE, 3)
    assert "batch is damaged and is not copied" in made.err
    assert f"{STORE}/5.delta" in made.err
    again = guard.run()  # nothing newer than the copy is sound
    assert again.status == ExitStatus.DAMAGED
    assert "no batch is sound that has not been copied" in again.err


@pytest.mark.parametrize("has_hadoop", [True, False], ids=["local disk", "object store"])
def test_a_flipped_bit_is_not_copied(guard: Guard, *, has_hadoop: bool) -> None:
    if not has_hadoop:
        without_hadoop(guard.location)
    flip(guard.location / STORE / "5.delta")
    made = guard.run()
    assert made.json["batch"] == 3
    guard.restore(guard.root / "new")
    assert guard.inspect(guard.root / "new")["damage"] == []


def test_a_damaged_snapshot_is_left_out_where_an_older_one_serves(guard: Guard) -> None:
    flip(guard.location / STORE / "3.snapshot")
    assert guard.run().json["batch"] == 4
    guard.restore(guard.root / "new")
    names = {path.name for path in (guard.root / "new" / STORE).iterdir() if path.is_file()}
    assert names == {f"{version}.delta" for version in range(1, 6)}


def test_files_that_spark_deletes_meanwhile_lead_to_a_newer_batch(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard.commit_until(2)
    fetch = SparkLocation.fetch
    went: list[str] = []

    def fetch_late(location: SparkLocation, file: str, target: Path) -> None:
        if file == "offsets/1" and not went:
            went.append(file)
            (guard.location / file).unlink()
            guard.commit_until(4)
        fetch(location, file, target)

    monkeypatch.setattr(SparkLocation, "fetch", fetch_late)
    made = guard.run()
    assert went == ["offsets/1"]
    assert made.json["batch"] == 4
    guard.restore(guard.root / "new")
    assert guard.inspect(guard.root / "new")["sound"] == [4]


def write_zip(path: Path, entries: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries.items():
            archive.writestr(zipfile.ZipInfo(name), data)


@pytest.mark.parametrize("guard", ["rocksdb-zip"], indirect=True)
def test_a_zip_that_is_replaced_between_the_look_and_the_fetch_is_looked_at_again(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_hadoop(guard.location)
    fetch = SparkLocation.fetch
    name = f"{STORE}/5.zip"
    place = guard.location / name
    with zipfile.ZipFile(place) as archive:
        entries = {entry: archive.read(entry) for entry in archive.namelist()}
    other = entries | {
        "metadata": entries["metadata"].replace(b'"dfsSstFileName":"0', b'"dfsSstFileName":"9')
    }
    write_zip(place, entries)
    original, count = place.read_bytes(), list[int]()

    def fetch_other(location: SparkLocation, file: str, target: Path) -> None:
        fetch(location, file, target)
        if file == name and not count:
            count.append(1)
            write_zip(target, other)
            assert target.stat().st_size == len(original)

    monkeypatch.setattr(SparkLocation, "fetch", fetch_other)
    assert guard.run().json["batch"] == 4
    guard.restore(guard.root / "new")
    assert count == [1]
    assert (guard.root / "new" / name).read_bytes() == original
    assert guard.inspect(guard.root / "new")["damage"] == []


def test_copies_that_are_too_old_are_released_and_their_files_deleted(guard: Guard) -> None:
    retain = "--set checkpoint.retain.commits=2"
    made: list[Any] = []
    for batch in range(5):
        guard.commit_until(batch)
        made.append(guard.run(retain).json)
    listed = guard.about("checkpoints list --json", made[0]["job"]).json
    assert [row["batch"] for row in listed] == [3, 4]
    assert guard.restore(guard.root / "gone", made[0]["commit"]).status == ExitStatus.USAGE
    for one in made[3:]:
        new = guard.root / f"new-{one['batch']}"
        assert guard.restore(new, one["commit"]).json == {"batch": one["batch"]}
        assert guard.inspect(new)["damage"] == []
    kept = guard.blobs()
    assert len([path for path in kept if "/catalog/" in str(path)]) == 2 * len(["file", "index"])
    found = guard.about("gc --dry-run --grace 0s --json", made[0]["job"])
    assert found.json["leftovers"] == []


def test_copies_are_encrypted_like_any_state_and_a_new_key_copies_all_files(guard: Guard) -> None:
    keys = guard.root / "keys"
    options = (
        f"--set blob.store.encryption=aes-256-gcm --set blob.store.encryption.keys=file:{keys}"
    )
    lines = [
        f"{name} {base64.b64encode(bytes([number]) * 32).decode()}"
        for number, name in enumerate("ab")
    ]
    keys.write_text(lines[0])
    keys.chmod(0o600)
    guard.commit_until(2)
    assert guard.run(options).json["batch"] == 2
    keys.write_text("\n".join(reversed(lines)))
    guard.commit_until(4)
    made = guard.run(options)
    assert made.json["batch"] == 4
    assert guard.restore(guard.root / "new", "", options).json == {"batch": 4}
    assert made.json["new-files"] == len(content(guard.root / "new"))
    assert guard.inspect(guard.root / "new")["damage"] == []
    state = (guard.full / STORE / "5.delta").read_bytes()
    assert not any(state in path.read_bytes() for path in guard.blobs())


def test_a_pinned_copy_stays(guard: Guard) -> None:
    retain = "--set checkpoint.retain.commits=2"
    guard.commit_until(0)
    first = guard.run(retain).json
    assert guard.about("checkpoints pin before-release", first["job"]).status == 0
    for batch in range(1, 5):
        guard.commit_until(batch)
        guard.run(retain)
    assert guard.restore(guard.root / "new", "before-release").json == {"batch": 0}
    assert guard.inspect(guard.root / "new")["sound"] == [0]


def test_the_location_of_another_query_is_not_mixed_in(guard: Guard) -> None:
    guard.commit_until(2)
    guard.run()
    without_hadoop(guard.location)
    (guard.location / "metadata").write_text(json.dumps({"id": "another"}))
    guard.commit_until(4)
    result = guard.run()
    assert result.status == ExitStatus.REFUSED
    assert "the copies are of another query" in result.err
    assert guard.run("--as another").json["batch"] == 4


@pytest.mark.parametrize("store", ["location", "catalog"])
def test_a_lost_copy_is_damage_and_the_next_copy_is_whole_where_it_must_be(
    guard: Guard, store: str
) -> None:
    guard.commit_until(2)
    guard.run()
    lost = [p for p in guard.blobs() if f"/{store}/" in str(p)]
    assert lost
    for path in lost:
        path.unlink()
    result = guard.restore(guard.root / "new")
    assert result.status == ExitStatus.DAMAGED
    assert not (guard.root / "new").exists() or not any((guard.root / "new").iterdir())
    guard.commit_until(4)
    made = guard.run()
    assert made.json["batch"] == 4
    assert guard.restore(guard.root / "new").json == {"batch": 4}
    assert guard.inspect(guard.root / "new")["damage"] == []


@pytest.mark.parametrize("store", ["location", "catalog"])
def test_a_copy_of_which_no_backend_has_a_store_is_none(guard: Guard, store: str) -> None:
    result = guard.run(f"--set stores.{store}.backup.factories=")
    assert result.status == ExitStatus.REFUSED
    assert f"store={store}" in result.err


def second_backend(guard: Guard) -> str:
    uri = (guard.root / "far").as_uri()
    second = f"--set backends.far.factory=blob --set backends.far.uri={uri}"
    return f"{second} --set stores.backup.factories=blob,far"


@pytest.mark.parametrize("optional", ["", "--set stores.backup.optional=far"])
def test_a_backend_that_the_newest_copy_is_not_in_gets_all_files(
    guard: Guard, optional: str
) -> None:
    options = f"{second_backend(guard)} {optional}"
    guard.commit_until(2)
    assert guard.run().json["batch"] == 2
    guard.commit_until(3)
    added = guard.run(options)
    assert (added.json["batch"], added.err) == (3, "")
    guard.commit_until(4)
    made = guard.run(options)
    assert (made.json["batch"], made.err) == (4, "")
    assert made.json["new-files"] < added.json["new-files"]
    for path in copied_files(guard):
        path.unlink()
    restored = guard.restore(
        guard.root / "new", "", f"{options} --set stores.restore.factories=far,blob"
    )
    assert restored.json == {"batch": 4}
    assert guard.inspect(guard.root / "new")["damage"] == []


def test_an_optional_backend_that_does_not_answer_has_not_all_files_fetched(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise RetriableError("the service does not answer")

    guard.commit_until(3)
    guard.run()
    guard.commit_until(4)
    monkeypatch.setattr(copy_base, "validate_backend", refuse)
    made = guard.run(f"{second_backend(guard)} --set stores.backup.optional=far")
    assert (made.json["batch"], made.json["new-files"]) == (4, 5)


def copied_files(guard: Guard) -> list[Path]:
    return [p for p in guard.blobs() if "/location/" in str(p) and "index" not in p.name]


@pytest.mark.parametrize("backend", ["memory", "hdfs", "kafka"])
def test_a_backend_that_cannot_build_on_files_it_has_is_refused(guard: Guard, backend: str) -> None:
    settings = "--set kafka.bootstrap.servers=localhost:1 --set hdfs.store.uri=hdfs://localhost:1/x"
    result = guard.run(f"--set stores.backup.factories=blob,{backend} {settings}")
    assert result.status == ExitStatus.USAGE
    assert f"backend cannot hold copies of a location: backend={backend}" in result.err


def test_a_location_that_is_in_use_is_not_written_to(guard: Guard) -> None:
    guard.run()
    before = content(guard.location)
    result = guard.restore(guard.location)
    assert result.status == ExitStatus.REFUSED
    assert "in use" in result.err
    assert content(guard.location) == before


def test_a_restore_that_fails_leaves_nothing(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    guard.run()
    put: Callable[..., None] = LocalFileSystem.put_file

    def put_some(files: Any, local: str, target: str, **options: Any) -> None:
        if target.endswith("offsets/4"):
            raise OSError("the disk has gone")
        put(files, local, target, **options)

    monkeypatch.setattr(LocalFileSystem, "put_file", put_some)
    assert guard.restore(guard.root / "new").status != ExitStatus.FINE
    assert content(guard.root / "new") == {}


def test_commands_for_jobs_that_open_stores_name_the_command_for_copies(guard: Guard) -> None:
    job = guard.run().json["job"]
    for command in ("verify", f"restore {guard.root / 'files'}", "migrate --to blob --yes"):
        result = guard.about(command, job)
        assert result.status == ExitStatus.USAGE
        assert "the job holds copies of a checkpoint location" in result.err


def test_the_commands_of_the_page_do_what_it_says(
    guard: Guard,
) -> None:
    def here(line: str) -> str:
        where = line.removeprefix("statekeep ").replace("/mnt/checkpoints/totals", "{location}")
        return where.format(location=guard.location).replace("/mnt/copies", str(guard.copies))

    lines = [here(line) for line in commands("docs/how-to/guard.md")]
    named = ["run", "run", "inspect", "verify", "restore", "repair"]
    assert [line.split()[1] for line in lines] == named
    with daemon(lines[0].split()) as copied:
        assert "batch 4 is copied" in copied.readline()
    assert "batch 4 was copied before" in guard._run(lines[1], has_config=False).out
    assert "sound up to batch 4" in guard._run(lines[2], has_config=False).out
    shutil.rmtree(guard.location)
    verified = guard._run(lines[3], has_config=False).out
    assert "the location after batch 4" in verified
    assert "fine" in verified
    restored = guard._run(lines[4], has_config=False).out
    assert "batch 4 is restored" in restored
    assert "_spark_metadata" in restored
    assert guard.inspect(guard.root / "location-2")["sound"] == [4]
    guard.restore(guard.location)
    assert "there is nothing to repair" in guard._run(lines[5], has_config=False).out


def test_a_golden_catalog_is_read_and_written() -> None:
    golden = (GOLDEN / "guard-catalog.frame").read_bytes()
    files = {
        "metadata": CopiedFile(45, "1795490009.5", 0x1234),
        "offsets/7": CopiedFile(512, "", 0xFFFFFFFF),
    }
    catalog = Catalog(batch=7, query_id="6f1f0c1e-6a1f-4a3c-9a54-0d3b2f2f9f10", files=files)
    assert Catalog.decode(golden) == catalog
    assert catalog.encode() == golden
