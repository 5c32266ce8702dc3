"""What a query is called and where it keeps its state, if its settings do not say so."""

import hashlib
from typing import Final

from statekeep.config.blob_settings import BlobStoreSettings
from statekeep.config.key import keys_of

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
