"""The start of a task: take over its log, restore, open, and get its commits ready."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final

from statekeep.backends.base import BlockingExecutor, StateBackendFactory, TaskIdentity
from statekeep.backends.seals import open_checkpoint_store, open_job_log
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    StoreName,
    TaskName,
    VersionId,
)
from statekeep.checkpoint.error_summary import report_end
from statekeep.checkpoint.job_log import JobLog
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import LogView, begin_ns_of, checkpoint_of, version_of
from statekeep.checkpoint.names import task_scope
from statekeep.checkpoint.records import BadMarkerRecord, CommitRecord, JobIdentity
from statekeep.clock import Clock
from statekeep.commit.clean_up import CleanUp, TaskSweep
from statekeep.commit.gate import CommitGate
from statekeep.commit.metrics import CommitMetrics
from statekeep.commit.pipeline import TaskStorageCommitManager
from statekeep.commit.task_log import take_over_task
from statekeep.config.model import Config
from statekeep.config.store_settings import StoreSettings
from statekeep.container.new_log import (
    answering,
    require_no_other_log,
    require_no_state,
    require_within_task_count,
)
from statekeep.container.task import Task
from statekeep.container.task_commits import TaskCommits
from statekeep.container.task_events import TaskEvents
from statekeep.container.task_stores import TaskStores
from statekeep.errors import TaskFencedError
from statekeep.events import JobStarted, Recovered, Report
from statekeep.reporter import ListenerThread, Reporter
from statekeep.restore.manager import RestoreCandidate, RestoreOutcome, TaskRestorer
from statekeep.restore.progress import RestoreProgress
from statekeep.stores.task_directory import TaskDirectory

_TRIM_AFTER: Final = 64
"""Records that may be dropped before a trim is worth its calls: about twenty commits."""


@dataclass(frozen=True, slots=True)
class TaskParts:
    """What a task is started with."""

    task: TaskIdentity
    """Without its ``job_uid``, which stands in the log."""
    stores: Mapping[StoreName, StoreSettings]
    config: Config
    factories: Mapping[BackendName, StateBackendFactory]
    log_backend: StateBackendFactory
    executor: BlockingExecutor
    restore_executor: BlockingExecutor
    """A restore is not kept waiting by the uploads of other tasks."""
    local_executor: BlockingExecutor
    """Nor are the stores on the local disk: a seal takes milliseconds."""
    clock: Clock
    new_uid: Callable[[], str]
    owner: str
    """Host and process, for people who read the log."""
    on_failure: Callable[[Exception], None]
    on_progress: Callable[[RestoreProgress], None]
    find_away: Callable[[], Awaitable[Collection[BackendName]]]
    """Returns the optional backends that do not answer."""
    listeners: ListenerThread | None = None
    """Of the program; None: there are none."""
    limits: tuple[str, ...] = ()
    """What the job does without because of what its backends are, for people."""


async def start_task(parts: TaskParts) -> Task:
    """Take over the task, restore its newest state within reach, and open its stores.

    What was begun is undone if a step fails or the caller is cancelled. Errors are those of
    `Container.start_task`.
    """
    async with AsyncExitStack() as undo:
        scope = task_scope(parts.task.job_name, parts.task.operator, parts.task.task_name)
        parts_of_log = (parts.factories, parts.log_backend.name, scope, parts.executor, parts.clock)
        events, metrics = TaskEvents(parts.config.job, parts.clock), CommitMetrics()
        report = Reporter(
            parts.clock,
            parts.task.job_name,
            parts.task.task_name,
            parts=(events, metrics),
            listeners=parts.listeners,
        ).report
        log = LogSession(open_job_log(*parts_of_log), report=report)
        undo.push_async_callback(log.close)
        undo.push_async_exit(_end_by_error(events, report))
        identity = await take_over_task(
            log,
            parts.task,
            parts.stores.keys(),
            owner=parts.owner,
            checkpoint_id=CheckpointId.at(parts.clock.time_ns()),
            check_new=lambda: _check_new(parts, scope),
        )
        events.begin(log.epoch, open_checkpoint_store(*parts_of_log))
        _report_start(parts, log, report)

        parts = replace(parts, task=replace(parts.task, job_uid=identity.job_uid))
        directory = TaskDirectory.of(parts.config.job.local_dir, parts.task)
        # Before the restore, which may need the room that restores before it have left full.
        await parts.local_executor.run(directory.sweep)
        restored = await _restore(parts, log, directory, report)
        _report_restore(restored, report)

        pipeline = _pipeline(parts, report)
        undo.push_async_callback(pipeline.close)
        await pipeline.init()

        stores = await TaskStores.open(
            directory,
            parts.stores,
            restored.version,
            captured=_captured(parts),
            first_batch=_next_batch(log.view),
            executor=parts.local_executor,
            new_uid=parts.new_uid,
        )
        undo.pop_all()
    return _assemble(
        parts,
        log=log,
        identity=identity,
        pipeline=pipeline,
        stores=stores,
        directory=directory,
        metrics=metrics,
        restored=restored,
        events=events,
        report=report,
    )


async def _check_new(parts: TaskParts, scope: str) -> None:
    """Make sure that a task whose log is empty is a new one, before the first record is written."""
    log_backend = parts.log_backend
    factories = answering(
        parts.factories.values(),
        await parts.find_away(),
        is_log_named=parts.config.job.log_backend is not None,
    )

    def open_log(backend: BackendName, scope: str) -> JobLog:
        return open_job_log(parts.factories, backend, scope, parts.executor, parts.clock)

    await require_no_other_log(factories, scope, log_backend.name, open_log)
    await require_within_task_count(log_backend.name, parts.task, open_log)
    # A log that ends with the process is empty at each start of it, which then says so.
    if log_backend.properties.is_durable:
        await require_no_state(factories, parts.task, log_backend.name, parts.executor, parts.clock)


def _pipeline(parts: TaskParts, report: Report) -> TaskStorageCommitManager:
    pipeline = TaskStorageCommitManager(
        parts.task,
        parts.stores,
        parts.factories,
        executor=parts.executor,
        clock=parts.clock,
        report=report,
        optional_timeout_s=parts.config.task.commit_optional_timeout_ms / 1000,
    )
    pipeline.ask_optional_first()
    return pipeline


def _end_by_error(events: TaskEvents, report: Report) -> Callable[..., Awaitable[None]]:
    """Return what ends the events of a start that fails."""

    async def end(
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        report_end(report, error)
        await events.end()

    return end


def _report_start(parts: TaskParts, log: LogSession, report: Report) -> None:
    committed = log.view.last_commit
    batch = -1 if committed is None else committed.batch
    report(
        JobStarted(
            partitions=1,
            stores={parts.task.operator: sorted(parts.stores)},
            backends=list(parts.factories),
            log_backend=parts.log_backend.name,
            commit_position=log.view.last_commit_position,
            committed=batch,
            head=batch,
            limits=list(parts.limits),
            epoch=log.epoch,
            commit_ns=begin_ns_of(committed),
        )
    )


def _report_restore(restored: RestoreOutcome, report: Report) -> None:
    version = restored.version
    report(
        Recovered(
            head=-1 if version is None else version.id.batch,
            tasks=1,
            restored=dict(restored.sources),
            bytes_fetched=restored.bytes_fetched,
            replayed=[],
            rows_replayed=0,
            failures=[f"{f.store} {f.backend}: {f.error}" for f in restored.failures],
            elapsed_ms=restored.elapsed_ms,
            reason="start",
            phases_ms={"restore": restored.elapsed_ms},
        )
    )


async def _restore(
    parts: TaskParts, log: LogSession, directory: TaskDirectory, report: Report
) -> RestoreOutcome:
    """Restore from the newest commit within reach, and record the markers that were found bad."""
    restorer = TaskRestorer(
        parts.task,
        directory,
        parts.stores,
        parts.factories,
        executor=parts.restore_executor,
        clock=parts.clock,
        on_progress=parts.on_progress,
        bad_markers=frozenset(log.view.bad_markers),
        new_uid=parts.new_uid,
        report=report,
    )

    async def find_older() -> Sequence[RestoreCandidate]:
        view = log.view
        older = [position for position in view.commits if position not in view.commit_records]
        return _candidates(await log.read_commits(older), parts.task)

    newest = _candidates(log.view.commit_records, parts.task)
    outcome = await restorer.restore(newest, find_older)
    for failure in outcome.failures:
        if failure.is_marker_bad:
            await log.append(
                BadMarkerRecord(
                    backend=failure.backend,
                    task=parts.task.task_name,
                    store=failure.store,
                    marker=failure.marker,
                    reason=failure.error,
                )
            )
    return outcome


def _candidates(
    commits: Mapping[int, CommitRecord], task: TaskIdentity
) -> Sequence[RestoreCandidate]:
    """Return what may be restored from commits, newest first."""
    return [
        RestoreCandidate(
            checkpoint_of(commit, task.task_name),
            version_of(commit, task.task_name),
            frozenset(map(StoreName, commit.identity.stores.get(task.operator, ()))),
        )
        for _, commit in sorted(commits.items(), reverse=True)
    ]


def _assemble(
    parts: TaskParts,
    *,
    log: LogSession,
    identity: JobIdentity,
    pipeline: TaskStorageCommitManager,
    stores: TaskStores,
    directory: TaskDirectory,
    metrics: CommitMetrics,
    restored: RestoreOutcome,
    events: TaskEvents,
    report: Report,
) -> Task:
    checkpoint = parts.config.checkpoint

    async def drop_versions() -> None:
        newest = list(log.view.commits)[-checkpoint.local_retain_versions :]
        commits = list((await log.read_commits(newest)).values())
        keep, resolved_batch = _needed_versions(log.view, parts.task.task_name, stores, commits)
        await parts.local_executor.run(directory.retain, keep, resolved_batch)

    def on_fenced(error: TaskFencedError) -> None:
        commits.fence(error)

    async def delete(sweep: TaskSweep) -> bool:
        return await pipeline.clean_up(sweep.retained, sweep.closed)

    clean_up = CleanUp(
        log,
        [parts.task.task_name],
        delete,
        checkpoint,
        parts.clock,
        drop_versions=drop_versions,
        trim_after=_TRIM_AFTER,
        on_fenced=on_fenced,
        report=report,
        subject=f"task={parts.task.task_name}",
    )
    commits = TaskCommits(
        parts.task,
        log=log,
        identity=identity,
        pipeline=pipeline,
        gate=CommitGate(parts.config.task),
        clean_up=clean_up,
        clock=parts.clock,
        on_failure=parts.on_failure,
        report=report,
    )
    # A crash may have come between a commit and its clean-up.
    clean_up.start()
    return Task(
        parts.task.task_name,
        stores=stores,
        commits=commits,
        log=log,
        pipeline=pipeline,
        clean_up=clean_up,
        metrics=metrics,
        restored=restored,
        events=events,
        report=report,
        shutdown_ms=parts.config.task.shutdown_ms,
    )


def _needed_versions(
    view: LogView, task: TaskName, stores: TaskStores, commits: Sequence[CommitRecord]
) -> tuple[frozenset[VersionId], int]:
    """Return the local versions that stay, and the batch up to which all others go."""
    committed = [version_of(commit, task) for commit in commits]
    being_committed = (
        VersionId.parse(text)
        for attempt in view.open_attempts.values()
        for text in attempt.versions.values()
        if text
    )
    head = stores.head
    keep = {version for version in committed if version is not None} | set(being_committed)
    if head is not None:
        keep.add(head.id)
    return frozenset(keep), commits[-1].batch if commits else -1


def _captured(parts: TaskParts) -> frozenset[StoreName]:
    """Return the stores of which some backend needs the changes."""
    return frozenset(
        name
        for name, settings in parts.stores.items()
        if any(
            parts.factories[BackendName(backend)].properties.needs_changes
            for backend in settings.backup_factories
        )
    )


def _next_batch(view: LogView) -> int:
    return 1 + max((commit.batch for commit in view.commits.values()), default=-1)
