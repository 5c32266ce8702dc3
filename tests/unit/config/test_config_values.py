"""How the text of a value becomes typed, and what the error says when it cannot."""

from pathlib import Path

import pytest

from statekeep.config.load import load_dict
from statekeep.config.lookup import WrittenValue
from statekeep.config.values import (
    BOOLEAN,
    DATE,
    ValueType,
    byte_count,
    decimal,
    labels,
    milliseconds,
    whole_number,
)
from statekeep.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("-1", -1),
        ("1500", 1_500),
        ("250ms", 250),
        ("60s", 60_000),
        ("5m", 300_000),
        ("5 min", 300_000),
        ("2h", 7_200_000),
        ("1D", 86_400_000),
        ("  60s\t", 60_000),
    ],
)
def test_durations_are_milliseconds_or_carry_a_unit(text: str, expected: int) -> None:
    assert load_dict({"task.commit.ms": text}).task.commit_ms == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096", 4_096),
        ("1kB", 1_000),
        ("64KiB", 65_536),
        ("64MiB", 67_108_864),
        ("2 GiB", 2_147_483_648),
        ("3gb", 3_000_000_000),
    ],
)
def test_sizes_are_bytes_or_carry_a_unit(text: str, expected: int) -> None:
    assert load_dict({"task.grouping.max.bytes": text}).task.grouping_max_bytes == expected


@pytest.mark.parametrize(
    ("key", "value", "requirement"),
    [
        pytest.param("task.commit.ms", "soon", "a whole number of milliseconds", id="word"),
        pytest.param("task.commit.ms", "", "a whole number of milliseconds", id="empty number"),
        pytest.param("task.commit.ms", "1.5s", "a duration such as 60s", id="fraction"),
        pytest.param("task.commit.ms", "6e4", "a duration such as 60s", id="exponent"),
        pytest.param("task.commit.ms", "1_000", "a duration such as 60s", id="underscore"),
        pytest.param("task.commit.ms", "60 weeks", "a duration such as 60s", id="unknown unit"),
        pytest.param("task.commit.ms", "٦٠", "a duration such as 60s", id="other digits"),
        pytest.param("task.commit.ms", "9" * 5_000, "a whole number", id="endless number"),
        pytest.param("task.commit.max.delay.ms", "-1", "at least 0", id="negative delay"),
        pytest.param("task.grouping.max.bytes", "64m", "a size such as 64MiB", id="size unit"),
        pytest.param("task.count", "0", "a whole number, at least 1", id="no task"),
        pytest.param("checkpoint.retain.commits", "1", "at least 2", id="one commit"),
        pytest.param("stores.s.rocksdb.bloom.bits", "33", "from 0 to 32", id="too many bits"),
        pytest.param("task.commit.every.batch", "yes", "true or false", id="boolean"),
        pytest.param("task.replay.on.divergence", "ignore", "one of warn, error", id="choice"),
        pytest.param("stores.s.factory", "leveldb", "one of rocksdb, memory", id="engine"),
        pytest.param("stores.s.backup.factories", "blob,,kafka", "different names", id="gap"),
        pytest.param("stores.s.backup.factories", "blob, blob", "different names", id="twice"),
        pytest.param("job.name", "a/b", "a name without '/'", id="slash in a name"),
        pytest.param("job.name", "..", "a name without '/'", id="parent directory"),
        pytest.param("job.name", "", "a name without '/'", id="empty name"),
        pytest.param("blob.store.uri", "", "some text", id="empty text"),
        pytest.param("job.logged.store.base.dir", "", "the path of a local", id="empty path"),
        pytest.param("blob.store.retry.policy.jitter.factor", "1.5", "from 0 to 1", id="jitter"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_key_requirement_value_and_source(
    key: str, value: str, requirement: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_dict({key: value}, source="my settings")
    text = str(caught.value)
    assert text.startswith(f"{key} must be ")
    assert requirement in text
    assert f"value={value!r}" in text
    assert text.endswith("source=my settings")
    assert caught.value.key == key


@pytest.mark.parametrize("value", ["true", "TRUE", True])
def test_a_boolean_is_on_by_word_or_python_boolean(value: WrittenValue) -> None:
    assert load_dict({"task.commit.every.batch": value}).task.is_commit_every_batch is True


@pytest.mark.parametrize("value", ["false", "FALSE", False])
def test_a_boolean_is_off_by_word_or_python_boolean(value: WrittenValue) -> None:
    assert load_dict({"task.commit.every.batch": value}).task.is_commit_every_batch is False


@pytest.mark.parametrize("value", [["blob", "kafka"], ("blob", "kafka"), " blob , kafka "])
def test_lists_are_sequences_or_comma_separated_text(value: WrittenValue) -> None:
    store = load_dict({"stores.s.backup.factories": value}).store("s")
    assert store.backup_factories == ("blob", "kafka")


def test_a_value_of_a_python_type_that_no_setting_has_is_refused_by_type() -> None:
    with pytest.raises(ConfigError, match=r"task\.commit\.ms must be text.* type=NoneType"):
        load_dict({"task.commit.ms": None})  # type: ignore[dict-item]  # what a caller may do


def test_paths_and_numbers_of_python_are_taken() -> None:
    config = load_dict(
        {
            "job.name": "j",
            "job.logged.store.base.dir": Path("/data/state"),
            "blob.store.retry.policy.jitter.factor": 0.25,
        }
    )
    assert config.job.local_dir == Path("/data/state")
    assert config.backend_settings("blob", "blob.store") == {"retry.policy.jitter.factor": "0.25"}


def test_a_home_directory_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    job = load_dict({"job.name": "j", "job.logged.store.base.dir": "~/state"}).job
    assert str(job.local_dir) == "/home/user/state"


@pytest.mark.parametrize(
    ("value_type", "text"),
    [
        (BOOLEAN, "TRUE"),
        (DATE, "2026-12-31"),
        (byte_count(0), "64KiB"),
        (decimal(0, 10), "0.00005"),
        (decimal(0, 10), "5"),
        (labels(), "team=streams, tier = a=b"),
        (milliseconds(), "-5m"),
        (whole_number(-1), "-1"),
    ],
    ids=lambda value: value.name if isinstance(value, ValueType) else value,
)
def test_a_value_that_is_written_again_is_read_as_the_same(
    value_type: ValueType[object], text: str
) -> None:
    value = value_type.parse(text)
    assert value_type.parse(value_type.write(value)) == value
