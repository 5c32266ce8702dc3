"""What a first start changes in a location of Spark's own operator, interrupted at every step."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec
import pytest
from log_kit import commit_record, driver_on, new_blobs

from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import QueryState
from statekeep.errors import CheckpointLocationError, ConfigError
from statekeep.spark.driver.first_start import (
    adopt,
    check_imported_time_mode,
    newest_offsets,
    to_adopt,
)
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.ticks import has_ticks, with_ticks

BATCH = 3
OFFSETS = 'v1\n{{"batchTimestampMs":1}}\n{{"logOffset":{}}}'
ASIDE = f"state/0/_metadata-until-batch-{BATCH}/v2/0"


class Crash(BaseException):
    """Ends a start."""


class FilesOfLocation:
    """A location on a disk, each of whose changes may be the last one of a process."""

    uri = "file:///checkpoint"

    def __init__(self, root: Path, changes_left: int = 99) -> None:
        self._root = root
        self._changes_left = changes_left

    def newest(self, log: str) -> int:
        return max((int(name) for name in self.names(log)), default=-1)

    def names(self, directory: str) -> list[str]:
        found = self._root / directory
        return [path.name for path in found.iterdir()] if found.exists() else []

    def read(self, name: str) -> str | None:
        path = self._root / name
        return path.read_text() if path.exists() else None

    def write(self, name: str, text: str) -> None:
        self._change(lambda: (self._root / name).unlink(missing_ok=True))
        self._change(lambda: (self._root / name).write_text(text))

    def move(self, name: str, target: str) -> None:
        self._change(lambda: (self._root / name).rename(self._root / target))

    def _change(self, change: Callable[[], object]) -> None:
        if not self._changes_left:
            raise Crash
        self._changes_left -= 1
        change()


def make_files(root: Path) -> Path:
    """Make the files of four batches of Spark's own operator."""
    for log in ("offsets", "commits"):
        (root / log).mkdir(parents=True)
        for batch in range(BATCH + 1):
            (root / log / str(batch)).write_text(OFFSETS.format(batch))
    (root / "state/0/_metadata/v2").mkdir(parents=True)
    (root / "state/0/_metadata/v2/0").write_text("operators")
    return root


def files_in(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()
    }


async def imported(*, is_timed: bool) -> LogView:
    """A log whose only commit holds the state after the newest batch."""
    return (await importing(is_timed=is_timed)).view


async def importing(*, is_timed: bool) -> LogSession:
    before, newest = (OFFSETS.format(batch) for batch in (BATCH - 1, BATCH))
    if is_timed:
        before, newest = with_ticks(before), with_ticks(newest)
    query = QueryState(
        query_id="q",
        metadata="",
        previous_offsets=before,
        offsets=newest,
        imported_time_mode="ProcessingTime" if is_timed else "None",
    )
    writer = await driver_on(new_blobs())
    await writer.append(msgspec.structs.replace(commit_record(1, BATCH), query=query))
    return writer


def start_spark_by_mistake(root: Path) -> None:
    """Leave what Spark's operator leaves that fails in its first batch, as its metadata is away."""
    (root / "state/0/_metadata/v2").mkdir(parents=True)
    (root / "state/0/_metadata/v2/4").write_text("by mistake")
    (root / "offsets" / str(BATCH + 1)).write_text("begun by mistake")


def location(root: Path, changes_left: int = 99) -> CheckpointLocation:
    return cast("CheckpointLocation", FilesOfLocation(root, changes_left))


