"""Copies of the newest commits of tasks that run elsewhere, kept on this host in the background."""

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, ParamSpec, TypeVar

from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.checkpoint.checkpoints import StoreName, VersionId
from statekeep.checkpoint.error_summary import text_of
from statekeep.restore.manager import RestoreCandidate, TaskRestorer
from statekeep.restore.plan import BadMarkers
from statekeep.spark.sidecar.protocol import Followed
from statekeep.spark.tasks import task_name
from statekeep.stores.task_directory import TaskDirectory

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

_MOST_CALLS: Final = 4
"""Of the background on the pool at a time: a restore that a batch waits for stands behind no more."""
_SUPERSEDED: Final = "a newer commit takes its place"
_GIVEN_UP: Final = "given up, as the sidecar ends or has a newer driver"


class BackgroundExecutor(BlockingExecutor):
    """Runs calls on the pool of the restores, few at a time, and none while a batch waits for one."""

    def __init__(self, pool: BlockingExecutor) -> None:
        self._pool = pool
        self._few = asyncio.Semaphore(_MOST_CALLS)
        self._awaited = 0
        self._is_free = asyncio.Event()
        self._is_free.set()
        self._is_closing = False

    @contextmanager
    def held_back(self) -> Generator[None]:
        """Begin no call inside: a batch waits for what is restored there."""
        self._awaited += 1
        if not self._is_closing:
            self._is_free.clear()
        try:
            yield
        finally:
            self._awaited -= 1
            if not self._awaited:
                self._is_free.set()

    def close(self) -> None:
        """Hold back no call any more: what is cancelled has to clear up."""
        self._is_closing = True
        self._is_free.set()

    @override
    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._few:
            await self._is_free.wait()
            return await self._pool.run(call, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A commit of a task that is to lie on this host."""

    partition: int
    candidate: RestoreCandidate
    """With a version: there is no copy of empty state."""
    bad_markers: BadMarkers = ()


@dataclass(frozen=True, slots=True)
class _Entry:
    wanted: Wanted
    error: asyncio.Future[str]
    """"" once the copy is there, or why it is not."""

    def is_of(self, partition: int, version: VersionId | None) -> bool:
        """Return whether it is the same that is wanted."""
        return (self.wanted.partition, self.wanted.candidate.version) == (partition, version)


class Follower:
    """Brings what is wanted here, one task after the other; on the event loop.

    A copy is an ordinary version, restored and checked like any other, in the directory of its task:
    a task that looks for that version finds it. It takes the place of the copy before. One that cannot be
    made is logged and counted, and nothing else: the task runs elsewhere.
    """

    def __init__(
        self,
        restorer: Callable[[Wanted], TaskRestorer],
        directory: Callable[[int], TaskDirectory],
        executor: BlockingExecutor,
        stores: Sequence[StoreName],
    ) -> None:
        """Take what is needed; nothing runs yet.

        Args:
            restorer: Makes what restores a task once.
            directory: Returns the local directory of a task.
            executor: For blocking calls of the background.
            stores: All stores of a task.
        """
        self._restorer = restorer
        self._directory = directory
        self._executor = executor
        self._stores = stores
        self._held: dict[int, VersionId] = {}
        """The copy of each task that was brought here."""
        self._entries: dict[int, _Entry] = {}
        """Of each task the newest that is wanted and not begun."""
        self._current: _Entry | None = None
        """What is being brought here."""
        self._ended: dict[int, _Entry] = {}
        """Of each task the newest that has ended, until the caller that waits for it was told."""
        self._worker: asyncio.Task[None] | None = None
        self._tasks = self._failures = self._bytes_fetched = 0

    @property
    def is_busy(self) -> bool:
        """Whether anything is still to be brought here."""
        return self._worker is not None and not self._worker.done()

    def follow(self, wanted: Wanted, *, is_awaited: bool = False) -> asyncio.Future[str]:
        """Take a commit on the list, in place of an older one of the task that is not begun.

        Args:
            wanted: The commit.
            is_awaited: The caller asks until it is there. What has ended since is not begun again before
                `forget_ended`.

        Returns:
            What becomes "" once the copy is there, or why it is not.
        """
        version = wanted.candidate.version
        older = self._entries.get(wanted.partition)
        ended = self._ended.get(wanted.partition) if is_awaited else None
        for entry in (older, self._current, ended):
            if entry is not None and entry.is_of(wanted.partition, version):
                return entry.error
        if older is not None:
            del self._entries[wanted.partition]
            older.error.set_result(_SUPERSEDED)
        self._ended.pop(wanted.partition, None)
        entry = _Entry(wanted, asyncio.get_running_loop().create_future())
        self._entries[wanted.partition] = entry
        if not self.is_busy:
            self._worker = asyncio.create_task(self._work())
        return entry.error

    def forget_ended(self, partitions: Iterable[int]) -> None:
        """Begin anew what is asked for from now on: the caller that waited was told."""
        for partition in partitions:
            self._ended.pop(partition, None)

    def take_counts(self) -> Followed:
        """Return what was done since the last call."""
        counts = Followed(
            tasks=self._tasks, failures=self._failures, bytes_fetched=self._bytes_fetched
        )
        self._tasks = self._failures = self._bytes_fetched = 0
        return counts

    def drop(self) -> None:
        """Give up what is not begun: a newer driver says what it wants."""
        for entry in self._entries.values():
            entry.error.set_result(_GIVEN_UP)
        self._entries.clear()
        self._ended.clear()

    async def close(self) -> None:
        """Give everything up, and wait until it has ended. Idempotent."""
        self.drop()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)

    async def _work(self) -> None:
        while self._entries:
            entry = self._current = self._entries.pop(next(iter(self._entries)))
            try:
                await self._bring(entry.wanted)
            except Exception as exc:
                # A plug-in may raise anything; no batch ends for a copy.
                self._failures += 1
                task = task_name(entry.wanted.partition)
                logger.exception("no copy of a commit could be made: task=%s", task)
                entry.error.set_result(text_of(exc))
            else:
                self._tasks += 1
                entry.error.set_result("")
            finally:
                self._current = None
                if not entry.error.done():
                    entry.error.set_result(_GIVEN_UP)
                self._ended[entry.wanted.partition] = entry

    async def _bring(self, wanted: Wanted) -> None:
        version = wanted.candidate.version
        assert version is not None  # noqa: S101 - see `Wanted`
        directory = self._directory(wanted.partition)
        # A task without changes keeps its version: it is not read again at each commit.
        is_held = self._held.get(wanted.partition) == version
        if is_held and await self._executor.run(directory.find_image, version) is not None:
            return
        # What a sidecar that died has left: the disk may not have room for both.
        await self._executor.run(directory.sweep)
        outcome = await self._restorer(wanted).restore([wanted.candidate])
        self._bytes_fetched += outcome.bytes_fetched
        self._held[wanted.partition] = version
        await self._executor.run(directory.retain, {version}, version.batch, self._stores)
