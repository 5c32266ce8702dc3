"""A job on Spark with four tasks and one commit, made without Spark."""

from pathlib import Path

from pyspark.sql.types import LongType, StringType, StructField, StructType

from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoints import SystemStreamPartition, TaskName
from statekeep.checkpoint.log_scope import MAIN_OPERATOR
from statekeep.checkpoint.records import CommitRecord, JobIdentity, QueryState
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.inspection.new_job import begin_job
from statekeep.spark.anchor import ROUTER
from statekeep.spark.operator.codec import ValueCodec
from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.operator.key_hash import KeyHasher, partition_of_hash
from statekeep.spark.operator.registry import REGISTRY_KEY, RegisteredVariable, encode_registry
from statekeep.spark.tasks import STATE_STORE
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion

KEY = StructType([StructField("user", StringType())])
VALUE = StructType([StructField("n", LongType())])
CODEC, HASHER = KeyCodec(KEY), KeyHasher(KEY)
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