@pytest.mark.asyncio
@pytest.mark.parametrize("is_timed", [False, True])
async def test_an_interrupted_adoption_is_ended_by_the_next_start(
    tmp_path: Path, *, is_timed: bool
) -> None:
    view = await imported(is_timed=is_timed)
    expected = files_in(make_files(tmp_path / "untouched"))
    expected[ASIDE] = expected.pop("state/0/_metadata/v2/0")
    if is_timed:
        for batch in (BATCH - 1, BATCH):
            expected[f"offsets/{batch}"] = with_ticks(OFFSETS.format(batch))
    crashes = 0
    for changes in range(9):
        root = make_files(tmp_path / str(changes))
        try:
            adopt(location(root, changes), view)
        except Crash:
            crashes += 1
            assert has_ticks(newest_offsets(location(root), view) or "") == is_timed
            for batch in (BATCH - 1, BATCH) if is_timed else ():  # as another import makes them
                found = location(root).read(f"offsets/{batch}")
                assert found is None or with_ticks(found) == expected[f"offsets/{batch}"]
            adopt(location(root), view)
        assert files_in(root) == expected
    assert crashes == (5 if is_timed else 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("is_timed", [False, True])
async def test_an_import_from_before_its_commit_had_the_time_mode_is_adopted_too(
    tmp_path: Path, *, is_timed: bool
) -> None:
    writer = await importing(is_timed=is_timed)
    commit = writer.view.last_commit
    assert commit is not None
    assert commit.query is not None
    query = msgspec.structs.replace(commit.query, imported_time_mode="")
    await writer.append(msgspec.structs.replace(commit, attempt=2, query=query))
    root = make_files(tmp_path / "location")
    assert has_ticks(newest_offsets(location(root), writer.view) or "") == is_timed
    adopt(location(root), writer.view)
    for batch in (BATCH - 1, BATCH):
        assert has_ticks((root / "offsets" / str(batch)).read_text()) == is_timed
    assert not (root / "state/0/_metadata").exists()


@pytest.mark.asyncio
async def test_an_adopted_location_is_left_alone(tmp_path: Path) -> None:
    view = await imported(is_timed=True)
    root = make_files(tmp_path / "location")
    adopt(location(root), view)
    assert to_adopt(location(root), view) is None
    (root / "offsets" / str(BATCH + 1)).write_text("the next one")
    adopt(location(root, 0), view)
    assert newest_offsets(location(root), view) == "the next one"


@pytest.mark.asyncio
@pytest.mark.parametrize("log", ["offsets", "commits"])
async def test_batches_that_spark_ran_after_the_import_are_refused(
    tmp_path: Path, log: str
) -> None:
    view = await imported(is_timed=False)
    root = make_files(tmp_path / "location")
    (root / log / str(BATCH + 1)).write_text("one more")
    before = files_in(root)
    with pytest.raises(CheckpointLocationError, match=r"since its state was imported.* begun=4"):
        adopt(location(root), view)
    assert files_in(root) == before


@pytest.mark.asyncio
@pytest.mark.parametrize("known_by", ["base record", "newer commit", "name in the location"])
async def test_spark_that_was_started_by_mistake_at_an_adopted_location_does_not_stop_the_job(
    tmp_path: Path, known_by: str
) -> None:
    writer = await importing(is_timed=False)
    root = make_files(tmp_path / "location")
    adopt(location(root), writer.view)
    if known_by == "base record":
        await writer.go_on_from("q", BATCH)
    elif known_by == "newer commit":  # the base record before it may be trimmed
        await writer.append(commit_record(2, BATCH))
    if known_by != "name in the location":
        shutil.rmtree(root / "state")  # as users do who trust the job
    for number in (1, 2):
        start_spark_by_mistake(root)
        before = files_in(root)
        assert to_adopt(location(root), writer.view) is None
        adopt(location(root), writer.view)
        aside = f"state/0/_metadata-aside-{number}/v2/4"
        assert files_in(root) == {
            aside if name == "state/0/_metadata/v2/4" else name: text
            for name, text in before.items()
        }
        assert newest_offsets(location(root), writer.view) == "begun by mistake"


@pytest.mark.asyncio
async def test_only_the_time_mode_that_was_imported_is_taken_until_a_driver_has_committed() -> None:
    writer = await importing(is_timed=True)
    check_imported_time_mode(writer.view, ["ProcessingTime"])
    with pytest.raises(ConfigError, match="imported=ProcessingTime timeMode=EventTime"):
        check_imported_time_mode(writer.view, ["EventTime"])
    await writer.append(commit_record(2, BATCH + 1))
    check_imported_time_mode(writer.view, ["EventTime"])


def test_offsets_that_have_ticks_already_get_no_more() -> None:
    once = with_ticks(OFFSETS.format(7))
    assert with_ticks(once) == once


def test_ticks_are_added_to_offsets_of_one_line_for_each_source_alone() -> None:
    assert with_ticks(OFFSETS.format(7)) == OFFSETS.format(7) + '\n{"statekeepTick":0}'
    with pytest.raises(CheckpointLocationError, match="version=v2"):
        with_ticks('v2\n{}\n{"a":1}')
