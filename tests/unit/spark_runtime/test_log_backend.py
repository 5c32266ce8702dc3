"""Where a query's job log is: in the first listed backend that can hold it, or where it was before."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from driver_kit import Driver
from log_kit import commit_record
from typer.testing import CliRunner

from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.cli.app import app
from statekeep.config.load import (
    load_dict,
    load_environment,
    load_properties,
    load_spark_conf,
    load_toml,
)
from statekeep.config.model import Config
from statekeep.config.query_defaults import with_query_defaults
from statekeep.errors import ConfigError

HDFS = "statekeep.backends.hdfs.factory.HdfsBackendFactory"


class EmptyLocation:
    """A checkpoint location where no query was yet, and what lies beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = path.as_uri()

    def newest(self, log: str) -> int:
        assert log == "commits"
        return -1

    def query_id(self) -> str:
        return "q"

    def require(self, name: str) -> str:
        assert name == "metadata"
        return '{"id":"q"}'

    def sibling(self, suffix: str) -> "EmptyLocation":
        return EmptyLocation(Path(f"{self.path}{suffix}"))

    def names(self, directory: str) -> list[str]:
        found = self.path / directory
        return [path.name for path in found.iterdir()] if found.exists() else []


class Job:
    """A job on Spark, its backends ``near`` and ``far``, and the drivers that were started."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.location = EmptyLocation(root / "checkpoint")
        self.drivers: list[Driver] = []
        self.named = self.place("near") | self.place("far")

    def place(self, name: str, factory: str = "blob") -> dict[str, str]:
        uri = (self.root / name).as_uri()
        return {f"backends.{name}.factory": factory, f"backends.{name}.uri": uri}

    def listing(self, backends: str) -> dict[str, str]:
        """Return settings that list backends for the store, with the places of named ones."""
        places = {k: v for k, v in self.named.items() if k.split(".")[1] in backends.split(",")}
        return {"stores.state.backup.factories": backends, **places}

    def complete(self, config: Config) -> Config:
        uri = self.location.uri
        return with_query_defaults(config, uri, "totals", shared_uri=uri, is_every_batch=False)

    def complete_as_before(self, config: Config) -> Config:
        """What the query said itself in versions that put their default before the store's list."""
        defaults = {
            "job.name": "totals",
            "stores.backup.factories": "blob",
            "blob.store.uri": f"{self.location.uri}-statekeep",
        }
        return config.with_defaults(defaults, source="the query")

    def start(self, config: Config) -> Driver:
        driver = Driver(config, self.location)
        self.drivers.append(driver)
        driver.open(1)
        return driver

    def begin(self, config: Config) -> Driver:
        """Start a driver that writes the first commit of a new job, and stop it."""
        driver = self.start(config)
        identity = commit_record(1, 0).identity
        driver.begin(driver.fence(identity), "7-1")
        driver.close()
        return driver

    def command(self, line: str, settings: Mapping[str, str]) -> str:
        given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        words = [*line.split(), "--set", "job.name=totals", *given]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        return result.stdout


class LoglessFactory(BlobBackendFactory):
    """A backend that keeps state, and no job log."""

    properties = replace(BlobBackendFactory.properties, can_hold_job_log=False)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    for driver in job.drivers:
        driver.close()


def as_properties(path: Path, settings: Mapping[str, str]) -> Config:
    path.write_text("\n".join(f"{key}={value}" for key, value in settings.items()))
    return load_properties(path)


def as_toml(path: Path, settings: Mapping[str, str]) -> Config:
    path.write_text("\n".join(f"{key} = '{value}'" for key, value in settings.items()))
    return load_toml(path)


def as_environment(_: Path, settings: Mapping[str, str]) -> Config:
    return load_environment(
        {f"STATEKEEP__{key.replace('.', '__')}": value for key, value in settings.items()}
    )


def as_spark_conf(_: Path, settings: Mapping[str, str]) -> Config:
    return load_spark_conf((f"spark.statekeep.{key}", value) for key, value in settings.items())


def as_dict(_: Path, settings: Mapping[str, str]) -> Config:
    return load_dict(settings)


