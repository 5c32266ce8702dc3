"""The typed sections, the sections of backends, the check at start, and the explanation."""

import dataclasses
import inspect
import os
import tempfile
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

from statekeep import config as package
from statekeep.config.job_settings import (
    CheckpointSettings,
    ContainerSettings,
    JobSettings,
    TaskSettings,
)
from statekeep.config.key import keys_of
from statekeep.config.keys import GROUPS
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.config.store_settings import StoreSettings
from statekeep.errors import ConfigError


def test_a_configuration_of_nothing_has_the_defaults() -> None:
    config = load_dict({"job.name": "j"})
    assert config.job == JobSettings(name="j")
    assert config.task == TaskSettings()
    assert config.container == ContainerSettings()
    assert config.checkpoint == CheckpointSettings()
    assert config.store("s") == StoreSettings(name="s")


def test_the_defaults_are_the_documented_ones() -> None:
    job, task = JobSettings(name="j"), TaskSettings()
    own = Path(tempfile.gettempdir()) / f"statekeep-{os.getuid()}"
    assert (job.id, job.local_dir) == ("1", own)
    assert (task.commit_ms, task.commit_max_delay_ms, task.commit_timeout_ms) == (
        60_000,
        60_000,
        1_800_000,
    )
    assert (task.exception_max_limit, task.timeout_max_limit, task.shutdown_ms) == (5, 2, 30_000)
    assert (task.grouping_max_bytes, task.replay_max_batches) == (134_217_728, 80)
    assert (CheckpointSettings().retain_commits, ContainerSettings().grace_ms) == (2, 60_000)


def test_every_dataclass_of_settings_is_in_a_section_of_the_documentation() -> None:
    modules = [
        import_module(f"{package.__name__}.{m.name}") for m in iter_modules(package.__path__)
    ]
    declaring = {
        found
        for module in modules
        for _, found in inspect.getmembers(module, dataclasses.is_dataclass)
        if inspect.isclass(found) and keys_of(found)
    }
    assert declaring == {section for group in GROUPS.values() for section in group}


def test_a_given_value_reaches_its_field() -> None:
    config = load_dict(
        {
            "job.name": "flights",
            "job.logged.store.base.dir": "/data/state",
            "job.log.backend": "blob",
            "task.count": 8,
            "task.commit.skip.commit.during.failures.enabled": "true",
            "task.replay.on.divergence": "error",
            "job.container.grace.ms": 5,
            "checkpoint.retain.commits": 3,
            "stores.s.rocksdb.compression": "zstd",
            "stores.s.clean.on.container.start": "true",
        }
    )
    assert (config.job.local_dir, config.job.log_backend) == (Path("/data/state"), "blob")
    assert (config.task.count, config.task.is_skipping_failures) == (8, True)
    assert config.task.divergence == "error"
    assert (config.container.grace_ms, config.checkpoint.retain_commits) == (5, 3)
    assert (config.store("s").compression, config.store("s").is_cleaned_on_start) == ("zstd", True)


def test_a_job_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^setting is required: key=job\.name; hint: "):
        _ = Config().job


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().task.commit_ms = 1  # type: ignore[misc]  # what must not work


@pytest.mark.parametrize(
    ("tasks", "least", "most", "expected"),
    [(0, 2, 64, 2), (1, 2, 64, 2), (8, 2, 64, 8), (65, 2, 64, 64), (500, 2, 64, 64), (3, 8, 4, 4)],
)
def test_a_pool_has_a_thread_per_task_within_its_bounds(
    tasks: int, least: int, most: int, expected: int
) -> None:
    commits = ContainerSettings(commit_pool_size=least, commit_pool_max_size=most)
    restores = ContainerSettings(restore_pool_size=least, restore_pool_max_size=most)
    assert commits.commit_pool_threads(tasks) == expected
    assert restores.restore_pool_threads(tasks) == expected


def test_a_backend_has_its_own_settings_over_those_of_its_kind() -> None:
    config = load_dict(
        {
            "blob.store.uri": "s3://shared",
            "blob.store.retry.policy.max.retries": "3",
            "backends.near.factory": "blob",
            "backends.near.uri": "s3://near",
            "backends.near.endpoint.url": "http://localhost",
            "backends.nearby.uri": "s3://nearby",
        }
    )
    assert config.backend_factory("near") == "blob"
    assert config.backend_factory("blob") == "blob"
    assert config.backend_settings("near", "blob.store") == {
        "uri": "s3://near",
        "retry.policy.max.retries": "3",
        "endpoint.url": "http://localhost",
    }
    assert config.backend_settings("blob", "blob.store")["uri"] == "s3://shared"
    assert config.backend_settings("near", "") == {
        "uri": "s3://near",
        "endpoint.url": "http://localhost",
    }


