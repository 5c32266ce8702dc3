"""What a sidecar does for its tasks: back up sealed versions, restore lost ones.

What became of it stands in the entries that it writes, those that end at about the same time in one request.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, cast

import msgspec

from statekeep.backends.base import BlockingExecutor, CommitContext, TaskIdentity
from statekeep.backends.registry import BackendRegistry
from statekeep.backends.seals import open_checkpoint_store
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointV2,
    StoreName,
    TaskName,
    VersionId,
)
from statekeep.checkpoint.error_summary import text_of
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.checkpoint.names import escape_name
from statekeep.checkpoint.serde import (
    AttemptEntry,
    FailedTask,
    FinishedTask,
    decode_checkpoint_v2,
    encode_attempt_entry,
)
from statekeep.clock import Clock
from statekeep.commit.executor import BoundedExecutor
from statekeep.commit.pipeline import TaskStorageCommitManager
from statekeep.config.load import load_dict
from statekeep.config.redact import redact_text
from statekeep.errors import CommitFailedError
from statekeep.events import Report, report_nothing
from statekeep.fault_points import fault_point
from statekeep.restore.manager import RestoreCandidate, RestoreOutcome, TaskRestorer
from statekeep.restore.progress import RestoreProgress
from statekeep.spark.sidecar.collector import EventCollector
from statekeep.spark.sidecar.follower import BackgroundExecutor, Follower, Wanted
from statekeep.spark.sidecar.paths import SidecarSpec
from statekeep.spark.sidecar.protocol import (
    NOTHING,
    Candidate,
    Done,
    Failure,
    Follow,
    Progress,
    Restore,
    SubmitVersion,
)
from statekeep.spark.tasks import local_directory, task_name
from statekeep.stores.task_directory import TaskDirectory

logger = logging.getLogger(__name__)

QUIET_S: Final = 0.25
"""How long the last entry waits for another upload to begin: tasks submit one after the other."""
_QUIET_AWAITED_S: Final = 0.02
"""The same where the driver waits for the commit."""
_LONGEST_S: Final = 1.0
"""How long an entry waits for uploads that take longer."""


@dataclass(slots=True)
class _Pack:
    """Entries that are written next."""

    quiet_s: float
    entries: dict[TaskName, bytes] = field(default_factory=dict[TaskName, bytes])
    writing: asyncio.Task[None] | None = None


class EntryWriter:
    """Holds the entries of an attempt back until none of its uploads is under way; on the loop."""

    def __init__(self, store: CheckpointStore, clock: Clock) -> None:
        """Take what is needed; nothing is written yet.

        Args:
            store: Where the entries go; closed by its owner, after `close`.
            clock: For the waits.
        """
        self._store = store
        self._clock = clock
        self._under_way = Counter[str]()
        self._ended = asyncio.Event()
        self._packs: dict[str, _Pack] = {}
        self._writing: set[asyncio.Task[None]] = set()

    @contextmanager
    def upload(self, attempt: str) -> Generator[None]:
        """Count an upload of an attempt; its entry is to be given to `write` directly afterwards."""
        self._under_way[attempt] += 1
        try:
            yield
        finally:
            self._under_way[attempt] -= 1
            if not self._under_way[attempt]:
                del self._under_way[attempt]
            self._ended.set()

    async def write(
        self, attempt: str, task: TaskName, data: bytes, *, is_awaited: bool = False
    ) -> None:
        """Write an entry, with others; it is durable when this returns.

        A cancelled caller leaves its entry to be written.

        Args:
            attempt: The attempt.
            task: The task.
            data: The entry.
            is_awaited: The driver waits for the attempt.

        Raises:
            RetriableError: The service may answer later.
        """
        quiet_s = _QUIET_AWAITED_S if is_awaited else QUIET_S
        pack = self._packs.setdefault(attempt, _Pack(quiet_s))
        pack.entries[task] = data
        if pack.writing is None:
            pack.writing = asyncio.create_task(self._write(attempt, pack))
            self._writing.add(pack.writing)
            pack.writing.add_done_callback(self._writing.discard)
        await asyncio.shield(pack.writing)

    async def close(self) -> None:
        """Give up what is not written yet. Idempotent."""
        writing = list(self._writing)
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing, return_exceptions=True)

    async def _write(self, attempt: str, pack: _Pack) -> None:
        try:
            await self._wait(attempt, pack)
        finally:
            del self._packs[attempt]  # what comes from here on begins another
        await self._store.write_all(attempt, pack.entries)

    async def _wait(self, attempt: str, pack: _Pack) -> None:
        deadline_ns = self._clock.monotonic_ns() + round(_LONGEST_S * 1e9)
        size = 0
        while self._under_way[attempt] or len(pack.entries) > size:
            size = len(pack.entries)
            left_s = (deadline_ns - self._clock.monotonic_ns()) / 1e9
            if left_s <= 0:
                return
            if self._under_way[attempt]:
                await self._wait_for_end(left_s)
            else:
                await self._clock.sleep(pack.quiet_s)

    async def _wait_for_end(self, timeout_s: float) -> None:
        """Wait until an upload has ended."""
        self._ended.clear()
        ended = asyncio.ensure_future(self._ended.wait())
        timeout = asyncio.ensure_future(self._clock.sleep(timeout_s))
        try:
            await asyncio.wait([ended, timeout], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            timeout.cancel()


class SidecarWork:
    """Backups and restores of all tasks of one executor, on one event loop.

    Restores have a pool of their own: a task that waits for its state is not kept waiting by the
    uploads of others.
    """

    def __init__(self, spec: SidecarSpec, clock: Clock) -> None:
        """Build factories and pool from what the sidecar was started with; no I/O."""
        self._spec = spec
        self.spec_digest = spec.digest
        """Requests of tasks that know other settings are refused."""
        self._clock = clock
        self.config = load_dict(dict(spec.settings), "sidecar")
        self._optional_timeout_s = self.config.task.commit_optional_timeout_ms / 1000
        self._stores = {name: self.config.store(name) for name in map(StoreName, spec.stores)}
        registry = BackendRegistry(self.config, is_checked=True)
        self._factories = dict(registry.factories())
        log_backend = BackendName(spec.log_backend)
        self._factories[log_backend] = registry.factory(log_backend)
        pools = self.config.container
        self.executor = BoundedExecutor(
            pools.commit_pool_threads(pools.commit_pool_max_size), "statekeep-commit"
        )
        self._restore_executor = BoundedExecutor(
            pools.restore_pool_threads(pools.restore_pool_max_size), "statekeep-restore"
        )
        self._background = BackgroundExecutor(self._restore_executor)
        self.follower = Follower(
            self._background_restorer, self._directory, self._background, list(self._stores)
        )
        """Keeps copies of tasks that run elsewhere."""
        self._checkpoints: CheckpointStore = open_checkpoint_store(
            self._factories, log_backend, escape_name(spec.job_name), self.executor, clock
        )
        self._entries = EntryWriter(self._checkpoints, clock)
        self._pipelines: dict[int, TaskStorageCommitManager] = {}
        self._seen = EventCollector()
        for factory in self._factories.values():
            factory.report_requests(self._seen.report)

    async def upload(self, request: SubmitVersion) -> None:
        """Back up a version and write the task's entry; a failure is an entry too."""
        attempt, task = f"{request.epoch}-{request.attempt}", task_name(request.partition)
        self._seen.begin(task)
        with self._entries.upload(attempt):
            try:
                entry = await self._back_up(request)
            except Exception as exc:  # a plug-in may raise anything; the driver waits for an entry
                logger.exception("backup failed: task=%s", task)
                entry = _failed(exc)
        seen = self._seen.take if request.is_observed else self._seen.take_counts
        entry = replace(entry, events=seen(task))
        fault_point("entry.before_write")
        await self._entries.write(
            attempt,
            task,
            encode_attempt_entry(entry),
            is_awaited=request.is_awaited,
        )

    async def restore(self, request: Restore, on_progress: Callable[[Progress], None]) -> Done:
        """Bring one of the candidates here; one that is here already is found.

        Raises:
            RestoreFailedError: None of them is within reach.
        """

        def note(progress: RestoreProgress) -> None:
            on_progress(
                Progress(done_bytes=progress.done_bytes, total_bytes=progress.total_bytes or 0)
            )

        task = task_name(request.partition)
        with self._background.held_back():
            self._seen.begin(task)
            # A sidecar that died in this very restore has left what it had fetched: the disk may
            # not have room for both.
            await self._restore_executor.run(self._directory(request.partition).sweep)
            restorer = self._restorer(
                request.partition,
                self._restore_executor,
                request.bad_markers,
                on_progress=note,
                report=self._seen.report,
            )
            candidates = [_candidate(candidate) for candidate in request.candidates]
            outcome = await restorer.restore(candidates)
        return _done(outcome, candidates, self._seen.take(task))

    def follow(self, request: Follow) -> list["asyncio.Future[str]"]:
        """Begin to bring commits here in the background; see `Follower.follow`."""
        return [
            self.follower.follow(
                Wanted(task.partition, _candidate(task.candidate), request.bad_markers),
                is_awaited=request.is_awaited,
            )
            for task in request.tasks
        ]

    def abandon(self) -> None:
        """Wait for no blocking call any more: each wait raises `BackendClosedError`."""
        self._restore_executor.abandon()
        self.executor.abandon()

    async def close(self) -> None:
        """Close backends and pool. Idempotent."""
        for pipeline in self._pipelines.values():
            await pipeline.close()
        self._pipelines.clear()
        self._background.close()
        await self.follower.close()
        await self._entries.close()
        await self._checkpoints.close()
        await self._restore_executor.close()
        await self.executor.close()

    async def _back_up(self, request: SubmitVersion) -> AttemptEntry:
        began_ns = self._clock.monotonic_ns()
        version_id = VersionId.parse(request.version)
        template = decode_checkpoint_v2(bytes(request.checkpoint), where="submission")
        directory = self._directory(request.partition)
        version = await self.executor.run(directory.find, version_id)
        if version is None:
            return FailedTask("snapshot", f"the version is gone: version={version_id}")
        base = _base(request)
        context = CommitContext(
            checkpoint_id=template.checkpoint_id,
            epoch=request.epoch,
            attempt=request.attempt,
            version=version,
            base=base,
            base_version=VersionId.parse(request.base_version) if base is not None else None,
        )
        pipeline = await self._pipeline(request.partition)
        backed_up = await pipeline.commit(context, template.input_offsets)
        elapsed_ms = (self._clock.monotonic_ns() - began_ns) // 1_000_000
        base_id = None if base is None else base.checkpoint_id
        return FinishedTask(
            backed_up.checkpoint,
            version_id,
            backed_up.bytes_uploaded,
            elapsed_ms,
            base_id,
            uploads=backed_up.uploads,
            changed_bytes=backed_up.changed_bytes,
            state_bytes=backed_up.state_bytes,
        )

    async def _pipeline(self, partition: int) -> TaskStorageCommitManager:
        pipeline = self._pipelines.get(partition)
        if pipeline is None:
            pipeline = TaskStorageCommitManager(
                self._task(partition),
                self._stores,
                self._factories,
                executor=self.executor,
                clock=self._clock,
                report=self._seen.report,
                optional_timeout_s=self._optional_timeout_s,
            )
            pipeline.ask_optional_first()
            try:
                await pipeline.init()
            except BaseException:
                await pipeline.close()
                raise
            self._pipelines[partition] = pipeline
        return pipeline

    def _restorer(
        self,
        partition: int,
        executor: BlockingExecutor,
        bad_markers: Collection[tuple[str, str, str, str]],
        *,
        on_progress: Callable[[RestoreProgress], None] = lambda _: None,
        report: Report = report_nothing,
    ) -> TaskRestorer:
        return TaskRestorer(
            self._task(partition),
            self._directory(partition),
            self._stores,
            self._factories,
            executor=executor,
            clock=self._clock,
            on_progress=on_progress,
            bad_markers=set(bad_markers),
            report=report,
        )

    def _background_restorer(self, wanted: Wanted) -> TaskRestorer:
        return self._restorer(wanted.partition, self._background, wanted.bad_markers)

    def _directory(self, partition: int) -> TaskDirectory:
        return local_directory(Path(self._spec.local_dir), self._spec.local_name, partition)

    def _task(self, partition: int) -> TaskIdentity:
        spec = self._spec
        return TaskIdentity(
            spec.job_name, spec.operator, task_name(partition), job_uid=spec.job_uid
        )


