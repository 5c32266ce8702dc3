"""The PySpark runtime: ``grouped(df.groupBy(...), settings)`` is the one changed call."""

from statekeep.spark.grouped import StatefulGroupedData, grouped
from statekeep.spark.query import StatefulStreamingQuery
from statekeep.spark.session import check_session, session_builder

__all__ = [
    "StatefulGroupedData",
    "StatefulStreamingQuery",
    "check_session",
    "grouped",
    "session_builder",
]
