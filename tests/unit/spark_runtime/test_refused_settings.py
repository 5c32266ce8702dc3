"""What the Spark runtime cannot follow is refused by name, not ignored."""

import pytest

from statekeep.config.load import load_dict
from statekeep.errors import ConfigError
from statekeep.spark.refused_settings import check_settings

JOB = {
    "job.name": "j",
    "job.logged.store.base.dir": "/somewhere",
    "stores.backup.factories": "blob",
    "blob.store.uri": "/elsewhere",
}


def test_a_setting_without_effect_is_refused_by_name_with_the_reason() -> None:
    config = load_dict(JOB | {"job.id": "7"}, "settings")
    with pytest.raises(ConfigError, match=r"not possible on Spark: .*\(on Spark .*source=settings"):
        check_settings(config)


def test_defaults_written_out_are_no_error() -> None:
    check_settings(load_dict(JOB | {"job.id": "1"}))


def test_a_relative_local_directory_is_refused() -> None:
    config = load_dict({"job.name": "j", "job.logged.store.base.dir": "here"})
    with pytest.raises(ConfigError, match="must be absolute: path=here"):
        check_settings(config)


@pytest.mark.parametrize(
    "settings",
    [
        {"blob.store.uri": "backup"},
        {"blob.store.uri": "file:///backup", "backends.blob.uri": "./backup"},
        {"backends.blob.factory": "hdfs", "hdfs.store.uri": "backup"},
    ],
    ids=["of all", "of one", "hdfs"],
)
def test_a_relative_location_of_a_backend_is_refused(settings: dict[str, str]) -> None:
    config = load_dict(JOB | {"stores.state.backup.factories": "blob"} | settings)
    with pytest.raises(ConfigError, match=r"must be absolute: backend=blob uri=.*backup"):
        check_settings(config)


@pytest.mark.parametrize("uri", ["/backup", "file:/backup", "file:///backup", "s3://bucket/backup"])
def test_an_absolute_location_of_a_backend_is_taken(uri: str) -> None:
    listed = {"stores.state.backup.factories": "blob", "blob.store.uri": uri}
    check_settings(load_dict(JOB | listed))


def test_an_unknown_store_is_refused_with_the_name_of_the_one_there_is() -> None:
    config = load_dict(JOB | {"stores.stat.backup.factories": "blob"})
    with pytest.raises(ConfigError, match="unknown store: store=stat stores=state"):
        check_settings(config)
