"""What must not drift between runs of a job is refused with both values."""

from typing import Any

import msgspec
import pytest

from statekeep.checkpoint.records import CommitRecord, JobIdentity
from statekeep.errors import ConfigError
from statekeep.spark.driver.takeover import settled_identity

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
        ("partitions", 5),
        ("router", "crc"),
        ("key_schema", "struct<key:int>"),
        ("stores", {"main": ["state", "other"]}),
        ("job_name", "k"),
    ],
    ids=["partitions", "router", "key", "stores", "name"],
)
def test_a_change_is_refused_by_name(name: str, value: Any) -> None:
    now = msgspec.structs.replace(FIRST, job_uid="drawn anew", **{name: value})
    with pytest.raises(ConfigError, match=f"another {name}: before=.* now="):
        settled_identity(commit_of(FIRST), now)


def test_the_uid_of_the_first_driver_stays() -> None:
    now = msgspec.structs.replace(FIRST, job_uid="drawn anew")
    assert settled_identity(commit_of(FIRST), now).job_uid == "u"
