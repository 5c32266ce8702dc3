"""Dict, file and Spark conf; how they are put together."""

import pickle
from pathlib import Path

import pytest

from statekeep.config.load import load_dict, load_properties, load_spark_conf, merge
from statekeep.config.model import Config
from statekeep.errors import ConfigError


def sources_of(config: Config) -> dict[str, str]:
    return {name: setting.source for name, setting in config.settings.items()}


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_a_file_gives_its_settings_with_file_and_line(tmp_path: Path) -> None:
    path = write(
        tmp_path / "job.properties",
        "\ufeff# a job\njob.name=flights\nstores.s.backup.factories=\\\n  blob,\\\n  kafka\n",
    )
    config = load_properties(path)
    assert config.job.name == "flights"
    assert config.store("s").backup_factories == ("blob", "kafka")
    assert sources_of(config) == {
        "job.name": f"{path}:2",
        "stores.s.backup.factories": f"{path}:3",
    }


def test_an_error_in_a_file_names_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path / "job.properties", "job.name=j\ntask.commit.ms=soon\n")
    with pytest.raises(ConfigError, match=rf"value='soon' source={path}:2$"):
        load_properties(path)


def test_a_key_twice_with_different_values_in_a_file_is_refused_by_both_lines(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "job.properties", "job.name=a\njob.id=1\njob.name=b\n")
    with pytest.raises(ConfigError, match=rf"source={path}:1 other_source={path}:3; hint: "):
        load_properties(path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        pytest.param(None, "cannot read the settings: .* reason=No such file", id="absent"),
        pytest.param(b"job.name=\xff", "settings are not UTF-8: .* byte=9", id="not UTF-8"),
        pytest.param(b"job.name=\\u12", "malformed .u escape: line=1 path=", id="bad escape"),
    ],
)
def test_an_unreadable_file_is_refused(
    tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    path = tmp_path / "job.properties"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=complaint):
        load_properties(path)


def test_a_spark_conf_gives_our_settings_without_the_prefix() -> None:
    config = load_spark_conf(
        [
            ("spark.app.name", "flights"),
            ("spark.statekeep.task.commit.ms", "5s"),
            ("spark.statekeeper.x", "y"),
            ("spark.statekeep.stores.backup.factories", "blob"),
        ]
    )
    assert config.task.commit_ms == 5_000
    assert sources_of(config) == {
        "task.commit.ms": "spark conf spark.statekeep.task.commit.ms",
        "stores.backup.factories": "spark conf spark.statekeep.stores.backup.factories",
    }


def test_a_later_source_wins_and_each_value_keeps_its_source() -> None:
    merged = merge(
        load_dict({"job.name": "a", "task.commit.ms": 1}, source="file"),
        load_dict({"task.commit.ms": 2}, source="conf"),
        load_dict({"job.id": "7"}, source="call"),
    )
    assert (merged.job.name, merged.job.id, merged.task.commit_ms) == ("a", "7", 2)
    assert sources_of(merged) == {"job.name": "file", "task.commit.ms": "conf", "job.id": "call"}


def test_an_empty_list_of_a_later_source_takes_a_list_back() -> None:
    merged = merge(
        load_dict({"stores.s.backup.factories": "blob"}),
        load_dict({"stores.s.backup.factories": ""}),
    )
    assert merged.store("s").backup_factories == ()


def test_merging_changes_none_of_its_parts() -> None:
    first, second = load_dict({"job.id": "1"}), load_dict({"job.id": "2"})
    merge(first, second)
    assert (first, second) == (load_dict({"job.id": "1"}), load_dict({"job.id": "2"}))


def test_merging_nothing_gives_the_defaults() -> None:
    assert merge().task == Config().task


def test_a_configuration_survives_pickling() -> None:
    config = load_dict({"job.name": "j", "backends.b.secret": "s3cr3t"})
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 - our own bytes


def test_a_configuration_can_be_built_again_from_its_dict() -> None:
    config = load_dict(
        {
            "job.name": "j",
            "max.commit.delay": "7s",
            "stores.s.changelog": "kafka.s-log",
            "stores.t.factory": "memory",
            "backends.b.secret": "s3cr3t",
        }
    ).with_defaults({"stores.backup.factories": "blob"})
    again = load_dict(config.as_dict())
    assert (again.job, again.task) == (config.job, config.task)
    for store in ("s", "t", "unnamed"):
        assert again.store(store) == config.store(store)
    assert again.backend_settings("b", "") == {"secret": "s3cr3t"}
