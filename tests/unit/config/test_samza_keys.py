"""Every setting of Samza that has to do with state and commits works here, or is refused by name."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from statekeep.backends.blob.settings import BlobSettings
from statekeep.backends.kafka.settings import KafkaSettings, Replicas
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.config.load import load_dict, load_properties, merge
from statekeep.config.lookup import is_known
from statekeep.config.model import Config
from statekeep.errors import ConfigError

S = StoreName("s")
KAFKA = "org.apache.samza.storage.KafkaChangelogStateBackendFactory"
BLOB = "org.apache.samza.storage.blobstore.BlobStoreStateBackendFactory"
MEMORY = "org.apache.samza.storage.kv.inmemory.InMemoryKeyValueStorageEngineFactory"
KAFKA_CHECKPOINTS = "org.apache.samza.checkpoint.kafka.KafkaCheckpointManagerFactory"
SSP_GROUPER = "org.apache.samza.container.grouper.stream.GroupBySystemStreamPartitionFactory"


def kafka(config: Config) -> KafkaSettings:
    """Return what the kafka backend makes of it."""
    servers = load_dict({"kafka.bootstrap.servers": "broker:9092"})
    return KafkaSettings.parse("kafka", merge(servers, config).backend_settings("kafka", "kafka"))


def blob(config: Config) -> BlobSettings:
    """Return what the blob backend makes of it."""
    place = load_dict({"blob.store.uri": "file:///backups"})
    return BlobSettings.parse("blob", merge(place, config).backend_settings("blob", "blob.store"))


WORKING: dict[str, tuple[str, object, Callable[[Config], object]]] = {
    "stores.s.backup.factories": (
        f"{BLOB},{KAFKA}",
        ("blob", "kafka"),
        lambda c: c.store("s").backup_factories,
    ),
    "stores.s.restore.factories": (
        BLOB,
        ("blob",),
        lambda c: (
            merge(load_dict({"stores.s.backup.factories": "kafka,blob"}), c)
            .store("s")
            .restore_factories
        ),
    ),
    "stores.backup.factories": (BLOB, ("blob",), lambda c: c.store("s").backup_factories),
    "stores.restore.factories": (
        BLOB,
        ("blob",),
        lambda c: (
            merge(load_dict({"stores.backup.factories": "kafka,blob"}), c)
            .store("s")
            .restore_factories
        ),
    ),
    "stores.s.factory": (MEMORY, "memory", lambda c: c.store("s").factory),
    "stores.s.changelog": (
        "kafka.s-changes",
        "s-changes",
        lambda c: kafka(c).changelog("kafka", S),
    ),
    "stores.s.changelog.min.compaction.lag.ms": (
        "5000",
        5000,
        lambda c: kafka(c).min_compaction_lag_ms(S),
    ),
    "stores.default.changelog.min.compaction.lag.ms": (
        "6000",
        6000,
        lambda c: kafka(c).min_compaction_lag_ms(S),
    ),
    "stores.s.changelog.delete.retention.ms": (
        "7000",
        7000,
        lambda c: kafka(c).delete_retention_ms(S),
    ),
    "stores.s.changelog.replication.factor": (
        "3",
        Replicas(3, "stores.s.changelog.replication.factor"),
        lambda c: kafka(c).changelog_replicas(S),
    ),
    "stores.default.changelog.replication.factor": (
        "4",
        4,
        lambda c: kafka(c).changelog_replicas(S).factor,
    ),
    "systems.kafka.default.stream.replication.factor": (
        "5",
        [Replicas(5, "kafka.replication.factor")] * 3,
        lambda c: [
            kafka(c).replicas,
            kafka(c).checkpoint_replicas,
            kafka(c).changelog_replicas(S),
        ],
    ),
    "stores.s.clean.on.container.start": ("true", True, lambda c: c.store("s").is_cleaned_on_start),
    "task.commit.ms": ("61000", 61_000, lambda c: c.task.commit_ms),
    "task.commit.max.delay.ms": ("62000", 62_000, lambda c: c.task.commit_max_delay_ms),
    "task.commit.timeout.ms": ("63000", 63_000, lambda c: c.task.commit_timeout_ms),
    "task.commit.skip.commit.during.failures.enabled": (
        "true",
        True,
        lambda c: c.task.is_skipping_failures,
    ),
    "task.commit.skip.commit.exception.max.limit": (
        "7",
        7,
        lambda c: c.task.exception_max_limit,
    ),
    "task.commit.skip.commit.timeout.max.limit": ("8", 8, lambda c: c.task.timeout_max_limit),
    "task.checkpoint.write.versions": (
        "1,2",
        (1, 2),
        lambda c: c.task.checkpoint_write_versions,
    ),
    "task.checkpoint.read.versions": ("1", (1,), lambda c: c.task.checkpoint_read_versions),
    "task.live.checkpoint.max.age": (
        "64000",
        64_000,
        lambda c: c.task.live_checkpoint_max_age_ms,
    ),
    "task.checkpoint.factory": (KAFKA_CHECKPOINTS, "kafka", lambda c: c.task.checkpoint_factory),
    "task.checkpoint.system": ("kafka", "kafka", lambda c: c.task.checkpoint_system),
    "task.checkpoint.replication.factor": (
        "2",
        Replicas(2, "kafka.checkpoint.replication.factor"),
        lambda c: kafka(c).checkpoint_replicas,
    ),
    "job.systemstreampartition.grouper.factory": (
        SSP_GROUPER,
        SSP_GROUPER,
        lambda c: kafka(c).checkpoint_grouper,
    ),
    "task.transactional.state.checkpoint.enabled": (
        "false",
        False,
        lambda c: kafka(c).is_transactional,
    ),
    "job.container.commit.thread.pool.size": ("3", 3, lambda c: c.container.commit_pool_size),
    "job.container.commit.thread.pool.max.size": (
        "65",
        65,
        lambda c: c.container.commit_pool_max_size,
    ),
    "job.container.restore.thread.pool.size": ("4", 4, lambda c: c.container.restore_pool_size),
    "job.container.restore.thread.pool.max.size": (
        "66",
        66,
        lambda c: c.container.restore_pool_max_size,
    ),
    "job.logged.store.base.dir": ("/data", Path("/data"), lambda c: c.job.local_dir),
    "blob.store.manager.factory": (
        "shop.blobs:Manager",
        "shop.blobs:Manager",
        lambda c: blob(c).manager_factory,
    ),
    "blob.store.retry.policy.max.retries": ("9", 9, lambda c: blob(c).retry.max_retries),
    "blob.store.retry.policy.max.retry.duration.millis": (
        "900001",
        900_001,
        lambda c: blob(c).retry.max_duration_ms,
    ),
    "blob.store.retry.policy.backoff.delay.millis": (
        "101",
        101,
        lambda c: blob(c).retry.backoff_delay_ms,
    ),
    "blob.store.retry.policy.backoff.max.delay.millis": (
        "312501",
        312_501,
        lambda c: blob(c).retry.backoff_max_delay_ms,
    ),
    "blob.store.retry.policy.backoff.delay.factor": (
        "6",
        6.0,
        lambda c: blob(c).retry.backoff_delay_factor,
    ),
    "blob.store.retry.policy.jitter.factor": ("0.2", 0.2, lambda c: blob(c).retry.jitter_factor),
}
"""By key: a value that is not the default, and what comes of it where it is used."""

REFUSED = {
    "stores.s.side.inputs": "kafka.other",
    "stores.s.side.inputs.processor.factory": "com.example.Inputs",
    "stores.s.rocksdb.ttl.ms": "1000",
    "stores.s.changelog.kafka.min.compaction.lag.ms": "1",
    "job.changelog.system": "near",
    "task.transactional.state.restore.enabled": "false",
    "task.transactional.state.retain.existing.state": "true",
}
"""What is asked for with these values is not done here, so that a job's file is refused."""

