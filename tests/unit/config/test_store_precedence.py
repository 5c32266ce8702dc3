"""Which backends a store has: store key, job key, changelog, default, none."""

import pytest

from statekeep.config.load import load_dict, merge
from statekeep.errors import ConfigError

NO_NAMES: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("settings", "backup", "restore"),
    [
        pytest.param({}, NO_NAMES, NO_NAMES, id="nothing"),
        pytest.param(
            {"stores.s.changelog": "kafka.s-log"}, ("kafka",), ("kafka",), id="changelog default"
        ),
        pytest.param(
            {"stores.s.changelog": "kafka.s-log", "stores.backup.factories": "blob"},
            ("blob",),
            ("blob",),
            id="job key over changelog",
        ),
        pytest.param(
            {
                "stores.s.changelog": "kafka.s-log",
                "stores.backup.factories": "blob",
                "stores.s.backup.factories": "kafka,hdfs",
            },
            ("kafka", "hdfs"),
            ("kafka", "hdfs"),
            id="store key over job key",
        ),
        pytest.param(
            {"stores.backup.factories": "blob", "stores.s.backup.factories": ""},
            NO_NAMES,
            NO_NAMES,
            id="empty store list",
        ),
        pytest.param(
            {"stores.s.changelog": "kafka.s-log", "stores.backup.factories": ""},
            NO_NAMES,
            NO_NAMES,
            id="empty job list over changelog",
        ),
        pytest.param(
            {
                "stores.s.changelog": "kafka.s-log",
                "stores.backup.factories": "",
                "stores.s.backup.factories": "blob",
            },
            ("blob",),
            ("blob",),
            id="store list over empty job list",
        ),
        pytest.param(
            {"stores.backup.factories": "blob,kafka", "stores.restore.factories": "kafka,blob"},
            ("blob", "kafka"),
            ("kafka", "blob"),
            id="restore order of the job",
        ),
        pytest.param(
            {
                "stores.backup.factories": "blob,kafka",
                "stores.restore.factories": "kafka",
                "stores.s.restore.factories": "blob",
            },
            ("blob", "kafka"),
            ("blob",),
            id="restore list of the store over the job's",
        ),
        pytest.param(
            {"stores.backup.factories": "blob", "stores.s.restore.factories": ""},
            ("blob",),
            NO_NAMES,
            id="empty restore list",
        ),
        pytest.param(
            {
                "stores.backup.factories": "blob",
                "stores.restore.factories": "blob",
                "stores.s.backup.factories": "",
            },
            NO_NAMES,
            NO_NAMES,
            id="job's restore list without a backup",
        ),
        pytest.param(
            {
                "stores.other.backup.factories": "kafka",
                "stores.s.backup.factories": "blob",
                "stores.s.restore.factories": "kafka,blob",
            },
            ("blob",),
            ("kafka", "blob"),
            id="restore from another store's backend too",
        ),
    ],
)
def test_the_most_special_list_holds(
    settings: dict[str, str], backup: tuple[str, ...], restore: tuple[str, ...]
) -> None:
    store = load_dict(settings).store("s")
    assert store.backup_factories == backup
    assert store.restore_factories == restore
    assert store.is_durable is bool(backup)


def test_a_store_that_no_setting_names_follows_the_job() -> None:
    config = load_dict(
        {"stores.backup.factories": "blob", "stores.default.rocksdb.bloom.bits": "12"}
    )
    assert config.store_names == ()
    assert config.store("unheard-of").backup_factories == ("blob",)
    assert config.store("unheard-of").bloom_bits == 12


def test_a_restore_backend_that_nothing_is_backed_up_to_is_refused() -> None:
    config = load_dict(
        {"stores.backup.factories": "blob", "stores.s.restore.factories": "blob,kafka"}
    )
    with pytest.raises(ConfigError, match="not a backup backend of any store") as caught:
        config.store("s")
    assert "backend=kafka backup_backends=blob" in str(caught.value)
    assert caught.value.key == "stores.s.restore.factories"


def test_a_store_that_would_be_restored_from_optional_backends_only_is_refused() -> None:
    settings = {
        "stores.s.backup.factories": "blob,hdfs",
        "stores.s.backup.optional": "hdfs",
        "stores.s.restore.factories": "hdfs",
    }
    with pytest.raises(ConfigError, match="from optional backends only") as caught:
        load_dict(settings).store("s")
    assert caught.value.key == "stores.s.restore.factories"
    settings["stores.s.restore.factories"] = "hdfs,blob"
    assert load_dict(settings).store("s").restore_factories == ("hdfs", "blob")


def test_a_store_that_could_not_be_restored_from_its_own_backups_is_refused() -> None:
    config = load_dict(
        {
            "stores.other.backup.factories": "kafka",
            "stores.s.backup.factories": "blob",
            "stores.s.restore.factories": "kafka",
        }
    )
    with pytest.raises(ConfigError, match="could never be restored"):
        config.store("s")


