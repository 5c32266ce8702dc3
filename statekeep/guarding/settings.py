"""The settings of the job that holds the copies of a location."""

from typing import Final

from statekeep.config.load import load_dict, merge
from statekeep.config.model import Config
from statekeep.config.query_defaults import (
    DEFAULT_BACKEND,
    DEFAULT_URI,
    LIST_OF_THE_JOB,
    default_job_name,
)

_LOCAL: Final = ("file://", "file:")


def settings_of_copies(location: str, uri: str, job_name: str | None, given: Config) -> Config:
    """Return the settings of the job that holds the copies of a location.

    Its name is never that of the settings: they may be those of another job too.

    Args:
        location: That is copied.
        uri: Where the copies go.
        job_name: Of the job; None: named after the location.
        given: By the user.
    """
    path = location.rstrip("/")
    for scheme in _LOCAL:  # Spark calls a local location by its URI, a person mostly by its path
        path = path.removeprefix(scheme)
    own = {DEFAULT_URI: uri, "job.name": job_name or f"{default_job_name(path)}-guard"}
    settings = merge(given, load_dict(own, "the guard"))
    return settings.with_defaults({LIST_OF_THE_JOB: DEFAULT_BACKEND}, source="guard")
