"""Sinks for ``foreachBatch`` that refuse a driver which another one has replaced.

A driver looks whether it was replaced before it calls its sink. A process that is stopped after that
look can go on much later. These sinks compare its epoch where they write, so that not even then can
an old batch overwrite a newer one.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, Final, Literal

from pyspark.sql import DataFrame, SparkSession

from statekeep.errors import ConfigError, StateBackupError, TaskFencedError
from statekeep.spark.batch_token import BatchToken, current_batch, decode_token, encode_token
from statekeep.spark.sinks import BatchSink

logger = logging.getLogger(__name__)

FENCE_TABLE: Final = (
    "CREATE TABLE statekeep_fence"
    " (job_uid VARCHAR(64) PRIMARY KEY, epoch BIGINT NOT NULL, batch BIGINT NOT NULL)"
)
"""Makes the table that `fence_transaction` needs; one serves any number of jobs."""

_MARKS: Final = {"qmark": "?", "format": "%s"}
_ROWS_AT_ONCE: Final = 1_000

_MARKER: Final = "_statekeep.json"
_STAGING: Final = "_staging"
_ATOMIC: Final = ("file", "hdfs", "viewfs")
"""Where a directory is renamed at once, or not at all."""

ParameterStyle = Literal["qmark", "format"]


def fence_transaction(
    connection: Any,  # noqa: ANN401 - of any driver
    token: BatchToken,
    *,
    paramstyle: ParameterStyle = "qmark",
) -> None:
    """Let the transaction of ``connection`` succeed only for the newest driver of the job.

    Call it first in the transaction that writes a batch. It locks the job's row of `FENCE_TABLE` and
    records the batch there: a transaction of an older driver either ends before, or is refused.

    Args:
        connection: Of the DB-API, to PostgreSQL, SQLite or another database with ``ON CONFLICT``.
            It must not commit by itself.
        token: What `current_batch` returned.
        paramstyle: How the client marks parameters: ``qmark`` (sqlite3), ``format`` (psycopg).

    Raises:
        TaskFencedError: A newer driver has written to the database.
        ConfigError: The connection commits each statement.
    """
    mark = _MARKS[paramstyle]
    with closing(connection.cursor()) as cursor:
        cursor.execute(
            f"INSERT INTO statekeep_fence (job_uid, epoch, batch) VALUES ({mark}, {mark}, {mark})"  # noqa: S608 - marks only
            " ON CONFLICT (job_uid) DO UPDATE SET epoch = excluded.epoch, batch = excluded.batch"
            " WHERE statekeep_fence.epoch < excluded.epoch OR (statekeep_fence.epoch ="
            " excluded.epoch AND statekeep_fence.batch <= excluded.batch)",
            (token.job_uid, token.epoch, token.batch),
        )
        is_newest = cursor.rowcount == 1
        # sqlite3 has the second one; the first is that of most other clients.
        if getattr(connection, "autocommit", False) is True or not getattr(
            connection, "in_transaction", True
        ):
            raise ConfigError(
                "the connection commits each statement, so a batch could be written in part",
                hint="connect without autocommit",
            )
        if is_newest:
            return
        cursor.execute(
            f"SELECT epoch, batch FROM statekeep_fence WHERE job_uid = {mark}",  # noqa: S608
            (token.job_uid,),
        )
        epoch, batch = cursor.fetchone()
    raise TaskFencedError(
        f"a newer driver has written to the database: batch={token.batch} its_batch={batch}",
        own_epoch=token.epoch,
        newer_epoch=epoch,
    )


def upsert_sink(
    connect: Callable[[], Any],
    table: str,
    keys: Sequence[str],
    *,
    paramstyle: ParameterStyle = "qmark",
) -> BatchSink:
    """Return a sink that updates or inserts the rows of a batch by their key, in one transaction.

    The rows pass through the driver. For large batches write to a staging table by Spark, and merge
    from there in a transaction that begins with `fence_transaction`.

    Args:
        connect: Opens a connection, see `fence_transaction`; called for each batch.
        table: As SQL has it. It has a unique index on ``keys``, and the columns of the output.
        keys: The columns by which a row is found.
        paramstyle: See `fence_transaction`.
    """

    def write(frame: DataFrame, _batch: int) -> None:
        statement = _upsert_statement(table, frame.columns, keys, _MARKS[paramstyle])
        with closing(connect()) as connection:
            try:
                fence_transaction(connection, current_batch(), paramstyle=paramstyle)
                with closing(connection.cursor()) as cursor:
                    rows = map(tuple, frame.toLocalIterator())
                    while some := list(islice(rows, _ROWS_AT_ONCE)):
                        cursor.executemany(statement, some)
                        # psycopg sends the rows as a pipeline. PostgreSQL then takes the transaction
                        # for idle, and so ends that of a stopped driver, only after a statement.
                        cursor.execute("SELECT 1")
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    return write


def _upsert_statement(table: str, columns: Sequence[str], keys: Sequence[str], mark: str) -> str:
    quoted = {name: '"' + name.replace('"', '""') + '"' for name in columns}
    missing = [key for key in keys if key not in quoted]
    if missing or not keys:
        raise ConfigError(
            f"the output does not have the columns to upsert by: keys={list(keys)} missing={missing}"
        )
    updates = ", ".join(f"{q} = excluded.{q}" for name, q in quoted.items() if name not in keys)
    action = f"UPDATE SET {updates}" if updates else "NOTHING"
    return (
        f"INSERT INTO {table} ({', '.join(quoted.values())})"  # noqa: S608 - names of the program
        f" VALUES ({', '.join([mark] * len(quoted))})"
        f" ON CONFLICT ({', '.join(quoted[key] for key in keys)}) DO {action}"
    )


def batch_directory_sink(
    path: str, format_name: str = "parquet", **options: str | float | bool
) -> BatchSink:
    """Return a sink that writes each batch to ``<path>/batch=<number>``, which appears whole.

    A batch that is there is not written again, and an older driver is refused. Spark and others
    read ``path`` as files that are partitioned by ``batch``.

    Args:
        path: On HDFS or a local or mounted disk: where a directory is renamed at once.
        format_name: Of the files, as Spark names it.
        **options: Of Spark's writer.
    """

    def write(frame: DataFrame, _batch: int) -> None:
        _BatchDirectory(frame.sparkSession, path, current_batch()).write(
            lambda staging: (
                frame.write.format(format_name).options(**options).mode("overwrite").save(staging)
            )
        )

    return write


class _BatchDirectory:
    """The directory of one batch; published by a rename."""

    def __init__(self, spark: SparkSession, path: str, token: BatchToken) -> None:
        self._jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Hadoop's FileSystem is the JVM's
        self._token = token
        java: Any = spark._jsparkSession  # noqa: SLF001 - as above
        root = self._path(path)
        self._fs: Any = root.getFileSystem(java.sessionState().newHadoopConf())
        scheme = self._fs.getUri().getScheme()
        if scheme not in _ATOMIC:
            raise ConfigError(
                f"a directory does not appear whole there: path={path} scheme={scheme}",
                hint='use .format("parquet").start(path), which keeps a log of the batches',
            )
        self._target = self._path(root, f"batch={token.batch}")
        self._all_staging = self._path(root, _STAGING)
        # Spark does not read what begins with "_". A rename that loses a race puts the directory
        # below the target, under this name.
        self._name = f"_{token.epoch}-{token.batch}"
        self._staging = self._path(self._all_staging, self._name)

    def write(self, save: Callable[[str], None]) -> None:
        """Write and publish the batch, unless it was published.

        Args:
            save: Writes the files to a directory.

        Raises:
            TaskFencedError: A newer driver has published it.
            ConfigError: The directory is another query's, or not ours.
        """
        if not self._is_published():
            save(str(self._staging.toString()))
            self._write_marker()
            self._fs.rename(self._staging, self._target)
            for lost in (self._target, self._all_staging):
                self._remove(self._path(lost, self._name))
            if not self._is_published():
                msg = f"cannot publish a batch: directory={self._target.toString()}"
                raise StateBackupError(msg)
        self._sweep()

    def _is_published(self) -> bool:
        """Return whether the batch is there: by this driver or by one before it."""
        if not self._fs.exists(self._target):
            return False
        where = f"directory={self._target.toString()}"
        published = self._read_marker()
        if published is None:
            raise ConfigError(f"the directory of a batch was made by another program: {where}")
        own = self._token
        if (published.job_uid, published.query_id) != (own.job_uid, own.query_id):
            raise ConfigError(
                f"the directory of a batch is another query's: {where} job_uid={published.job_uid}"
                f" query_id={published.query_id}",
                hint="give each query a path of its own; its batches are numbered from 0",
            )
        if published.epoch > own.epoch:
            msg = f"a newer driver has published the batch: {where}"
            raise TaskFencedError(msg, own_epoch=own.epoch, newer_epoch=published.epoch)
        if published.epoch < own.epoch:
            logger.info("an earlier driver has already published the batch: %s", where)
        return True

    def _sweep(self) -> None:
        """Remove what drivers before this one did not publish; they will not any more."""
        if not self._fs.exists(self._all_staging):
            return
        for status in self._fs.listStatus(self._all_staging):
            epoch, _, _ = status.getPath().getName().removeprefix("_").partition("-")
            if int(epoch) < self._token.epoch:
                self._remove(status.getPath())

    def _write_marker(self) -> None:
        stream = self._fs.create(self._path(self._staging, _MARKER), True)  # noqa: FBT003 - Hadoop's
        try:
            stream.write(encode_token(self._token))
        finally:
            stream.close()

    def _read_marker(self) -> BatchToken | None:
        path = self._path(self._target, _MARKER)
        if not self._fs.exists(path):
            return None
        stream = self._fs.open(path)
        try:
            data = self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)
        finally:
            stream.close()
        return decode_token(bytes(data), where=f"path={path}")

    def _remove(self, directory: Any) -> None:  # noqa: ANN401 - a Java object
        self._fs.delete(directory, True)  # noqa: FBT003 - Hadoop's signature

    def _path(self, *parts: Any) -> Any:  # noqa: ANN401 - Java objects
        return self._jvm.org.apache.hadoop.fs.Path(*parts)
