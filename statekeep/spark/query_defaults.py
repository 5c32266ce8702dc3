"""What a query itself says where its settings say nothing: the job's name, and a place for state."""

import hashlib
from typing import Final

from statekeep.config.model import Config

DEFAULT_BACKEND: Final = "blob"
"""The backend of a query whose settings list none."""

DEFAULT_URI: Final = "blob.store.uri"
"""The setting that says where it is."""

BESIDE: Final = "-statekeep"
"""What its place has behind the name of the checkpoint location."""

_LIST_OF_THE_JOB: Final = "stores.backup.factories"


def with_query_defaults(
    config: Config, location: str, query_name: str | None, *, is_every_batch: bool
) -> Config:
    """Return the configuration with what the query says itself, where nothing else says something.

    The default backend is listed only if the settings list none: otherwise it would stand before
    the store's own list, and hold the job log.

    Args:
        config: As somebody wrote it.
        location: The checkpoint location.
        query_name: As given by ``queryName``.
        is_every_batch: Whether a source needs a commit in each batch.
    """
    digest = hashlib.sha256(location.encode()).hexdigest()[:8]
    defaults: dict[str, str] = {
        "job.name": query_name or f"{location.rsplit('/', 1)[-1]}-{digest}",
        DEFAULT_URI: f"{location}{BESIDE}",
    }
    if not config.backend_names():
        defaults[_LIST_OF_THE_JOB] = DEFAULT_BACKEND
    if is_every_batch:
        defaults["task.commit.every.batch"] = "true"
    return config.with_defaults(defaults, source="the query")


def lists_backends_of_the_job(config: Config) -> bool:
    """Return whether somebody wrote a list of backends for all stores."""
    found = config.settings.get(_LIST_OF_THE_JOB)
    return found is not None and not found.is_default