def _failed(exc: Exception) -> FailedTask:
    if isinstance(exc, CommitFailedError):
        return FailedTask(exc.step, redact_text(f"{exc}: {exc.__cause__!r}"))
    parts = [text_of(exc)]
    if isinstance(exc, ExceptionGroup):
        group = cast("ExceptionGroup[Exception]", exc)
        parts += [redact_text(repr(inner)) for inner in group.exceptions]
    return FailedTask("upload", "; ".join(parts))


def _base(request: SubmitVersion) -> CheckpointV2 | None:
    return _decoded(request.base, "base")


def _candidate(candidate: Candidate) -> RestoreCandidate:
    if not candidate.version:
        return RestoreCandidate(None, None)
    listed = frozenset(map(StoreName, candidate.stores))
    return RestoreCandidate(
        _decoded(candidate.checkpoint, "candidate"), VersionId.parse(candidate.version), listed
    )


def _decoded(document: msgspec.Raw, where: str) -> CheckpointV2 | None:
    return None if document == NOTHING else decode_checkpoint_v2(bytes(document), where=where)


def _done(outcome: RestoreOutcome, candidates: list[RestoreCandidate], events: bytes) -> Done:
    return Done(
        version="" if outcome.version is None else str(outcome.version.id),
        candidate=candidates.index(outcome.candidate),
        sources={str(store): source for store, source in outcome.sources.items()},
        bytes_fetched=outcome.bytes_fetched,
        elapsed_ms=outcome.elapsed_ms,
        failures=[
            Failure(
                store=failure.store,
                backend=failure.backend,
                marker=failure.marker,
                error=failure.error,
                is_marker_bad=failure.is_marker_bad,
            )
            for failure in outcome.failures
        ],
        events=msgspec.Raw(events),
    )
