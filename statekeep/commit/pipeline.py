"""The commit of one task, from a sealed version to a checkpoint that every backend stands behind."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import cast

from statekeep.backends.base import (
    BackupContext,
    BlockingExecutor,
    CommitContext,
    StateBackendFactory,
    TaskIdentity,
)
from statekeep.checkpoint.checkpoint_id import CheckpointId
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointV2,
    Marker,
    StoreName,
    SystemStreamPartition,
)
from statekeep.checkpoint.serde import encode_checkpoint_v2
from statekeep.clock import Clock
from statekeep.commit.metrics import CommitMetrics
from statekeep.commit.participation import Participation, TaskBackend
from statekeep.config.model import StoreSettings
from statekeep.errors import CommitFailedError, TaskFencedError
from statekeep.fault_points import fault_point

logger = logging.getLogger(__name__)

_Markers = Mapping[StoreName, Marker]


class TaskCommitPipeline:
    """Backs up the sealed versions of one task, one commit at a time.

    A commit is these steps, each a method:

    1. **snapshot**: every backend takes note of the version (executor thread, milliseconds).
    2. **upload**: all backends at once. The first failure cancels the rest, unless the backend is
       optional for all of its stores: that failure is logged and its markers are absent, and so
       are those of one that takes longer than ``task.commit.optional.timeout.ms``. Such a backend
       is asked whether it answers before it is given the next version, so that an outage costs the
       patience of a call once and the shorter one of a check from then on. What it lacks by then,
       such as a topic, is created first.
    3. **checkpoint**: a `CheckpointV2` with the input offsets and every marker.
    4. **local checkpoint**: it is written beside the version, before anyone else learns of it.

    The record that makes the checkpoint count, and `clean_up` after it, are the caller's. If any
    step fails nothing refers to what was uploaded, and the next commit starts afresh: its base
    comes with its context. Coroutines run on the container's event loop.

    Source: Samza 1.8 ``TaskStorageCommitManager``.
    """

    def __init__(
        self,
        task: TaskIdentity,
        stores: Mapping[StoreName, StoreSettings],
        factories: Mapping[BackendName, StateBackendFactory],
        *,
        executor: BlockingExecutor,
        clock: Clock,
        metrics: CommitMetrics | None = None,
        optional_timeout_s: float | None = None,
    ) -> None:
        """Build the backup manager of every backend that a store lists; no I/O.

        Args:
            task: Whose state it is.
            stores: The task's stores.
            factories: Every backend that a store lists, by name.
            executor: For blocking calls.
            clock: For durations.
            metrics: Where they are counted; None: nobody asks.
            optional_timeout_s: How many seconds an upload to an optional backend may take; None:
                as long as it wants.
        """
        self._task = task
        self._stores = stores
        self._executor = executor
        self._clock = clock
        self._metrics = CommitMetrics() if metrics is None else metrics
        self._optional_timeout_s = optional_timeout_s
        self._contexts: dict[CheckpointId, CommitContext] = {}
        names = dict.fromkeys(name for store in stores.values() for name in store.backup_factories)
        self._backends = tuple(
            self._build(name, factories[name]) for name in map(BackendName, names)
        )
        self._participation = Participation(
            task.task_name, self._backends, factories, executor=executor, clock=clock
        )

    async def init(self, checkpoint: CheckpointV2 | None) -> None:
        """Get every backend ready, once, with the checkpoint that the task starts from.

        Raises:
            ConfigError: A place is unreachable or refuses us.
            RetriableError: A service may answer later.
        """
        await self._participation.start(checkpoint)

    async def commit(
        self, context: CommitContext, input_offsets: Mapping[SystemStreamPartition, str]
    ) -> CheckpointV2:
        """Upload one sealed version and write its checkpoint beside it.

        Args:
            context: The commit; its version must stay in place until this returns.
            input_offsets: Input positions that the version has taken in, captured before it was
                sealed.

        Returns:
            The checkpoint, durable in every backend that is not optional. It counts once a commit
            record holds it.

        Raises:
            CommitFailedError: With the step that failed; nothing refers to what was uploaded.
            TaskFencedError: A backend found a newer owner.
        """
        began_ns = self._clock.monotonic_ns()
        self._contexts[context.checkpoint_id] = context
        try:
            backends = await self._participation.find_ready()
            preliminary = await self._snapshot(context, backends)
            markers = await self._upload(context, preliminary)
            checkpoint = CheckpointV2(context.checkpoint_id, dict(input_offsets), markers)
            self._check_complete(checkpoint)
            await self._write_local_checkpoint(context, checkpoint)
        finally:
            del self._contexts[context.checkpoint_id]
        elapsed_ns = self._clock.monotonic_ns() - began_ns
        logger.info(
            "task state is backed up: task=%s checkpoint_id=%s version=%s backends=%d elapsed_ms=%d",
            self._task.task_name,
            checkpoint.checkpoint_id,
            context.version.id,
            len(markers),
            elapsed_ns // 1_000_000,
        )
        return checkpoint

    def left_out_of(self, checkpoint: CheckpointV2) -> list[BackendName]:
        """Return the optional backends of which a checkpoint has no markers."""
        return [b.name for b in self._backends if b.name not in checkpoint.state_markers]

    def ask_optional_first(self) -> None:
        """Take no optional backend for granted: each is asked before it takes part in a commit.

        For a process that begins: one may be away, and a client insists for longer than a check.
        """
        self._participation.ask_first([b.name for b in self._backends])

    def leave_out(self, checkpoint: CheckpointV2) -> None:
        """Take the optional backends that a checkpoint lacks for away: `clean_up` asks them nothing."""
        self._participation.ask_first(self.left_out_of(checkpoint))

    async def clean_up(
        self, retained: Sequence[CheckpointV2], closed_attempts: Sequence[tuple[int, int]]
    ) -> bool:
        """Let every backend delete what only released commits and void attempts reach.

        Safe at any time, off the commit's path, idempotent. Needs no `init` before: a backend that
        is not ready is got ready first. Every backend is tried.

        Args:
            retained: The task's checkpoints in every commit that is not released.
            closed_attempts: (epoch, attempt), as `statekeep.commit.retention` finds them.

        Returns:
            Whether every backend took part. An optional one that does not get ready, or was left
            out of the last commit, is left out here too.

        Raises:
            ExceptionGroup: What went wrong, of each backend; the next call tries again.
        """
        fault_point("clean_up.before_delete")
        began_ns = self._clock.monotonic_ns()
        is_complete = True
        errors: list[Exception] = []
        for backend in self._backends:
            markers = [checkpoint.markers_of(backend.name) for checkpoint in retained]
            try:
                if await self._participation.is_ready(backend):
                    await backend.manager.clean_up(markers, closed_attempts)
                else:
                    is_complete = False
            except Exception as exc:  # noqa: BLE001 - the others are still to do; raised below
                errors.append(exc)
        self._metrics.time("async-cleanup-ns", self._clock.monotonic_ns() - began_ns)
        if errors:
            self._metrics.count("cleanup-failures", len(errors))
            msg = f"clean-up failed: task={self._task.task_name}"
            raise ExceptionGroup(msg, errors)
        return is_complete

    async def close(self) -> None:
        """Close every backend; a commit that runs is cancelled by its caller first. Idempotent.

        Raises:
            ExceptionGroup: What went wrong, of each backend, after all were tried.
        """
        errors: list[Exception] = []
        for backend in self._backends:
            try:
                await backend.manager.close()
            except Exception as exc:  # noqa: BLE001 - the others are still to do; raised below
                errors.append(exc)
        if errors:
            msg = f"closing the backends failed: task={self._task.task_name}"
            raise ExceptionGroup(msg, errors)

    def _build(self, name: BackendName, factory: StateBackendFactory) -> TaskBackend:
        stores = tuple(
            s for s, settings in self._stores.items() if name in settings.backup_factories
        )
        context = BackupContext(
            task=self._task,
            stores=stores,
            commit=self._contexts.__getitem__,
            executor=self._executor,
            clock=self._clock,
        )
        is_optional = all(name in self._stores[s].optional_factories for s in stores)
        return TaskBackend(name, factory.backup_manager(context), stores, is_optional)

    async def _snapshot(
        self, context: CommitContext, backends: Sequence[TaskBackend]
    ) -> Mapping[BackendName, _Markers]:
        """Step 1. One straight run of blocking calls, so that it takes a single place."""

        def snapshot_all() -> Mapping[BackendName, _Markers]:
            fault_point("snapshot.before")
            identity = context.checkpoint_id
            taken = {b.name: self._take_note(b, identity) for b in backends}
            fault_point("snapshot.after")
            return {name: markers for name, markers in taken.items() if markers is not None}

        began_ns = self._clock.monotonic_ns()
        try:
            return await self._executor.run(snapshot_all)
        except TaskFencedError:
            raise
        except Exception as exc:
            raise self._failure(context.checkpoint_id, "snapshot") from exc
        finally:
            self._metrics.time("snapshot-ns", self._clock.monotonic_ns() - began_ns)

    def _take_note(self, backend: TaskBackend, checkpoint_id: CheckpointId) -> _Markers | None:
        """Let one backend take its snapshot; None if it failed and is optional: it may rejoin."""
        try:
            return backend.manager.snapshot(checkpoint_id)
        except TaskFencedError:
            raise
        except Exception as exc:
            if not backend.is_optional:
                raise
            self._participation.go_on_without(backend, "snapshot", exc)
            return None

    async def _upload(
        self, context: CommitContext, preliminary: Mapping[BackendName, _Markers]
    ) -> dict[BackendName, _Markers]:
        """Step 2: all backends concurrently; the first failure that counts cancels the others."""
        fault_point("upload.before")
        began_ns = self._clock.monotonic_ns()
        try:
            async with asyncio.TaskGroup() as group:
                uploads = {
                    backend.name: group.create_task(
                        self._upload_to(
                            backend, context.checkpoint_id, preliminary.get(backend.name)
                        )
                    )
                    for backend in self._backends
                }
        except ExceptionGroup as exc:
            cause = _first_cause(exc)
            if isinstance(cause, TaskFencedError):
                raise cause from None
            if isinstance(cause, CommitFailedError):
                raise cause from cause.__cause__
            raise self._failure(context.checkpoint_id, "upload") from cause
        self._metrics.time("async-upload-ns", self._clock.monotonic_ns() - began_ns)
        results = {name: upload.result() for name, upload in uploads.items()}
        return {name: markers for name, markers in results.items() if markers is not None}

    async def _upload_to(
        self, backend: TaskBackend, checkpoint_id: CheckpointId, preliminary: _Markers | None
    ) -> _Markers | None:
        """Upload to one backend; None when it failed and is optional."""
        limit = asyncio.timeout(self._optional_timeout_s if backend.is_optional else None)
        try:
            async with limit:
                if preliminary is None:
                    await self._participation.rejoin(backend)
                    preliminary = await self._executor.run(backend.manager.snapshot, checkpoint_id)
                markers = dict(await backend.manager.upload(checkpoint_id, preliminary))
        except TaskFencedError:
            raise
        except asyncio.CancelledError:
            if backend.is_optional:  # it may hang: the next commit asks it first
                self._participation.ask_first([backend.name])
            raise
        except Exception as exc:
            if not backend.is_optional:
                raise self._failure(checkpoint_id, "upload", backend.name) from exc
            self._participation.go_on_without(
                backend, "timeout" if limit.expired() else "upload", exc
            )
            self._metrics.count("optional-upload-failures")
            return None
        self._participation.take_back(backend)
        missing = [store for store in backend.stores if not markers.get(store)]
        if missing:
            msg = f"a backend gave no marker: backend={backend.name} stores={','.join(missing)}"
            raise TypeError(msg)
        return markers

    def _check_complete(self, checkpoint: CheckpointV2) -> None:
        """A store that is backed up must have a marker somewhere, else it would restore empty."""
        for name, settings in self._stores.items():
            held = any(name in markers for markers in checkpoint.state_markers.values())
            if settings.backup_factories and not held:
                raise CommitFailedError(
                    f"no backend took the store: task={self._task.task_name} store={name}",
                    checkpoint_id=checkpoint.checkpoint_id.serialize(),
                    step="upload",
                )

    async def _write_local_checkpoint(
        self, context: CommitContext, checkpoint: CheckpointV2
    ) -> None:
        """Steps 3 and 4: beside the version first, so that no one knows more than the disk."""
        fault_point("checkpoint.before_write")
        try:
            await self._executor.run(
                context.version.write_checkpoint, encode_checkpoint_v2(checkpoint)
            )
        except TaskFencedError:
            raise
        except Exception as exc:
            raise self._failure(context.checkpoint_id, "checkpoint") from exc
        fault_point("checkpoint.after_write")

    def _failure(
        self, checkpoint_id: CheckpointId, step: str, backend: BackendName | None = None
    ) -> CommitFailedError:
        of_backend = "" if backend is None else f" backend={backend}"
        return CommitFailedError(
            f"the commit failed: task={self._task.task_name}{of_backend}",
            checkpoint_id=checkpoint_id.serialize(),
            step=step,
        )


def _first_cause(group: ExceptionGroup[Exception]) -> Exception:
    """Return the first error in a group that is not itself a group, a fence before all others."""
    fenced = group.subgroup(TaskFencedError)
    first = (group if fenced is None else fenced).exceptions[0]
    if isinstance(first, ExceptionGroup):
        return _first_cause(cast("ExceptionGroup[Exception]", first))
    return first
