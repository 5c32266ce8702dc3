"""Every setting that there is, by the section of the documentation that it stands in."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from statekeep.config.blob_settings import (
    AzureSettings,
    BlobStoreSettings,
    NamedBackend,
    RetrySettings,
    S3Settings,
    SnapshotSettings,
    TransferSettings,
)
from statekeep.config.hdfs_settings import HdfsStoreSettings
from statekeep.config.job_settings import (
    CheckpointSettings,
    ContainerSettings,
    JobSettings,
    MetricsSettings,
    RestartSettings,
    TaskSettings,
)
from statekeep.config.kafka_settings import KafkaClusterSettings
from statekeep.config.key import Key, keys_of
from statekeep.config.store_settings import StateVariableSettings, StoreSettings

GROUPS: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {
        "Job": (JobSettings, RestartSettings),
        "Tasks and commits": (TaskSettings,),
        "Containers": (ContainerSettings,),
        "Retention": (CheckpointSettings,),
        "Metrics": (MetricsSettings,),
        "Stores": (StoreSettings, StateVariableSettings),
        "Backends": (NamedBackend, BlobStoreSettings, SnapshotSettings, RetrySettings),
        "Object stores": (TransferSettings, S3Settings, AzureSettings),
        "Kafka": (KafkaClusterSettings,),
        "HDFS": (HdfsStoreSettings,),
    }
)
"""The dataclasses whose fields are the settings, in the order of the documentation."""

KEYS: tuple[Key[Any], ...] = tuple(
    key for group in GROUPS.values() for section in group for key in keys_of(section).values()
)

UNSUPPORTED: MappingProxyType[str, str] = MappingProxyType(
    {
        "blob.store.admin.factory": "the factory of the backend brings its own admin",
        "blob.store.compare.file.owners.on.restore": "files are proven equal by sha-256 and are "
        "written by the user who restores, so owners are neither recorded nor compared",
        "job.changelog.system": "a changelog is in the cluster of the backend that its store's "
        "backup.factories list",
        "job.container.count": "Spark decides how many executors there are",
        "job.container.thread.pool.size": "Spark decides how many tasks run at once",
        "job.host-affinity.enabled": "tasks stay on the executor that has their state",
        "job.non-logged.store.base.dir": "all stores live in job.logged.store.base.dir",
        "stores.<store>.changelog.partitions": "a changelog has one partition per task",
        "stores.<store>.changelog.kafka.min.compaction.lag.ms": "it has a key of its own: "
        "stores.<store>.changelog.min.compaction.lag.ms",
        "stores.<store>.container.cache.size.bytes": "memory is set per task: "
        "stores.<store>.rocksdb.block.cache.bytes",
        "stores.<store>.container.write.buffer.size.bytes": "memory is set per task: "
        "stores.<store>.rocksdb.write.buffer.bytes",
        "stores.<store>.key.serde": "stores hold bytes; the schema of the state says what they mean",
        "stores.<store>.msg.serde": "stores hold bytes; the schema of the state says what they mean",
        "stores.<store>.object.cache.size": "there is no cache of objects in front of a store",
        "stores.<store>.rocksdb.ttl.ms": "the engine would drop keys, and the backups would still have "
        "them; delete what has expired, as `docs/reference/kafka.md` shows",
        "stores.<store>.side.inputs": "there are no side inputs; join the input in the query",
        "stores.<store>.side.inputs.processor.factory": "there are no side inputs; join the input "
        "in the query",
        "stores.<store>.write.batch.size": "changes go to the engine in chunks of a fixed size",
        "task.async.commit": "it lets messages be in flight during a commit, and there are none: "
        "a commit holds whole batches; its upload is always asynchronous",
        **dict.fromkeys(
            (
                "task.checkpoint.factory",
                "task.checkpoint.read.versions",
                "task.checkpoint.replication.factor",
                "task.checkpoint.segment.bytes",
                "task.checkpoint.system",
                "task.checkpoint.write.versions",
                "task.live.checkpoint.max.age",
            ),
            "the job log holds the checkpoints; job.log.backend says where it is",
        ),
        "task.class": "the program names its processor",
        "task.inputs": "the program names its inputs",
        "task.transactional.state.restore.enabled": "a restore always ends at the commit, so that "
        "state and input agree",
        "task.transactional.state.retain.existing.state": "records of a changelog that no checkpoint "
        "names the end of are not committed state, and no store starts with them",
    }
)
"""Samza's settings that are refused, and why; the same holes as in `Key`."""
