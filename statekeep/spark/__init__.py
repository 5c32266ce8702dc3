"""The PySpark runtime: ``grouped(df.groupBy(...), settings)`` is the one changed call.

Names are loaded when they are asked for: containers live in this package and need no PySpark.
A name that needs a missing package raises ConfigError with the command that installs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from statekeep.extras import missing_package

if TYPE_CHECKING:
    from statekeep.spark.batch_token import BatchToken, current_batch
    from statekeep.spark.grouped_data import StatefulGroupedData, grouped
    from statekeep.spark.query import StatefulStreamingQuery
    from statekeep.spark.session import check_session, session_builder
    from statekeep.spark.starting_point import StartingPoint, find_starting_point
    from statekeep.spark.state.source import register
    from statekeep.spark.state_reader import (
        read_state,  # pyright: ignore[reportUnknownVariableType] - pyarrow has no types
    )

__all__ = [
    "BatchToken",
    "StartingPoint",
    "StatefulGroupedData",
    "StatefulStreamingQuery",
    "check_session",
    "current_batch",
    "find_starting_point",
    "grouped",
    "read_state",
    "register",
    "session_builder",
]

_HOMES: Final = {
    "BatchToken": "batch_token",
    "StartingPoint": "starting_point",
    "StatefulGroupedData": "grouped_data",
    "StatefulStreamingQuery": "query",
    "check_session": "session",
    "current_batch": "batch_token",
    "find_starting_point": "starting_point",
    "grouped": "grouped_data",
    "read_state": "state_reader",
    "register": "state.source",
    "session_builder": "session",
}
"""``{public name: its module in this package}``"""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as exc:
        missing = missing_package(exc)
        if missing is None:
            raise
        raise missing from exc


def __dir__() -> list[str]:
    return sorted(__all__)
