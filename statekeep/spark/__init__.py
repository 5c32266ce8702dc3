"""The PySpark runtime: ``grouped(df.groupBy(...), settings)`` is the one changed call."""

from statekeep.spark.grouped import StatefulGroupedData, grouped
from statekeep.spark.query import StatefulStreamingQuery
from statekeep.spark.session import check_session, session_builder
from statekeep.spark.state_reader import StateEntry, read_state

__all__ = [
    "StateEntry",
    "StatefulGroupedData",
    "StatefulStreamingQuery",
    "check_session",
    "grouped",
    "read_state",
    "session_builder",
]
