"""Reads the committed state of a job from its backup: as an Arrow table, or as a Spark DataFrame."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from statekeep.inspection.commit_choice import CommitChoice, parse_time
from statekeep.spark.given_settings import Settings, read_settings
from statekeep.spark.state.plan import StatePlan, StateRequest, named_variable
from statekeep.spark.state.reading import open_state


def read_state(
    settings: Settings,
    variable: str | None = None,
    *,
    timers: bool = False,
    key: Sequence[Any] | Mapping[str, Any] | str | bytes | int | None = None,
    columns: Sequence[str] | None = None,
    commit: str | int | None = None,
    batch: int | None = None,
    as_of: datetime | str | None = None,
    changes_since: str | int | None = None,
    backend: str | None = None,
    operator: str | None = None,
    task: str | None = None,
) -> pa.Table:
    """Return the committed state of a variable, or in plain Python of a store, as an Arrow table.

    Each task's backup is restored to a temporary directory, verified, and read. Nothing of the job's
    is written or locked, and the job may go on meanwhile. Works in a notebook too. PySpark must be
    installed, for its types; a session or Java is not needed.

    The columns are ``key``, a struct of the grouping key, and ``partition_id``, the number of the task,
    and between them

    - ``value`` of a value,
    - ``list_position`` and ``list_element`` of a list,
    - ``user_map_key`` and ``user_map_value`` of a map,
    - ``expiration_timestamp_ms`` of a timer, or where the variable has ``ttlDurationMs``. What has
      outlived its time is there until a batch has removed it.

    Of a store in plain Python they are ``key`` and ``value``, which are bytes, and ``task``, the name of the
    task. Each task has commits of its own, and without a choice its newest one is read.

    A change feed begins with ``change_type``: ``insert``, ``update`` or ``delete``. A row that is deleted is
    shown as it was, any other as it is now.

    Args:
        settings: Names the job and its backends, as the query has them.
        variable: The state variable's name; in plain Python the store's.
        timers: Read the timers instead.
        key: One grouping key: its values, in a mapping or a sequence, or the value of its one field.
            Its task alone is restored. A timestamp without a zone is in UTC. In plain Python bytes, which
            every task is asked for.
        columns: The columns to read; None: all. Values are not decoded if their column is left out.
        commit: A commit's position, checkpoint id or pin, or a savepoint's name; None: the newest.
        batch: Or the batch that the commit is of.
        as_of: Or a time: of the newest commit that began before it. Text is ISO 8601, UTC without a zone.
        changes_since: Read what has changed between this commit, named as by ``commit``, and the other.
        backend: The only backend to restore from; None: those of the settings, in their order.
        operator: The stateful operator; None: the job's only one.
        task: The only task to read, such as ``Partition 0``. In plain Python a position, a checkpoint id
            and a batch mean a commit only together with it.

    Raises:
        ConfigError: There is no such job, variable, commit, column, backend, operator or task; the key does not
            fit; or the commit was released meanwhile.
        RestoreFailedError: No backend can give the state.
    """
    request = StateRequest(
        read_settings(settings),
        named_variable(variable, timers=timers),
        CommitChoice(
            None if commit is None else str(commit),
            batch,
            None if as_of is None else _millis(as_of),
        ),
        None if changes_since is None else CommitChoice(str(changes_since)),
        operator,
        backend,
        None if columns is None else tuple(columns),
        task,
    )

    def narrow(plan: StatePlan) -> StatePlan:
        return plan if key is None else plan.with_key(key)

    with open_state(request, narrow) as (schema, batches):
        return pa.Table.from_batches(batches, schema)


def _millis(time: datetime | str) -> int:
    return parse_time(time if isinstance(time, str) else time.isoformat())
