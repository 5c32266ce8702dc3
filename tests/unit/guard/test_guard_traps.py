"""What looks like a whole location and is none, or the other way round: nothing is copied amiss."""

import asyncio
import errno
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any, Never

import pytest
from cli_kit import TASK
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]  # no types
from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped]  # no types
from guard_kit import Guard, content
from spark_locations_kit import flip, truncate, without_hadoop
from typing_extensions import override

from statekeep.checkpoint.checkpoints import CheckpointId, TaskName
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.records import JobIdentity
from statekeep.cli.exit_status import ExitStatus
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.errors import ConfigError
from statekeep.guarding import copying, listing
from statekeep.guarding.batch_files import content_damage
from statekeep.guarding.fetching import fetch_stores
from statekeep.guarding.spark_location import DamageError, SparkLocation
from statekeep.guarding.store_files import check_content, rocksdb_files
from statekeep.inspection.job import open_log_storage
from statekeep.inspection.location_files import LocationFiles

STORE = "state/0/1"


def remove_partition(location: Path) -> None:
    shutil.rmtree(location / STORE)


def remove_state(location: Path) -> None:
    shutil.rmtree(location / "state")


@pytest.mark.parametrize("lose", [remove_state, remove_partition])
def test_state_that_went_is_damage_and_the_copies_that_have_it_stay(
    guard: Guard, lose: Callable[[Path], None]
) -> None:
    guard.commit_until(2)
    made = guard.run().json
    lose(guard.location)
    guard.commit_until(4)
    again = guard.run("--set checkpoint.retain.commits=2")
    assert again.status == ExitStatus.DAMAGED
    assert "no batch is sound that has not been copied" in again.err
    assert STORE in again.err or "state/0/0" in again.err
    assert guard.restore(guard.root / "new", made["commit"]).json == {"batch": 2}


def test_an_operator_before_others_that_went_is_damage(guard: Guard) -> None:
    (guard.location / "state/0").rename(guard.location / "state/1")
    result = guard.run()
    assert result.status == ExitStatus.DAMAGED
    assert "file=state/0 damage=missing" in result.err


def test_a_first_copy_without_state_is_made_with_a_warning(guard: Guard) -> None:
    remove_state(guard.location)
    made = guard.run()
    assert made.status == ExitStatus.FINE
    assert "no state is copied" in made.err


@pytest.mark.parametrize("linked", ["state", STORE])
def test_a_directory_behind_a_link_is_copied(guard: Guard, linked: str) -> None:
    elsewhere = guard.root / "elsewhere"
    (guard.location / linked).rename(elsewhere)
    (guard.location / linked).symlink_to(elsewhere)
    (elsewhere / "around").symlink_to(guard.location)  # has no end if it is followed
    assert guard.run().status == ExitStatus.FINE
    assert guard.restore(guard.root / "new").status == ExitStatus.FINE
    assert (guard.root / "new" / STORE / "5.delta").exists()


class Remote(AbstractFileSystem):  # type: ignore[misc] # without types
    """Finds files as fsspec does where a filesystem has no better way: HDFS, SFTP, ..."""

    @override
    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        match path:
            case "/location":
                return [{"name": "/location/state", "type": "directory", "size": 0}]
            case "/location/state":
                names = ["/location/state/0", "/location/state/1"]
                return [{"name": name, "type": "directory", "size": 0} for name in names]
            case "/location/state/0":
                return [{"name": "/location/state/0/1.delta", "type": "file", "size": 7}]
            case _:
                raise TimeoutError("the name node does not answer")


def test_a_directory_that_cannot_be_listed_is_no_empty_one() -> None:
    with pytest.raises(TimeoutError):
        listing.list_files(LocationFiles(Remote(), "/location", "remote"))


