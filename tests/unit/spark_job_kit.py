"""A job on Spark with four tasks and one commit, made without Spark."""

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql.types import LongType, StringType, StructField, StructType

from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoints import StoreName, SystemStreamPartition, TaskName
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.checkpoint.records import CommitRecord, JobIdentity, QueryState
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.inspection.new_job import begin_job
from statekeep.spark.operator.codec import ValueCodec
from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.operator.key_hash import KeyHasher, partition_of_hash
from statekeep.spark.operator.registry import REGISTRY_KEY, RegisteredVariable, encode_registry
from statekeep.spark.placement import ROUTER
from statekeep.spark.tasks import STATE_STORE
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion

KEY = StructType([StructField("user", StringType())])
VALUE = StructType([StructField("n", LongType())])
CODEC, HASHER = KeyCodec(KEY), KeyHasher(KEY)
LARGE = StoreName("large")
IN_STORES = {STATE_STORE: "count", LARGE: "seen"}
"""``{store: its one variable}`` of a job with two stores; both have the same content."""
ONE_STORE = {STATE_STORE: "count"}
CONTENT = {f"user-{number}": number for number in range(200)}
TASKS = 4
BATCH = 5


def settings(directory: Path, name: str = "counts") -> dict[str, str]:
    return {
        "job.name": name,
        "stores.backup.factories": "blob",
        "blob.store.uri": (directory / "place").as_uri(),
        "job.logged.store.base.dir": str(directory / "local"),
    }


def task_of(user: str, partitions: int) -> int:
    return partition_of_hash(HASHER.hash_front(CODEC.encode((user,)))[0], partitions)


def version_of(
    directory: Path, number: int, stores: Mapping[StoreName, str] = ONE_STORE
) -> SealedVersion:
    """Make what a task of the first job has: its share of the content."""
    place = TaskDirectory.of(
        directory / "made", TaskIdentity("counts", MAIN_OPERATOR, TaskName(f"Partition {number}"))
    )
    variable = RegisteredVariable(1, "value", VALUE.json(), None)
    uid = f"{number:032x}"
    with place.begin(uid, None, list(stores)) as work:
        for name, variable_name in stores.items():
            store = work.open_store(name, "rocksdb")
            store.put(REGISTRY_KEY, encode_registry(KEY, {variable_name: variable}))
            values = ValueCodec(VALUE)
            for user, count in CONTENT.items():
                if task_of(user, TASKS) == number:
                    store.put(variable.prefix + CODEC.encode((user,)), values.encode((count,)))
        return work.seal(BATCH, uid, None)


async def make_job(
    directory: Path, stores: Mapping[StoreName, str] = ONE_STORE, **others: str
) -> None:
    """Make the job as it is after its last commit, with other settings besides."""
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
            stores={MAIN_OPERATOR: [*stores]},
        ),
    )
    config = load_dict(settings(directory) | others)
    clock = SystemClock()
    async with begin_job(config, commit, clock, owner="test", partitions=TASKS) as job:
        for number in range(TASKS):
            await job.add(
                TaskName(f"Partition {number}"),
                version_of(directory, number, stores),
                {SystemStreamPartition("spark", "counts", 0): str(BATCH)},
            )
        await job.finish(QueryState(query_id="q", metadata='{"id":"q"}', offsets="v1", commit="v1"))
