"""Aliases, and keys that are unknown or refused."""

import pytest

from statekeep.config.key import STORE_HOLE, Key
from statekeep.config.keys import KEYS, UNSUPPORTED
from statekeep.config.load import load_dict, load_spark_conf, merge
from statekeep.errors import ConfigError


def test_every_name_and_alias_stands_for_one_key() -> None:
    names = [
        name
        for key in KEYS
        for name in (key.name, *key.aliases, key.job_name, *key.job_aliases)
        if name is not None
    ]
    assert len(set(names)) == len(names)
    assert not set(names) & set(UNSUPPORTED)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_every_default_that_can_be_written_is_of_its_own_type(key: Key[object]) -> None:
    if key.default_text is None:
        assert key.type.parse(key.shown_default) == key.default


def test_max_commit_delay_is_another_name_of_the_max_delay() -> None:
    assert load_dict({"max.commit.delay": "7s"}).task.commit_max_delay_ms == 7_000


@pytest.mark.parametrize(
    "key",
    [
        "stores.s.restore.factory",
        "stores.s.restore.factories",
        "stores.restore.factory",
        "stores.default.restore.factories",
    ],
)
def test_the_restore_list_has_other_names(key: str) -> None:
    config = load_dict({"stores.backup.factories": "blob,kafka", key: "kafka"})
    assert config.store("s").restore_factories == ("kafka",)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("task.comit.ms", "task.commit.ms"),
        ("task.commit.max.delay", "task.commit.max.delay.ms"),
        ("job.nam", "job.name"),
        ("stores.my-store.bakup.factories", "stores.my-store.backup.factories"),
        ("stores.backup.factoris", "stores.backup.factories"),
        ("blob.store.url", "blob.store.uri"),
        ("backend.b.uri", None),
        ("nothing at all", None),
        ("", None),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one_and_its_source(
    key: str, nearest: str | None
) -> None:
    with pytest.raises(ConfigError, match="unknown setting") as caught:
        load_dict({key: "1"}, source="my settings")
    assert f"key={key} " in str(caught.value)
    assert caught.value.message.endswith("source=my settings")
    if nearest is not None:
        assert f"nearest={nearest} " in str(caught.value)
        assert caught.value.hints == (f"did you mean {nearest}?",)


def test_an_unknown_key_in_a_spark_conf_is_named_as_it_was_written() -> None:
    with pytest.raises(ConfigError, match=r"source=spark conf spark\.statekeep\.task\.comit\.ms"):
        load_spark_conf([("spark.statekeep.task.comit.ms", "1")])


@pytest.mark.parametrize("pattern", sorted(UNSUPPORTED))
def test_a_setting_of_samza_that_has_no_meaning_here_is_refused_with_the_reason(
    pattern: str,
) -> None:
    key = pattern.replace(STORE_HOLE, "s")
    reason = UNSUPPORTED[pattern].replace(STORE_HOLE, "s")
    with pytest.raises(ConfigError) as caught:
        load_dict({key: "true"}, source="old.properties")
    assert caught.value.message == (
        f"setting is not supported: {reason}: key={key} source=old.properties"
    )


@pytest.mark.parametrize(
    "key", ["stores.default.changelog", "stores.backup.factory.x", "stores.restore.changelog"]
)
def test_no_store_may_have_a_name_that_speaks_for_all_stores(key: str) -> None:
    with pytest.raises(ConfigError, match=r"no store may have this name|unknown setting"):
        load_dict({key: "x"})


def test_a_key_and_its_alias_with_different_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="given twice with different values"):
        load_dict({"task.commit.max.delay.ms": "1s", "max.commit.delay": "2s"})


def test_a_key_and_its_alias_with_one_value_are_one_setting() -> None:
    config = load_dict({"task.commit.max.delay.ms": "1s", "max.commit.delay": "1s"})
    assert list(config.settings) == ["task.commit.max.delay.ms"]


def test_a_later_alias_replaces_an_earlier_key_in_a_merge() -> None:
    first = load_dict({"task.commit.max.delay.ms": "1s"})
    second = load_dict({"max.commit.delay": "2s"})
    assert merge(first, second).task.commit_max_delay_ms == 2_000
