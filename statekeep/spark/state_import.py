"""A job that goes on where a query on Spark's own stateful operator has stopped."""

import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from typing_extensions import override

from statekeep.checkpoint.checkpoints import StoreName, TaskName
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.checkpoint.records import CommitRecord, QueryState
from statekeep.clock import SystemClock
from statekeep.config.load import load_spark_conf
from statekeep.config.model import Config
from statekeep.config.query_defaults import with_query_defaults
from statekeep.errors import CheckpointCorruptError, CheckpointLocationError, ConfigError
from statekeep.inspection.job_copy import Making, make_job
from statekeep.inspection.splitting import RoutedWrites, StateFiller
from statekeep.spark.context_conf import own_entries
from statekeep.spark.driver.commit_records import inputs_of_tasks
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.opening import tasks_of_a_new_job, wanted_tasks
from statekeep.spark.driver.takeover import new_identity
from statekeep.spark.driver.ticks import with_ticks
from statekeep.spark.given_settings import Settings, read_settings
from statekeep.spark.native_state import NativeState, read_native_state
from statekeep.spark.operator.clock import TimeMode
from statekeep.spark.operator.entries import Entry, EntryMaker, Form, NewRegistry
from statekeep.spark.operator.key_hash import KeyHasher, partition_of_hash
from statekeep.spark.operator.registry import REGISTRY_KEY, VariableKind
from statekeep.spark.own_loop import run_apart
from statekeep.spark.placement import router_of
from statekeep.spark.refused_settings import check_settings
from statekeep.spark.session import check_session, session_of_command
from statekeep.spark.tasks import STATE_STORE
from statekeep.spark.variable_stores import check_variables, lasting_stores, variable_stores_of
from statekeep.stores.base import KeyValueStore
from statekeep.stores.temporary_directory import temporary_directory

_Entry: TypeAlias = tuple[StoreName, int, bytes, bytes]
"""Store, number of the task, key and value."""
_SPARK: Final = TaskName("Spark")
"""Where entries come from, for errors."""


@dataclass(frozen=True, slots=True)
class ImportedState:
    """What `import_spark_state` has made."""

    job_name: str
    batch: int
    """The newest batch that the state holds; the query goes on with the next one."""
    variables: Sequence[str]
    entries: Sequence[int]
    """Of each task: values, keys of maps, timers, and their indexes by time."""


def import_spark_state(
    spark: SparkSession,
    location: str | os.PathLike[str],
    settings: Settings | None = None,
    *,
    timeoutConf: str | None = None,  # noqa: N803 - Spark's name
) -> ImportedState:
    """Make a job from a stopped query on Spark's own ``transformWithState`` or ``applyInPandasWithState``.

    The job has all state variables, their times to live, and the timers. Start the query on Statekeep
    with the same checkpoint location: it goes on with the next batch. Until that start nothing in the
    location is changed, so Spark can go on there too; an import that was interrupted can be repeated.

    Executors read the state by Spark's own sources. The driver needs local disk for all of it.

    Args:
        spark: A session of the query's settings; needs no other ones.
        location: The query's checkpoint location, as the query names it.
        settings: Those of the job, as `grouped` gets them later. If the query has a ``queryName``, give it
            as ``job.name``. ``task.count`` need not be the number of Spark's partitions.
        timeoutConf: That of ``applyInPandasWithState``, if its timeouts are used: Spark does not store it.

    Raises:
        ConfigError: There is a job of that name already, a setting is wrong, the query runs in this
            application, or has several stateful operators or one of another kind.
        CheckpointLocationError: Nothing was committed, a batch was begun and not ended, the location has
            changed meanwhile, or Spark cannot read its state.
        StateSchemaError: A type of the state cannot be kept here.
        CommitFailedError: A backend did not take the state.
    """
    check_session(spark, is_forced=True)
    source = CheckpointLocation(spark, os.fspath(location))
    config = _complete(spark, source, settings)
    batch = _newest_batch(spark, source)
    state = read_native_state(spark, source, batch, timeoutConf)
    partitions = wanted_tasks(config, 1) or tasks_of_a_new_job(spark, 1)
    registries, parts = _parts(state, config)
    query = _query_state(source, batch, state.time_mode)
    identity = new_identity(config, partitions, router_of(1), state.key_schema.simpleString())
    commit = CommitRecord(
        attempt_epoch=0, attempt=0, batch=batch, checkpoint_id="", identity=identity
    )

    async def still_stopped() -> QueryState:
        if _newest_batch(spark, source) != batch or query != _query_state(
            source, batch, state.time_mode
        ):
            raise CheckpointLocationError(
                f"the query runs: its checkpoint location has changed: location={source.uri} "
                f"batch={batch}"
            )
        return query

    fillers = {name: _Filler(partitions, registry) for name, registry in registries.items()}
    with temporary_directory("statekeep-import-") as directory:
        making = Making(
            config=config,
            clock=SystemClock(),
            directory=Path(directory),
            owner=f"{socket.gethostname()}:{os.getpid()}",
        )
        inputs = inputs_of_tasks(query.offsets or "", config.job.name, batch, partitions)
        fill = partial(_fill, spark, parts, fillers)
        made = make_job(making, commit, fillers, fill, inputs=inputs, query=still_stopped)
        entries = run_apart(made)
    return ImportedState(config.job.name, batch, [v.name for v in state.variables], entries)


