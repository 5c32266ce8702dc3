"""The settings of a Kafka backend, and where they come from."""

import pytest
from confluent_kafka import Producer

from statekeep.backends.kafka.clients import build_admin, build_consumer, build_producer
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.backends.registry import BackendRegistry
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.config.load import load_dict
from statekeep.errors import ConfigError

SERVERS = {"bootstrap.servers": "broker:9092"}
S = StoreName("s")


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


def test_two_stores_with_one_changelog_are_refused() -> None:
    with pytest.raises(ConfigError, match="topic=views stores=a,b") as caught:
        settings_of(stores__a__changelog="kafka.views", stores__b__changelog="views")
    assert caught.value.key == "stores.b.changelog"
    settings_of(stores__a__changelog="kafka.views", stores__b__changelog="kafka.views2")


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


def test_clients_are_built_without_reaching_the_cluster() -> None:
    settings = KafkaSettings.parse("kafka", SERVERS)
    # Where nobody listens a producer says so in its queue of events, and goes on.
    assert isinstance(build_producer(settings, "id", lambda _: None), Producer)
    build_consumer(settings, is_committed_only=True).close()
    build_admin(settings)
