"""What Spark's UI and event log are told to hide: all of our settings, and secrets of sources."""

import re

import pytest

from statekeep.spark.redaction import REDACTION_REGEX

NAMES = [
    "passphrase",
    "auth",
    "pin",
    "connection_string",
    "account_key",
    "client.ssl.key.pem",
    "client.sasl.jaas.config",
    "s3.proxy",
    "whatever",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_of_ours_is_hidden(name: str) -> None:
    of_environment = "STATEKEEP__BACKENDS__B__" + name.upper().replace(".", "__")
    for key in (f"spark.statekeep.backends.b.{name}", of_environment):
        assert re.search(REDACTION_REGEX, key)


@pytest.mark.parametrize(
    "key",
    [
        "kafka.sasl.jaas.config",
        "kafka.ssl.key.password",
        "kafka.ssl.keystore.key",
        "ssl.key.pem",
        "private_key",
        "connectionString",
        "eventhubs.connection.string",
        "fs.azure.account.key.a.dfs.core.windows.net",
        "spark.hadoop.fs.s3a.secret.key",
        "passphrase",
    ],
)
def test_secrets_of_sources_and_sinks_are_hidden(key: str) -> None:
    assert re.search(REDACTION_REGEX, key)


@pytest.mark.parametrize(
    "key",
    ["spark.authenticate", "spark.sql.shuffle.partitions", "spark.master", "spark.app.id", "key"],
)
def test_what_is_no_secret_is_shown(key: str) -> None:
    assert not re.search(REDACTION_REGEX, key)
