"""What must not drift between runs of a job is refused with both values."""

from typing import Any

import msgspec
import pytest

from statekeep.checkpoint.records import CommitRecord, JobIdentity
from statekeep.errors import ConfigError
from statekeep.spark.driver.takeover import resolved_identity

FIRST = JobIdentity(
    job_uid="u",
    job_name="j",
    partitions=4,
    router="murmur",
    key_schema="struct<key:string>",
    stores={"main": ["state"]},
)


def commit_of(identity: JobIdentity) -> CommitRecord:
    return CommitRecord(
        epoch=1,
        nonce="n",
        attempt_epoch=1,
        attempt=1,
        batch=0,
        checkpoint_id="7-1",
        identity=identity,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("router", "crc"),
        ("key_schema", "struct<key:int>"),
        ("job_name", "k"),
    ],
    ids=["router", "key", "name"],
)
def test_a_change_is_refused_by_name(name: str, value: Any) -> None:
    now = msgspec.structs.replace(FIRST, job_uid="drawn anew", **{name: value})
    called = {"key_schema": "grouping key"}.get(name, name)
    with pytest.raises(ConfigError, match=f"another {called}: before=.* now="):
        resolved_identity(commit_of(FIRST), now)


def test_the_number_of_tasks_is_that_of_the_state_until_the_state_is_in_others() -> None:
    now = msgspec.structs.replace(FIRST, partitions=5)
    assert resolved_identity(commit_of(FIRST), now) == FIRST


def test_the_uid_of_the_first_driver_stays() -> None:
    now = msgspec.structs.replace(FIRST, job_uid="drawn anew")
    assert resolved_identity(commit_of(FIRST), now).job_uid == "u"


def with_stores(*stores: str) -> JobIdentity:
    return msgspec.structs.replace(FIRST, stores={"main": ["state", *stores]})


def test_a_job_may_get_another_store() -> None:
    assert resolved_identity(commit_of(FIRST), with_stores("large")) == with_stores("large")


def test_a_store_that_has_state_is_not_forgotten() -> None:
    with pytest.raises(ConfigError, match="would lose the state of a store: store=large") as error:
        resolved_identity(commit_of(with_stores("large")), with_stores("other"))
    assert any("state.variables.<variable>.store=large" in hint for hint in error.value.hints)


def test_a_store_is_dropped_where_settings_say_so() -> None:
    commit = commit_of(with_stores("large"))
    dropped = resolved_identity(commit, FIRST, given_up=["large"])
    assert dropped == msgspec.structs.replace(FIRST, retired_stores=["large"])
    assert resolved_identity(commit_of(dropped), FIRST) == dropped


def test_the_name_of_a_store_that_was_given_up_is_not_used_again() -> None:
    two = with_stores("large", "small")
    first = resolved_identity(commit_of(two), with_stores("small"), given_up=["large"])
    both = resolved_identity(commit_of(first), FIRST, given_up=["small"])
    assert both.retired_stores == ["large", "small"]
    for name in ("large", "small"):
        with pytest.raises(ConfigError, match=f"has given up a store of this name: store={name}"):
            resolved_identity(commit_of(both), with_stores(name))
    assert resolved_identity(commit_of(both), with_stores("other")).retired_stores == [
        "large",
        "small",
    ]


def with_processors(*names: str) -> JobIdentity:
    return msgspec.structs.replace(FIRST, processors=list(names))


def test_operators_that_were_swapped_are_refused_though_all_else_is_the_same() -> None:
    before = commit_of(with_processors("Sessions", "Totals"))
    with pytest.raises(ConfigError, match="before=Sessions,Totals now=Totals,Sessions"):
        resolved_identity(before, with_processors("Totals", "Sessions"))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ((), ("A", "B")),  # of an older version
        (("A", "B"), ("A", "B")),
        (("A", "B"), ("A", "Renamed")),
        (("A", "A"), ("A", "A")),
        (("A", "A", "B"), ("A", "B", "A")),  # by the names alone, nothing can be said
    ],
)
def test_processors_may_be_renamed(before: tuple[str, ...], now: tuple[str, ...]) -> None:
    found = resolved_identity(commit_of(with_processors(*before)), with_processors(*now))
    assert found.processors == list(now)
