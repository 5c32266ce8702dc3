"""The backends of a job on Spark, set up and checked at its start."""

from collections.abc import Mapping

from statekeep.backends.base import BlockingExecutor, JobTasks, StateBackendFactory
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
    partitions: int,
    executor: BlockingExecutor,
    clock: Clock,
) -> None:
    """Create, then check, the remote side of every backend, for all tasks of the job.

    Raises:
        ConfigError: One is unreachable, or cannot do what is needed.
    """
    backed_up_to = config.store(STATE_STORE).backup_factories
    for name, factory in factories.items():
        stores = (STATE_STORE,) if name in backed_up_to else ()
        tasks = JobTasks(config.job.name, MAIN_OPERATOR, stores, partitions)
        admin = factory.admin(executor, clock, tasks)
        try:
            await admin.create_resources()
            await admin.validate_resources()
        finally:
            await admin.close()
