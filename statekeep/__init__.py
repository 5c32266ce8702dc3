"""Asynchronous, pluggable backup and exact restore of the state of stateful streams."""

from importlib.metadata import version

__version__: str
"""The version that is installed."""


def __getattr__(name: str) -> str:
    # Read when it is asked for: a Spark worker may have the modules without the metadata.
    if name == "__version__":
        return version("statekeep")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
