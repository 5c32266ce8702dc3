"""Reads the committed state of a job from its backup, without a Spark session and without the job."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from pyspark.sql.types import Row, StructType

from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.log_scope import MAIN_OPERATOR
from statekeep.clock import SystemClock
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.inspection.job import open_job
from statekeep.spark.given_settings import Settings, read_settings
from statekeep.spark.operator.expiry import split_runs, without_end
from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.operator.registry import (
    PROCESSOR_KINDS,
    RegisteredVariable,
    read_schema,
    stored_variables,
    value_codec,
)
from statekeep.spark.operator.rows import row_maker
from statekeep.spark.own_loop import run_apart
from statekeep.spark.tasks import STATE_STORE
from statekeep.stores.base import KeyValueStore
from statekeep.stores.rocksdb import RocksDbOptions
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.temporary_directory import temporary_directory
from statekeep.stores.version import SealedVersion


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One value of one state variable; its rows have the fields of their schemas."""

    task_name: TaskName
    key: Row
    """The grouping key."""
    value: Row
    map_key: Row | None = None
    """The key within the map; None unless the variable is a map."""


def read_state(settings: Settings, variable: str) -> Iterator[StateEntry]:
    """Yield every entry of a state variable as of the job's newest commit.

    Each task's backup is restored to a temporary directory, verified, and read; nothing of the
    job's own files is touched, and the job may go on meanwhile. The entries of a list come in its
    order, one by one. What has outlived its time (``ttlDurationMs``) is among them until a batch has
    removed it. Works in a notebook too. PySpark must be installed, for its types; a session
    or Java is not needed.

    Args:
        settings: Names the job and its backends, as the query has them.
        variable: The state variable's name.

    Raises:
        ConfigError: No such job, or no such variable in a task's state.
        RestoreFailedError: No backend can give the state.
    """
    config = read_settings(settings)
    with temporary_directory("statekeep-read-") as directory:
        versions = run_apart(_restore_all(config, directory))
        for task, version in versions.items():
            yield from _entries(config, directory, task, version, variable)


async def _restore_all(config: Config, directory: Path) -> dict[TaskName, SealedVersion]:
    async with open_job(config, SystemClock()) as job:
        _, commit = job.find_commit()
        outcomes = {
            task: await job.restore(commit, task, directory)
            for task in sorted(map(TaskName, commit.versions))
        }
    return {task: found.version for task, found in outcomes.items() if found.version is not None}


def _entries(
    config: Config, directory: Path, task: TaskName, version: SealedVersion, variable: str
) -> Iterator[StateEntry]:
    settings = config.store(STATE_STORE)
    place = TaskDirectory.of(directory, _identity(config, task))
    with place.begin(f"{version.id.uid}", version, [STATE_STORE]) as work:
        store = work.open_store(STATE_STORE, settings.factory, RocksDbOptions.of(settings))
        key_schema, variables = stored_variables(store)
        readable = {n: found for n, found in variables.items() if found.kind in PROCESSOR_KINDS}
        found = readable.get(variable)
        if found is None:
            known = ",".join(sorted(readable))
            msg = f"no such state variable: variable={variable} task={task} variables={known}"
            raise ConfigError(msg)
        yield from _decoded(store, task, key_schema, found)


def _decoded(
    store: KeyValueStore, task: TaskName, key_schema: StructType, variable: RegisteredVariable
) -> Iterator[StateEntry]:
    keys, values = KeyCodec(key_schema), value_codec(variable)
    key_row, value_row = row_maker(key_schema.names), values.make_row
    map_keys: KeyCodec | None = None
    map_key_row: Callable[[Sequence[Any]], Row] = row_maker(())
    if variable.map_key_schema is not None:
        map_keys = KeyCodec(read_schema(variable.map_key_schema))
        map_key_row = row_maker(map_keys.schema.names)
    for stored_key, stored in store.scan(variable.prefix):
        data = without_end(stored) if variable.expires else stored
        encoded = stored_key[len(variable.prefix) :]
        if map_keys is not None:
            key, end = keys.decode_front(encoded)
            map_key = map_key_row(map_keys.decode(encoded[end:]))
            yield StateEntry(task, key_row(key), value_row(values.decode(data)), map_key)
        elif variable.kind == "list":
            key = keys.decode(encoded)
            runs = [run for _, run in split_runs(data)] if variable.expires else [data]
            for value in chain.from_iterable(map(values.decode_list, runs)):
                yield StateEntry(task, key_row(key), value_row(value))
        else:
            yield StateEntry(task, key_row(keys.decode(encoded)), value_row(values.decode(data)))


def _identity(config: Config, task: TaskName) -> TaskIdentity:
    return TaskIdentity(config.job.name, MAIN_OPERATOR, task)
