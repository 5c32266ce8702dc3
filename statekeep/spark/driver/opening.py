"""What a start checks and opens first: sources, the backends of its job, and the job log in one of them."""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from statekeep.backends.base import BlockingExecutor, JobTasks, StateBackendFactory
from statekeep.backends.preparation import prepare, prepare_unless_away
from statekeep.backends.registry import BackendRegistry
from statekeep.backends.seals import encryption_limits, open_checkpoint_store, open_job_log
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.checkpoint.job_log import CheckpointStore, JobLog
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.names import MAIN_OPERATOR, job_scope
from statekeep.clock import Clock
from statekeep.commit.gate import BATCH_MARGIN
from statekeep.config.model import Config
from statekeep.config.query_defaults import (
    BESIDE,
    DEFAULT_BACKEND,
    DEFAULT_URI,
    lists_backends_of_the_job,
)
from statekeep.container.new_log import find_holder
from statekeep.errors import BackendClosedError, ConfigError
from statekeep.events import Report
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.plan import plan_nodes
from statekeep.spark.tasks import STATE_STORE
from statekeep.spark.variable_stores import backends_of

logger = logging.getLogger(__name__)

DEFAULT_TASKS: Final = 32
"""Of a job whose settings do not say how many: 16, 32 and 64 cost the same, and state can move in parts
of a thirty-second. Spark's own default, 200, costs a batch half as much again."""

_SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"

Factories = Mapping[BackendName, StateBackendFactory]


@dataclass(frozen=True)
class JobStorage:
    """Where a job is kept: its backends, its log, and where the tasks' checkpoints are gathered."""

    factories: Factories
    log_backend: BackendName
    """Holds the job log and the tasks' checkpoints."""
    log: LogSession
    checkpoints: CheckpointStore
    limits: tuple[str, ...]
    """What the job does without because of what its backends are, for people."""
    partitions: int
    """How many tasks the job has."""

    async def close(self) -> None:
        """Close log and store; what hangs is left as it is."""
        for held in (self.checkpoints, self.log):
            try:
                await held.close()
            except BackendClosedError as exc:
                logger.warning("the job log could not be closed: error=%s", exc)


def wanted_tasks(config: Config, operators: int) -> int | None:
    """Return how many tasks the user wants in all; None: as many as the job has."""
    return None if config.task.count is None else config.task.count * operators


def tasks_of_a_new_job(spark: SparkSession, operators: int) -> int:
    """Return how many tasks a new job gets in all whose user does not say it."""
    java: Any = spark._jsparkSession  # noqa: SLF001 - tells what is set
    if java.sessionState().conf().contains(_SHUFFLE_PARTITIONS):
        return int(str(spark.conf.get(_SHUFFLE_PARTITIONS))) * operators
    return DEFAULT_TASKS * operators


async def open_storage(
    config: Config,
    location: CheckpointLocation,
    partitions: int | None,
    *,
    default: int = DEFAULT_TASKS,
    executor: BlockingExecutor,
    clock: Clock,
    report: Report,
) -> JobStorage:
    """Set up the backends, read the log.

    Args:
        config: Of the job.
        location: The query's checkpoint location.
        partitions: How many tasks the job has; None: as many as its log says.
        default: How many a new job has then.
        executor: For blocking calls.
        clock: For pauses.
        report: Gets attempts that are aborted, and each request to a backend.

    Raises:
        ConfigError: A backend is unknown or refuses us, or none can hold the job log.
        RetriableError: One that the job needs does not answer.
        CheckpointCorruptError: A record cannot be read.
    """
    registry = BackendRegistry(config)
    factories = dict(registry.factories(STATE_STORE))
    limits = tuple(encryption_limits(factories.values(), clock))
    for limit in limits:
        logger.warning("the query runs with a limit: %s", limit)
    if (named := config.job.log_backend) is not None:
        factories[BackendName(named)] = registry.factory(named)
    _check_reach(factories)
    name = await _find_log_backend(
        registry, factories, config, location, executor=executor, clock=clock
    )
    factories[name] = registry.factory(name)
    for factory in factories.values():
        factory.report_requests(report)

    async def prepare_all(wanted: Factories, tasks: int, *, is_log_checked: bool = False) -> None:
        await _prepare(
            wanted,
            config,
            tasks,
            log_backend=name,
            is_log_checked=is_log_checked,
            executor=executor,
            clock=clock,
        )

    # A changelog has as many partitions as the job has tasks. What the log says of that counts where
    # another number is refused, and nothing is made for it before.
    is_free = all(factory.properties.keeps_every_commit for factory in factories.values())
    is_known = partitions is not None and is_free
    if is_known:
        await prepare_all(factories, partitions or 0)
    else:
        await prepare_all({name: factories[name]}, 0)
    parts = (factories, name, job_scope(config.job.name), executor, clock)
    log = LogSession(open_job_log(*parts), report=report)
    opened = JobStorage(
        factories, name, log, open_checkpoint_store(*parts), limits, partitions or 0
    )
    try:
        await log.open()
        if not is_known:
            commit = log.view.last_commit
            tasks = (partitions or default) if commit is None else commit.identity.partitions
            await prepare_all(factories, tasks, is_log_checked=True)
            opened = replace(opened, partitions=partitions or tasks)
    except BaseException:
        await opened.close()
        raise
    return opened