@pytest.mark.parametrize(
    "load",
    [as_dict, as_properties, as_toml, as_environment, as_spark_conf],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize(
    "key",
    ["stores.state.backup.factories", "stores.backup.factories", "stores.default.backup.factories"],
)
def test_the_first_listed_backend_holds_the_log_whatever_way_it_is_listed(
    job: Job, tmp_path: Path, load: Callable[[Path, Mapping[str, str]], Config], key: str
) -> None:
    config = load(tmp_path / "settings", job.named | {key: "near,far"})
    assert job.begin(job.complete(config)).log_backend == "near"
    assert (tmp_path / "near" / "totals" / "log").is_dir()
    assert {path.name for path in tmp_path.iterdir()} <= {"near", "far", "settings"}


@pytest.mark.parametrize(
    ("listed", "holder"),
    [
        ("hdfs,near", "hdfs"),
        (f"{HDFS},near", HDFS),
        ("blob,near", "blob"),
        ("logless,far", "far"),
    ],
)
def test_short_names_and_dotted_paths_hold_the_log_too(
    job: Job, tmp_path: Path, listed: str, holder: str
) -> None:
    job.named |= job.place("logless", "test_log_backend:LoglessFactory")
    places = {
        "hdfs.store.uri": (tmp_path / "hdfs").as_uri(),
        "blob.store.uri": (tmp_path / "blob").as_uri(),
    }
    config = load_dict(job.listing(listed) | places)
    assert job.begin(job.complete(config)).log_backend == holder


def test_another_store_with_its_own_backend_leaves_the_log_where_it_is(job: Job) -> None:
    settings = job.named | {"stores.state.backup.factories": "near"}
    job.begin(job.complete(load_dict(settings)))
    settings |= {"state.variables.seen.store": "large", "stores.large.backup.factories": "far"}
    assert job.start(job.complete(load_dict(settings))).log_backend == "near"
    assert job.command("checkpoints list --json", settings) != "[]\n"


@pytest.mark.parametrize("settings", [{}, {"stores.state.backup.factories": ""}])
def test_without_any_backend_the_log_is_beside_the_checkpoint_location(
    job: Job, settings: dict[str, str]
) -> None:
    assert job.begin(job.complete(load_dict(settings))).log_backend == "blob"
    assert (job.root / "checkpoint-statekeep" / "totals" / "log").is_dir()


def test_a_store_with_a_changelog_has_its_log_in_kafka(job: Job) -> None:
    config = job.complete(load_dict({"stores.state.changelog": "totals"}))
    assert config.backend_names() == ("kafka",)


@pytest.mark.parametrize("listed", ["near,far", "far,near", "near,blob"])
def test_a_log_that_an_earlier_version_put_beside_the_location_goes_on_there(
    job: Job, caplog: pytest.LogCaptureFixture, listed: str
) -> None:
    config = load_dict(job.listing(listed))
    assert job.begin(job.complete_as_before(config)).log_backend == "blob"
    with caplog.at_level(logging.WARNING, "statekeep"):
        driver = job.start(job.complete(config))
    assert driver.log_backend == "blob"
    assert driver.view.last_commit is not None
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "set job.log.backend=blob and blob.store.uri=file://" in warning


def test_such_a_log_is_found_and_moved_as_the_warning_says(job: Job) -> None:
    settings = job.listing("near,far")
    job.begin(job.complete_as_before(load_dict(settings)))
    place = {
        "job.log.backend": "blob",
        "blob.store.uri": f"{job.location.uri}-statekeep",
    }
    assert "commit" in job.command("events", settings | place)
    job.command("migrate-log --to near --yes", settings | place)
    driver = job.start(job.complete(load_dict(settings)))
    assert driver.log_backend == "near"
    assert driver.view.last_commit is not None
    assert "commit" in job.command("events", settings)


def test_such_a_log_is_found_where_the_default_had_another_uri(job: Job) -> None:
    settings = job.listing("near,far") | {"blob.store.uri": (job.root / "other").as_uri()}
    job.begin(job.complete_as_before(load_dict(settings)))
    assert (job.root / "other" / "totals" / "log").is_dir()
    assert job.start(job.complete(load_dict(settings))).log_backend == "blob"


def test_such_a_log_is_not_left_for_another_one_that_is_named(job: Job) -> None:
    settings = job.listing("near,far")
    job.begin(job.complete_as_before(load_dict(settings)))
    config = job.complete(load_dict(settings | {"job.log.backend": "near"}))
    with pytest.raises(ConfigError, match=r"job\.log\.backend=near found_in=blob") as caught:
        job.start(config)
    assert "migrate-log --to near" in caught.value.hints[0]


def test_a_log_that_moved_on_from_there_is_not_left_either(job: Job) -> None:
    settings = job.listing("near,far")
    job.begin(job.complete_as_before(load_dict(settings)))
    place = {"job.log.backend": "blob", "blob.store.uri": f"{job.location.uri}-statekeep"}
    job.command("migrate-log --to near --yes", settings | place)
    with pytest.raises(ConfigError, match="found_in=near"):
        job.start(job.complete(load_dict(job.listing("far,near"))))


def test_a_job_never_has_two_logs_that_count(job: Job) -> None:
    settings = job.listing("near,far")
    job.begin(job.complete(load_dict(settings)))
    job.begin(job.complete_as_before(load_dict(settings)))
    with pytest.raises(ConfigError, match="two logs: backend=near other_backend=blob"):
        job.start(job.complete(load_dict(settings)))
    named = job.complete(load_dict(settings | {"job.log.backend": "near"}))
    assert job.start(named).log_backend == "near"


def test_a_log_that_was_reset_beside_the_location_holds_no_query(job: Job) -> None:
    settings = job.listing("near,far")
    job.begin(job.complete_as_before(load_dict(settings)))
    place = {"job.log.backend": "blob", "blob.store.uri": f"{job.location.uri}-statekeep"}
    job.command("reset --yes", settings | place)
    assert job.start(job.complete(load_dict(settings))).log_backend == "near"


def test_one_location_under_two_names_is_not_two_logs(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    del job.named["backends.near.uri"]
    config = load_dict(job.listing("near,far") | {"blob.store.uri": (job.root / "near").as_uri()})
    job.begin(job.complete(config))
    assert job.start(job.complete(config)).log_backend == "near"
    assert not caplog.records
