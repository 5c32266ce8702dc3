"""One client for topics and offsets for all tasks of a process."""

from threading import Lock

from statekeep.backends.kafka.cluster import Cluster
from statekeep.backends.kafka.settings import KafkaSettings


class SharedCluster:
    """Lends a backend's `Cluster` to whoever asks; it is there as long as anybody has it.

    A client of the library runs a thread for each node and some more, and a process may have many
    tasks. Safe to use from several threads.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        """Take the settings; nothing is built yet."""
        self._settings = settings
        self._lock = Lock()
        self._cluster: Cluster | None = None
        self._borrowers = 0

    def borrow(self) -> Cluster:
        """Return the cluster; each call is followed by one of `give_back`. No I/O.

        Raises:
            ConfigError: The library does not take a setting.
        """
        with self._lock:
            if self._cluster is None:
                self._cluster = Cluster(self._settings)
            self._borrowers += 1
            return self._cluster

    def give_back(self) -> None:
        """Take the cluster back; from the last borrower, release the client. Blocks then."""
        with self._lock:
            self._borrowers -= 1
            if self._borrowers:
                return
            cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()
