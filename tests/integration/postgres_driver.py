"""A driver that delivers one batch to PostgreSQL, and is killed or stopped at a moment of its commit.

Arguments: where to connect, epoch, batch, rows in JSON, moment (``before`` or ``after`` the commit),
and the name of the signal.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any, cast

import psycopg
from pyspark.sql import DataFrame

import statekeep as sk
from statekeep.spark.batch_token import delivering


class Rows:
    """As much of a frame as the sink uses."""

    def __init__(self, rows: dict[str, int]) -> None:
        self.columns = ["key", "n"]
        self._rows = rows

    def toLocalIterator(self) -> Iterator[tuple[str, int]]:  # noqa: N802 - Spark's name
        return iter(self._rows.items())


class Struck:
    """A connection whose commit strikes its own process."""

    def __init__(self, connection: Any, moment: str, name: str) -> None:
        self._connection = connection
        self._moment, self._signal = moment, signal.Signals[name]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        if self._moment == "before":
            os.kill(os.getpid(), self._signal)
        self._connection.commit()
        if self._moment == "after":
            os.kill(os.getpid(), self._signal)


def token_of(epoch: int, batch: int) -> sk.BatchToken:
    return sk.BatchToken(job_uid="u", query_id="q", epoch=epoch, batch=batch)


def deliver(connect: Any, epoch: int, batch: int, rows: dict[str, int]) -> None:
    """Deliver a batch as the driver of an epoch does."""
    write = sk.upsert_sink(connect, "totals", ["key"], paramstyle="format")
    with delivering(token_of(epoch, batch)):
        write(cast("DataFrame", Rows(rows)), batch)


def main() -> None:
    uri, epoch, batch, rows, moment, name = sys.argv[1:]
    deliver(
        lambda: Struck(psycopg.connect(uri), moment, name), int(epoch), int(batch), json.loads(rows)
    )


if __name__ == "__main__":
    main()