def test_a_key_that_leads_out_of_the_location_is_left_alone(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = listing.list_files
    outside = "sources/0/../../../../victim"
    (guard.root / "victim").write_text("mine")

    def with_key(location: LocationFiles) -> Any:
        return {**listed(location), outside: listing.FoundFile(4, "stamp")}

    for number in range(
        5
    ):  # offsets of a source other than files: all below its directory is copied
        offsets = guard.location / f"offsets/{number}"
        text = offsets.read_text().replace("logOffset", "other")
        offsets.write_text(text)
        offsets.with_name(f".{number}.crc").unlink()
    monkeypatch.setattr("statekeep.guarding.spark_location.list_files", with_key)
    assert guard.run().status == ExitStatus.FINE
    guard.restore(guard.root / "new")
    assert "sources/0/4" in content(guard.root / "new")


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [flip, empty])
def test_a_damaged_schema_is_damage(guard: Guard, damage: Callable[[Path], None]) -> None:
    damage(guard.location / "state/0/0/_metadata/schema")
    assert {d["file"] for d in guard.inspect(guard.location)["damage"]} == {
        "state/0/0/_metadata/schema"
    }
    result = guard.run()
    assert result.status == ExitStatus.DAMAGED
    assert "state/0/0/_metadata/schema" in result.err


def test_a_source_may_have_empty_files(guard: Guard) -> None:
    without_hadoop(guard.location)
    for number in range(5):
        offsets = guard.location / f"offsets/{number}"
        offsets.write_text(offsets.read_text().replace("logOffset", "other"))
    empty(guard.location / "sources/0/own")
    assert guard.run().status == ExitStatus.FINE
    guard.restore(guard.root / "new")
    assert (guard.root / "new/sources/0/own").read_bytes() == b""


@pytest.mark.parametrize("has_copy", [True, False], ids=["copied before", "first copy"])
def test_a_batch_that_is_committed_while_the_location_is_listed_is_no_damage(
    guard: Guard, monkeypatch: pytest.MonkeyPatch, *, has_copy: bool
) -> None:
    guard.commit_until(3)
    late = list((guard.full / "state").rglob("*5.delta*"))
    for path in late:
        (guard.location / path.relative_to(guard.full)).unlink()
    if has_copy:
        assert guard.run().json["batch"] == 3
    entries, went_on = listing._entries, list[str]()

    def state_first(directory: str) -> Any:
        """List ``state`` before ``commits``, and let a batch be committed in between."""
        if directory.endswith("location/sources") and not went_on:
            went_on.append(directory)
            for path in late:
                shutil.copy(path, guard.location / path.relative_to(guard.full))
            guard.commit_until(4)
        return sorted(entries(directory), key=lambda entry: entry.name, reverse=True)

    monkeypatch.setattr(listing, "_entries", state_first)
    made = guard.run()
    assert went_on
    assert (made.status, made.err) == (ExitStatus.FINE, "")
    # What the listing had of it, or all of it by the next one; never half of it.
    assert made.json["batch"] in {3, 4}


@pytest.mark.parametrize("guard", ["rocksdb-zip"], indirect=True)
def test_no_flipped_bit_of_a_zip_is_anything_but_damage(guard: Guard) -> None:
    without_hadoop(guard.location)
    name = f"{STORE}/5.zip"
    original = (guard.location / name).read_bytes()
    location = SparkLocation.open(str(guard.location))
    for at in range(0, len(original), 3):
        data = bytearray(original)
        data[at] ^= 1
        (guard.location / name).write_bytes(data)
        for look in (
            lambda data=bytes(data): rocksdb_files(data, name),
            lambda: check_content(location, name, "lz4"),
        ):
            with suppress(DamageError):
                look()


def named_offsets(guard: Guard) -> None:
    """Write the offsets as Spark does in the second version of the file: ``source:offset``."""
    for number in range(5):
        path = guard.location / f"offsets/{number}"
        _, settings, offset = path.read_text().split("\n")
        path.write_text("\n".join(["v2", settings, f"orders:{offset}", "extra:-"]))
        path.with_name(f".{number}.crc").unlink()
    (guard.location / "sources/0").rename(guard.location / "sources/orders")


def test_offsets_by_the_names_of_sources_are_read(guard: Guard) -> None:
    named_offsets(guard)
    guard.commit_until(3)
    assert guard.inspect(guard.location)["damage"] == []
    assert guard.run().json["batch"] == 3
    guard.restore(guard.root / "new")
    # The log of a file source, up to what the batch had read.
    names = {path.name for path in (guard.root / "new/sources/orders").iterdir()}
    assert names == {"0", "1", "2", "3"}


