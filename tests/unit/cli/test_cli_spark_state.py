"""``statekeep spark-state``: jobs that begin with the state of Spark's own store, and the way back."""

import asyncio
import errno
import struct
from pathlib import Path

import pytest
from cli_kit import INPUT, CommandLine, job_settings
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]  # no types
from spark_location_kit import COUNTS, make_location

from statekeep.backends.hdfs.spark_files import read_spark_file, write_spark_file
from statekeep.config.load import load_dict
from statekeep.container.container import Container

NEW = "--set job.name=counted"
TASKS = "--task 'Partition 0' --task 'Partition 1'"


def counts_of(entries: dict[bytes, bytes]) -> dict[bytes, int]:
    """Read rows of Spark: a word of null bits and one a column; a text's word holds its length."""
    return {
        key[16 : 16 + struct.unpack_from("<I", key, 8)[0]]: struct.unpack_from("<q", value, 8)[0]
        for key, value in entries.items()
    }


async def go_on(directory: Path, task: str, changes: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Start a task of the new job, which has no state of its own; return what it begins with."""
    settings = job_settings(directory) | {"job.name": "counted"}
    async with Container(load_dict(settings)) as container:
        started = await container.start_task(task, ["counts"])
        found = dict(started.store("counts").scan())
        for key, value in changes.items():
            started.store("counts").put(key, value)
        if changes:
            await (await started.commit({INPUT: "9"}, force=True)).wait()
        return found


def test_a_job_begins_with_the_state_of_each_partition(statekeep: CommandLine, job: Path) -> None:
    location = make_location(job / "spark", partitions=2)
    before = sorted(location.rglob("*"))
    result = statekeep(f"spark-state import {location} --store counts {NEW} --json")
    assert result.json == [
        {"task": f"Partition {number}", "version": 4, "entries": 7} for number in (0, 1)
    ]
    for task in ("Partition 0", "Partition 1"):
        assert counts_of(asyncio.run(go_on(job, task, {}))) == COUNTS
        verified = statekeep(f"verify --task '{task}' {NEW} --json")
        assert [row["error"] for row in verified.json] == [None, None]
    assert sorted(location.rglob("*")) == before


def test_the_way_back_is_a_snapshot_that_spark_takes_for_the_newest(
    statekeep: CommandLine, job: Path
) -> None:
    location = make_location(job / "spark", partitions=2)
    statekeep(f"spark-state import {location} --store counts {NEW}")
    found = asyncio.run(go_on(job, "Partition 1", {}))
    one = next(iter(found))
    asyncio.run(go_on(job, "Partition 1", {one: struct.pack("<qq", 0, 77)}))
    target = location / "state" / "0"
    line = f"spark-state export {target} --store counts --version 4 {TASKS} {NEW} --json"
    result = statekeep(line)
    assert [row["entries"] for row in result.json] == [7, 7]
    with (target / "1" / "4.snapshot").open("rb") as file:
        written = dict(read_spark_file(file, where="4.snapshot", may_delete=False))
    assert written == found | {one: struct.pack("<qq", 0, 77)}
    statekeep(f"spark-state import {location} --store counts --set job.name=again")
    again = statekeep("checkpoints list --task 'Partition 1' --set job.name=again --json").json
    assert [row["batch"] for row in again] == [3]


def test_a_partition_without_entries_is_an_empty_task_both_ways(
    statekeep: CommandLine, job: Path
) -> None:
    location = make_location(job / "spark", partitions=2)
    state = location / "state" / "0" / "1"
    (state / "3.snapshot").unlink()
    for path in state.iterdir():
        with path.open("wb") as file:
            write_spark_file([], file)
    result = statekeep(f"spark-state import {location} --store counts {NEW} --json")
    assert [row["entries"] for row in result.json] == [7, 0]
    assert asyncio.run(go_on(job, "Partition 1", {})) == {}
    line = f"spark-state export {job}/back --store counts --version 4 {TASKS} {NEW} --json"
    assert [row["entries"] for row in statekeep(line).json] == [7, 0]


def test_an_import_that_failed_may_be_repeated(statekeep: CommandLine, job: Path) -> None:
    location = make_location(job / "spark", partitions=2)
    lost = location / "state" / "0" / "1" / "4.delta"
    lost.rename(job / "lost")
    line = f"spark-state import {location} --store counts {NEW}"
    result = statekeep(line)
    assert (result.status, "4.delta" in result.err) == (3, True)
    (job / "lost").rename(lost)
    assert statekeep(line).status == 0
    assert counts_of(asyncio.run(go_on(job, "Partition 1", {}))) == COUNTS


def test_a_full_disk_is_not_taken_for_a_location_out_of_reach(
    statekeep: CommandLine, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = make_location(job / "spark")

    def fill(_files: object, _path: str, local: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", local)

    monkeypatch.setattr(LocalFileSystem, "get_file", fill)
    result = statekeep(f"spark-state import {location} --store counts {NEW}")
    assert result.status != 0
    assert "set TMPDIR to another directory" in result.err
    assert "let in there" not in result.err


def test_a_job_that_is_there_is_not_overwritten(statekeep: CommandLine, job: Path) -> None:
    location = make_location(job / "spark")
    result = statekeep(f"spark-state import {location} --store counts")
    assert (result.status, "there is a job of that name" in result.err) == (2, True)


@pytest.mark.parametrize(
    ("pinned", "says"),
    [
        ({"rowChecksum.enabled": "true"}, "a checksum within each value"),
        ({"providerClass": "a.b.RocksDBStateStoreProvider"}, "of another provider"),
        ({"compression.codec": "zstd"}, "compressed in another way"),
    ],
    ids=["row checksum", "RocksDB", "codec"],
)
def test_state_of_another_form_is_refused_by_the_setting(
    statekeep: CommandLine, job: Path, pinned: dict[str, str], says: str
) -> None:
    location = make_location(job / "spark", pinned=pinned)
    result = statekeep(f"spark-state import {location} --store counts {NEW}")
    assert (result.status, says in result.err) == (6, True)


@pytest.mark.parametrize(
    ("lost", "status", "says"),
    [
        ("commits/*", 6, "has committed no batch"),
        ("offsets/3", 6, "file is missing or cannot be read"),
        ("state/0/1/*", 3, "1.delta"),
        ("state/0/1", 6, "partitions of the operator are missing"),
    ],
    ids=["commits", "offsets", "files of a partition", "a partition"],
)
def test_what_is_missing_in_a_location_is_named(
    statekeep: CommandLine, job: Path, lost: str, status: int, says: str
) -> None:
    location = make_location(job / "spark", partitions=2)
    if lost == "state/0/1":
        (location / lost).rename(job / "away")
    for path in location.glob(lost):
        path.unlink()
    result = statekeep(f"spark-state import {location} --store counts {NEW}")
    assert (result.status, says in result.err) == (status, True), result.err


def test_an_export_does_not_stand_behind_a_later_version(statekeep: CommandLine, job: Path) -> None:
    target = job / "target"
    (target / "0").mkdir(parents=True)
    (target / "0" / "5.delta").touch()
    line = f"spark-state export {target} --store counts --version 4 --task 'Partition 0'"
    result = statekeep(line)
    assert (result.status, "holds a later version" in result.err) == (2, True)
    assert [path.name for path in (target / "0").iterdir()] == ["5.delta"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--store other --task 'Partition 0'", "no such store"),
        ("--store counts --task orders", "the task has no number"),
        ("--store counts", "no task is named"),
    ],
)
def test_an_export_says_what_is_wrong_with_its_options(
    statekeep: CommandLine, job: Path, line: str, says: str
) -> None:
    result = statekeep(f"spark-state export {job}/target --version 4 {line}")
    assert (result.status, says in result.err) == (2, True), result.err
