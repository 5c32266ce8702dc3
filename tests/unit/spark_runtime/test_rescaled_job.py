"""What a driver finds of a rescaled job: its log, its identity, the state of every new task."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from driver_kit import Driver
from pyspark.sql.types import LongType, StringType, StructField, StructType
from typer.testing import CliRunner

from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoints import SystemStreamPartition, TaskName
from statekeep.checkpoint.log_scope import MAIN_OPERATOR
from statekeep.checkpoint.records import CommitRecord, JobIdentity, QueryState
from statekeep.cli.app import app
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.errors import CheckpointLocationError, ConfigError
from statekeep.inspection.new_job import begin_job
from statekeep.spark.anchor import ROUTER
from statekeep.spark.driver.takeover import new_identity, settled_identity
from statekeep.spark.operator.codec import ValueCodec
from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.operator.key_hash import KeyHasher, partition_of_hash
from statekeep.spark.operator.registry import REGISTRY_KEY, RegisteredVariable, encode_registry
from statekeep.spark.state_reader import read_state
from statekeep.spark.tasks import STATE_STORE
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion

KEY = StructType([StructField("user", StringType())])
VALUE = StructType([StructField("n", LongType())])
CODEC, HASHER = KeyCodec(KEY), KeyHasher(KEY)
CONTENT = {f"user-{number}": number for number in range(200)}
TASKS = 4
BATCH = 5


class FakeLocation:
    """A checkpoint location whose query has ended ``BATCH``."""

    uri = "file:///checkpoint"

    def __init__(self, query_id: str, newest: int = BATCH) -> None:
        self._query_id = query_id
        self._newest = newest

    def newest(self, log: str) -> int:
        assert log == "commits"
        return self._newest

    def query_id(self) -> str:
        return self._query_id

    def check_newest(self) -> None:
        pass


def settings(directory: Path, name: str = "counts") -> dict[str, str]:
    return {
        "job.name": name,
        "stores.backup.factories": "blob",
        "blob.store.uri": (directory / "place").as_uri(),
        "job.logged.store.base.dir": str(directory / "local"),
    }


def task_of(user: str, partitions: int) -> int:
    return partition_of_hash(HASHER.hash_front(CODEC.encode((user,)))[0], partitions)


def version_of(directory: Path, number: int) -> SealedVersion:
    """Make what a task of the first job has: its share of the content."""
    place = TaskDirectory.of(
        directory / "made", TaskIdentity("counts", MAIN_OPERATOR, TaskName(f"Partition {number}"))
    )
    variable = RegisteredVariable(1, "value", VALUE.json(), None)
    uid = f"{number:032x}"
    with place.begin(uid, None, [STATE_STORE]) as work:
        store = work.open_store(STATE_STORE, "rocksdb")
        store.put(REGISTRY_KEY, encode_registry(KEY, {"count": variable}))
        values = ValueCodec(VALUE)
        for user, count in CONTENT.items():
            if task_of(user, TASKS) == number:
                store.put(variable.prefix + CODEC.encode((user,)), values.encode((count,)))
        return work.seal(BATCH, uid, None)


async def make_job(directory: Path) -> None:
    """Make the job as it is after its last commit."""
    commit = CommitRecord(
        attempt_epoch=0,
        attempt=0,
        batch=BATCH,
        checkpoint_id="1-1",
        identity=JobIdentity(
            job_uid="",
            job_name="",
            partitions=TASKS,
            router=ROUTER,
            key_schema=KEY.simpleString(),
            stores={MAIN_OPERATOR: [STATE_STORE]},
        ),
    )
    config = load_dict(settings(directory))
    clock = SystemClock()
    async with begin_job(config, commit, clock, owner="test", partitions=TASKS) as job:
        for number in range(TASKS):
            await job.add(
                TaskName(f"Partition {number}"),
                version_of(directory, number),
                {SystemStreamPartition("spark", "counts", 0): str(BATCH)},
            )
        await job.finish(QueryState(query_id="q", metadata='{"id":"q"}', offsets="v1", commit="v1"))


def open_driver(directory: Path, name: str, *, newest: int = BATCH) -> Driver:
    return Driver(load_dict(settings(directory, name)), FakeLocation("q", newest))


def rescale(directory: Path, partitions: int) -> Any:
    options = [part for k, v in settings(directory).items() for part in ("--set", f"{k}={v}")]
    line = ["rescale", "--partitions", str(partitions), "--as", "rescaled", *options]
    return CliRunner().invoke(app, line, catch_exceptions=False)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    asyncio.run(make_job(tmp_path))
    return tmp_path


@pytest.mark.parametrize("partitions", [1, 3, 7])
def test_every_key_is_in_the_task_to_which_spark_will_route_it(job: Path, partitions: int) -> None:
    assert rescale(job, partitions).exit_code == 0
    found = list(read_state(settings(job, "rescaled"), "count"))
    assert {entry.key[0]: entry.value[0] for entry in found} == CONTENT
    assert len(found) == len(CONTENT)
    for entry in found:
        assert entry.task_name == f"Partition {task_of(entry.key[0], partitions)}"
    before = {entry.key[0]: entry.value[0] for entry in read_state(settings(job), "count")}
    assert before == CONTENT


def test_a_driver_takes_the_rescaled_job_for_its_own_with_the_new_number_alone(job: Path) -> None:
    rescale(job, 3)
    driver = open_driver(job, "rescaled")
    try:
        commit = driver.open(3)
        config = load_dict(settings(job, "rescaled"))
        expected = new_identity(config, 3, ROUTER, KEY.simpleString())
        assert settled_identity(commit, expected).partitions == 3
        with pytest.raises(ConfigError, match="another partitions: before=3 now=4"):
            settled_identity(commit, new_identity(config, 4, ROUTER, KEY.simpleString()))
        driver.check_location()
        assert driver.view.last_commit is not None
        assert (driver.view.last_commit.batch, len(driver.view.last_commit.versions)) == (BATCH, 3)
        assert not driver.view.batches
        assert not driver.view.open_attempts
    finally:
        driver.close()


def test_a_location_that_has_gone_on_meanwhile_is_refused(job: Path) -> None:
    rescale(job, 3)
    driver = open_driver(job, "rescaled", newest=BATCH + 1)
    try:
        driver.open(3)
        with pytest.raises(CheckpointLocationError, match="not of one time"):
            driver.check_location()
    finally:
        driver.close()


def test_a_job_whose_number_of_tasks_changed_without_it_is_told_so(job: Path) -> None:
    driver = open_driver(job, "counts")
    try:
        commit = driver.open(3)
        config = load_dict(settings(job))
        with pytest.raises(ConfigError, match="another partitions") as caught:
            settled_identity(commit, new_identity(config, 8, ROUTER, KEY.simpleString()))
        assert any("statekeep rescale" in hint for hint in caught.value.hints)
    finally:
        driver.close()
