"""A Samza job's settings, and the page that says what becomes of them."""

import importlib
import logging
import re
from pathlib import Path

import pytest
from samza_job_kit import SAMZA_FILE_OF_BOTH, write_job

from statekeep.config.keys import KEYS, UNSUPPORTED
from statekeep.config.load import load_dict, load_file
from statekeep.config.lookup import find_key, is_known
from statekeep.config.samza_keys import FOREIGN, RELIED_ON, why_passed_over
from statekeep.config.store_keys import BACKEND_ALIASES
from statekeep.errors import ConfigError

PAGE = (Path(__file__).parents[3] / "docs" / "samza.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \|$", re.MULTILINE)
CLASSES = ROW.findall(PAGE.partition("## Classes")[2].partition("## Settings")[0])
SETTINGS = ROW.findall(PAGE.partition("## Settings")[2].partition("\n## ")[0])

TUNED = (
    "azure.storage.connect",
    "fs.http.impl",
    "job.checkpoint.validation.enabled",
    "job.debounce.time.ms",
    "job.jmx.enabled",
    "sensitive.systems.eventhubs.sas.token",
    "stores.s.changelog.cleanup.policy",
    "stores.s.changelog.kafka.segment.bytes",
    "stores.s.changelog.max.message.size.bytes",
    "stores.s.disallow.large.messages",
    "stores.s.drop.large.messages",
    "stores.s.rocksdb.block.size.bytes",
    "stores.s.rocksdb.delete.obsolete.files.period.micros",
    "stores.s.rocksdb.keep.log.file.num",
    "stores.s.rocksdb.max.log.file.size.bytes",
    "stores.s.rocksdb.max.manifest.file.size",
    "stores.s.rocksdb.metrics.list",
    "stores.s.rocksdb.num.write.buffers",
    "stores.s.write.batch.size",
    "task.broadcast.inputs",
    "task.callback.drain.timeout.ms",
    "task.callback.timeout.ms",
)
"""Settings that Samza's own documentation lists, beside those of the job above."""


def test_a_samza_jobs_file_works_once_its_own_classes_are_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_job(tmp_path, SAMZA_FILE_OF_BOTH)
    with caplog.at_level(logging.INFO):
        config = load_file(path)
    config.check()
    views = config.store("views")
    assert (views.factory, views.changelog) == ("rocksdb", "kafka.views-changelog")
    assert views.backup_factories == ("kafka", "blob")
    assert views.restore_factories == ("blob", "kafka")
    assert (config.job.name, config.job.id, config.task.commit_ms) == (
        "page-view-counter",
        "2",
        30000,
    )
    assert config.task.checkpoint_write_versions == (1, 2)
    assert config.backend_settings("kafka", "kafka")["bootstrap.servers"] == "broker:9092"
    told = {record.args[0] for record in caplog.records if isinstance(record.args, tuple)}
    assert {"app.class", "stores.views.key.serde", "yarn.package.path"} <= told
    assert not {"app.name", "task.commit.ms"} & told
    assert "hush" not in caplog.text


@pytest.mark.parametrize("key", TUNED)
def test_how_samza_tunes_what_it_keeps_and_runs_is_passed_over(key: str, tmp_path: Path) -> None:
    path = tmp_path / "job.properties"
    path.write_text(f"app.name=j\n{key}=1\n", encoding="utf-8")
    assert list(load_file(path).settings) == ["job.name"]
    with pytest.raises(ConfigError):
        load_dict({key: "1"})


@pytest.mark.parametrize("key", sorted(RELIED_ON))
def test_what_a_job_relies_on_is_refused_wherever_it_stands(key: str, tmp_path: Path) -> None:
    path = tmp_path / "job.properties"
    path.write_text(f"job.name=j\n{key.replace('<store>', 's')}=1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="setting is not supported"):
        load_file(path)
    assert key.replace("processor.factory", "").rstrip(".") in PAGE


def test_a_slip_of_the_pen_is_still_an_error_in_a_properties_file(tmp_path: Path) -> None:
    path = tmp_path / "job.properties"
    path.write_text("job.name=j\ntask.comit.ms=1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"nearest=task\.commit\.ms"):
        load_file(path)


def test_elsewhere_a_foreign_setting_is_an_error() -> None:
    with pytest.raises(ConfigError):
        load_dict({"job.name": "j", "app.class": "com.example.App"})


def test_no_setting_of_ours_is_ever_passed_over() -> None:
    names = [name for key in KEYS for name in (key.name, key.job_name) if name]
    passed = [name for name in names if why_passed_over(name.replace("<store>", "s"), "1")]
    assert passed == []
    assert not set(UNSUPPORTED) & set(FOREIGN)


def test_every_setting_on_the_page_is_what_the_page_says() -> None:
    assert len(SETTINGS) > 30
    for written, ours in SETTINGS:
        name = written.replace("<store>", "s")
        assert is_known(name), written
        assert find_key(name, "page").name == ours.replace("<store>", "s")


def test_every_class_on_the_page_is_where_the_page_says() -> None:
    for samza, ours in CLASSES:
        if samza.startswith("org.apache.samza.storage.kv"):
            settings = load_dict({"job.name": "j", "stores.s.factory": samza})
            assert settings.store("s").factory == ours
        elif samza in BACKEND_ALIASES:
            assert BACKEND_ALIASES[samza] == ours
        elif not ours.startswith("statekeep "):
            module, _, name = ours.rpartition(".")
            assert isinstance(getattr(importlib.import_module(module), name), type)
    assert set(BACKEND_ALIASES) <= {samza for samza, _ in CLASSES}
