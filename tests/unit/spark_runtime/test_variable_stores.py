"""Which store a state variable is in, as settings say."""

from collections.abc import Mapping

import pytest

from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.config.query_defaults import with_query_defaults
from statekeep.errors import ConfigError
from statekeep.spark.refused_settings import check_settings
from statekeep.spark.variable_stores import (
    backends_in_use,
    backends_of,
    check_variables,
    lasting_stores,
    stores_of_query,
    variable_stores_of,
)

IN_STORES = {
    "state.variables.seen.store": "large",
    "state.variables.recent.store": "cache",
    "stores.state.backup.factories": "kafka,s3",
    "stores.large.backup.factories": "s3",
    "stores.cache.backup.factories": "",
}
JOB = {
    "job.name": "j",
    "job.logged.store.base.dir": "/somewhere",
    "backends.s3.factory": "blob",
    "backends.s3.uri": "file:///somewhere/else",
}


def config(settings: Mapping[str, str] = IN_STORES) -> Config:
    return load_dict({**JOB, **settings}, "here")


def test_a_query_has_the_stores_that_variables_are_put_into() -> None:
    assert stores_of_query(config({})) == ("state",)
    assert stores_of_query(config()) == ("state", "cache", "large")
    assert lasting_stores(config()) == ("state", "large")
    where = variable_stores_of(config(), "main")
    assert where.caches == {"cache"}
    assert [where.store_of(name) for name in ("seen", "recent", "x")] == [
        "large",
        "cache",
        "state",
    ]


def test_what_is_said_of_one_operator_goes_first_there() -> None:
    given = config({"state.variables.operator-2.seen.store": "other"} | IN_STORES)
    found = [variable_stores_of(given, name).store_of("seen") for name in ("main", "operator-2")]
    assert found == ["large", "other"]
    assert stores_of_query(given) == ("state", "cache", "large", "other")


def test_a_backend_is_optional_where_it_is_for_all_its_stores() -> None:
    given = config({**IN_STORES, "stores.state.backup.optional": "s3"})
    assert backends_of(given, is_optional=True) == {}
    assert backends_of(given, is_optional=False) == {"kafka": ["state"], "s3": ["state", "large"]}
    given = config({**IN_STORES, "stores.state.backup.optional": "kafka"})
    assert backends_of(given, is_optional=True) == {"kafka": ["state"]}
    assert backends_in_use(given) == ("kafka", "s3")


def test_every_key_with_a_store_of_its_own_is_accepted() -> None:
    check_settings(config())
    assert load_dict(config().as_dict()).variable_stores == config().variable_stores


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"state.variables.v.store": "a.b"}, "must be the name of a store"),
        ({"state.variables.v.store": "default"}, "must be the name of a store"),
        ({"state.variables.v.store": ""}, "must be the name of a store"),
        (
            {
                "state.variables.v.store": "SEAL-MANIFEST",
                "stores.SEAL-MANIFEST.backup.factories": "s3",
            },
            "reserved name for a store",
        ),
        ({"stores.larg.factory": "memory"}, "unknown store: store=larg .*did you mean 'large'"),
        ({"stores.zzz.factory": "memory"}, r"state.variables.<variable>.store=zzz puts one"),
        ({"stores.large.restore.factories": ""}, "restored from somewhere: store=large"),
        ({"stores.state.restore.factories": ""}, "restored from somewhere: store=state"),
        ({"stores.restore.factories": ""}, "restored from somewhere: store=state"),
        ({"state.variables.v.store": "new"}, "no setting says where the store is backed up"),
        ({"state.variable.v.store": "large"}, "unknown setting"),
    ],
)
def test_what_cannot_be_followed_is_refused(settings: Mapping[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_settings(config({**IN_STORES, **settings}))


@pytest.mark.parametrize(
    "settings",
    [
        {"stores.large.backup.factories": "s3"},
        {"stores.large.backup.factories": "s3", "stores.state.backup.factories": ""},
    ],
    ids=["forgotten", "empty"],
)
def test_the_main_store_needs_a_backend_of_its_own_where_another_store_has_one(
    settings: Mapping[str, str],
) -> None:
    given = config({"state.variables.seen.store": "large", **settings})
    complete = with_query_defaults(
        given, "/ckpt", "q", shared_uri="file:///ckpt", is_every_batch=False
    )
    with pytest.raises(ConfigError, match="the state would not be backed up") as error:
        check_settings(complete)
    assert any("stores.backup.factories" in hint for hint in error.value.hints)


def test_a_list_for_all_stores_is_for_those_of_variables_too() -> None:
    given = config({"state.variables.v.store": "new", "stores.backup.factories": "s3"})
    check_settings(given)
    assert lasting_stores(given) == ("state", "new")


KNOWN = {"main": {"seen", "recent"}, "operator-2": {"seen", "total"}}


@pytest.mark.parametrize("name", ["seen", "total", "main.recent", "operator-2.total"])
def test_a_variable_of_any_operator_may_be_named(name: str) -> None:
    check_variables(config({f"state.variables.{name}.store": "large"}), KNOWN)


@pytest.mark.parametrize(
    ("name", "nearest"), [("sen", "seen"), ("operator-2.totl", "operator-2.total"), ("zzz", None)]
)
def test_an_unknown_variable_is_refused_with_the_nearest_name(
    name: str, nearest: str | None
) -> None:
    given = config({f"state.variables.{name}.store": "large"})
    with pytest.raises(
        ConfigError, match=rf"variable={name} variables=recent,seen,total source=here"
    ) as error:
        check_variables(given, KNOWN)
    hint = "name it as the processor's init() does" if nearest is None else f"mean '{nearest}'"
    assert any(hint in found for found in error.value.hints)
