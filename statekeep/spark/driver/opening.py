"""What a driver opens first: the backends of its job, checked, and the job log in one of them."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from statekeep.backends.base import BlockingExecutor, JobTasks, StateBackendFactory
from statekeep.backends.preparation import prepare, prepare_unless_away
from statekeep.backends.registry import BackendRegistry
from statekeep.backends.sealing import encryption_limits, open_checkpoint_store, open_job_log
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.checkpoint.job_log import CheckpointStore, JobLog
from statekeep.checkpoint.log_scope import MAIN_OPERATOR, job_scope
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.note import Note
from statekeep.clock import Clock
from statekeep.config.model import Config
from statekeep.container.new_log import find_holder
from statekeep.errors import BackendClosedError, ConfigError
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.query_defaults import (
    BESIDE,
    DEFAULT_BACKEND,
    DEFAULT_URI,
    lists_backends_of_the_job,
)
from statekeep.spark.tasks import STATE_STORE

logger = logging.getLogger(__name__)

DEFAULT_TASKS: Final = 32
"""Of a job for which nobody says how many: 16, 32 and 64 cost the same, and state can move in parts
of a thirty-second. Spark's own default, 200, costs a batch half as much again."""

Factories = Mapping[BackendName, StateBackendFactory]


@dataclass(frozen=True)
class JobPlace:
    """Where a job is kept: its backends, its log, and where the tasks' checkpoints are gathered."""

    factories: Factories
    log_backend: BackendName
    """Holds the job log and the tasks' checkpoints."""
    log: LogSession
    checkpoints: CheckpointStore
    limits: tuple[str, ...]
    """What the job does without because of what its backends are, for people."""

    async def close(self) -> None:
        """Close log and store; what hangs is left as it is."""
        for held in (self.checkpoints, self.log):
            try:
                await held.close()
            except BackendClosedError as exc:
                logger.warning("the job log is left as it is: error=%s", exc)


async def open_place(
    config: Config,
    location: CheckpointLocation,
    partitions: int | None,
    *,
    executor: BlockingExecutor,
    clock: Clock,
    note: Note,
) -> JobPlace:
    """Set up the backends, read the log.

    Args:
        config: Of the job.
        location: The query's checkpoint location.
        partitions: How many tasks the job has; None: as many as its log says, and of a new job
            `DEFAULT_TASKS`.
        executor: For blocking calls.
        clock: For pauses.
        note: Told of attempts that become void.

    Raises:
        ConfigError: A backend is unknown or refuses us, or none can hold the job log.
        RetriableError: One that the job needs does not answer.
        CheckpointCorruptError: A record cannot be read.
    """
    registry = BackendRegistry(config)
    factories = dict(registry.factories())
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

    # A changelog has as many partitions as the job has tasks, which maybe only the log can say.
    known = partitions is not None
    await prepare_all(factories if known else {name: factories[name]}, partitions or 0)
    place = (factories, name, job_scope(config.job.name), executor, clock)
    log = LogSession(open_job_log(*place), note=note)
    opened = JobPlace(factories, name, log, open_checkpoint_store(*place), limits)
    try:
        await log.open()
        if not known:
            commit = log.view.last_commit
            tasks = DEFAULT_TASKS if commit is None else commit.identity.partitions
            await prepare_all(factories, tasks, is_log_checked=True)
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
    store = config.store(STATE_STORE)

    async def prepare_one(name: BackendName, factory: StateBackendFactory) -> None:
        stores = (STATE_STORE,) if name in store.backup_factories else ()
        tasks = JobTasks(config.job.name, MAIN_OPERATOR, stores, partitions)
        admin = factory.admin(executor, clock, tasks)
        if name == log_backend:
            await prepare(admin, is_checked=is_log_checked)
        elif name in store.optional_factories:
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
    if _place(registry, config, chosen) == _place(registry, config, DEFAULT_BACKEND):
        return None
    # Spark reaches what lies beside the location also where no client of ours is installed.
    if uri.is_default and not location.sibling(BESIDE).names(""):
        return None
    factory = registry.factory(DEFAULT_BACKEND)
    return factory if factory.properties.can_hold_job_log else None


def _place(
    registry: BackendRegistry, config: Config, name: str
) -> tuple[type[StateBackendFactory], Mapping[str, str]]:
    """Return what a backend is, and all its settings: equal for two names of one place."""
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