def test_a_backend_that_is_named_by_a_dotted_path_has_settings_too() -> None:
    config = load_dict(
        {
            "stores.backup.factories": "my.package.Factory",
            "backends.my.package.Factory.uri": "here",
        }
    )
    assert config.backend_settings("my.package.Factory", "") == {"uri": "here"}
    load_dict({"job.name": "j", **config.as_dict()}).check()


def test_units_are_worked_out_before_a_backend_sees_a_known_setting() -> None:
    config = load_dict(
        {
            "blob.store.retry.policy.max.retry.duration.millis": "15m",
            "backends.b.retry.policy.backoff.delay.millis": "1s",
            "backends.b.own.delay": "1s",
        }
    )
    assert config.backend_settings("b", "blob.store") == {
        "retry.policy.max.retry.duration.millis": "900000",
        "retry.policy.backoff.delay.millis": "1000",
        "own.delay": "1s",
    }


def test_a_known_setting_of_one_backend_is_checked_as_that_of_all() -> None:
    config = load_dict({"backends.b.retry.policy.max.retries": "many"}, source="here")
    with pytest.raises(
        ConfigError, match=r"^backends\.b\.retry\.policy\.max\.retries must be .* source=here$"
    ):
        config.backend_settings("b", "blob.store")


def test_a_given_place_of_all_goes_before_a_default_place_of_one() -> None:
    config = load_dict({"blob.store.uri": "s3://given"})
    config = config.with_defaults({"backends.blob.uri": "file:///default"})
    assert config.backend_settings("blob", "blob.store") == {"uri": "s3://given"}


def test_the_check_refuses_settings_of_a_backend_that_is_not_listed() -> None:
    config = load_dict(
        {"job.name": "j", "stores.backup.factories": "blob", "backends.blbo.uri": "s3://bucket"}
    )
    with pytest.raises(ConfigError, match="no store lists the backend of this setting") as caught:
        config.check()
    assert "key=backends.blbo.uri backends=blob" in str(caught.value)


def test_the_check_knows_the_backend_of_the_job_log() -> None:
    load_dict({"job.name": "j", "job.log.backend": "log", "backends.log.factory": "blob"}).check()


def test_the_check_looks_at_every_named_store() -> None:
    config = load_dict({"job.name": "j", "stores.s.restore.factories": "kafka"})
    with pytest.raises(ConfigError, match="not a backup backend"):
        config.check()


def test_the_explanation_names_value_and_source_of_every_setting() -> None:
    config = load_dict(
        {
            "job.name": "j",
            "max.commit.delay": "7s",
            "stores.default.rocksdb.bloom.bits": 12,
            "stores.s.changelog": "kafka.s-log",
        },
        source="here",
    ).with_defaults({"stores.backup.factories": "blob"})
    rows = {row.key: (row.value, row.source) for row in config.explain()}
    assert rows["job.name"] == ("j", "here")
    assert rows["task.commit.max.delay.ms"] == ("7s", "here")
    assert rows["task.commit.ms"] == (str(TaskSettings().commit_ms), "default")
    assert rows["stores.backup.factories"] == ("blob", "runtime default")
    assert rows["stores.s.rocksdb.bloom.bits"] == ("12", "stores.default.rocksdb.bloom.bits, here")
    assert rows["stores.s.backup.factories"] == ("kafka", "stores.s.changelog, here")
    assert rows["stores.s.restore.factories"] == ("kafka", "default")
    assert rows["stores.s.factory"] == ("rocksdb", "default")
    assert list(rows) == sorted(rows)


def local_dir_row(config: Config) -> tuple[str, str]:
    (found,) = (row for row in config.explain() if row.key == "job.logged.store.base.dir")
    return found.value, found.source


def test_samzas_variable_names_the_local_directory_of_a_job_that_names_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOGGED_STORE_BASE_DIR", "/disk/state")
    config = load_dict({"job.name": "j"})
    assert config.job.local_dir == Path("/disk/state")
    assert local_dir_row(config) == ("/disk/state", "environment LOGGED_STORE_BASE_DIR")
    named = load_dict({"job.name": "j", "job.logged.store.base.dir": "/data"}, source="here")
    assert named.job.local_dir == Path("/data")
    assert local_dir_row(named) == ("/data", "here")


def test_without_samzas_variable_or_with_an_empty_one_the_local_directory_is_the_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LOGGED_STORE_BASE_DIR", raising=False)
    config = load_dict({"job.name": "j"})
    own = config.job.local_dir
    assert own.name.startswith("statekeep-")
    assert local_dir_row(config)[1] == "default"
    monkeypatch.setenv("LOGGED_STORE_BASE_DIR", " ")
    assert config.job.local_dir == own


@pytest.mark.parametrize("path", ["/disk\tstate", "state"])
def test_a_variable_that_is_no_whole_path_is_refused_by_its_name(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGGED_STORE_BASE_DIR", path)
    with pytest.raises(ConfigError, match="source=environment LOGGED_STORE_BASE_DIR"):
        _ = load_dict({"job.name": "j"}).job
