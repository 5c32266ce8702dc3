"""Every setting of Samza that has to do with state and commits works here, or is refused by name."""

import pytest

from statekeep.config.load import load_dict
from statekeep.errors import ConfigError

WORKING = {
    "stores.s.backup.factories": "kafka",
    "stores.s.restore.factories": "kafka",
    "stores.backup.factories": "kafka",
    "stores.restore.factories": "kafka",
    "stores.s.factory": "org.apache.samza.storage.kv.RocksDbKeyValueStorageEngineFactory",
    "stores.s.changelog": "kafka.s-changelog",
    "stores.s.changelog.min.compaction.lag.ms": "14400000",
    "stores.default.changelog.min.compaction.lag.ms": "14400000",
    "stores.s.changelog.delete.retention.ms": "86400000",
    "stores.s.clean.on.container.start": "false",
    "task.commit.ms": "60000",
    "task.commit.max.delay.ms": "60000",
    "task.commit.timeout.ms": "1800000",
    "task.commit.skip.commit.during.failures.enabled": "false",
    "task.commit.skip.commit.exception.max.limit": "5",
    "task.commit.skip.commit.timeout.max.limit": "2",
    "task.checkpoint.write.versions": "1,2",
    "task.checkpoint.read.versions": "1",
    "task.live.checkpoint.max.age": "600000",
    "task.checkpoint.factory": "org.apache.samza.checkpoint.kafka.KafkaCheckpointManagerFactory",
    "task.transactional.state.checkpoint.enabled": "false",
    "job.container.commit.thread.pool.size": "2",
    "job.container.commit.thread.pool.max.size": "64",
    "job.container.restore.thread.pool.size": "2",
    "job.container.restore.thread.pool.max.size": "64",
    "job.logged.store.base.dir": "state",
    "blob.store.manager.factory": "com.example.Manager",
    "blob.store.retry.policy.max.retries": "-1",
    "blob.store.retry.policy.max.retry.duration.millis": "900000",
    "blob.store.retry.policy.backoff.delay.millis": "100",
    "blob.store.retry.policy.backoff.max.delay.millis": "312500",
    "blob.store.retry.policy.backoff.delay.factor": "5",
    "blob.store.retry.policy.jitter.factor": "0.1",
}
REFUSED = {
    "stores.s.write.batch.size": "500",
    "stores.s.key.serde": "string",
    "stores.s.msg.serde": "string",
    "stores.s.side.inputs": "kafka.other",
    "stores.s.rocksdb.ttl.ms": "1000",
    "task.async.commit": "false",
    "task.checkpoint.system": "kafka",
    "task.checkpoint.replication.factor": "2",
    "task.checkpoint.segment.bytes": "26214400",
    "task.transactional.state.restore.enabled": "true",
    "task.transactional.state.retain.existing.state": "true",
    "job.non-logged.store.base.dir": "state",
    "blob.store.admin.factory": "com.example.Admin",
    "blob.store.compare.file.owners.on.restore": "true",
    "stores.s.changelog.kafka.min.compaction.lag.ms": "1",
}


@pytest.mark.parametrize("key", WORKING)
def test_a_setting_of_samza_is_taken(key: str) -> None:
    assert load_dict({"job.name": "j", key: WORKING[key]}, "test").settings


@pytest.mark.parametrize("key", REFUSED)
def test_a_setting_of_samza_that_cannot_work_is_refused_by_name(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_dict({"job.name": "j", key: REFUSED[key]}, "test")
    assert key in str(caught.value)