PASSED_OVER = {
    "stores.s.write.batch.size": "500",
    "stores.s.key.serde": "string",
    "stores.s.msg.serde": "string",
    "task.async.commit": "true",
    "task.checkpoint.segment.bytes": "26214400",
    "task.transactional.state.restore.enabled": "true",
    "task.transactional.state.retain.existing.state": "False",
    "job.changelog.system": "kafka",
    "blob.store.admin.factory": "com.example.Admin",
    "blob.store.compare.file.owners.on.restore": "true",
}
"""What changes nothing here, or is done in another way."""

MISSED = {
    "job.non-logged.store.base.dir": "state",
    "job.standbytasks.replication.factor": "2",
    "stores.s.changelog.min.insync.replicas": "2",
    "stores.s.changelog.kafka.min.insync.replicas": "2",
    "systems.near.default.stream.replication.factor": "3",
}
"""What is passed over and may be looked for in vain."""

SECTION_5 = (
    *("stores.s.backup.factories", "stores.s.restore.factories"),
    *("stores.backup.factories", "stores.restore.factories"),
    *("stores.s.factory", "stores.s.changelog", "stores.s.key.serde", "stores.s.msg.serde"),
    *("stores.s.side.inputs", "stores.s.write.batch.size"),
    "stores.s.changelog.min.compaction.lag.ms",
    "stores.default.changelog.min.compaction.lag.ms",
    "stores.s.changelog.delete.retention.ms",
    "stores.s.clean.on.container.start",
    *("task.commit.ms", "task.commit.max.delay.ms", "task.commit.timeout.ms"),
    "task.commit.skip.commit.during.failures.enabled",
    "task.commit.skip.commit.exception.max.limit",
    "task.commit.skip.commit.timeout.max.limit",
    "task.async.commit",
    *("task.checkpoint.write.versions", "task.checkpoint.read.versions"),
    "task.live.checkpoint.max.age",
    *("task.checkpoint.factory", "task.checkpoint.system"),
    *("task.checkpoint.replication.factor", "task.checkpoint.segment.bytes"),
    "task.transactional.state.checkpoint.enabled",
    "task.transactional.state.restore.enabled",
    "task.transactional.state.retain.existing.state",
    *("job.container.commit.thread.pool.size", "job.container.commit.thread.pool.max.size"),
    *("job.container.restore.thread.pool.size", "job.container.restore.thread.pool.max.size"),
    *("job.logged.store.base.dir", "job.non-logged.store.base.dir"),
    *("blob.store.manager.factory", "blob.store.admin.factory"),
    "blob.store.retry.policy.max.retries",
    "blob.store.retry.policy.max.retry.duration.millis",
    "blob.store.retry.policy.backoff.delay.millis",
    "blob.store.retry.policy.backoff.max.delay.millis",
    "blob.store.retry.policy.backoff.delay.factor",
    "blob.store.retry.policy.jitter.factor",
    "blob.store.compare.file.owners.on.restore",
)
"""The settings of Samza 1.8 that have to do with state, commits and checkpoints, all of them."""

