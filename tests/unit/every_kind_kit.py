"""A job on Spark with one task and a variable of every kind, made without Spark."""

import datetime as dt
from pathlib import Path
from typing import Any

from pyspark.sql.types import LongType, StringType, StructField, StructType

from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.checkpoint.records import CommitRecord, JobIdentity, QueryState
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.inspection.new_job import begin_job
from statekeep.spark.operator.changes import ChangeWriter
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.handle import LocalHandle
from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.operator.variables import KeyCursor
from statekeep.spark.placement import ROUTER
from statekeep.spark.tasks import STATE_STORE
from statekeep.stores.task_directory import TaskDirectory

KEY = StructType([StructField("id", LongType()), StructField("name", StringType())])
NOW_MS = 1_700_000_000_000
TTL_MS = 60_000
DAYS = [dt.date(2026, 1, 30), dt.date(2026, 1, 31)]
NAMES = ("anna-jqx", "bert-vkz", "carl-wfy")
KEYS: list[Any] = list(enumerate(NAMES))
_OFFSETS = f'v1\n{{"batchTimestampMs":{NOW_MS},"batchWatermarkMs":0}}'


def settings(directory: Path) -> dict[str, str]:
    return {
        "job.name": "kinds",
        "stores.backup.factories": "blob",
        "blob.store.uri": (directory / "place").as_uri(),
        "job.logged.store.base.dir": str(directory / "local"),
    }


async def make_job(directory: Path) -> None:
    """Make the job as it is after its batch 5, in which each key has a value of every kind."""
    name = TaskName("Partition 0")
    place = TaskDirectory.of(directory / "made", TaskIdentity("kinds", MAIN_OPERATOR, name))
    with place.begin("0" * 32, None, [STATE_STORE]) as work:
        store, cursor = work.open_store(STATE_STORE, "rocksdb"), KeyCursor()
        clock = BatchClock(NOW_MS, 0)
        writer = ChangeWriter(store)
        handle = LocalHandle(store, cursor, writer, KEY, time_mode=TimeMode.PROCESSING, clock=clock)
        one = handle.getValueState("one", "n long, s string")
        brief = handle.getValueState("brief", "n long", TTL_MS)
        items = handle.getListState("items", "n long")
        fading = handle.getListState("fading", "n long", TTL_MS)
        by_day = handle.getMapState("by_day", "day date", "n long, tags map<string,long>")
        handle.getMapState("by_time", "at timestamp", "n long")
        handle.seal()
        for key in KEYS:
            cursor.enter([[value] for value in key], [KeyCodec(KEY).encode(key)])
            one.update((key[0], "x"))
            brief.update((key[0],))
            items.put([(1,), (2,)])
            fading.put([(1,), (2,)])
            by_day.updateValue((DAYS[0],), (1, {"a": 1}))
            by_day.updateValue((DAYS[1],), (2, {}))
            handle.registerTimer(NOW_MS + 5)
            handle.flush()
        version = work.seal(5, "0" * 32, None)
    commit = CommitRecord(
        attempt_epoch=0,
        attempt=0,
        batch=5,
        checkpoint_id="1-1",
        identity=JobIdentity(
            job_uid="",
            job_name="",
            partitions=1,
            router=ROUTER,
            key_schema=KEY.simpleString(),
            stores={MAIN_OPERATOR: [STATE_STORE]},
        ),
    )
    config = load_dict(settings(directory))
    async with begin_job(config, commit, SystemClock(), owner="test", partitions=1) as job:
        await job.add(name, version, {})
        await job.finish(QueryState(query_id="q", metadata='{"id":"q"}', offsets=_OFFSETS))
