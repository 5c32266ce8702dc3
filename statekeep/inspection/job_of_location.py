"""Which job a query is, by its checkpoint location."""

from collections.abc import Sequence

from statekeep.checkpoint.names import unescape_name
from statekeep.config.model import Config
from statekeep.config.query_defaults import (
    BESIDE,
    DEFAULT_BACKEND,
    DEFAULT_URI,
    LIST_OF_THE_JOB,
    default_job_name,
)
from statekeep.errors import ConfigError
from statekeep.inspection.location_files import explained_location_errors, open_location


def with_location(config: Config, location: str) -> Config:
    """Return the settings with what a query takes from its checkpoint location. Blocks.

    Args:
        config: What the user wrote; it goes over the rest.
        location: As the query has it, letter by letter: the job's name has a hash of it.

    Raises:
        ConfigError: The location cannot be reached, no job keeps its state there and the settings
            list no backend, or several jobs do.
    """
    found = _jobs_beside(location)
    defaults = {DEFAULT_URI: f"{location}{BESIDE}"}
    if not config.backend_names():
        if not found:
            raise ConfigError(
                f"no job has its state beside the checkpoint location: directory={location}{BESIDE}",
                hint="give the location as the program does, and the settings of the job if it has"
                " any: they say where its state is",
            )
        defaults[LIST_OF_THE_JOB] = DEFAULT_BACKEND
    if "job.name" not in config.settings:
        defaults["job.name"] = _name_of_job(location, found)
    return config.with_defaults(defaults, source="--location")


def _name_of_job(location: str, found: Sequence[str]) -> str:
    """Return the name of the one job that keeps its state beside a location, else the default one."""
    if len(found) > 1:
        raise ConfigError(
            f"several jobs have their state beside the checkpoint location: jobs={','.join(found)}",
            key="job.name",
            hint="name one with --set job.name=NAME; a query that was renamed by queryName is a job"
            " of its own",
        )
    return found[0] if found else default_job_name(location)


def _jobs_beside(location: str) -> list[str]:
    beside = open_location(f"{location}{BESIDE}")
    with explained_location_errors(beside):
        if not beside.files.exists(beside.root):
            return []
        paths = [str(entry["name"]) for entry in beside.files.ls(beside.root, detail=True)]
    return sorted(unescape_name(path.rstrip("/").rpartition("/")[2]) for path in paths)
