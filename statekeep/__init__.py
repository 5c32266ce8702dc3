"""Asynchronous, pluggable backup and exact restore of the state of stateful streams."""

__version__: str
"""The version that is installed."""


def __getattr__(name: str) -> str:
    # Read when it is asked for: a Spark worker may have the modules without the metadata, and
    # what reads it takes long to import.
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415

        return version("statekeep")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