def import_by_command(
    location: str,
    settings: Settings,
    timeout: str | None,
    *,
    master: str | None,
    session_settings: Mapping[str, str],
) -> ImportedState:
    """Import with a session that ends with the import, unless there is one already."""
    with session_of_command(master, session_settings) as spark:
        return import_spark_state(spark, location, settings, timeoutConf=timeout)


def _complete(
    spark: SparkSession, location: CheckpointLocation, settings: Settings | None
) -> Config:
    """Return the settings of the job, as its start will complete them."""
    config = with_query_defaults(
        read_settings(settings, load_spark_conf(own_entries(spark))),
        location.uri,
        None,
        shared_uri=location.shared_uri,
        is_every_batch=False,
    )
    check_settings(config)
    return config


def _newest_batch(spark: SparkSession, location: CheckpointLocation) -> int:
    """Return the newest batch of a query that has ended it.

    Raises:
        ConfigError: The query runs in this application.
        CheckpointLocationError: It has committed nothing, or begun one more.
    """
    query_id = location.query_id()
    if any(query.id == query_id for query in spark.streams.active):
        raise ConfigError(
            f"the query runs: location={location.uri} query_id={query_id}",
            hint="stop it, then import its state",
        )
    batch, begun = location.newest("commits"), location.newest("offsets")
    if query_id is None or batch < 0:
        raise CheckpointLocationError(f"the query has committed no batch: location={location.uri}")
    if begun != batch:
        error = CheckpointLocationError(
            "the query runs, or was stopped within a batch: "
            f"location={location.uri} begun={begun} committed={batch}"
        )
        error.add_note(
            "hint: stop the query. If it is stopped, let Spark finish that batch: start it once more with"
            " .trigger(once=True)"
        )
        raise error
    location.check_newest()
    return batch