def write_offset(location: Path, batch: int, offset: str) -> None:
    path = location / f"offsets/{batch}"
    path.write_text("\n".join([*path.read_text().split("\n")[:2], offset]))


def test_an_offset_need_not_be_json_and_one_that_was_is_looked_at(guard: Guard) -> None:
    without_hadoop(guard.location)
    for number in range(5):
        write_offset(guard.location, number, f"position {number}")
    assert guard.inspect(guard.location)["newest-sound"] == 4
    write_offset(guard.location, 4, '{"topic":{"0":')
    assert guard.inspect(guard.location)["newest-sound"] == 3


@pytest.mark.parametrize("guard", ["transform-format-2"], indirect=True)
def test_a_damaged_description_that_spark_does_not_read_is_not_copied(guard: Guard) -> None:
    without_hadoop(guard.location)
    described = guard.location / "state/0/_metadata/v2"
    shutil.copy(described / "0", described / "2")
    truncate(described / "0")
    assert guard.run().json["batch"] == 4
    assert guard.restore(guard.root / "new").json == {"batch": 4}
    assert [p.name for p in (guard.root / "new/state/0/_metadata/v2").iterdir()] == ["2"]


def test_batches_that_asynchronous_progress_tracking_leaves_out_are_no_damage(guard: Guard) -> None:
    remove_state(guard.location)
    for number in (1, 3):
        for directory in ("offsets", "commits"):
            (guard.location / directory / str(number)).unlink()
    assert guard.inspect(guard.location)["damage"] == []
    assert guard.run().json["batch"] == 4
    guard.restore(guard.root / "new")
    assert {"offsets/2", "offsets/4"} <= content(guard.root / "new").keys()
    # A batch that was committed had offsets.
    shutil.copy(guard.full / "commits/3", guard.location / "commits/3")
    assert guard.inspect(guard.location)["newest-sound"] == 2


def test_another_job_is_not_taken_over(guard: Guard) -> None:
    settings = {
        "job.name": "orders",
        "blob.store.uri": guard.copies.as_uri(),
        "stores.backup.factories": "blob",
    }
    file = guard.root / "job.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    async def run_beside_a_driver() -> tuple[Any, Any]:
        async with open_log_storage(load_dict(settings), SystemClock()) as storage:
            driver = LogSession(storage.log)
            await driver.open()
            await driver.take_over("driver")
            identity = JobIdentity(
                job_uid="a" * 32,
                job_name="orders",
                partitions=1,
                stores={"main": ["counts"]},
                settings={},
            )
            begun = CheckpointId.at(storage.clock.time_ns())
            tasks = [TaskName(TASK)]
            await driver.begin_attempt(1, begun, {}, tasks, identity)
            made = await asyncio.to_thread(guard.run, f"--config {file}")
            refused = await asyncio.to_thread(guard.run, f"--config {file} --as orders")
            await driver.check_fence()
            return made, refused

    made, refused = asyncio.run(run_beside_a_driver())
    assert made.json["job"] != "orders"
    assert made.json["batch"] == 4
    assert refused.status == ExitStatus.USAGE
    assert "the job does not hold copies of a location" in refused.err


def copies_of(guard: Guard) -> list[Path]:
    """Return the blobs with files of the location."""
    return [p for p in guard.blobs() if "/location/" in str(p) and "index" not in p.name]


def test_a_copy_that_lost_a_file_is_not_built_on(guard: Guard) -> None:
    guard.commit_until(2)
    guard.run()
    for path in copies_of(guard):
        path.unlink()
    guard.commit_until(4)
    made = guard.run()
    assert "the newest copy is damaged, all files are copied" in made.err
    assert guard.restore(guard.root / "new").json == {"batch": 4}
    assert guard.inspect(guard.root / "new")["damage"] == []


