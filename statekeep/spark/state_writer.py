"""Writes the state of a job between two runs: an Arrow table or a Spark DataFrame becomes a new commit."""

import os
from concurrent.futures import Future
from contextlib import suppress
from socket import gethostname
from typing import Any

import pyarrow as pa

from statekeep.checkpoint.log_session import random_nonce
from statekeep.checkpoint.records import EpochRecord
from statekeep.clock import SystemClock
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.inspection.job import open_job
from statekeep.inspection.state_change import Changed, Changing
from statekeep.spark.given_settings import Settings, read_settings
from statekeep.spark.own_loop import run_apart
from statekeep.spark.state.given_rows import rows_of_table
from statekeep.spark.state.writing import (
    DELETE,
    PUT,
    WriteRequest,
    require_reason,
    write_rows,
)
from statekeep.stores.temporary_directory import temporary_directory


def write_state(
    settings: Settings,
    variable: str,
    rows: Any,  # noqa: ANN401 - a DataFrame may be of Spark Connect too
    *,
    reason: str,
    delete: bool = False,
    ttl_ms: int | None = None,
    operator: str | None = None,
    take_over: bool = False,
) -> int:
    """Put rows into a state variable of a stopped job, or delete its keys, as a new commit.

    All rows count or none. The next start of the job goes on with them; ``statekeep state undo`` takes the
    change back before that. Needs local disk for the tasks that change, and memory for the rows. For a query
    that runs in this program, call its `write_state` instead.

    The columns are those of `read_state`: ``key`` and ``value``; ``key``, ``list_position`` and ``list_element``,
    all elements of a list; or ``key``, ``user_map_key`` and ``user_map_value``, entries to be put into a map.
    Where a key or a value has one field, its column may hold the field itself.

    Args:
        settings: Names the job and its backends, as the query has them.
        variable: The state variable's name. Timers cannot be written.
        rows: An Arrow table, or a DataFrame of Spark, which is collected.
        reason: Why; kept in the job log with user and host.
        delete: Delete the keys: of a map the entries of ``user_map_key`` if that column is there.
        ttl_ms: Of a variable with ``ttlDurationMs``, the same number: values live that long from the time of
            the job's newest batch. A column ``expiration_timestamp_ms`` says it for each row.
        operator: The stateful operator; None: the job's only one.
        take_over: Also if no event of the job says that its driver has stopped. It is fenced.

    Returns:
        The position of the job's newest commit: the new one, or the former one if nothing differs.

    Raises:
        ConfigError: There is no such job, variable or column; a key does not fit or is given twice; the
            reason or the time to live is missing; or the job may be running.
        StateSchemaError: A value does not fit.
        RestoreFailedError: No backend can give the state of a task.
        CommitFailedError: A backend did not take it.
        TaskFencedError: The job was started meanwhile.
    """
    request = write_request(
        read_settings(settings),
        variable,
        rows,
        reason=reason,
        delete=delete,
        ttl_ms=ttl_ms,
        operator=operator,
    )
    return _write(request, f"{gethostname()}:{os.getpid()}", take_over=take_over).position


def write_request(
    config: Config,
    variable: str,
    rows: Any,  # noqa: ANN401 - as above
    *,
    reason: str,
    delete: bool,
    ttl_ms: int | None,
    operator: str | None,
) -> WriteRequest:
    """Return what `write_state` is asked for.

    Raises:
        ConfigError: The rows are neither a table nor a DataFrame, or the reason is missing.
    """
    require_reason(reason)
    table = rows.toArrow() if hasattr(rows, "toArrow") else rows
    if not isinstance(table, pa.Table):
        raise ConfigError(
            f"rows are an Arrow table or a Spark DataFrame: found={type(rows).__name__}",
            hint="pa.table, pa.Table.from_pandas or pa.Table.from_pylist makes a table",
        )
    return WriteRequest(
        config,
        variable,
        reason,
        rows_of_table(table, is_deletion=delete),
        DELETE if delete else PUT,
        operator,
        ttl_ms,
    )


def write_between_runs(request: WriteRequest, epoch: int, answer: Future[int]) -> int:
    """Write rows for a query of this process whose run has ended; the answer is the commit's position.

    Args:
        request: What to write.
        epoch: Of that run.
        answer: Gets the position, or the error.

    Returns:
        The epoch that the next run follows: that of the change where it has taken the log over, even
        if it failed later.
    """
    # Of no other writer: an epoch of this owner in the log is that of this change.
    owner = f"{gethostname()}:{os.getpid()}:{random_nonce()}"
    try:
        changed = _write(request, owner)
    except Exception as exc:  # noqa: BLE001 - the caller's, on another thread
        answer.set_exception(exc)
        with suppress(
            Exception
        ):  # the next run fails by the same, or takes this change for another driver
            epoch = max(epoch, run_apart(_epoch_of(owner, request.config)))
        return epoch
    answer.set_result(changed.position)
    return changed.log.epoch or epoch


def _write(request: WriteRequest, owner: str, *, take_over: bool = False) -> Changed:
    with temporary_directory("statekeep-write-") as directory:
        changing = Changing(directory, owner, is_taking_over=take_over)
        return run_apart(write_rows(request, changing))[0]


async def _epoch_of(owner: str, config: Config) -> int:
    """Return the epoch with which an owner has taken the log over; 0 if it has not."""
    async with open_job(config, SystemClock()) as job:
        records = [record for _, record in job.records if isinstance(record, EpochRecord)]
    return max((record.epoch for record in records if record.owner == owner), default=0)