PAGE = (Path(__file__).parents[3] / "docs" / "samza.md").read_text(encoding="utf-8")


def load_job(directory: Path, key: str, value: str) -> Config:
    """Read the file of a job of Samza with one setting."""
    path = directory / "job.properties"
    path.write_text(f"job.name=j\n{key}={value}\n", encoding="utf-8")
    return load_properties(path)


@pytest.mark.parametrize("key", WORKING)
def test_a_setting_of_samza_does_what_it_says(key: str, tmp_path: Path) -> None:
    value, expected, effect = WORKING[key]
    assert effect(load_dict({"job.name": "j"})) != expected
    assert effect(load_job(tmp_path, key, value)) == expected


@pytest.mark.parametrize("key", REFUSED)
def test_what_a_job_counts_on_and_does_not_get_is_refused_by_name(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"job\.properties:2") as caught:
        load_job(tmp_path, key, REFUSED[key])
    assert key in str(caught.value)
    assert caught.value.hints == ("remove it",)


@pytest.mark.parametrize("key", [*PASSED_OVER, *MISSED])
def test_what_changes_nothing_here_is_passed_over_and_said_in_the_log(
    key: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "statekeep"):
        config = load_job(tmp_path, key, (PASSED_OVER | MISSED)[key])
    assert list(config.settings) == ["job.name"]
    (told,) = caplog.records
    assert f"key={key} " in told.getMessage()
    assert told.levelno == (logging.WARNING if key in MISSED else logging.INFO)
    with pytest.raises(ConfigError, match=key):  # nobody writes it elsewhere but by mistake
        load_dict({"job.name": "j", key: (PASSED_OVER | MISSED)[key]}, "test")


@pytest.mark.parametrize("key", SECTION_5)
def test_every_setting_of_samzas_state_is_decided_upon_and_on_the_page(key: str) -> None:
    assert (key in WORKING) is is_known(key)
    assert key in {*WORKING, *REFUSED, *PASSED_OVER, *MISSED}
    assert f"`{key.replace('stores.s.', 'stores.<store>.')}`" in PAGE


def test_the_variable_of_samza_is_on_the_page() -> None:
    assert "`LOGGED_STORE_BASE_DIR`" in PAGE


def test_a_store_may_have_another_number_of_replicas_than_all() -> None:
    settings = kafka(
        load_dict(
            {
                "kafka.replication.factor": "2",
                "stores.default.changelog.replication.factor": "3",
                "stores.s.changelog.replication.factor": "-1",
            }
        )
    )
    assert settings.changelog_replicas(S).factor == -1
    assert settings.changelog_replicas(StoreName("other")).factor == 3
    assert settings.checkpoint_replicas.factor == 2


def test_checkpoints_that_would_go_to_another_system_than_the_named_one_are_refused() -> None:
    given = {"job.name": "j", "task.checkpoint.system": "near"}
    load_dict(given).check()  # nothing is written to any system
    with pytest.raises(ConfigError, match=r"task\.checkpoint\.system=near") as caught:
        load_dict({**given, "task.checkpoint.factory": KAFKA_CHECKPOINTS}).check()
    assert "task.checkpoint.factory=near" in caught.value.hints[0]
    load_dict({**given, "task.checkpoint.factory": "near"}).check()
