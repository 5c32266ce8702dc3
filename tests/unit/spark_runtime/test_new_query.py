"""A job whose state goes on under a new query, as its log and its checkpoint location tell it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from driver_kit import Driver
from log_kit import attempt_record, batch_record

from statekeep.checkpoint.checkpoints import CheckpointId, CheckpointV2, SystemStreamPartition
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import (
    CommitRecord,
    EpochRecord,
    JobIdentity,
    QueryState,
    Record,
)
from statekeep.checkpoint.serde import encode_checkpoint_v2
from statekeep.config.load import load_dict
from statekeep.errors import CheckpointLocationError, ConfigError
from statekeep.events import report_nothing
from statekeep.spark.driver.batch_loop import BatchLoop
from statekeep.spark.driver.commit_records import query_state
from statekeep.spark.driver.first_start import first_commit, with_query
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.takeover import Resumption, check_stores, find_resumption
from statekeep.spark.starting_point import StartingPoint, find_starting_point

IDENTITY = JobIdentity(job_uid="u", job_name="j", partitions=1)
CLICKS = SystemStreamPartition("kafka", "page.clicks", 0)
VIEWS = SystemStreamPartition("kafka", "views", 0)
ENDS = 'v1\n{"batchWatermarkMs":0}\n{"page.clicks":{"0":5}}\n{"views":{"0":9}}'
NEW_QUERY = Resumption(query_id="", committed=-1, head=-1, is_new_query=True)


@dataclass
class Location:
    """What is asked of a checkpoint location here."""

    id: str | None = None
    newest_commit: int = -1
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    uri: str = "file:///checkpoint"

    def query_id(self) -> str | None:
        return self.id

    def newest(self, kind: str) -> int:
        return self.newest_commit

    def check_newest(self) -> None:
        """Nothing is cut off."""

    def names(self, directory: str) -> list[str]:
        return sorted({name.split("/")[1] for name in self.files if name.startswith(directory)})

    def read(self, name: str) -> str | None:
        return self.files.get(name)

    def require(self, name: str) -> str:
        return "{}" if name == "metadata" else self.files[name]


def begun_at(**starts: int) -> Location:
    """Return the location of a new query whose sources began at these offsets."""
    files = {
        f"sources/{number}/0": f'\0v1\n{{"{topic.replace("_", ".")}":{{"0":{start}}}}}'
        for number, (topic, start) in enumerate(starts.items())
    }
    return Location("new", files=files)


def checkpoint(offsets: Mapping[SystemStreamPartition, str]) -> msgspec.Raw:
    inputs = {SystemStreamPartition("spark", "j", 0): "7", **offsets}
    return msgspec.Raw(encode_checkpoint_v2(CheckpointV2(CheckpointId(5, 6), inputs, {})))


def commit(batch: int, query_id: str, **changes: object) -> CommitRecord:
    record = CommitRecord(
        epoch=1,
        nonce="",
        attempt_epoch=1,
        attempt=batch + 1,
        batch=batch,
        checkpoint_id=f"{batch}-1",
        identity=IDENTITY,
        checkpoints={"Partition 0": checkpoint({CLICKS: "4", VIEWS: "8"})},
        versions={"Partition 0": f"{batch}_0123456789abcdef"},
        query=QueryState(query_id=query_id, metadata="{}", offsets=ENDS),
    )
    return msgspec.structs.replace(record, **changes)


OLD = commit(7, "old")
FIRST = msgspec.structs.replace(first_commit(OLD, IDENTITY, "", 2), epoch=2)


def log(*commits: CommitRecord) -> LogView:
    view = LogView()
    view.fold(0, EpochRecord(epoch=1, nonce="", owner="test"))
    for position, record in enumerate(commits, 1):
        view.fold(position, record)
    return view


def find(location: Location, view: LogView, start_from: str | None) -> Resumption | None:
    return find_resumption(cast("CheckpointLocation", location), view, start_from)


def begin(location: Location, first: CommitRecord = FIRST) -> CommitRecord:
    return with_query(first, cast("CheckpointLocation", location))


def test_a_fresh_location_goes_on_from_the_commit_that_is_named() -> None:
    assert find(Location(), log(OLD), "7-1") == NEW_QUERY


def test_a_fresh_location_without_a_named_commit_is_an_error() -> None:
    with pytest.raises(CheckpointLocationError, match="is empty"):
        find(Location(), log(OLD), None)


def test_another_commit_than_the_named_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="newest=8-1"):
        find(Location(), log(OLD, commit(8, "old")), "7-1")


def test_a_named_commit_in_a_log_without_one_never_begins_with_empty_state() -> None:
    with pytest.raises(ConfigError, match="no commit to go on from"):
        find(Location(), LogView(), "7-1")


def test_the_location_of_the_old_query_is_refused_with_a_named_commit() -> None:
    assert find(Location("old", 7), log(OLD), None) == Resumption("old", 7, 7)
    with pytest.raises(ConfigError, match="in use"):
        find(Location("old", 7), log(OLD), "7-1")


def test_the_location_of_another_query_is_refused_with_or_without_a_named_commit() -> None:
    for start_from in ("7-1", None):
        with pytest.raises(CheckpointLocationError, match="of another query"):
            find(Location("other"), log(OLD), start_from)


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        ({}, 'v1\n{}\n{"logOffset":3}'),
        ({}, ENDS),
        ({CLICKS: "4"}, ENDS),
    ],
    ids=["reads no topic", "an older checkpoint without offsets", "lacks a topic"],
)
def test_a_commit_without_the_offsets_of_its_query_is_refused(
    offsets: Mapping[SystemStreamPartition, str], text: str
) -> None:
    query = QueryState(query_id="old", metadata="{}", offsets=text)
    found = commit(7, "old", checkpoints={"Partition 0": checkpoint(offsets)}, query=query)
    with pytest.raises(ConfigError, match="does not have the offsets"):
        find(Location(), log(found), "7-1")


def test_a_commit_whose_sources_stand_apart_is_refused() -> None:
    text = ENDS + '\n{"views":{"0":12}}'
    query = QueryState(query_id="old", metadata="{}", offsets=text)
    with pytest.raises(ConfigError, match=r"different offsets.* topic=views partition=0"):
        find(Location(), log(commit(7, "old", query=query)), "7-1")


def test_a_start_that_got_to_no_batch_is_made_again() -> None:
    assert (FIRST.batch, FIRST.query, FIRST.versions) == (-1, None, OLD.versions)
    view = log(OLD, FIRST)
    assert find(Location(), view, None) == NEW_QUERY
    assert find(Location(), view, "7-1") == NEW_QUERY
    assert find(Location("new"), view, "7-1") == NEW_QUERY


def test_a_used_location_is_refused_once_the_job_is_to_go_on_elsewhere() -> None:
    for start_from in ("7-1", None):
        with pytest.raises(CheckpointLocationError, match="under a new query"):
            find(Location("old", 7), log(OLD, FIRST), start_from)


def test_a_new_query_goes_on_as_any_whether_or_not_the_commit_is_still_named() -> None:
    begun = begin(begun_at(page_clicks=5, views=9))
    view = log(OLD, FIRST, begun)
    for start_from in ("7-1", None):
        assert find(Location("new"), view, start_from) == Resumption("new", -1, -1)
    with pytest.raises(ConfigError, match="in use"):
        find(Location("new"), view, "8-1")


def test_a_new_query_still_goes_on_from_the_named_commit_after_commits_of_its_own() -> None:
    begun = begin(begun_at(page_clicks=5, views=9))
    location = Location("new", 3, {"offsets/3": ENDS})
    query = query_state(cast("CheckpointLocation", location), begun, 3)
    assert query.started_from == "7-1"
    view = log(begun, commit(3, "new", epoch=2, query=query))
    assert find(location, view, "7-1") == Resumption("new", 3, 3)


def test_a_new_query_whose_location_is_lost_before_it_commits_begins_once_more() -> None:
    view = log(OLD, FIRST, begin(begun_at(page_clicks=5, views=9)))
    assert find(Location(), view, "7-1") == NEW_QUERY


@pytest.mark.parametrize("start", [0, 4, 6])
def test_a_query_that_does_not_read_on_where_the_commit_ends_is_refused(start: int) -> None:
    with pytest.raises(ConfigError, match=f"page.clicks .*begins_at={start} expected=5"):
        begin(begun_at(views=9, page_clicks=start))


def test_a_topic_or_partition_that_is_new_begins_anywhere() -> None:
    begin(begun_at(page_clicks=5, views=9, orders=0))
    files = {"sources/0/0": '\0v1\n{"page.clicks":{"0":5,"1":3}}', "sources/1/0": "v1\n0"}
    begun = begin(Location("new", files=files))
    assert begun.query is not None
    assert (begun.query.query_id, begun.query.started_from) == ("new", "7-1")


def test_empty_state_begins_wherever_the_sources_do() -> None:
    begun = begin(begun_at(page_clicks=3), first_commit(None, IDENTITY, "1-1", 1))
    assert (begun.batch, begun.checkpoint_id, begun.checkpoints) == (-1, "1-1", {})
    assert begun.query == QueryState(query_id="new", metadata="{}")


def test_batches_of_the_query_before_are_not_compared_with_those_of_the_new_one() -> None:
    new = commit(0, "new", epoch=2)
    view = log(commit(3, "old"), OLD, new)
    assert view.comparable_commits == [new]
    assert log(commit(3, "old"), OLD).comparable_commits == [commit(3, "old"), OLD]
    assert LogView().comparable_commits == []


def test_a_commit_with_which_a_new_query_is_to_begin_compares_with_no_other() -> None:
    before = commit(7, "q1")
    first = msgspec.structs.replace(first_commit(before, IDENTITY, "", 2), epoch=2)
    begun = msgspec.structs.replace(first, query=QueryState(query_id="q2", metadata="{}"))
    after = commit(9, "q2", epoch=2, attempt_epoch=2)
    again = msgspec.structs.replace(first_commit(after, IDENTITY, "", 2), epoch=2)
    assert log(before, first, begun, after, again).comparable_commits == [again]


def test_each_source_gets_the_offsets_of_its_topics() -> None:
    start = StartingPoint("7-1", {CLICKS: "4", VIEWS: "-1"})
    assert start.kafka_offsets() == '{"page.clicks": {"0": 5}, "views": {"0": 0}}'
    assert start.kafka_offsets("views") == '{"views": {"0": 0}}'
    with pytest.raises(ConfigError, match="topics=orders read=page"):
        start.kafka_offsets("views", "orders")


class Job:
    """A job whose old query has committed batch 7 and was committing batch 8 when its driver died."""

    def __init__(self, root: Path) -> None:
        self.settings = {
            "job.name": "j",
            "stores.backup.factories": "blob",
            "blob.store.uri": root.as_uri(),
        }
        self.location = Location("old", 7, {"offsets/8": batch_record(8).offsets})
        self.drivers: list[Driver] = []
        old = self.open()
        old.fence(IDENTITY)
        for record in (
            OLD,
            batch_record(8, query_id="old"),
            attempt_record(1, 8),
        ):
            self.append(old, record)

    def open(self, **settings: str) -> Driver:
        config = load_dict(self.settings | {k.replace("__", "."): v for k, v in settings.items()})
        driver = Driver(config, self.location)
        self.drivers.append(driver)
        driver.open(1)
        return driver

    def start(self, **settings: str) -> tuple[Driver, Resumption | None]:
        """Return a driver that has taken over, and where it goes on."""
        driver = self.open(**settings)
        driver.check_location()
        return driver, driver.take_over(driver.fence(IDENTITY))

    def append(self, driver: Driver, record: Record) -> None:
        driver.append(record)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    for driver in made.drivers:
        driver.close()


def test_a_takeover_leaves_everything_of_the_old_query_behind_but_the_commit(job: Job) -> None:
    job.location = Location()
    driver, resumption = job.start(job__start__from__checkpoint="7-1")
    assert resumption == NEW_QUERY
    view = driver.view
    assert view.last_commit is not None
    assert (view.last_commit.batch, view.last_commit.versions) == (-1, OLD.versions)
    assert (view.batches, view.open_attempts, view.aborted_attempts) == ({}, {}, {(1, 1)})
    assert driver.commits is not None
    assert driver.commits.committed_batch == -1
    assert driver.retained_batches == [-1]


def test_the_first_batch_call_records_the_new_query_and_a_restart_finds_it(job: Job) -> None:
    job.location = Location()
    driver, _ = job.start(job__start__from__checkpoint="7-1")
    job.location.id, job.location.files = "new", begun_at(page_clicks=5, views=9).files
    driver.begin(IDENTITY, "9-9")
    commit = driver.view.last_commit
    assert commit is not None
    assert commit.checkpoint_id == "7-1"
    for settings in ({"job__start__from__checkpoint": "7-1"}, {}):
        again, resumption = job.start(**settings)
        assert resumption == Resumption("new", -1, -1)
        assert again.retained_batches == [-1]


def test_a_new_query_with_another_store_is_known_to_have_it_before_its_first_commit(
    job: Job,
) -> None:
    """The commit with which it begins lists the stores of before, as it has no others."""
    one, two = (
        msgspec.structs.replace(IDENTITY, stores={"main": stores})
        for stores in (["state"], ["state", "large"])
    )
    job.location = Location()
    former = job.open()
    former.takeover.fence()
    former.append(commit(8, "old", epoch=0, identity=one))
    former.thread.run(former.log.go_on_from("old", 8))
    driver = job.open(job__start__from__checkpoint="8-1")
    driver.take_over(driver.fence(two))
    job.location.id = "new"
    unused: Any = None
    jobs: Any = SimpleNamespace(tasks=[range(1)], submit_versions=None)
    loop = BatchLoop(
        frame=unused,
        operators=[],
        config=driver.config,
        location=driver.location,
        identity=two,
        thread=driver.thread,
        log=driver.log,
        commits=unused,
        jobs=jobs,
        sink=unused,
        report=report_nothing,
        clock=driver.clock,
    )
    loop._begin()
    first = driver.view.last_commit
    assert first is not None
    assert first.identity.stores == one.stores
    assert (driver.view.stores, driver.view.query_id) == (two.stores, "new")
    with pytest.raises(ConfigError, match="cannot change now"):
        check_stores(one, driver.view, Resumption("new", committed=-1, head=0))
    check_stores(two, driver.view, Resumption("new", committed=-1, head=0))


def test_a_refused_start_changes_nothing(job: Job) -> None:
    with pytest.raises(ConfigError, match="in use"):
        job.start(job__start__from__checkpoint="7-1")
    _, resumption = job.start()
    assert resumption == Resumption("old", 7, 7)


def test_the_starting_point_is_that_of_the_newest_commit(job: Job) -> None:
    for driver in job.drivers:
        driver.close()
    start = find_starting_point(job.settings)
    assert start == StartingPoint("7-1", {CLICKS: "4", VIEWS: "8"})
