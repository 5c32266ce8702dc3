"""The download of a task's stores at one commit, each from the first backend that can."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from statekeep.backends.awaiting import run_to_early_end, run_to_end
from statekeep.backends.base import (
    BlockingExecutor,
    RestoreContext,
    StateBackendFactory,
    TaskIdentity,
)
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointV2,
    Marker,
    StoreName,
    TaskName,
    VersionId,
)
from statekeep.clock import Clock
from statekeep.config.store_settings import StoreSettings
from statekeep.errors import (
    BlobNotFoundError,
    CheckpointCorruptError,
    TaskFencedError,
    VersionDamagedError,
)
from statekeep.events import Report, StoreFetched
from statekeep.fault_points import fault_point
from statekeep.reporter import activity
from statekeep.restore.plan import Source, StorePlan
from statekeep.restore.progress import RestoreProgress
from statekeep.stores.base import KeyValueStore
from statekeep.stores.factory import check_image, open_to_load
from statekeep.stores.local_files import remove_tree
from statekeep.stores.rocksdb import RocksDbOptions
from statekeep.stores.version import SealedVersion
from statekeep.stores.work_directory import WorkDirectory


class StoreOutOfReachError(Exception):
    """Raised when a commit cannot be restored. Not a `StateBackupError`: it never leaves the restorer.

    Attributes:
        is_for_good: Every source of a store is missing or damaged, so that only an older commit is
            left. False: a backend may answer later, and then with this very commit.
    """

    def __init__(self, *, is_for_good: bool) -> None:
        super().__init__()
        self.is_for_good = is_for_good


class FetchMeter:
    """Counts the bytes of one task's restore and reports them."""

    def __init__(self, task_name: TaskName, on_progress: Callable[[RestoreProgress], None]) -> None:
        self._task_name = task_name
        self._on_progress = on_progress
        self.total_bytes = 0
        self.done_bytes = 0

    def add_total(self, count: int) -> None:
        """Take in that so many more bytes are to be fetched."""
        self.total_bytes += count
        self._report(is_done=False)

    def add_done(self, count: int) -> None:
        """Take in that so many more bytes are fetched."""
        self.done_bytes += count
        self._report(is_done=False)

    def end(self) -> None:
        """Report the end."""
        self._report(is_done=True)

    def _report(self, *, is_done: bool) -> None:
        self._on_progress(
            RestoreProgress(self._task_name, self.total_bytes, self.done_bytes, is_done=is_done)
        )


class OnFailure(Protocol):
    """Told about every source that failed."""

    def __call__(
        self, store: StoreName, backend: str, marker: Marker, exc: Exception, *, is_bad: bool
    ) -> None:
        """Record a failed source; ``is_bad``: the marker is not worth another try."""
        ...


