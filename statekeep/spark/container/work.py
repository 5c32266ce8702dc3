"""What a container does for its tasks: back up sealed versions, restore lost ones."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec

from statekeep.backends.base import CommitContext, TaskIdentity
from statekeep.backends.registry import BackendRegistry
from statekeep.backends.sealing import open_checkpoint_store
from statekeep.checkpoint.checkpoints import BackendName, CheckpointV2, StoreName
from statekeep.checkpoint.escaping import escape_name
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.checkpoint.serde import (
    AttemptEntry,
    FailedTask,
    FinishedTask,
    decode_checkpoint_v2,
    encode_attempt_entry,
)
from statekeep.checkpoint.version_id import VersionId
from statekeep.clock import Clock
from statekeep.commit.executor import BoundedExecutor
from statekeep.commit.pipeline import TaskCommitPipeline
from statekeep.config.load import load_dict
from statekeep.errors import CommitFailedError
from statekeep.fault_points import fault_point
from statekeep.restore.manager import RestoreCandidate, RestoreOutcome, TaskRestorer
from statekeep.restore.progress import RestoreProgress
from statekeep.spark.container.entries import EntryWriter
from statekeep.spark.container.place import ContainerSpec
from statekeep.spark.container.protocol import (
    NOTHING,
    Candidate,
    Done,
    Failure,
    HandOver,
    Progress,
    Restore,
)
from statekeep.spark.tasks import local_directory, task_name
from statekeep.stores.task_directory import TaskDirectory

logger = logging.getLogger(__name__)


class ContainerWork:
    """Backups and restores of all tasks of one executor, on one event loop.

    Restores have a pool of their own: a task that waits for its state is not kept waiting by the
    uploads of others.
    """

    def __init__(self, spec: ContainerSpec, clock: Clock) -> None:
        """Build factories and pool from what the container was started with; no I/O."""
        self._spec = spec
        self.spec_digest = spec.digest
        """Requests of tasks that know other settings are refused."""
        self._clock = clock
        self.config = load_dict(dict(spec.settings), "container")
        self._stores = {name: self.config.store(name) for name in map(StoreName, spec.stores)}
        registry = BackendRegistry(self.config)
        self._factories = dict(registry.factories())
        log_backend = BackendName(spec.log_backend)
        self._factories[log_backend] = registry.factory(log_backend)
        container = self.config.container
        self.executor = BoundedExecutor(
            container.commit_pool_threads(container.commit_pool_max_size), "statekeep-commit"
        )
        self._restore_executor = BoundedExecutor(
            container.restore_pool_threads(container.restore_pool_max_size), "statekeep-restore"
        )
        self._checkpoints: CheckpointStore = open_checkpoint_store(
            self._factories, log_backend, escape_name(spec.job_name), self.executor, clock
        )
        self._entries = EntryWriter(
            self._checkpoints, clock, is_awaited=self.config.task.is_commit_every_batch
        )
        self._pipelines: dict[int, TaskCommitPipeline] = {}

    async def upload(self, request: HandOver) -> None:
        """Back up a version and write the task's entry; a failure is an entry too."""
        attempt = f"{request.epoch}-{request.attempt}"
        with self._entries.upload(attempt):
            try:
                entry = await self._back_up(request)
            except Exception as exc:  # a plug-in may raise anything; the driver waits for an entry
                logger.exception("backup failed: task=%s", task_name(request.partition))
                entry = _failed(exc)
        fault_point("entry.before_write")
        await self._entries.write(
            attempt, task_name(request.partition), encode_attempt_entry(entry)
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

        directory = self._directory(request.partition)
        # A container that died in this very restore has left what it had fetched: the disk may not
        # have room for both.
        await self._restore_executor.run(directory.sweep)
        restorer = TaskRestorer(
            self._task(request.partition),
            directory,
            self._stores,
            self._factories,
            executor=self._restore_executor,
            clock=self._clock,
            on_progress=note,
            bad_markers=set(request.bad_markers),
        )
        listed = frozenset(self._stores)
        candidates = [_candidate(candidate, listed) for candidate in request.candidates]
        return _done(await restorer.restore(candidates), candidates)

    def abandon(self) -> None:
        """Wait for no blocking call any more: whoever does gets `BackendClosedError`."""
        self._restore_executor.abandon()
        self.executor.abandon()

    async def close(self) -> None:
        """Close backends and pool. Idempotent."""
        for pipeline in self._pipelines.values():
            await pipeline.close()
        self._pipelines.clear()
        await self._entries.close()
        await self._checkpoints.close()
        await self._restore_executor.close()
        await self.executor.close()

    async def _back_up(self, request: HandOver) -> AttemptEntry:
        began_ns = self._clock.monotonic_ns()
        version_id = VersionId.parse(request.version)
        template = decode_checkpoint_v2(bytes(request.checkpoint), where="hand-over")
        directory = self._directory(request.partition)
        version = await self.executor.run(directory.find, version_id)
        if version is None:
            return FailedTask("snapshot", f"the version is gone: version={version_id}")
        base = _base(request)
        sent: list[int] = []
        context = CommitContext(
            checkpoint_id=template.checkpoint_id,
            epoch=request.epoch,
            attempt=request.attempt,
            version=version,
            base=base,
            base_version=VersionId.parse(request.base_version) if base is not None else None,
            count_bytes=sent.append,
        )
        pipeline = await self._pipeline(request.partition, base)
        checkpoint = await pipeline.commit(context, template.input_offsets)
        elapsed_ms = (self._clock.monotonic_ns() - began_ns) // 1_000_000
        base_id = None if base is None else base.checkpoint_id
        return FinishedTask(checkpoint, version_id, sum(sent), elapsed_ms, base_id)

    async def _pipeline(self, partition: int, base: CheckpointV2 | None) -> TaskCommitPipeline:
        pipeline = self._pipelines.get(partition)
        if pipeline is None:
            pipeline = TaskCommitPipeline(
                self._task(partition),
                self._stores,
                self._factories,
                executor=self.executor,
                clock=self._clock,
                optional_timeout_s=self.config.task.commit_optional_timeout_ms / 1000,
            )
            pipeline.ask_optional_first()
            try:
                await pipeline.init(base)
            except BaseException:
                await pipeline.close()
                raise
            self._pipelines[partition] = pipeline
        return pipeline

    def _directory(self, partition: int) -> TaskDirectory:
        return local_directory(Path(self._spec.local_dir), self._spec.local_name, partition)

    def _task(self, partition: int) -> TaskIdentity:
        spec = self._spec
        return TaskIdentity(
            spec.job_name, spec.operator, task_name(partition), job_uid=spec.job_uid
        )


def _failed(exc: Exception) -> FailedTask:
    if isinstance(exc, CommitFailedError):
        return FailedTask(exc.step, f"{exc}: {exc.__cause__!r}")
    notes: list[str] = getattr(exc, "__notes__", [])
    parts = [f"{type(exc).__name__}: {exc}", *notes]
    if isinstance(exc, ExceptionGroup):
        group = cast("ExceptionGroup[Exception]", exc)
        parts += [repr(inner) for inner in group.exceptions]
    return FailedTask("upload", "; ".join(parts))


def _base(request: HandOver) -> CheckpointV2 | None:
    return _decoded(request.base, "base")


def _candidate(candidate: Candidate, listed: frozenset[StoreName]) -> RestoreCandidate:
    if not candidate.version:
        return RestoreCandidate(None, None)
    return RestoreCandidate(
        _decoded(candidate.checkpoint, "candidate"), VersionId.parse(candidate.version), listed
    )


def _decoded(document: msgspec.Raw, where: str) -> CheckpointV2 | None:
    return None if document == NOTHING else decode_checkpoint_v2(bytes(document), where=where)


def _done(outcome: RestoreOutcome, candidates: list[RestoreCandidate]) -> Done:
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
    )
