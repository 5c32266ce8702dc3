"""Checking the cluster of a Kafka backend at the start of a job."""

from typing_extensions import override

from statekeep.backends.base import BlockingExecutor, StateBackendAdmin
from statekeep.backends.kafka.cluster import Cluster
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.backends.run_to_end import run_to_end
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.errors import ConfigError, RetriableError


class KafkaAdmin(StateBackendAdmin):
    """Makes sure that the cluster answers and can hold as many replicas as asked for.

    Topics are created and checked by the backup manager of each task, which knows its stores.
    """

    def __init__(
        self, backend: BackendName, settings: KafkaSettings, executor: BlockingExecutor
    ) -> None:
        self._backend = backend
        self._settings = settings
        self._executor = executor

    @override
    async def create_resources(self) -> None:
        pass

    @override
    async def validate_resources(self) -> None:
        cluster = Cluster(self._settings)
        try:
            nodes = await run_to_end(self._executor, cluster.node_count)
        except RetriableError as exc:
            raise ConfigError(
                f"kafka cluster is unreachable: backend={self._backend} "
                f"servers={self._settings.servers}",
                key=f"backends.{self._backend}.bootstrap.servers",
            ) from exc
        finally:
            await run_to_end(self._executor, cluster.close)
        if nodes < self._settings.replication_factor:
            raise ConfigError(
                f"kafka cluster has fewer nodes than replicas are wanted: "
                f"backend={self._backend} nodes={nodes} "
                f"replicas={self._settings.replication_factor}",
                key=f"backends.{self._backend}.replication.factor",
            )

    @override
    async def close(self) -> None:
        pass