def _query_state(location: CheckpointLocation, batch: int, mode: TimeMode) -> QueryState:
    """Return what the commit says of the query: its files, as the first start will have them."""
    before = location.require(f"offsets/{batch - 1}") if batch > 0 else None
    offsets = location.require(f"offsets/{batch}")
    if mode is not TimeMode.NONE:
        before = None if before is None else with_ticks(before)
        offsets = with_ticks(offsets)
    return QueryState(
        query_id=location.query_id() or "",
        metadata=location.require("metadata"),
        previous_offsets=before,
        offsets=offsets,
        commit=location.require(f"commits/{batch}"),
        imported_time_mode=mode.value,
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a variable, or of the timers, and where and how they are kept."""

    rows: DataFrame
    store: StoreName
    form: Form


class _Filler(StateFiller):
    """One store of each task: its registry is that of all tasks."""

    def __init__(self, partitions: int, registry: NewRegistry) -> None:
        super().__init__(partitions)
        self._registry = registry

    @override
    def finish(self, targets: Sequence[KeyValueStore]) -> None:
        for given, store in zip(self.counts, targets, strict=True):
            if given:
                store.put(REGISTRY_KEY, self._registry.encode())


def _parts(
    state: NativeState, config: Config
) -> tuple[Mapping[StoreName, NewRegistry], Sequence[_Part]]:
    """Return the registry of each store of the job, and what is kept in them.

    Raises:
        ConfigError: A setting speaks of a variable that there is not, or puts one where it would not last.
        StateSchemaError: A type of the state cannot be kept here.
    """
    names = [variable.name for variable in state.variables]
    check_variables(config, {MAIN_OPERATOR: names})
    stores = variable_stores_of(config, MAIN_OPERATOR)
    registries = {name: NewRegistry(state.key_schema) for name in lasting_stores(config)}
    parts: list[_Part] = []
    for variable in state.variables:
        store = stores.store_of(variable.name)
        if store not in registries:
            raise ConfigError(
                "the store of a variable is a cache, which begins empty at each start: "
                f"variable={variable.name} store={store}",
                key=f"state.variables.{variable.name}.store",
                hint=f"list a backend in stores.{store}.backup.factories",
            )
        form = registries[store].add(
            variable.name,
            variable.kind,
            variable.schema,
            variable.map_key_schema,
            expires=variable.expires,
        )
        parts.append(_Part(variable.rows, store, form))
    if state.timers is not None:
        form = registries[STATE_STORE].add_timers(state.time_mode)
        parts.append(_Part(state.timers, STATE_STORE, form))
    for part in parts:
        EntryMaker(part.form)  # refuses here what would fail on executors
    return registries, parts


def _entries(
    rows: Iterable[Row], store: StoreName, form: Form, partitions: int
) -> Iterator[_Entry]:
    """Yield the entries that rows of a state become; runs on executors."""
    maker, hasher = EntryMaker(form), KeyHasher(form.key_schema)
    for row in rows:
        key = maker.key(row.key)
        task = partition_of_hash(hasher.hash_front(key)[0], partitions)
        for entry in _entries_of_row(maker, form.variable.kind, key, row):
            yield store, task, *entry


def _entries_of_row(maker: EntryMaker, kind: VariableKind, key: bytes, row: Row) -> Iterator[Entry]:
    match kind:
        case "list":
            return maker.items(key, row["items"])
        case "map":
            return maker.map_entry(key, row.user_map_key, row.value, row.end_ms)
        case "timers":
            return maker.timer(key, row.time_ms)
        case _:
            return maker.value(key, row.value, row.end_ms)


def _fill(
    spark: SparkSession,
    parts: Sequence[_Part],
    fillers: Mapping[StoreName, StateFiller],
    stores: Mapping[StoreName, Sequence[KeyValueStore]],
) -> None:
    """Read the state by executors, and write it to the stores of its tasks, here.

    Raises:
        CheckpointLocationError: It cannot be read.
        CheckpointCorruptError: Two partitions of Spark have the same key.
    """
    partitions = len(next(iter(stores.values())))
    rdds = [
        part.rows.rdd.mapPartitions(
            partial(_entries, store=part.store, form=part.form, partitions=partitions)
        )
        for part in parts
    ]
    entries = spark.sparkContext.union(rdds).persist(StorageLevel.DISK_ONLY)
    writes = {
        name: RoutedWrites(_SPARK, targets, fillers[name].counts, lambda _: None)
        for name, targets in stores.items()
    }
    try:
        # Read by all executors at once: the iterator takes one partition after the other.
        found = entries.count()
        for store, task, key, value in entries.toLocalIterator(prefetchPartitions=True):
            writes[store].add(task, key, value)
    except (Py4JError, PySparkException) as exc:
        own = [line for line in str(exc).splitlines() if line.startswith("statekeep.errors.")]
        reason = own[0] if own else repr(str(exc).partition("\n")[0])
        raise CheckpointLocationError(f"the state cannot be read: {reason}") from exc
    finally:
        entries.unpersist()
    for written in writes.values():
        written.flush()
    given = sum(sum(filler.counts) for filler in fillers.values())
    if given != found:
        raise CheckpointCorruptError(
            f"partitions of Spark's state have keys in common: entries={found} different={given}"
        )
