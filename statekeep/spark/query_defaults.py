"""What a query itself says where its settings say nothing: the job's name, and a place for state."""

from pathlib import Path

from statekeep.config.model import Config
from statekeep.config.query_names import (
    BESIDE,
    DEFAULT_BACKEND,
    DEFAULT_URI,
    LIST_OF_THE_JOB,
    default_job_name,
)

__all__ = [
    "BESIDE",
    "DEFAULT_BACKEND",
    "DEFAULT_URI",
    "lists_backends_of_the_job",
    "with_query_defaults",
]


def with_query_defaults(
    config: Config,
    location: str,
    query_name: str | None,
    *,
    is_every_batch: bool,
    temporary: Path | None = None,
) -> Config:
    """Return the configuration with what the query says itself, where nothing else says something.

    The default backend is listed only if the settings list none: otherwise it would stand before
    the store's own list, and hold the job log.

    Args:
        config: As somebody wrote it.
        location: The checkpoint location.
        query_name: As given by ``queryName``.
        is_every_batch: Whether a source needs a commit in each batch.
        temporary: The directory that goes with the query, if its checkpoint location is in it.
    """
    defaults: dict[str, str] = {
        "job.name": query_name or default_job_name(location),
        DEFAULT_URI: f"{location}{BESIDE}",
    }
    if not config.backend_names():
        defaults[LIST_OF_THE_JOB] = DEFAULT_BACKEND
    if is_every_batch:
        defaults["task.commit.every.batch"] = "true"
    if temporary is not None:
        defaults["job.logged.store.base.dir"] = str(temporary / "local")
    return config.with_defaults(defaults, source="the query")


def lists_backends_of_the_job(config: Config) -> bool:
    """Return whether somebody wrote a list of backends for all stores."""
    found = config.settings.get(LIST_OF_THE_JOB)
    return found is not None and not found.is_default
