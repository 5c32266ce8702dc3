"""The settings of a Kafka backend, and where they come from."""

from collections.abc import Mapping

import pytest
from confluent_kafka import Producer

from statekeep.backends.base import BackupContext, CommitContext, JobTasks, TaskIdentity
from statekeep.backends.kafka import clients
from statekeep.backends.kafka.admin import KafkaAdmin
from statekeep.backends.kafka.backup import KafkaBackupManager
from statekeep.backends.kafka.clients import build_admin, build_consumer, build_producer
from statekeep.backends.kafka.cluster import SharedCluster
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.backends.registry import BackendRegistry
from statekeep.checkpoint.checkpoints import BackendName, CheckpointId, StoreName, TaskName
from statekeep.config.load import load_dict
from statekeep.errors import ConfigError
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

SERVERS = {"bootstrap.servers": "broker:9092"}
S = StoreName("s")
TASK = TaskIdentity("job", "main", TaskName("Partition 3"), "77aa")
DEFAULT_OF_B = "kafka.job.main.b.changelog"


def settings_of(**given: str) -> KafkaSettings:
    """Build the settings as a job's configuration gives them to the factory."""
    written = {name.replace("__", "."): value for name, value in given.items()}
    config = load_dict(
        {"job.name": "job", "kafka.bootstrap.servers": "broker:9092", **written}, "test"
    )
    return KafkaSettings.parse("kafka", config.backend_settings("kafka", "kafka"))


def test_a_job_with_a_changelog_gets_the_kafka_backend() -> None:
    config = load_dict(
        {
            "job.name": "job",
            "stores.s.changelog": "kafka.s-changelog",
            "kafka.bootstrap.servers": "broker:9092",
        },
        "test",
    )
    factory = BackendRegistry(config).factory("kafka")
    assert factory.properties.needs_changes
    settings = KafkaSettings.parse("kafka", factory.settings)
    assert settings.changelog("kafka", S) == "s-changelog"


def test_a_store_without_a_changelog_names_no_topic() -> None:
    assert settings_of().changelog("kafka", S) is None


def build_manager(settings: KafkaSettings, *stores: str) -> None:
    """Build the backup manager of a task whose stores are backed up to this backend."""
    context = BackupContext(
        TASK, tuple(map(StoreName, stores)), _no_commit, SerialExecutor(), FakeClock()
    )
    clusters = SharedCluster(settings)
    KafkaBackupManager(context, settings, BackendName("kafka"), clusters, new_uid=str)


def _no_commit(checkpoint_id: CheckpointId) -> CommitContext:
    raise KeyError(checkpoint_id)


@pytest.mark.parametrize(
    ("changelogs", "topic", "key"),
    [
        ({"a": "kafka.views", "b": "views"}, "views", "stores.b.changelog"),
        ({"a": f"kafka.{DEFAULT_OF_B}"}, DEFAULT_OF_B, "stores.a.changelog"),
    ],
    ids=["both named", "the default of another"],
)
def test_two_stores_with_one_changelog_are_refused(
    changelogs: Mapping[str, str], topic: str, key: str
) -> None:
    settings = settings_of(**{f"stores__{s}__changelog": name for s, name in changelogs.items()})
    with pytest.raises(ConfigError, match=f"backend=kafka topic={topic} stores=a,b") as caught:
        build_manager(settings, "a", "b")
    assert caught.value.key == key


def test_stores_on_different_clusters_may_name_one_changelog() -> None:
    settings = settings_of(stores__a__changelog="events", stores__b__changelog="events")
    build_manager(settings, "a")
    build_manager(settings, "b")


@pytest.mark.asyncio
async def test_two_stores_with_one_changelog_are_refused_before_a_cluster_is_reached() -> None:
    settings = settings_of(stores__a__changelog=f"kafka.{DEFAULT_OF_B}")
    tasks = JobTasks(TASK.job_name, TASK.operator, (StoreName("a"), StoreName("b")), 4)
    admin = KafkaAdmin(BackendName("kafka"), settings, tasks, SerialExecutor(), FakeClock())
    with pytest.raises(ConfigError, match="stores=a,b"):
        await admin.create_resources()


def test_the_settings_of_a_store_go_before_those_of_all() -> None:
    settings = settings_of(
        stores__default__changelog__min__compaction__lag__ms="1h",
        stores__s__changelog__min__compaction__lag__ms="2h",
    )
    assert settings.min_compaction_lag_ms(S) == 7_200_000
    assert settings.min_compaction_lag_ms(StoreName("other")) == 3_600_000
    assert settings.delete_retention_ms(S) == 86_400_000


def test_a_backend_without_a_cluster_is_refused() -> None:
    with pytest.raises(ConfigError, match="no cluster"):
        KafkaSettings.parse("kafka", {})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("bootstrap.server", "x", "nearest=bootstrap.servers"),
        ("timeout.ms", "soon", "timeout.ms must be"),
        ("client.transactional.id", "mine", "sets this itself"),
        ("client.isolation.level", "read_uncommitted", "sets this itself"),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KafkaSettings.parse("kafka", {**SERVERS, name: value})


def test_client_settings_are_handed_on_and_never_shown() -> None:
    settings = KafkaSettings.parse("kafka", {**SERVERS, "client.sasl.password": "hidden"})
    assert settings.client == {"sasl.password": "hidden"}
    assert "hidden" not in repr(settings)


def test_a_client_setting_that_the_library_refuses_is_named_and_its_value_is_not() -> None:
    settings = KafkaSettings.parse("kafka", {**SERVERS, "client.sasl.passwort": "hidden"})
    with pytest.raises(ConfigError, match=r"client_keys=sasl\.passwort") as caught:
        build_admin(settings)
    assert "hidden" not in repr(caught.value)
    assert caught.value.__cause__ is None


def test_a_consumer_fetches_eight_mib_ahead_unless_settings_say_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built: list[Mapping[str, object]] = []
    monkeypatch.setattr(clients, "Consumer", lambda config, **_: built.append(config))
    for more in ({}, {"client.queued.max.messages.kbytes": "1024"}):
        build_consumer(KafkaSettings.parse("kafka", {**SERVERS, **more}), is_committed_only=True)
    assert [config["queued.max.messages.kbytes"] for config in built] == [8 << 10, "1024"]


def test_clients_are_built_without_reaching_the_cluster() -> None:
    settings = KafkaSettings.parse("kafka", SERVERS)
    # Without a server a producer says so in its queue of events, and goes on.
    assert isinstance(build_producer(settings, "id", lambda _: None), Producer)
    build_consumer(settings, is_committed_only=True).close()
    build_admin(settings)