class StoreFetcher:
    """Fetches single stores of one checkpoint into one work directory."""

    def __init__(
        self,
        task: TaskIdentity,
        stores: Mapping[StoreName, StoreSettings],
        factories: Mapping[BackendName, StateBackendFactory],
        *,
        executor: BlockingExecutor,
        clock: Clock,
        meter: FetchMeter,
        work: WorkDirectory,
        reusable: Sequence[SealedVersion],
        checkpoint: CheckpointV2,
        version: VersionId,
        on_failure: OnFailure,
        report: Report,
    ) -> None:
        self._task = task
        self._stores = stores
        self._factories = factories
        self._executor = executor
        self._clock = clock
        self._meter = meter
        self._work = work
        self._reusable = reusable
        self._checkpoint = checkpoint
        self._version = version
        self._on_failure = on_failure
        self._report = report
        self._fetched: dict[StoreName, int] = {}
        """Bytes of the open try, by store."""

    async def fetch(self, store: StoreName, sources: Sequence[Source]) -> BackendName:
        """Fill a store's directory from the first source that can, and return its backend.

        Raises:
            StoreOutOfReachError: None can; each was reported.
            TaskFencedError: A backend found a newer owner.
        """
        is_for_good = True
        for source in sources:
            try:
                await self._fetch_and_report(store, source.backend)
            except TaskFencedError:
                raise
            except Exception as exc:  # noqa: BLE001 - a plug-in failed; reported, the next is tried
                is_bad = isinstance(exc, BlobNotFoundError | CheckpointCorruptError)
                is_for_good = is_for_good and is_bad
                self._on_failure(store, source.backend, source.marker, exc, is_bad=is_bad)
                await self._clear(store, source)
            else:
                return source.backend
        raise StoreOutOfReachError(is_for_good=is_for_good)

    async def _clear(self, store: StoreName, source: Source) -> None:
        """Remove what a failed source has left, so that the next one begins with nothing.

        Raises:
            StoreOutOfReachError: The local disk refuses.
        """
        try:
            await run_to_end(self._executor, _remove, self._work.store_directory(store))
        except OSError as exc:
            self._on_failure(store, source.backend, source.marker, exc, is_bad=False)
            raise StoreOutOfReachError(is_for_good=False) from exc

    async def _fetch_and_report(self, store: StoreName, backend: BackendName) -> None:
        """Fetch a store, as `_fetch_from`, and report what came of it."""
        began_ns = self._clock.monotonic_ns()
        self._fetched[store] = 0
        outcome = "done"
        try:
            with activity("restore", self._task.task_name):
                await self._fetch_from(store, backend)
        except BaseException as exc:
            is_bad = isinstance(exc, BlobNotFoundError | CheckpointCorruptError)
            outcome = "damaged" if is_bad else "failed"
            raise
        finally:
            self._report(
                StoreFetched(
                    task=self._task.task_name,
                    store=store,
                    backend=backend,
                    outcome=outcome,
                    ended_ns=self._clock.time_ns(),
                    elapsed_ns=self._clock.monotonic_ns() - began_ns,
                    bytes=self._fetched[store],
                )
            )

    def _add_done(self, store: StoreName, count: int) -> None:
        self._fetched[store] += count
        self._meter.add_done(count)

    async def _fetch_from(self, store: StoreName, backend: BackendName) -> None:
        """Fill a store's directory, and make sure that it can be opened.

        Raises:
            CheckpointCorruptError: It cannot, though it is what the backend was given; or as of
                `TaskRestoreManager`, whose other errors pass too.
        """
        try:
            await self._fill_from(store, backend)
        except VersionDamagedError as exc:
            raise CheckpointCorruptError(f"restored image cannot be used: {exc}") from exc

    async def _fill_from(self, store: StoreName, backend: BackendName) -> None:
        if self._reusable:
            try:
                await self._fill(store, backend, self._reusable)
            except VersionDamagedError:
                # A local version that lent its files may be at fault, and not the backend.
                await run_to_end(self._executor, _remove, self._work.store_directory(store))
            else:
                return
        await self._fill(store, backend, ())

    async def _fill(
        self, store: StoreName, backend: BackendName, reusable: Sequence[SealedVersion]
    ) -> None:
        fault_point("restore.before_fetch")
        directory = self._work.store_directory(store)
        await self._executor.run(_make_parent, directory)
        context = RestoreContext(
            task=self._task,
            directories={store: directory},
            reusable=reusable,
            open_store=partial(self._open_store, is_new=True),
            open_image=partial(self._open_store, is_new=False),
            on_bytes=partial(self._add_done, store),
            on_total=self._meter.add_total,
            executor=self._executor,
            clock=self._clock,
            version=self._version,
        )
        factory = self._factories[backend]
        manager = factory.restore_manager(context)
        try:
            await manager.init(self._checkpoint)
            await manager.restore()
        finally:
            await manager.close()
        is_cancelled = threading.Event()
        await run_to_early_end(
            self._executor,
            is_cancelled.set,
            check_image,
            store,
            self._stores[store].factory,
            directory,
            # An image that was stored as files may have been damaged before. One that the engine has
            # just written from records that were checked is not read again.
            is_deep=factory.properties.needs_files,
            is_cancelled=is_cancelled,
        )

    def _open_store(self, store: StoreName, directory: Path, *, is_new: bool) -> KeyValueStore:
        settings = self._stores[store]
        options = RocksDbOptions.of(settings)
        return open_to_load(store, settings.factory, directory, options, is_new=is_new)


async def fetch_all(
    fetcher: StoreFetcher, plans: Mapping[StoreName, StorePlan]
) -> Mapping[StoreName, str]:
    """Fetch every store that is not new, all at once, and return where each came from.

    Raises:
        StoreOutOfReachError: A store is out of reach; the others were cancelled.
        TaskFencedError: A backend found a newer owner.
    """
    try:
        async with asyncio.TaskGroup() as group:
            fetches = {
                name: group.create_task(fetcher.fetch(name, plan.sources))
                for name, plan in plans.items()
                if not plan.is_new
            }
    except ExceptionGroup as exc:
        fenced = exc.subgroup(TaskFencedError)
        if fenced is not None:
            raise fenced.exceptions[0] from None
        out_of_reach, other = exc.split(StoreOutOfReachError)
        if out_of_reach is None or other is not None:
            raise
        is_for_good = any(
            isinstance(found, StoreOutOfReachError) and found.is_for_good
            for found in out_of_reach.exceptions
        )
        raise StoreOutOfReachError(is_for_good=is_for_good) from None
    return {name: fetch.result() for name, fetch in fetches.items()}


def _make_parent(directory: Path) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)


def _remove(directory: Path) -> None:
    if directory.exists():
        remove_tree(directory)
