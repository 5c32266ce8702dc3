"""A Samza job's settings, and the page that says what becomes of them."""

import importlib
import logging
import re
from pathlib import Path

import pytest

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

JOB = """\
# Application / Job
app.name=page-view-counter
app.class=com.example.PageViewCounter
job.factory.class=org.apache.samza.job.yarn.YarnJobFactory
job.name=page-view-counter
job.id=2
job.default.system=kafka
job.container.count=4
job.host-affinity.enabled=true
job.logged.store.base.dir=/data/state
job.container.commit.thread.pool.max.size=16

yarn.package.path=file:///packages/page-view-counter.tar.gz
cluster-manager.container.memory.mb=2048

task.inputs=kafka.page-views
task.window.ms=10000
task.commit.ms=30000
task.commit.max.delay.ms=120000
task.checkpoint.system=kafka
task.checkpoint.replication.factor=2
task.checkpoint.write.versions=1,2
task.checkpoint.read.versions=2,1
task.transactional.state.restore.enabled=true

serializers.registry.string.class=org.apache.samza.serializers.StringSerdeFactory
systems.kafka.samza.factory=org.apache.samza.system.kafka.KafkaSystemFactory
systems.kafka.consumer.zookeeper.connect=zookeeper:2181
systems.kafka.producer.bootstrap.servers=broker:9092
systems.kafka.default.stream.replication.factor=3
metrics.reporters=jmx

stores.views.factory=org.apache.samza.storage.kv.RocksDbKeyValueStorageEngineFactory
stores.views.key.serde=string
stores.views.msg.serde=string
stores.views.changelog=kafka.views-changelog
stores.views.changelog.replication.factor=3
stores.views.backup.factories=org.apache.samza.storage.KafkaChangelogStateBackendFactory,\\
    org.apache.samza.storage.blobstore.BlobStoreStateBackendFactory
stores.views.restore.factories=org.apache.samza.storage.blobstore.BlobStoreStateBackendFactory,\\
    org.apache.samza.storage.KafkaChangelogStateBackendFactory

blob.store.manager.factory=shop.blobs:make_manager
blob.store.admin.factory=com.example.BlobAdminFactory
blob.store.retry.policy.max.retries=5
"""


def test_a_samza_jobs_file_works_once_its_own_classes_are_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "job.properties"
    path.write_text(JOB, encoding="utf-8")
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
    assert "task.commit.ms" not in told


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
    passed = [name for name in names if why_passed_over(name.replace("<store>", "s"))]
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
