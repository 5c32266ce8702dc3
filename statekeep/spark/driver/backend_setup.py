"""The backends of a job on Spark, set up and checked at its start."""

import asyncio
from collections.abc import Mapping

from statekeep.backends.base import BlockingExecutor, JobTasks, StateBackendFactory
from statekeep.backends.preparation import prepare, prepare_unless_away
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.checkpoint.log_scope import MAIN_OPERATOR
from statekeep.clock import Clock
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.spark.tasks import STATE_STORE

Factories = Mapping[BackendName, StateBackendFactory]


def check_reach(factories: Factories) -> None:
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


async def prepare_backends(
    factories: Factories,
    config: Config,
    *,
    partitions: int,
    log_backend: BackendName,
    is_log_checked: bool = False,
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
