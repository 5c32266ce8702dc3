"""Delta Lake's jars, from the artefacts that PySpark's Ivy fetches."""

from importlib.metadata import version
from pathlib import Path
from typing import Final

from servers.java_artefacts import fetched
from servers.process import ServerUnavailableError

_SPARK: Final = "4.2"
_VERSION: Final = "4.4.0"
_ARTEFACTS: Final = (
    ("io.delta", f"delta-spark_{_SPARK}_2.13", _VERSION),
    ("io.delta", "delta-storage", _VERSION),
    ("io.delta", "delta-kernel-api", _VERSION),
    ("io.delta", "delta-kernel-defaults", _VERSION),
    ("io.delta", "delta-kernel-unitycatalog", _VERSION),
    ("io.unitycatalog", "unitycatalog-client", "0.6.0"),
    ("io.unitycatalog", "unitycatalog-hadoop", "0.6.0"),
)


def delta_jars() -> list[Path]:
    """Return the jars, without those that Spark has.

    Raises:
        ServerUnavailableError: They cannot be fetched, or are for another version of Spark.
    """
    found = version("pyspark")
    if not found.startswith(f"{_SPARK}."):
        raise ServerUnavailableError(f"Delta Lake {_VERSION} is for Spark {_SPARK}: found {found}")
    return sorted(fetched(f"delta-{_VERSION}", _ARTEFACTS, "-notransitive").iterdir())
