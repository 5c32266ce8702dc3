"""What a query itself says where its settings say nothing: the job's name, and a location for state."""

import hashlib
import shlex
from pathlib import Path
from typing import Final

from statekeep.config.blob_settings import BlobStoreSettings
from statekeep.config.key import keys_of
from statekeep.config.model import Config
from statekeep.config.redact import redact_text

DEFAULT_BACKEND: Final = "blob"
"""The backend of a query whose settings list none."""

DEFAULT_URI: Final = keys_of(BlobStoreSettings)["uri"].name
"""The setting that says where it is."""

BESIDE: Final = "-statekeep"
"""What its location has behind the name of the checkpoint location."""

LIST_OF_THE_JOB: Final = "stores.backup.factories"
"""The setting that lists the backends of all stores."""


def default_job_name(location: str) -> str:
    """Return the name of a query without ``queryName``: its directory and a hash of the location."""
    digest = hashlib.sha256(location.encode()).hexdigest()[:8]
    return f"{location.rsplit('/', 1)[-1]}-{digest}"


def with_query_defaults(
    config: Config,
    location: str,
    query_name: str | None,
    *,
    shared_uri: str,
    is_every_batch: bool,
    temporary: Path | None = None,
) -> Config:
    """Return the configuration with what the query says itself, where nothing else says something.

    The default backend is listed only if the settings list none: otherwise it would stand before
    the store's own list, and hold the job log.

    Args:
        config: As the user wrote it.
        location: The checkpoint location as the user wrote it: the default name is made from it.
        query_name: As given by ``queryName``.
        shared_uri: The checkpoint location as every process of the job finds it.
        is_every_batch: Whether a source needs a commit in each batch.
        temporary: The directory that goes with the query, if its checkpoint location is in it.
    """
    defaults: dict[str, str] = {DEFAULT_URI: f"{shared_uri}{BESIDE}"}
    if not config.backend_names():
        defaults[LIST_OF_THE_JOB] = DEFAULT_BACKEND
    if is_every_batch:
        defaults["task.commit.every.batch"] = "true"
    if temporary is not None:
        defaults["job.logged.store.base.dir"] = str(temporary / "local")
    named_by = "the checkpoint location" if query_name is None else "queryName"
    name = {"job.name": query_name or default_job_name(location)}
    return config.with_defaults(name, source=named_by).with_defaults(defaults, source="the query")


def lists_backends_of_the_job(config: Config) -> bool:
    """Return whether the settings list backends for all stores."""
    found = config.settings.get(LIST_OF_THE_JOB)
    return found is not None and not found.is_default


def page_command(config: Config, shared_uri: str) -> str:
    """Return the command that shows the job as a page.

    Where settings of the user say where the state is, it needs those too: ``FILE`` stands for them.
    ``***`` stands for a user and a password in the location, as the command goes to the log.
    """
    location = redact_text(shared_uri)
    words = ["statekeep", "ui", "--location", location, "--set", f"job.name={config.job.name}"]
    keys = (LIST_OF_THE_JOB, DEFAULT_URI)
    is_default = all((found := config.settings.get(key)) and found.is_default for key in keys)
    return shlex.join(words) + ("" if is_default else " --config FILE")
