"""Which backend holds the log of a job on Spark."""

import logging
from collections.abc import Mapping

from statekeep.backends.base import BlockingExecutor, StateBackendFactory
from statekeep.backends.registry import BackendRegistry
from statekeep.backends.sealing import open_job_log
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.checkpoint.job_log import JobLog
from statekeep.checkpoint.log_scope import job_scope
from statekeep.clock import Clock
from statekeep.config.model import Config
from statekeep.container.new_log import find_holder
from statekeep.errors import ConfigError
from statekeep.spark.driver.backend_setup import Factories
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.query_defaults import (
    BESIDE,
    DEFAULT_BACKEND,
    DEFAULT_URI,
    lists_backends_of_the_job,
)

logger = logging.getLogger(__name__)


async def find_log_backend(
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
