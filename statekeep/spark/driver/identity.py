"""What a job is, and must stay from one driver to the next."""

import uuid
from typing import Final

from statekeep.checkpoint.log_scope import MAIN_OPERATOR
from statekeep.checkpoint.records import CommitRecord, JobIdentity
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.spark.tasks import STATE_STORE

_HINT: Final = (
    "go back to the former value, or start anew under another job.name with another checkpoint"
    " location"
)
_HINTS: Final = {
    "partitions": "go back to the former value, or give the state to a job with other tasks:"
    " `statekeep rescale --partitions M --as JOB`"
}


def new_identity(config: Config, partitions: int, router: str, key_schema: str) -> JobIdentity:
    """Return the identity of a job as it is configured now, with a fresh ``job_uid``."""
    return JobIdentity(
        job_uid=uuid.uuid4().hex,
        job_name=config.job.name,
        partitions=partitions,
        router=router,
        key_schema=key_schema,
        stores={MAIN_OPERATOR: [STATE_STORE]},
    )


def settled_identity(commit: CommitRecord | None, expected: JobIdentity) -> JobIdentity:
    """Return the identity of the job: that of its first commit, if there is one by now.

    Args:
        commit: The current commit.
        expected: The job as it is configured now. Each driver of a new job draws a ``job_uid``; the
            one in the first commit stays.

    Raises:
        ConfigError: Something drifted that must not: names both values.
    """
    if commit is None:
        return expected
    found = commit.identity
    for name in ("job_name", "partitions", "router", "key_schema", "stores"):
        before, now = getattr(found, name), getattr(expected, name)
        if before != now:
            raise ConfigError(
                f"the job cannot go on with another {name}: before={before!r} now={now!r}",
                hint=_HINTS.get(name, _HINT),
            )
    return found
