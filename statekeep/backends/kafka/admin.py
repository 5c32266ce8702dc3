"""Setting up and checking the cluster of a Kafka backend at the start of a job."""

from collections.abc import Generator
from contextlib import contextmanager

from typing_extensions import override

from statekeep.backends.awaiting import run_to_end
from statekeep.backends.base import BlockingExecutor, JobTasks, StateBackendAdmin, TaskIdentity
from statekeep.backends.kafka.calls import NOT_COUNTED, ClientCalls
from statekeep.backends.kafka.cluster import Cluster
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.backends.kafka.topics import ChangelogTopics, prepare_topics
from statekeep.backends.plain_text import warn_of_plain_brokers
from statekeep.checkpoint.checkpoints import BackendName, TaskName
from statekeep.clock import Clock
from statekeep.errors import ConfigError, RetriableError


class KafkaAdmin(StateBackendAdmin):
    """Makes sure that the cluster answers, and that the changelogs are there and keep their records.

    Where the tasks are not known beforehand, the backup manager of each sees to its topics.
    """

    def __init__(
        self,
        backend: BackendName,
        settings: KafkaSettings,
        tasks: JobTasks | None,
        executor: BlockingExecutor,
        clock: Clock,
        *,
        calls: ClientCalls = NOT_COUNTED,
    ) -> None:
        """Take what is needed; no I/O."""
        self._backend = backend
        self._settings = settings
        self._tasks = tasks
        self._executor = executor
        self._clock = clock
        self._calls = calls
        self._cluster: Cluster | None = None

    @override
    async def create_resources(self) -> None:
        """Create the changelogs, or give them the partitions that they lack.

        Raises:
            ConfigError: The cluster refuses them, or two stores have one changelog.
            RetriableError: It does not answer.
        """
        tasks = self._tasks
        if tasks is None or not tasks.count:
            return
        last = TaskIdentity(
            tasks.job_name, tasks.operator, TaskName(f"Partition {tasks.count - 1}")
        )
        topics = ChangelogTopics(self._settings, self._backend, last)
        partitions = topics.partitions(tasks.stores)
        await self._check_nodes()
        with self._reachable():
            await prepare_topics(
                self._reach(),
                {partition.topic: topics.form(store) for store, partition in partitions.items()},
                settings=self._settings,
                executor=self._executor,
                clock=self._clock,
            )

    @override
    async def validate_resources(self) -> None:
        protocol = self._settings.client.get("security.protocol", "PLAINTEXT")
        remedy = f"set backends.{self._backend}.client.security.protocol to SSL or SASL_SSL"
        warn_of_plain_brokers(self._settings.servers, protocol, remedy)
        await self._check_nodes()

    @override
    async def close(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await run_to_end(self._executor, cluster.close)

    async def _check_nodes(self) -> None:
        with self._reachable():
            nodes = await run_to_end(self._executor, self._reach().node_count)
        if nodes < self._settings.replication_factor:
            raise ConfigError(
                f"kafka cluster has fewer nodes than replicas are wanted: "
                f"backend={self._backend} nodes={nodes} "
                f"replicas={self._settings.replication_factor}",
                key=f"backends.{self._backend}.replication.factor",
            )

    @contextmanager
    def _reachable(self) -> Generator[None]:
        """Say whose cluster does not answer, and what to look at."""
        try:
            yield
        except RetriableError as exc:
            error = RetriableError(
                f"the cluster of a kafka backend does not answer: backend={self._backend} reason={exc}"
            )
            error.add_note(
                f"hint: is backends.{self._backend}.bootstrap.servers right, and within reach of this "
                "machine?"
            )
            raise error from exc

    def _reach(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._settings, self._calls)
        return self._cluster
