"""Every setting that there is: the one definition of names, types, defaults and their reasons.

The fields of `statekeep.config.model`, the checks of `statekeep.config.load` and the table in
``docs/reference/settings.md`` all come from here.
"""

from types import MappingProxyType

from statekeep.config import (
    backend_keys,
    hdfs_keys,
    job_keys,
    kafka_keys,
    object_store_keys,
    store_keys,
)
from statekeep.config.key import Key

GROUPS: MappingProxyType[str, tuple[Key[object], ...]] = MappingProxyType(
    {
        "Job": (
            job_keys.JOB_NAME,
            job_keys.JOB_ID,
            job_keys.LOCAL_DIR,
            job_keys.LOG_BACKEND,
            job_keys.START_FROM_CHECKPOINT,
            job_keys.EVENT_FLUSH_INTERVAL_MS,
            job_keys.EVENT_BUFFER_BYTES,
            job_keys.RESTART_STRATEGY,
            job_keys.RESTART_ATTEMPTS,
            job_keys.RESTART_BACKOFF_INITIAL_MS,
            job_keys.RESTART_BACKOFF_MAX_MS,
            job_keys.RESTART_BACKOFF_MULTIPLIER,
            job_keys.RESTART_RESET_AFTER_MS,
        ),
        "Tasks and commits": (
            job_keys.TASK_COUNT,
            job_keys.COMMIT_MS,
            job_keys.COMMIT_MAX_DELAY_MS,
            job_keys.COMMIT_TIMEOUT_MS,
            job_keys.OPTIONAL_TIMEOUT_MS,
            job_keys.COMMIT_EVERY_BATCH,
            job_keys.SKIP_FAILURES,
            job_keys.EXCEPTION_MAX_LIMIT,
            job_keys.TIMEOUT_MAX_LIMIT,
            job_keys.SHUTDOWN_MS,
            job_keys.GROUPING_MAX_BYTES,
            job_keys.REPLAY_MAX_BATCHES,
            job_keys.DIVERGENCE,
        ),
        "Containers": (
            job_keys.COMMIT_POOL_SIZE,
            job_keys.COMMIT_POOL_MAX_SIZE,
            job_keys.RESTORE_POOL_SIZE,
            job_keys.RESTORE_POOL_MAX_SIZE,
            job_keys.GRACE_MS,
            job_keys.IDLE_MS,
        ),
        "Retention": (
            job_keys.RETAIN_COMMITS,
            job_keys.RETAIN_MS,
            job_keys.CLEAN_UP_MS,
            job_keys.LOCAL_RETAIN_VERSIONS,
        ),
        "Stores": (
            store_keys.STORE_FACTORY,
            store_keys.BACKUP_FACTORIES,
            store_keys.RESTORE_FACTORIES,
            store_keys.OPTIONAL_FACTORIES,
            store_keys.CLEAN_ON_START,
            store_keys.CHANGELOG,
            store_keys.CHANGELOG_MIN_COMPACTION_LAG_MS,
            store_keys.CHANGELOG_DELETE_RETENTION_MS,
            store_keys.CHANGELOG_REPLICATION_FACTOR,
            store_keys.WRITE_BUFFER_BYTES,
            store_keys.BLOCK_CACHE_BYTES,
            store_keys.COMPACTION_STYLE,
            store_keys.BLOOM_BITS,
            store_keys.COMPRESSION,
            store_keys.BLOB_STORE_COMPRESSION,
            store_keys.BLOB_STORE_ENCRYPTION,
        ),
        "Backends": (
            backend_keys.BACKEND_FACTORY,
            backend_keys.BACKEND_SETTING,
            backend_keys.BLOB_URI,
            backend_keys.BLOB_MANAGER_FACTORY,
            backend_keys.BLOB_MAX_IN_FLIGHT,
            backend_keys.BLOB_SNAPSHOT_DELTA_RATIO,
            backend_keys.BLOB_SNAPSHOT_MAX_DELTAS,
            backend_keys.BLOB_PACK_FILE_BYTES,
            backend_keys.BLOB_COMPRESSION,
            backend_keys.BLOB_ENCRYPTION,
            backend_keys.BLOB_ENCRYPTION_KEYS,
            backend_keys.BLOB_ENCRYPTION_PLAIN_UNTIL,
            backend_keys.BLOB_START_TIMEOUT_MS,
            backend_keys.BLOB_MAX_RETRIES,
            backend_keys.BLOB_MAX_RETRY_MS,
            backend_keys.BLOB_BACKOFF_MS,
            backend_keys.BLOB_BACKOFF_MAX_MS,
            backend_keys.BLOB_BACKOFF_FACTOR,
            backend_keys.BLOB_JITTER_FACTOR,
        ),
        "Object stores": object_store_keys.KEYS,
        "Kafka": kafka_keys.ALL,
        "HDFS": hdfs_keys.ALL,
    }
)
"""All keys by the section of the documentation that they stand in."""

KEYS: tuple[Key[object], ...] = tuple(key for group in GROUPS.values() for key in group)

RESERVED_STORE_NAMES = frozenset({"default", "backup", "restore"})
"""The second part of the keys that speak for all stores; no store may be called so."""

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
        "job.standbytasks.replication.factor": "there are no standby tasks",
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
        "stores.<store>.rocksdb.ttl.ms": "the engine would drop keys and no backup would hear of "
        "it; delete what has expired, as `docs/reference/kafka.md` shows",
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
