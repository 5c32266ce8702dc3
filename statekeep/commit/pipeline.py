"""The commit of one task, from a sealed version to a checkpoint that every backend stands behind.

All backends that are ready take part, less those left out.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from statekeep.backends.base import (
    BackupContext,
    BlockingExecutor,
    CommitContext,
    Snapshot,
    StateBackendFactory,
    TaskBackupManager,
    TaskIdentity,
)
from statekeep.backends.preparation import prepare
from statekeep.backends.seals import outdated_markers
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
    SystemStreamPartition,
    TaskName,
)
from statekeep.checkpoint.serde import BackendUpload, encode_checkpoint_v2
from statekeep.clock import Clock
from statekeep.config.store_settings import StoreSettings
from statekeep.errors import (
    CommitFailedError,
    ConfigError,
    RetriableError,
    TaskFencedError,
    VersionDamagedError,
)
from statekeep.events import BackendUploaded, Report, SnapshotTaken, TaskCleanedUp, report_nothing
from statekeep.fault_points import fault_point
from statekeep.reporter import activity
from statekeep.stores.version import SealedVersion

logger = logging.getLogger(__name__)

_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class TaskBackend:
    """One backend of a task and the stores that it backs up."""

    name: BackendName
    manager: TaskBackupManager
    stores: tuple[StoreName, ...]
    is_optional: bool
    """Every one of its stores lists it as optional."""


class Participation:
    """Gets the backends of a task ready, each once, and keeps account of those left out.

    An optional backend that fails is left out until it answers. Coroutines of one event loop.
    """

    def __init__(
        self,
        task_name: TaskName,
        backends: Sequence[TaskBackend],
        factories: Mapping[BackendName, StateBackendFactory],
        *,
        executor: BlockingExecutor,
        clock: Clock,
    ) -> None:
        """Take the backends; nothing is reached yet.

        Args:
            task_name: For the log.
            backends: Of the task.
            factories: Of each, by name.
            executor: For blocking calls.
            clock: For pauses.
        """
        self._task_name = task_name
        self._backends = backends
        self._factories = factories
        self._executor = executor
        self._clock = clock
        self._ready: set[BackendName] = set()
        self._left_out: set[BackendName] = set()
        self._getting_ready = asyncio.Lock()

    async def find_ready(self) -> tuple[TaskBackend, ...]:
        """Get every backend ready; return those that take part as a matter of course.

        These are all but those left out.

        Raises:
            ConfigError: The storage of a required one is unreachable or refuses us.
            RetriableError: A service may answer later.
        """
        return tuple([backend for backend in self._backends if await self.is_ready(backend)])

    async def is_ready(self, backend: TaskBackend) -> bool:
        """Get one backend ready, if it is not; an optional one that cannot is left out."""
        if backend.name in self._left_out:
            return False
        try:
            await self._init(backend)
        except Exception as exc:
            if not backend.is_optional:
                raise
            self.go_on_without(backend, "init", exc)
            return False
        return True

    async def rejoin(self, backend: TaskBackend) -> None:
        """Get a backend ready that was left out, once it answers; creates what it lacks."""
        await prepare(self._factories[backend.name].admin(self._executor, self._clock))
        await self._init(backend)

    def take_back(self, backend: TaskBackend) -> None:
        """Let a backend take part as a matter of course again."""
        self._left_out.discard(backend.name)

    def go_on_without(self, backend: TaskBackend, step: str, error: Exception) -> None:
        """Leave an optional backend out until it answers, loudly.

        Also called on an executor thread, while the loop waits for that call.
        """
        self._left_out.add(backend.name)
        logger.error(
            "optional backend is left out: task=%s backend=%s step=%s",
            self._task_name,
            backend.name,
            step,
            exc_info=error,
        )

    def ask_first(self, names: Sequence[BackendName]) -> None:
        """Leave out those that are optional; each is asked before it takes part in a commit."""
        self._left_out |= {b.name for b in self._backends if b.is_optional and b.name in names}

    async def _init(self, backend: TaskBackend) -> None:
        async with self._getting_ready:
            if backend.name not in self._ready:
                await backend.manager.init()
                self._ready.add(backend.name)


_Markers = Mapping[StoreName, Marker]


@dataclass(frozen=True, slots=True)
class BackedUpTask:
    """The checkpoint of one task, and what its upload came to."""

    checkpoint: CheckpointV2
    uploads: Mapping[BackendName, BackendUpload]
    """Of each backend that took part."""
    changed_bytes: int | None
    """The deltas since the newest commit; None where they are not all at hand."""
    state_bytes: int
    """The images of all stores on the local disk."""

    @property
    def bytes_uploaded(self) -> int:
        """To all backends, as far as they count."""
        return sum(upload.bytes for upload in self.uploads.values())


class TaskStorageCommitManager:
    """Backs up the sealed versions of one task, one commit at a time.

    A commit is these steps, each a method:

    1. **snapshot**: every backend decides what to send (executor thread, milliseconds).
    2. **upload**: all backends at once. The first failure cancels the rest, unless the backend is
       optional for all of its stores: that failure is logged and its markers are absent, and so
       are those of one that takes longer than ``task.commit.optional.timeout.ms``. Such a backend
       is asked whether it answers before it is given the next version, so that an outage costs the
       timeout of a call once, and the shorter one of a check from then on. What it lacks by then,
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
        report: Report = report_nothing,
        optional_timeout_s: float | None = None,
    ) -> None:
        """Build the backup manager of every backend that a store lists; no I/O.

        Args:
            task: Whose state it is.
            stores: The task's stores.
            factories: Every backend that a store lists, by name.
            executor: For blocking calls.
            clock: For durations.
            report: Gets snapshots, uploads and clean-ups, on the event loop.
            optional_timeout_s: How many seconds an upload to an optional backend may take; None:
                as long as it wants.
        """
        self._task = task
        self._stores = stores
        self._factories = factories
        self._executor = executor
        self._clock = clock
        self._report = report
        self._optional_timeout_s = optional_timeout_s
        self._contexts: dict[CheckpointId, Mapping[BackendName, CommitContext]] = {}
        """Of the commit in flight, one for each backend: each counts its own bytes."""
        names = dict.fromkeys(name for store in stores.values() for name in store.backup_factories)
        self._backends = tuple(
            self._build(name, factories[name]) for name in map(BackendName, names)
        )
        self._participation = Participation(
            task.task_name, self._backends, factories, executor=executor, clock=clock
        )

    async def init(self) -> None:
        """Get every backend ready, once.

        Raises:
            ConfigError: A storage is unreachable or refuses us.
            RetriableError: A service may answer later.
        """
        await self._participation.find_ready()

    async def commit(
        self, context: CommitContext, input_offsets: Mapping[SystemStreamPartition, str]
    ) -> BackedUpTask:
        """Upload one sealed version and write its checkpoint beside it.

        Args:
            context: The commit; its version must stay in place until this returns.
            input_offsets: Input positions that the version has taken in, captured before it was
                sealed.

        Returns:
            The checkpoint, durable in every backend that is not optional; it counts once a commit
            record holds it. And what each backend took.

        Raises:
            CommitFailedError: With the step that failed; nothing refers to what was uploaded.
            TaskFencedError: A backend found a newer owner.
        """
        began_ns = self._clock.monotonic_ns()
        sent = Counter[BackendName]()
        self._contexts[context.checkpoint_id] = {
            backend.name: _counted(context, backend.name, sent) for backend in self._backends
        }
        try:
            with activity("upload", self._task.task_name):
                backends = await self._participation.find_ready()
                snapshots = await self._snapshot(context, backends)
                uploaded = await self._upload(context, snapshots, sent)
            markers = {name: found for name, (found, _) in uploaded.items()}
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
            elapsed_ns // _NS_PER_MS,
        )
        uploads = {
            name: BackendUpload(bytes=sent[name], elapsed_ms=elapsed_ns // _NS_PER_MS)
            for name, (_, elapsed_ns) in uploaded.items()
        }
        version = context.version
        return BackedUpTask(
            checkpoint,
            uploads,
            version.changed_bytes(self._stores, context.base_version),
            version.image_bytes,
        )

    async def has_all(self, checkpoint: CheckpointV2) -> bool:
        """Return whether every backend has the stores in a checkpoint, under its current key.

        A version that has not changed since then need not be uploaded again.
        """
        expected = {backend.name: set(backend.stores) for backend in self._backends}
        markers = checkpoint.state_markers
        if {name: set(of_backend) for name, of_backend in markers.items()} != expected:
            return False
        found = {
            name: {store: [marker] for store, marker in of_backend.items()}
            for name, of_backend in markers.items()
        }
        try:
            return not await outdated_markers(self._factories, found, self._executor)
        except (ConfigError, RetriableError) as exc:
            # The next upload needs the key itself, and says so.
            logger.warning("the current encryption key cannot be found out: error=%s", exc)
            return True

    async def carry_over(
        self, context: CommitContext, input_offsets: Mapping[SystemStreamPartition, str]
    ) -> CheckpointV2:
        """Return the checkpoint of a version that its base has already: with the markers of that.

        As `commit`, but nothing is uploaded; the base must have all, by `has_all`.
        """
        assert context.base is not None  # noqa: S101 - by the contract
        checkpoint = CheckpointV2(
            context.checkpoint_id, dict(input_offsets), context.base.state_markers
        )
        await self._write_local_checkpoint(context, checkpoint)
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
        """Let every backend delete what only released commits and aborted attempts reach.

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
        with activity("clean-up", self._task.task_name):
            for backend in self._backends:
                markers = [checkpoint.markers_of(backend.name) for checkpoint in retained]
                try:
                    if await self._participation.is_ready(backend):
                        await backend.manager.clean_up(markers, closed_attempts)
                    else:
                        is_complete = False
                except Exception as exc:  # noqa: BLE001 - the others are still to do; raised below
                    errors.append(exc)
        elapsed_ns = self._clock.monotonic_ns() - began_ns
        self._report(TaskCleanedUp(self._task.task_name, elapsed_ns, len(errors)))
        if errors:
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
            commit=lambda checkpoint_id: self._contexts[checkpoint_id][name],
            executor=self._executor,
            clock=self._clock,
        )
        is_optional = all(name in self._stores[s].optional_factories for s in stores)
        return TaskBackend(name, factory.backup_manager(context), stores, is_optional)

    async def _snapshot(
        self, context: CommitContext, backends: Sequence[TaskBackend]
    ) -> Mapping[BackendName, Snapshot]:
        """Step 1. One straight run of blocking calls, so that it takes a single thread."""

        def snapshot_all() -> Mapping[BackendName, Snapshot]:
            fault_point("snapshot.before")
            self._check_images(context.version, backends)
            identity = context.checkpoint_id
            taken = {b.name: self._take_snapshot(b, identity) for b in backends}
            fault_point("snapshot.after")
            return {name: found for name, found in taken.items() if found is not None}

        began_ns = self._clock.monotonic_ns()
        snapshots: Mapping[BackendName, Snapshot] = {}
        try:
            snapshots = await self._executor.run(snapshot_all)
        except TaskFencedError:
            raise
        except Exception as exc:
            raise self._failure(context.checkpoint_id, "snapshot") from exc
        finally:
            self._report(
                SnapshotTaken(
                    task=self._task.task_name,
                    checkpoint_id=context.checkpoint_id.serialize(),
                    elapsed_ns=self._clock.monotonic_ns() - began_ns,
                    bytes_by_backend={name: taken.bytes for name, taken in snapshots.items()},
                    files_by_backend={name: taken.files for name, taken in snapshots.items()},
                )
            )
        return snapshots

    def _check_images(self, version: SealedVersion, backends: Sequence[TaskBackend]) -> None:
        """A store without an image would be backed up, and restored, as an empty one."""
        if missing := version.lacks({store for backend in backends for store in backend.stores}):
            msg = "the version has no image of stores that are backed up:"
            raise VersionDamagedError(
                f"{msg} task={self._task.task_name} version={version.id} stores={','.join(sorted(missing))}"
            )

    def _take_snapshot(self, backend: TaskBackend, checkpoint_id: CheckpointId) -> Snapshot | None:
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
        self,
        context: CommitContext,
        snapshots: Mapping[BackendName, Snapshot],
        sent: Mapping[BackendName, int],
    ) -> dict[BackendName, tuple[_Markers, int]]:
        """Step 2: all backends concurrently; the first failure that counts cancels the others."""
        fault_point("upload.before")
        try:
            async with asyncio.TaskGroup() as group:
                uploads = {
                    backend.name: group.create_task(
                        self._upload_and_report(backend, context, snapshots.get(backend.name), sent)
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
        results = {name: upload.result() for name, upload in uploads.items()}
        return {name: (found, ns) for name, (found, ns) in results.items() if found is not None}

    async def _upload_and_report(
        self,
        backend: TaskBackend,
        context: CommitContext,
        snapshot: Snapshot | None,
        sent: Mapping[BackendName, int],
    ) -> tuple[_Markers | None, int]:
        """Upload to one backend, as `_upload_to`; report what came of it, and return the time too."""
        began_ns, elapsed_ns = self._clock.monotonic_ns(), 0
        outcome = "failed"
        try:
            markers = await self._upload_to(backend, context.checkpoint_id, snapshot)
            outcome = "left-out" if markers is None else "done"
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            # In this order: the span of an upload is never shorter than those of its requests.
            ended_ns, elapsed_ns = self._clock.time_ns(), self._clock.monotonic_ns() - began_ns
            files, size = (0, 0) if snapshot is None else (snapshot.files, snapshot.bytes)
            image = [s for store in backend.stores for s in context.version.store_sizes(store)]
            self._report(
                BackendUploaded(
                    task=self._task.task_name,
                    backend=backend.name,
                    checkpoint_id=context.checkpoint_id.serialize(),
                    outcome=outcome,
                    ended_ns=ended_ns,
                    elapsed_ns=elapsed_ns,
                    files=files,
                    bytes=size,
                    bytes_sent=sent[backend.name],
                    files_retained=max(0, len(image) - files),
                    bytes_retained=max(0, sum(image) - size),
                )
            )
        return markers, elapsed_ns

    async def _upload_to(
        self, backend: TaskBackend, checkpoint_id: CheckpointId, snapshot: Snapshot | None
    ) -> _Markers | None:
        """Upload to one backend; None when it failed and is optional."""
        limit = asyncio.timeout(self._optional_timeout_s if backend.is_optional else None)
        try:
            async with limit:
                if snapshot is None:
                    await self._participation.rejoin(backend)
                    snapshot = await self._executor.run(backend.manager.snapshot, checkpoint_id)
                markers = dict(await backend.manager.upload(checkpoint_id, snapshot))
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


def _counted(
    context: CommitContext, backend: BackendName, sent: Counter[BackendName]
) -> CommitContext:
    """Return the context of a commit for one backend, whose bytes are added up in ``sent``."""

    def count(size: int) -> None:
        sent[backend] += size
        context.count_bytes(size)

    return replace(context, count_bytes=count)


def _first_cause(group: ExceptionGroup[Exception]) -> Exception:
    """Return the first error in a group that is not itself a group, a fence before all others."""
    fenced = group.subgroup(TaskFencedError)
    first = (group if fenced is None else fenced).exceptions[0]
    if isinstance(first, ExceptionGroup):
        return _first_cause(cast("ExceptionGroup[Exception]", first))
    return first