def _check_reach(factories: Factories) -> None:
    """Refuse a backend that only one process can see.

    Raises:
        ConfigError: There is one.
    """
    for name, factory in factories.items():
        if not factory.properties.is_durable:
            raise ConfigError(
                f"this backend keeps state in one process, and Spark has many: backend={name}",
                key=f"backends.{name}.factory",
                hint="name a backend that all hosts reach, such as blob",
            )


async def _prepare(
    factories: Factories,
    config: Config,
    partitions: int,
    *,
    log_backend: BackendName,
    is_log_checked: bool,
    executor: BlockingExecutor,
    clock: Clock,
) -> None:
    """Create, then check, the remote side of every backend, for all tasks of the job, all at once.

    An optional one that does not answer is left to the commits, unless it holds the log.

    Args:
        factories: The backends.
        config: The job's settings.
        partitions: How many tasks the job has; 0: nothing is created for them.
        log_backend: Which of the backends holds the job log.
        is_log_checked: Whether that one was checked already, when the number of tasks was not known.
        executor: For blocking calls.
        clock: For time-outs.

    Raises:
        ConfigError: One refuses us, or cannot do what is needed.
        RetriableError: One that the job needs does not answer.
    """
    required = backends_of(config, is_optional=False)
    optional = backends_of(config, is_optional=True)
    listing = {**required, **optional}

    async def prepare_one(name: BackendName, factory: StateBackendFactory) -> None:
        stores = tuple(listing.get(name, ()))
        tasks = JobTasks(config.job.name, MAIN_OPERATOR, stores, partitions)
        admin = factory.admin(executor, clock, tasks)
        if name == log_backend:
            await prepare(admin, is_checked=is_log_checked)
        elif name in optional:
            await prepare_unless_away(name, admin)
        else:
            await prepare(admin)

    outcomes = await asyncio.gather(
        *(prepare_one(name, factory) for name, factory in factories.items()),
        return_exceptions=True,
    )
    for failure in outcomes:
        if failure is not None:
            raise failure


async def _find_log_backend(
    registry: BackendRegistry,
    factories: Factories,
    config: Config,
    location: CheckpointLocation,
    *,
    executor: BlockingExecutor,
    clock: Clock,
) -> BackendName:
    """Return the backend that holds the job log: the one that is named, or the first listed that can.

    If an earlier version put the log into the default backend, it goes on there
    (docs/decisions/0030).

    Raises:
        ConfigError: The named backend cannot hold a log, or no listed one can; the log is in the
            default backend, and another one is named; or both have a log of the job.
        CheckpointCorruptError: A record of a log is missing.
        RetriableError: A service may answer later.
    """
    chosen = _choose(factories, config.job.log_backend)
    earlier = await executor.run(_find_earlier, registry, config, location, chosen)
    if earlier is None:
        return chosen
    scope, both = job_scope(config.job.name), {**factories, earlier.name: earlier}

    def open_log(backend: BackendName, scope: str) -> JobLog:
        return open_job_log(both, backend, scope, executor, clock)

    holder = await find_holder(open_log, earlier.name, scope)
    if holder is None or holder == chosen:
        return chosen
    own = await find_holder(open_log, chosen, scope)
    is_named = config.job.log_backend is not None
    uri = config.settings[DEFAULT_URI].shown
    if own is None and holder == earlier.name and not is_named:
        logger.warning(
            "the job log is in backend=%s uri=%s, where an earlier version of Statekeep, or a start "
            "without a list of backends, has put it: it stays there. For read_state and the command "
            "line set job.log.backend=%s and blob.store.uri=%s; with these, `statekeep migrate-log "
            "--to %s` moves the log of the stopped job",
            holder,
            uri,
            holder,
            uri,
            chosen,
        )
        return earlier.name
    if own is None:
        raise _log_elsewhere(chosen, holder, uri)
    if own == chosen and holder == earlier.name and not is_named:
        raise _two_logs(chosen, holder, uri)
    return chosen


def _choose(factories: Factories, wanted: str | None) -> BackendName:
    able = [name for name, factory in factories.items() if factory.properties.can_hold_job_log]
    if wanted is not None and BackendName(wanted) in able:
        return BackendName(wanted)
    if wanted is not None or not able:
        raise ConfigError(
            f"no backend can hold the job log: wanted={wanted} backends={list(factories)}",
            key="job.log.backend",
            hint="list a backend with atomic create, such as blob, and name it here",
        )
    return able[0]


def _find_earlier(
    registry: BackendRegistry,
    config: Config,
    location: CheckpointLocation,
    chosen: BackendName,
) -> StateBackendFactory | None:
    """Return the default backend if an earlier version may have put the log there. Blocking."""
    uri = config.settings.get(DEFAULT_URI)
    if chosen == DEFAULT_BACKEND or uri is None or lists_backends_of_the_job(config):
        return None
    if _factory_and_settings(registry, config, chosen) == _factory_and_settings(
        registry, config, DEFAULT_BACKEND
    ):
        return None
    # Spark reaches what lies beside the location also where no client of ours is installed.
    if uri.is_default and not location.sibling(BESIDE).names(""):
        return None
    factory = registry.factory(DEFAULT_BACKEND)
    return factory if factory.properties.can_hold_job_log else None


