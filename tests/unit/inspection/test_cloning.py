"""Clones: what they share, what keeps it, and when that goes."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from cloning_kit import Driver, Place, counted_requests, killed_at

from statekeep.backends.memory import forget_place
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.config.load import load_dict, merge
from statekeep.errors import CheckpointLocationError, ConfigError
from statekeep.inspection.job import open_job, open_log_storage
from statekeep.inspection.log_move import move_log
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.takeover import find_resumption


@pytest.mark.asyncio
async def test_a_clone_shares_the_backups_and_goes_on_alone(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.begin("origin")
    before = await place.blobs()
    made = await place.clone("origin", "copy")
    assert (made.origin, made.batch) == ("origin", 0)
    assert await place.blobs() == before
    await Driver(place, "copy").run({0: {b"k": b"copy"}}, cleans_up=False)
    await Driver(place, "origin").run({0: {b"k": b"origin"}, 1: {b"k": b"origin"}}, cleans_up=True)
    await place.check("origin", "copy")
    own = {blob for blob in await place.blobs() if blob.startswith("copy/")}
    assert own
    assert all("/Partition_0/" in blob for blob in own)


@pytest.mark.asyncio
async def test_a_clone_begins_with_the_commit_that_is_named(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.begin("origin")
    first = (await place.view("origin")).last_commit_position
    await Driver(place, "origin").run({0: {b"k": b"later"}}, cleans_up=False)
    made = await place.clone("origin", "before", str(first))
    assert (made.origin_position, made.batch) == (first, 0)
    now = await place.clone("origin", "now")
    assert now.batch == 1
    await place.check("before", "now")
    assert await place.newest("before") != await place.newest("now")
    for number in range(3):  # the commit is kept, though the origin retains two
        await Driver(place, "origin").run({0: {b"n": b"%d" % number}, 1: {}}, cleans_up=True)
    await place.check("origin", "before", "now")


@pytest.mark.asyncio
async def test_a_clone_reads_and_writes_no_state_and_few_records(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.begin("origin")
    with counted_requests() as requests:
        await place.clone("origin", "copy")
    assert [blob for _, blob in requests if "/state-" in blob] == []
    written = [blob for operation, blob in requests if operation == "put" and "/log/" in blob]
    assert [blob.partition("/")[0] for blob in written] == ["copy", "copy", "origin", "copy"]
    assert len([blob for operation, blob in requests if operation == "get"]) < 20


@pytest.mark.asyncio
async def test_the_origin_is_let_go_once_the_clone_retains_nothing_of_it(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.begin("origin")
    await place.clone("origin", "copy")
    origin, copy = Driver(place, "origin"), Driver(place, "copy")
    for number in range(4):
        await origin.run({0: {b"n": b"%d" % number}, 1: {b"n": b"%d" % number}}, cleans_up=True)
        await copy.run({0: {b"n": b"%d" % number}}, cleans_up=True)
        await place.check("origin", "copy")
        assert len((await place.view("origin")).clones) == 1  # task 1 of the clone has not changed
    await copy.run({1: {b"n": b"x"}}, cleans_up=True)
    await copy.run({0: {b"n": b"y"}}, cleans_up=True)
    assert (await place.view("origin")).clones == {}
    await copy.run({0: {b"n": b"z"}}, cleans_up=True)
    newest = (await place.view("copy")).last_commit
    assert newest is not None
    assert newest.identity.shares == []
    await origin.run({0: {b"n": b"z"}}, cleans_up=True)
    assert await place.blobs() == await place.reached("origin") | await place.reached("copy")
    await place.check("origin", "copy")


@pytest.mark.asyncio
@pytest.mark.parametrize("is_dropped", [False, True], ids=["again", "dropped"])
async def test_a_clone_that_was_killed_at_any_step_is_completed_or_cleared_away(
    tmp_path: Path, *, is_dropped: bool
) -> None:
    place = Place(tmp_path)
    await place.begin("origin")
    blobs, killed = await place.blobs(), list[str]()
    for nth in range(1, 9):
        with killed_at(nth=nth) as points:
            await place.clone("origin", "copy")
        killed += points
        if is_dropped and points:
            await place.drop("copy")
            assert (await place.view("origin")).pins == {}
            assert await place.blobs() == blobs
        await place.clone("origin", "copy")
        assert [*(await place.view("origin")).clones.values()] == ["copy"]
        await place.check("origin", "copy")
        await place.drop("copy")
        assert (await place.view("origin")).clones == {}
        assert await place.blobs() == blobs
        if not points:
            break
    assert killed[-4:] == [
        "clone.before_pins",
        "clone.after_pins",
        "clone.before_record",
        "clone.after_record",
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("end", "point"),
    [
        ("promote", "upload.before_index"),
        ("promote", "commit_record.before"),
        ("promote", "commit_record.after"),
        ("promote", "clone.before_release"),
        ("promote", "clone.before_unpin"),
        ("promote", "clone.before_last_record"),
        ("drop", "clean_up.before_files"),
        ("drop", "clone.before_unpin"),
        ("drop", "trim.after_floor"),
    ],
)
async def test_an_end_that_was_killed_at_any_step_comes_by_the_same_call(
    tmp_path: Path, end: str, point: str
) -> None:
    place = Place(tmp_path)
    await place.begin("origin")
    await place.clone("origin", "copy")
    await Driver(place, "copy").run({1: {b"k": b"v"}}, cleans_up=False)
    content = await place.newest("copy")
    come_to_its_end = {"promote": place.promote, "drop": place.drop}[end]
    with killed_at(point=point) as killed:
        await come_to_its_end("copy")
    assert killed == [point]
    await place.check("origin")
    is_over = point == "trim.after_floor"
    with pytest.raises(ConfigError) if is_over else contextlib.nullcontext():
        await come_to_its_end("copy")
    assert (await place.view("origin")).clones == {}
    left = set[str]()
    if end == "promote":
        assert await place.newest("copy") == content
        await Driver(place, "copy").run({}, cleans_up=True)
        left = await place.reached("copy")
    assert {blob for blob in await place.blobs() if blob.startswith("copy/")} == left
    await place.check("origin")


@pytest.mark.asyncio
async def test_a_clone_of_a_clone_is_kept_by_both(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.begin("origin")
    await place.clone("origin", "copy")
    await place.clone("copy", "third")
    assert {*(await place.view("origin")).clones.values()} == {"copy", "third"}
    assert {*(await place.view("copy")).clones.values()} == {"third"}
    with pytest.raises(ConfigError, match="a clone uses the backups of the commit: clones=third"):
        await place.promote("copy")
    with pytest.raises(ConfigError, match="a clone uses the backups of the commit: clones=third"):
        await place.drop("copy")
    await place.promote("third")
    await place.drop("copy")
    for number in range(3):
        await Driver(place, "origin").run({0: {b"n": b"%d" % number}, 1: {}}, cleans_up=True)
    await place.check("origin")
    assert (await place.view("origin")).clones == {}
    assert await place.blobs() == await place.reached("origin") | await place.reached("third")


@pytest.mark.asyncio
async def test_a_clone_of_a_clone_whose_origin_is_gone_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.begin("origin")
    await place.clone("origin", "copy")
    await place.forget("origin")
    with pytest.raises(
        ConfigError, match="was reset, or does not hold the commit any more: job=origin"
    ):
        await place.clone("copy", "third")
    assert (await place.view("copy")).pins == {}
    await place.begin("origin")  # another job of the same name
    with pytest.raises(
        ConfigError, match="was reset, or does not hold the commit any more: job=origin"
    ):
        await place.clone("copy", "third")
    assert (await place.view("copy")).pins == {}
    assert (await place.view("origin")).pins == {}


@pytest.mark.asyncio
async def test_the_pin_is_found_where_the_log_of_the_origin_has_moved(tmp_path: Path) -> None:
    both = {"stores.backup.factories": "blob,other", "backends.other.factory": "blob"}
    place = Place(
        tmp_path,
        **both,
        **{
            "backends.other.uri": f"{tmp_path}/other",
            "backends.other.manager.factory": "cloning_kit:dying_blobs",
        },
    )
    await place.begin("origin")
    await place.clone("origin", "copy")
    config = place.config("origin")
    async with open_log_storage(config, place.clock) as storage:
        new = storage.log_in(BackendName("other"))
        await move_log(storage.log, new, "other", owner="test")
        await new.close()
    await place.drop("copy")
    moved = merge(config, load_dict({"job.log.backend": "other"}, "test"))
    async with open_job(moved, place.clock) as job:
        assert job.view.clones == {}
        assert job.view.commits


@pytest.mark.asyncio
async def test_images_in_memory_are_shared_too(tmp_path: Path) -> None:
    place = Place(
        tmp_path, **{"stores.backup.factories": "images", "backends.images.factory": "memory"}
    )
    await place.begin("origin")
    await place.clone("origin", "copy")
    await Driver(place, "copy").run({0: {b"k": b"copy"}}, cleans_up=True)
    for number in range(3):
        await Driver(place, "origin").run({0: {b"n": b"%d" % number}, 1: {}}, cleans_up=True)
    await place.check("origin", "copy")
    await place.promote("copy")
    await place.check("origin", "copy")
    assert (await place.view("origin")).clones == {}
    await place.clone("copy", "third")
    await place.drop("third")
    forget_place("images")


@pytest.mark.asyncio
async def test_a_clone_without_a_location_does_not_go_on_at_that_of_its_origin(
    tmp_path: Path,
) -> None:
    def location_of(query_id: str | None) -> CheckpointLocation:
        """The location of a query that has ended the one batch of the origin."""
        found = SimpleNamespace(
            uri="file:///checkpoint",
            query_id=lambda: query_id,
            newest=lambda _: -1 if query_id is None else 0,
            names=lambda _: [],
            check_newest=lambda: None,
        )
        return cast("CheckpointLocation", found)

    place = Place(tmp_path)
    await place.begin("origin")
    await place.clone("origin", "copy")
    for query_id, told in (("q", "is of another query: query_id=q"), (None, "is empty")):
        with pytest.raises(
            CheckpointLocationError, match=f"without a .* this one {told}"
        ) as caught:
            find_resumption(location_of(query_id), await place.view("copy"))
        assert "job.start.from.checkpoint" in caught.value.hints[0]
    assert find_resumption(location_of("q"), await place.view("origin")) is not None
