"""Reads the committed state of a job from its backup, without Spark and without the job."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.log_scope import MAIN_OPERATOR
from statekeep.clock import SystemClock
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.inspection.job import open_job
from statekeep.spark.given_settings import Settings, read_settings
from statekeep.spark.operator.codec import ValueCodec
from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.operator.registry import (
    RegisteredVariable,
    read_schema,
    stored_variables,
)
from statekeep.spark.tasks import STATE_STORE
from statekeep.stores.base import KeyValueStore
from statekeep.stores.rocksdb import RocksDbOptions
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.temporary_directory import temporary_directory
from statekeep.stores.version import SealedVersion


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One value of one state variable."""

    task_name: TaskName
    key: tuple[Any, ...]
    """The grouping key."""
    value: tuple[Any, ...]
    map_key: tuple[Any, ...] | None = None
    """The key within the map; None unless the variable is a map."""


def read_state(settings: Settings, variable: str) -> Iterator[StateEntry]:
    """Yield every entry of a state variable as of the job's newest commit.

    Each task's backup is restored to a temporary directory, verified, and read; nothing of the
    job's own files is touched, and the job may go on meanwhile. The entries of a list come in its
    order, one by one.

    Args:
        settings: Names the job and its backends, as the query has them.
        variable: The state variable's name.

    Raises:
        ConfigError: No such job, or no such variable in a task's state.
        RestoreFailedError: No backend can give the state.
    """
    config = read_settings(settings)
    with temporary_directory("statekeep-read-") as directory:
        versions = asyncio.run(_restore_all(config, directory))
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
        found = variables.get(variable)
        if found is None:
            known = ",".join(sorted(variables))
            msg = f"no such state variable: variable={variable} task={task} variables={known}"
            raise ConfigError(msg)
        yield from _decoded(store, task, key_schema, found)


def _decoded(
    store: KeyValueStore, task: TaskName, key_schema: StructType, variable: RegisteredVariable
) -> Iterator[StateEntry]:
    keys, values = KeyCodec(key_schema), ValueCodec(read_schema(variable.schema))
    map_keys = (
        None if variable.map_key_schema is None else KeyCodec(read_schema(variable.map_key_schema))
    )
    for stored_key, data in store.scan(variable.prefix):
        encoded = stored_key[len(variable.prefix) :]
        if map_keys is not None:
            key, end = keys.decode_front(encoded)
            yield StateEntry(task, key, values.decode(data), map_keys.decode(encoded[end:]))
        elif variable.kind == "list":
            key = keys.decode(encoded)
            for value in values.decode_list(data):
                yield StateEntry(task, key, value)
        else:
            yield StateEntry(task, keys.decode(encoded), values.decode(data))


def _identity(config: Config, task: TaskName) -> TaskIdentity:
    return TaskIdentity(config.job.name, MAIN_OPERATOR, task)