def _factory_and_settings(
    registry: BackendRegistry, config: Config, name: str
) -> tuple[type[StateBackendFactory], Mapping[str, str]]:
    """Return what a backend is, and all its settings: equal for two names of one backend."""
    factory_class = registry.factory_class(name)
    return factory_class, config.backend_settings(name, factory_class.defaults_prefix)


def _log_elsewhere(chosen: str, holder: str, uri: str) -> ConfigError:
    return ConfigError(
        f"the job log is in another backend: job.log.backend={chosen} found_in={holder} uri={uri}",
        key="job.log.backend",
        hint=f"set job.log.backend={holder}. To move the log of the stopped job, run `statekeep "
        f"migrate-log --to {chosen}` with job.log.backend={holder}",
    )


def _two_logs(chosen: str, holder: str, uri: str) -> ConfigError:
    return ConfigError(
        f"the job has two logs: backend={chosen} other_backend={holder} other_uri={uri}",
        key="job.log.backend",
        hint="name the backend whose log counts as job.log.backend. If `statekeep migrate-log` was "
        "interrupted, run it again: until it has ended, the log that it copies from counts",
    )


_WITHOUT_REPLAY: Final[Mapping[str, str]] = {
    "socket": "it keeps no row that it has given out",
}
"""``{name of the source: why it cannot give a batch again}``. Spark asks of a source that it can,
and no source says that it cannot: of one that is not named here, ``task.commit.every.batch`` does."""


def check_retention(spark: SparkSession, replay_max_batches: int) -> None:
    """Check that Spark keeps the boundaries of every batch that a replay may need.

    Raises:
        ConfigError: It may have forgotten some by then.
    """
    key = "spark.sql.streaming.minBatchesToRetain"
    kept = int(spark.conf.get(key) or 100)
    if replay_max_batches > kept - BATCH_MARGIN:
        raise ConfigError(
            "Spark deletes the offsets of batches that a replay may need:"
            f" task.replay.max.batches={replay_max_batches} {key}={kept}",
            key="task.replay.max.batches",
            hint=f"raise {key} to at least {replay_max_batches + BATCH_MARGIN}",
        )


def source_limits(frame: DataFrame) -> list[str]:
    """Return what a query does without because of what its sources are; nothing for most.

    Such a source cannot give a delivered batch again, so that every batch has to be committed
    before it ends: then there is nothing to replay.
    """
    return [
        f"nothing is replayed, each batch is committed before it ends: source={source} ({reason})"
        for source, _ in _sources(frame)
        if (reason := _WITHOUT_REPLAY.get(source.lower())) is not None
    ]


def check_sources(frame: DataFrame, *, is_replay_needed: bool) -> None:
    """Look for sources, and for options of sources, that drop data which a replay would need.

    Called on the driver at the start of each query. ``failOnDataLoss=false`` is a warning: should
    data be lost, the replay finds other digests than recorded and fails.

    Args:
        frame: The streaming input.
        is_replay_needed: False if every batch is committed before it ends.

    Raises:
        ConfigError: A source deletes or moves files that it has read, or cannot read anything
            twice.
    """
    for limit in source_limits(frame):
        if is_replay_needed:
            raise ConfigError(
                f"a source cannot give a batch again: {limit}",
                key="task.commit.every.batch",
                hint="leave task.commit.every.batch out, or set it to true",
            )
        logger.warning("the query runs with a limit: %s", limit)
    for source, options in _sources(frame):
        clean_source = options.get("cleansource", "off").lower()
        if clean_source != "off" and is_replay_needed:
            raise ConfigError(
                f"a source removes files that a replay would read again: source={source}"
                f" cleanSource={clean_source}",
                key="cleanSource",
                hint="remove the option, and remove files that are older than the oldest retained"
                " commit by other means, or set task.commit.every.batch=true",
            )
        if options.get("failondataloss", "true").lower() == "false":
            logger.warning(
                "a source may lose data without an error: source=%s failOnDataLoss=false", source
            )


def _sources(frame: DataFrame) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield name and options, by keys in lower case, of each streaming source of a plan."""
    for node, _ in plan_nodes(frame):
        match node.nodeName():
            case "StreamingRelation":
                yield str(node.sourceName()), _scala_options(node.dataSource().options())
            case "StreamingRelationV2":
                options = node.extraOptions().asCaseSensitiveMap()
                yield str(node.sourceName()), {str(k).lower(): str(options[k]) for k in options}
            case _:
                pass


def _scala_options(options: Any) -> dict[str, str]:  # noqa: ANN401 - a Scala Map
    found: dict[str, str] = {}
    entries = options.iterator()
    while entries.hasNext():
        entry = entries.next()
        found[str(entry.productElement(0)).lower()] = str(entry.productElement(1))
    return found