def test_a_location_that_came_into_use_during_a_restore_is_left_alone(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard.run()
    new, fetch = guard.root / "new", fetch_stores

    async def fetch_late(*given: Any, **options: Any) -> None:
        await fetch(*given, **options)
        (new / "offsets").mkdir(parents=True)
        (new / "offsets/0").write_text("of a query that was started")

    monkeypatch.setattr("statekeep.guarding.fetching.fetch_stores", fetch_late)
    result = guard.restore(new)
    assert result.status == ExitStatus.REFUSED
    assert content(new) == {"offsets/0": b"of a query that was started"}


def test_a_location_that_another_restore_took_is_left_to_it(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard.run()
    new, put = guard.root / "new", LocalFileSystem.put_file

    def put_beside(files: Any, local: str, target: str, **options: Any) -> None:
        put(files, local, target, **options)
        if target.endswith("offsets/4"):
            (new / "metadata").write_bytes(b"of another one")

    monkeypatch.setattr(LocalFileSystem, "put_file", put_beside)
    assert guard.restore(new).status == ExitStatus.REFUSED
    found = content(new)
    assert found["metadata"] == b"of another one"
    assert found.keys() == content(guard.full).keys() & found.keys()
    assert f"{STORE}/5.delta" in found


def test_spark_can_read_no_metadata_before_a_restore_has_ended(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard.run()
    new, put = guard.root / "new", LocalFileSystem.put_file
    seen: set[bytes] = set()

    def put_slowly(files: Any, local: str, target: str, **options: Any) -> None:
        seen.add((new / "metadata").read_bytes())
        put(files, local, target, **options)

    monkeypatch.setattr(LocalFileSystem, "put_file", put_slowly)
    assert guard.restore(new).status == ExitStatus.FINE
    (partial,) = seen
    with pytest.raises(json.JSONDecodeError):
        json.loads(partial)
    assert (new / "metadata").read_bytes() == (guard.full / "metadata").read_bytes()


def test_a_file_that_is_replaced_after_it_was_fetched_is_fetched_again(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_hadoop(guard.location)
    fetch, changed = SparkLocation.fetch, list[str]()
    source = guard.location / "sources/0/4"

    def fetch_and_change(location: SparkLocation, file: str, target: Path) -> None:
        fetch(location, file, target)
        if file == "sources/0/4" and not changed:
            changed.append(file)
            source.write_text(source.read_text().replace("timestamp", "timestomp"))

    monkeypatch.setattr(SparkLocation, "fetch", fetch_and_change)
    assert guard.run().json["batch"] == 4
    guard.restore(guard.root / "new")
    assert changed
    assert (guard.root / "new/sources/0/4").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("file", ["offsets/4", "sources/0/4"])
def test_damage_of_the_open_batch_is_shown(guard: Guard, file: str) -> None:
    without_hadoop(guard.location)
    guard.commit_until(3)
    (guard.location / "commits/.3.crc").unlink()
    truncate(guard.location / file)
    found = guard.inspect(guard.location)
    assert (found["open-batch"], found["newest-sound"]) == (4, 3)
    assert [(d["batch"], d["file"]) for d in found["damage"]] == [(4, file)]


@pytest.mark.parametrize("file", ["sources/0/1", "sources/0/4", "state/0/0/_metadata/schema"])
def test_a_small_file_that_was_cut_off_is_damage(guard: Guard, file: str) -> None:
    without_hadoop(guard.location)
    truncate(guard.location / file)
    assert file in {d["file"] for d in guard.inspect(guard.location)["damage"]}
    made = guard.run()
    assert file in made.err
    # A batch before it does not need it, but for the schema.
    assert made.status == (ExitStatus.FINE if file.startswith("sources") else ExitStatus.DAMAGED)


@pytest.mark.parametrize("guard", ["join-format-2"], indirect=True)
def test_another_codec_in_format_2_is_named(guard: Guard) -> None:
    without_hadoop(guard.location)
    for number in range(5):
        path = guard.location / f"offsets/{number}"
        path.write_text(path.read_text().replace('Codec":"lz4"', 'Codec":"zstd"'))
        path.write_text(path.read_text().replace('codec":"lz4"', 'codec":"zstd"'))
    result = guard.run()
    assert result.status == ExitStatus.USAGE
    assert "codec=zstd" in result.err


def test_an_older_batch_of_a_rewound_location_is_copied_where_its_newest_is_damaged(
    guard: Guard,
) -> None:
    guard.run()
    guard.commit_until(3)
    (guard.location / STORE / "4.delta").unlink()
    assert guard.run().json["batch"] == 2


def test_a_query_in_its_first_batch_is_sound_and_is_not_copied(guard: Guard) -> None:
    guard.commit_until(-1)
    for number in range(1, 5):
        (guard.location / f"offsets/{number}").unlink()
        (guard.location / f"offsets/.{number}.crc").unlink()
    shutil.rmtree(guard.location / "state")
    assert guard.inspect(guard.location)["open-batch"] == 0
    result = guard.run()
    assert result.status == ExitStatus.REFUSED
    assert "the query has committed no batch" in result.err
    assert not guard.copies.exists()


def test_files_of_a_source_may_have_the_names_of_state(guard: Guard) -> None:
    without_hadoop(guard.location)
    for number in range(5):
        offsets = guard.location / f"offsets/{number}"
        offsets.write_text(offsets.read_text().replace("logOffset", "other"))
    for name in ("x.zip", "1.delta", "1.delta.crc"):
        (guard.location / "sources/0" / name).write_text("anything")
    assert guard.run().status == ExitStatus.FINE


def test_more_files_than_a_copy_can_hold_are_found_before_they_are_fetched(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "MAX_IMAGE_FILES", 10)
    monkeypatch.delattr(SparkLocation, "fetch")
    result = guard.run()
    assert result.status == ExitStatus.USAGE
    assert "more files than a copy can hold" in result.err


def test_a_block_that_spark_does_not_know_is_damage(guard: Guard) -> None:
    without_hadoop(guard.location)
    path = guard.location / STORE / "5.delta"
    data = bytearray(path.read_bytes())
    data[8] ^= 0x40  # how the block is compressed, behind the eight bytes that begin it
    path.write_bytes(data)
    assert guard.inspect(guard.location)["newest-sound"] == 3


@pytest.mark.parametrize("guard", ["zip-format-2"], indirect=True)
def test_a_file_that_goes_after_it_was_fetched_is_no_damage(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard.commit_until(2)
    went: list[str] = []

    def compare_late(location: SparkLocation, file: str, codec: str, local: Path) -> Any:
        if f"{STORE}/3_" in file and file.endswith(".zip") and not went:
            went.append(file)  # Spark deletes what is older than the batches that it retains
            while not local.with_name(f"{local.name}.crc").exists():
                Event().wait(0.01)
            for path in (guard.location / STORE).glob("*3_*"):
                path.unlink()
            guard.commit_until(4)
        return content_damage(location, file, codec, local)

    monkeypatch.setattr(copying, "content_damage", compare_late)
    made = guard.run()
    assert went
    assert (made.json["batch"], made.err) == (4, "")


def test_a_file_that_is_written_again_while_it_is_compared_is_no_damage(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hadoop renames a file first and its checksums after it."""
    name, fetch, written = f"{STORE}/5.delta", SparkLocation.fetch, list[str]()
    other = guard.full / "state/0/0/5.delta"

    def fetch_and_write(location: SparkLocation, file: str, target: Path) -> None:
        fetch(location, file, target)
        if file == name and not written:
            written.append(file)
            shutil.copy(other, guard.location / name)
            shutil.copy(other.with_name(".5.delta.crc"), guard.location / STORE)

    monkeypatch.setattr(SparkLocation, "fetch", fetch_and_write)
    made = guard.run()
    assert (made.json["batch"], made.err) == (4, "")
    guard.restore(guard.root / "new")
    assert (guard.root / "new" / name).read_bytes() == other.read_bytes()


def test_no_fetch_of_a_listing_that_was_given_up_writes_beside_those_of_the_next(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, slow = SparkLocation.fetch, f"{STORE}/5.delta"
    has_begun, has_ended = Event(), Event()
    fetched: list[tuple[str, bool]] = []
    listings: list[SparkLocation] = []

    def fetch_slowly(location: SparkLocation, file: str, target: Path) -> None:
        if location not in listings:
            listings.append(location)
        is_first = location is listings[0]
        if is_first and file == slow:
            has_begun.set()
            Event().wait(0.3)
        elif is_first and file == "commits/4":
            assert has_begun.wait(10)
            raise DamageError(file, "missing")
        elif not is_first:
            fetched.append((file, has_ended.is_set()))
        fetch(location, file, target)
        if is_first and file == slow:
            has_ended.set()

    monkeypatch.setattr(SparkLocation, "fetch", fetch_slowly)
    assert guard.run().json["batch"] == 4
    assert "commits/4" in {file for file, _ in fetched}
    assert all(is_after for _, is_after in fetched)


def test_bytes_that_are_no_text_are_damage(guard: Guard) -> None:
    without_hadoop(guard.location)
    path = guard.location / "offsets/4"
    path.write_bytes(path.read_bytes().replace(b"streaming", b"str\xe5aming", 1))
    assert guard.inspect(guard.location)["newest-sound"] == 3
    made = guard.run()
    assert (made.status, made.json["batch"]) == (ExitStatus.FINE, 3)
    assert "offsets/4" in made.err


@pytest.mark.parametrize("stranger", ["commits/9", "state/0/0/7.delta"])
def test_a_restore_that_another_one_has_written_into_is_not_finished(
    guard: Guard, monkeypatch: pytest.MonkeyPatch, stranger: str
) -> None:
    guard.run()
    new, put = guard.root / "new", LocalFileSystem.put_file

    def put_beside(files: Any, local: str, target: str, **options: Any) -> None:
        put(files, local, target, **options)
        if target.endswith("offsets/4"):
            (new / stranger).parent.mkdir(parents=True, exist_ok=True)
            (new / stranger).write_bytes(b"of a restore of another copy, which began at once")

    monkeypatch.setattr(LocalFileSystem, "put_file", put_beside)
    assert guard.restore(new).status == ExitStatus.REFUSED
    assert content(new).keys() == {stranger}


def test_a_restore_names_what_went_wrong_though_nothing_can_be_removed(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard.run()
    new, put = guard.root / "new", LocalFileSystem.put_file

    def put_some(files: Any, local: str, target: str, **options: Any) -> None:
        if target.endswith("offsets/4"):
            raise OSError("the network has gone")
        put(files, local, target, **options)

    def remove(_: Any, path: str) -> Never:
        raise OSError(f"the network has gone for {path} too")

    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, "put_file", put_some)
        patch.setattr(LocalFileSystem, "rm_file", remove)
        result = guard.restore(new)
    assert result.status == ExitStatus.USAGE
    assert "the network has gone" in result.err
    assert guard.restore(new).status == ExitStatus.REFUSED
    with pytest.raises(json.JSONDecodeError):
        json.loads((new / "metadata").read_bytes())


class NameNode(AbstractFileSystem):  # type: ignore[misc] # without types
    """Lists files as ``webhdfs`` does."""

    @override
    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        times = {"accessTime": 2, "modificationTime": 1_700_000_000_123}
        return [{"name": "/location/metadata", "type": "file", "size": 45, **times}]


def test_a_file_has_a_stamp_in_each_filesystem_that_gives_a_time() -> None:
    found = listing.list_files(LocationFiles(NameNode(), "/location", "remote"))
    assert found == {"metadata": listing.FoundFile(45, "1700000000123")}


def test_a_disk_that_is_full_where_a_directory_is_made_is_named(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    location, mkdir = SparkLocation.open(str(guard.location)), Path.mkdir

    def fail(path: Path, *given: Any, **options: Any) -> None:
        if path.is_relative_to(guard.root / "full-disk"):
            raise OSError(errno.ENOSPC, "No space left on device")
        mkdir(path, *given, **options)

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(ConfigError, match="full"):
        location.fetch("metadata", guard.root / "full-disk/metadata")


def test_a_batch_that_was_copied_is_known_where_a_filesystem_has_no_stamps(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_list_locally", without_stamps(listing._list_locally))
    first = guard.run().json
    again = guard.run().json
    assert (again["commit"], again["is-new"]) == (first["commit"], False)
    without_hadoop(guard.location)
    changed = guard.location / STORE / "5.delta"
    shutil.copy(guard.full / "state/0/0/5.delta", changed)
    assert guard.run().json["is-new"]


def without_stamps(listed: Callable[..., Any]) -> Callable[..., Any]:
    def bare(*directories: Any) -> Any:
        return [(name, listing.FoundFile(found.size, "")) for name, found in listed(*directories)]

    return bare