def test_an_optional_backend_is_not_required() -> None:
    store = load_dict(
        {"stores.s.backup.factories": "blob,kafka", "stores.s.backup.optional": "kafka"}
    ).store("s")
    assert store.optional_factories == ("kafka",)
    assert store.required_factories == ("blob",)


def test_the_optional_list_of_the_job_reaches_only_the_backends_of_the_store() -> None:
    config = load_dict(
        {
            "stores.backup.factories": "blob,kafka",
            "stores.backup.optional": "kafka",
            "stores.s.backup.factories": "blob",
        }
    )
    assert config.store("s").optional_factories == ()
    assert config.store("other").optional_factories == ("kafka",)


def test_the_optional_backends_of_a_job_are_those_of_any_of_its_stores() -> None:
    config = load_dict(
        {
            "stores.backup.factories": "blob,kafka",
            "stores.backup.optional": "kafka",
            "stores.s.backup.factories": "blob,hdfs",
            "stores.s.backup.optional": "hdfs",
        }
    )
    assert config.optional_backend_names() == ("kafka", "hdfs")


@pytest.mark.parametrize(
    ("optional", "complaint"),
    [("kafka", "not a backup backend of the store"), ("blob", "every backup backend .* optional")],
)
def test_an_optional_list_that_contradicts_the_backups_is_refused(
    optional: str, complaint: str
) -> None:
    config = load_dict({"stores.s.backup.factories": "blob", "stores.s.backup.optional": optional})
    with pytest.raises(ConfigError, match=complaint):
        config.store("s")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param({}, 14_400_000, id="default"),
        pytest.param(
            {"stores.default.changelog.min.compaction.lag.ms": "1h"}, 3_600_000, id="all stores"
        ),
        pytest.param(
            {
                "stores.default.changelog.min.compaction.lag.ms": "1h",
                "stores.s.changelog.min.compaction.lag.ms": "2h",
            },
            7_200_000,
            id="store",
        ),
    ],
)
def test_the_compaction_lag_of_the_store_goes_before_that_of_all(
    settings: dict[str, str], expected: int
) -> None:
    assert load_dict(settings).store("s").changelog_min_compaction_lag_ms == expected


def test_store_names_leave_out_the_keys_that_speak_for_all_stores() -> None:
    config = load_dict(
        {
            "stores.backup.factories": "blob",
            "stores.restore.factories": "blob",
            "stores.restore.factory": "blob",
            "stores.default.factory": "rocksdb",
            "stores.b.factory": "memory",
            "stores.a.rocksdb.bloom.bits": "8",
            "stores.a.changelog": "kafka.a-log",
        }
    )
    assert config.store_names == ("a", "b")


def test_backend_names_are_those_of_the_job_and_of_every_store() -> None:
    config = load_dict(
        {
            "stores.backup.factories": "blob",
            "stores.b.backup.factories": "hdfs,blob",
            "stores.a.backup.factories": "",
            "stores.c.backup.factories": "kafka",
        }
    )
    assert config.backend_names() == ("blob", "hdfs", "kafka")


def test_a_default_of_the_runtime_gives_way_to_every_given_value() -> None:
    given = load_dict({"stores.s.backup.factories": "hdfs", "task.commit.ms": "5s"})
    config = given.with_defaults(
        {"stores.backup.factories": "blob", "task.commit.ms": "9s", "job.name": "query"}
    )
    assert config.store("s").backup_factories == ("hdfs",)
    assert config.store("other").backup_factories == ("blob",)
    assert config.task.commit_ms == 5_000
    assert config.job.name == "query"


def test_a_default_of_the_runtime_gives_way_to_a_changelog() -> None:
    config = load_dict({"stores.s.changelog": "kafka.s-log"})
    config = config.with_defaults({"stores.backup.factories": "blob"})
    assert config.store("s").backup_factories == ("kafka",)
    assert config.store("other").backup_factories == ("blob",)


def test_the_first_default_of_the_runtime_holds() -> None:
    config = (
        load_dict({}).with_defaults({"job.name": "first"}).with_defaults({"job.name": "second"})
    )
    assert config.job.name == "first"


def test_a_default_never_replaces_a_given_value_in_a_merge() -> None:
    given = load_dict({"job.name": "given"})
    defaults = load_dict({}).with_defaults({"job.name": "default"})
    assert merge(given, defaults).job.name == "given"
    assert merge(defaults, given).job.name == "given"


@pytest.mark.parametrize(
    ("settings", "is_begun_empty"),
    [
        ({"stores.backup.factories": "blob"}, False),
        ({"stores.s.backup.factories": ""}, False),
        ({"stores.s.backup.factories": "", "stores.s.restore.factories": ""}, True),
        ({"stores.backup.factories": "blob", "stores.s.restore.factories": ""}, True),
    ],
)
def test_only_an_empty_restore_list_gives_up_what_backends_hold(
    settings: dict[str, str], *, is_begun_empty: bool
) -> None:
    assert load_dict(settings).store("s").is_begun_empty is is_begun_empty
