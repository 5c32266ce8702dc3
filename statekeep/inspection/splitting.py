"""Which of the new tasks each entry of an old task's store belongs to."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, cast

from typing_extensions import override

from statekeep.backends.dotted_path import load_object
from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.records import JobIdentity
from statekeep.errors import CheckpointCorruptError, ConfigError
from statekeep.stores.base import KeyValueStore

_CHUNK: Final = 10_000
"""Entries in one write."""

_SHOWN_BYTES: Final = 40
"""Of a key in an error: it may be long, and only has to be known again."""

_OWN_ROUTERS: Final = {"spark-murmur3-pmod-1": "statekeep.spark.rescaling:SparkSplitter"}
"""``{router: dotted path of its splitter}``; loaded when asked for, as it needs pyspark."""

Router = Callable[[bytes, int], int]
"""From a key and the number of tasks to the number of its task."""


class StateFiller(ABC):
    """What is known of one store of the new tasks while it is filled.

    `check` and `finish` are called once each, after all entries. Blocks; used by one thread at a time.

    Attributes:
        counts: Entries given to each new task so far.
    """

    def __init__(self, partitions: int) -> None:
        """Prepare for so many new tasks."""
        self.counts = [0] * partitions

    def check(self, targets: Sequence[KeyValueStore]) -> None:
        """Make sure that every new store holds as many entries as it was given.

        Raises:
            CheckpointCorruptError: One does not.
        """
        for partition, (store, given) in enumerate(zip(targets, self.counts, strict=True)):
            found = sum(1 for _ in store.scan())
            if found != given:
                raise CheckpointCorruptError(
                    f"the new task does not hold what it was given: task=Partition {partition} "
                    f"store={store.name} entries={found} given={given}"
                )

    @abstractmethod
    def finish(self, targets: Sequence[KeyValueStore]) -> None:
        """Write what stands in every store that has entries."""


class StateSplitter(StateFiller):
    """Distributes one store of the old tasks over the same store of the new ones.

    `split` is called for each old task in turn.
    """

    @abstractmethod
    def split(
        self,
        task: TaskName,
        source: KeyValueStore,
        targets: Sequence[KeyValueStore],
        on_entries: Callable[[int], None],
    ) -> None:
        """Write every entry of an old store to the one new store that it belongs to.

        Args:
            task: The old one, for errors.
            source: Its store; only read.
            targets: Of the new tasks, by number.
            on_entries: Called with the entries written, now and then, on this thread.

        Raises:
            ConfigError: An entry cannot be routed, or its key is that of another old task's entry.
            CheckpointCorruptError: An entry cannot be read.
        """


class RoutedWrites:
    """Gathers the entries of one old task and writes them to the new stores in large pieces."""

    def __init__(
        self,
        task: TaskName,
        targets: Sequence[KeyValueStore],
        counts: list[int],
        on_entries: Callable[[int], None],
    ) -> None:
        self._task = task
        self._targets = targets
        self._counts = counts
        # Keys of one task differ among themselves: only what others gave can be in the way.
        self._has_others = [count > 0 for count in counts]
        self._on_entries = on_entries
        self._waiting: list[dict[bytes, bytes | None]] = [{} for _ in targets]
        self._count = 0

    def add(self, partition: int, key: bytes, value: bytes) -> None:
        """Take in one entry."""
        self._waiting[partition][key] = value
        self._count += 1
        if self._count >= _CHUNK:
            self.flush()

    def flush(self) -> None:
        """Write what was taken in.

        Raises:
            ConfigError: A key is there already, by another old task: one of the two would be lost.
        """
        for partition, entries in enumerate(self._waiting):
            if entries:
                if self._has_others[partition]:
                    self._require_new(partition, list(entries))
                self._targets[partition].write(entries)
                self._counts[partition] += len(entries)
        self._on_entries(self._count)
        self._waiting = [{} for _ in self._targets]
        self._count = 0

    def _require_new(self, partition: int, keys: Sequence[bytes]) -> None:
        store = self._targets[partition]
        for key, found in zip(keys, store.get_many(keys), strict=True):
            if found is not None:
                raise ConfigError(
                    "two tasks hold the same key, and one new task would get both: "
                    f"store={store.name} key={shown_key(key)} task={self._task} "
                    f"new_task=Partition {partition}",
                    hint="only one of the two values could stay: let the program of the old job "
                    "keep them in one task, or under different keys, and commit; then try again",
                )


class RoutedSplitter(StateSplitter):
    """Routes by a function of the key, as a program in plain Python does."""

    def __init__(self, partitions: int, router: Router) -> None:
        super().__init__(partitions)
        self._router = router

    @override
    def split(
        self,
        task: TaskName,
        source: KeyValueStore,
        targets: Sequence[KeyValueStore],
        on_entries: Callable[[int], None],
    ) -> None:
        writes = RoutedWrites(task, targets, self.counts, on_entries)
        for key, value in source.scan():
            partition = self._router(key, len(targets))
            if not 0 <= partition < len(targets):
                raise ConfigError(
                    f"the router returned a number that no task has: key={shown_key(key)} "
                    f"partition={partition} "
                    f"partitions={len(targets)}"
                )
            writes.add(partition, key, value)
        writes.flush()

    @override
    def finish(self, targets: Sequence[KeyValueStore]) -> None:
        del targets  # nothing stands in every store


def shown_key(key: bytes) -> str:
    """Return a key as errors show it: printable, and its beginning if it is long."""
    rest = len(key) - _SHOWN_BYTES
    return repr(key) if rest <= 0 else f"{key[:_SHOWN_BYTES]!r}... ({rest} more bytes)"


def splitter_for(
    identity: JobIdentity, partitions: int, router: str | None = None
) -> Callable[[], StateSplitter]:
    """Return what makes a splitter for one store of a job.

    Args:
        identity: Of the job.
        partitions: M, of the new one.
        router: Dotted path of a `Router`; None: the job's own.

    Raises:
        ConfigError: The job's router is not known here; or is the program's own and was not given, or is
            not and another one was.
    """
    if router is not None and identity.router:
        raise ConfigError(
            "the job would not find its keys where another function puts them:"
            f" job={identity.job_name} router={identity.router} --router={router}",
            hint="leave --router out: it is for jobs in plain Python",
        )
    if router is not None:
        loaded = load_object(router, key="--router")
        if not callable(loaded):
            raise ConfigError(f"not a function: router={router}")
        route = cast("Router", loaded)
        return lambda: RoutedSplitter(partitions, route)
    if not identity.router:
        raise ConfigError(
            f"only the program knows which task a key belongs to: job={identity.job_name}",
            hint="name its function from key (bytes) and number of tasks to the number of a task: "
            "--router package.module:function",
        )
    path = _OWN_ROUTERS.get(identity.router)
    if path is None:
        raise ConfigError(
            f"keys cannot be routed: job={identity.job_name} router={identity.router} "
            f"known={','.join(_OWN_ROUTERS)}"
        )
    made = load_object(path, key="router")
    if not (isinstance(made, type) and issubclass(made, StateSplitter)):
        raise ConfigError(f"not a StateSplitter: {path}")
    return lambda: made(partitions)
