"""The restore of one task: which commit, from where, verified before it is used."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from statekeep.backends.awaiting import shielded
from statekeep.backends.base import BlockingExecutor, StateBackendFactory, TaskIdentity
from statekeep.checkpoint.checkpoints import BackendName, CheckpointV2, Marker, StoreName, VersionId
from statekeep.checkpoint.error_summary import text_of
from statekeep.checkpoint.log_session import random_nonce
from statekeep.clock import Clock
from statekeep.config.redact import redact_text
from statekeep.config.store_settings import StoreFactoryName, StoreSettings
from statekeep.errors import (
    ConfigError,
    RestoreFailedError,
    UnknownFormatError,
    VersionDamagedError,
)
from statekeep.events import Report, TaskRestored, report_nothing
from statekeep.fault_points import fault_point
from statekeep.restore.fetch import FetchMeter, StoreFetcher, StoreOutOfReachError, fetch_all
from statekeep.restore.plan import BadMarkers, StorePlan, plan_restore
from statekeep.restore.progress import RestoreProgress
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion
from statekeep.stores.work_directory import WorkDirectory

logger = logging.getLogger(__name__)

_LONGEST_REASON: Final = 2_000
"""Characters of why a source is of no use: it goes into the job log. A library may quote what it read."""

LOCAL: Final = "local"
"""Stands for the local disk where a backend's name would stand."""


@dataclass(frozen=True, slots=True)
class RestoreCandidate:
    """A commit, or a batch, that a task may start from.

    Neither checkpoint nor version is empty state, which is always within reach. A version without
    a checkpoint is within reach only on this disk.
    """

    checkpoint: CheckpointV2 | None
    """What the commit record holds for the task."""
    version: VersionId | None
    """The version that the checkpoint (or the batch record) is of; None for empty state."""
    listed: frozenset[StoreName] | None = None
    """The stores that the commit record lists for the operator, so that a new store is told from
    one whose markers are missing; None: those that any backend has a marker for."""


@dataclass(frozen=True, slots=True)
class RestoreFailure:
    """One source that did not give a store its state back."""

    store: StoreName
    backend: str
    """Name of the backend, or `LOCAL`."""
    marker: Marker
    """What was looked for; empty where the checkpoint has no usable marker."""
    error: str
    """What went wrong, for people."""
    is_marker_bad: bool = False
    """What the marker names is missing or damaged, so it is of no use to anyone any more."""


@dataclass(frozen=True, slots=True)
class RestoreOutcome:
    """What a restore came to."""

    version: SealedVersion | None
    """The restored version, under its committed name; None for empty state."""
    sources: Mapping[StoreName, str]
    """`LOCAL` or the backend that each store came from; a new store is not in it."""
    bytes_fetched: int
    """From backends, failed tries included."""
    failures: tuple[RestoreFailure, ...]
    """Every step down, in order."""
    elapsed_ms: int
    candidate: RestoreCandidate
    """The one that was restored."""


async def _no_older() -> Sequence[RestoreCandidate]:
    return ()


async def _chain(
    candidates: Sequence[RestoreCandidate],
    find_older: Callable[[], Awaitable[Sequence[RestoreCandidate]]],
) -> AsyncIterator[RestoreCandidate]:
    for candidate in candidates:
        yield candidate
    for candidate in await find_older():
        yield candidate


class TaskRestorer:
    """Gives a task the newest state that is within reach.

    For each candidate, newest first: the local version, if every byte of it verifies and its stores
    can be opened; else each
    store from the first backend of its list that can, all of this one commit; else, if every copy
    of a store is missing or damaged, the next candidate, for all stores. An outage is not damage,
    nor is what a newer release wrote: they are errors, never an older commit. Nothing is usable before all of it is verified and
    adopted under the committed name. Coroutines of the container's event loop; one restore at a time.
    """

    def __init__(
        self,
        task: TaskIdentity,
        directory: TaskDirectory,
        stores: Mapping[StoreName, StoreSettings],
        factories: Mapping[BackendName, StateBackendFactory],
        *,
        executor: BlockingExecutor,
        clock: Clock,
        on_progress: Callable[[RestoreProgress], None],
        bad_markers: BadMarkers = (),
        new_uid: Callable[[], str] = random_nonce,
        report: Report = report_nothing,
    ) -> None:
        """Take what a restore needs.

        Args:
            task: Whose state it is.
            directory: Its local versions.
            stores: Its stores, as configured now.
            factories: Every backend that a store may be restored from, by name.
            executor: For blocking calls.
            clock: For durations.
            on_progress: Called on the loop with every step; must not raise.
            bad_markers: Never used as a source.
            new_uid: Names the work directory.
            report: Gets every fetch and the end, on the loop.
        """
        self._task = task
        self._directory = directory
        self._stores = stores
        self._factories = factories
        self._executor = executor
        self._clock = clock
        self._on_progress = on_progress
        self._bad_markers = bad_markers
        self._new_uid = new_uid
        self._report = report
        self._engines: Mapping[StoreName, StoreFactoryName] = {
            name: settings.factory for name, settings in stores.items()
        }
        self._is_clean_start = any(store.is_cleaned_on_start for store in stores.values())
        self._failures: list[RestoreFailure] = []
        self._obstacles: list[Exception] = []
        self._meter = FetchMeter(task.task_name, on_progress)

    async def restore(
        self,
        candidates: Sequence[RestoreCandidate],
        find_older: Callable[[], Awaitable[Sequence[RestoreCandidate]]] = _no_older,
    ) -> RestoreOutcome:
        """Restore the first candidate that can be restored.

        A cancel stops at the next byte count or call and leaves nothing that anyone would take for
        a version.

        Args:
            candidates: Newest first.
            find_older: Returns more of them once none of these can be restored.

        Raises:
            RestoreFailedError: None can be restored, or a backend that may still hold a newer commit
                than those that can does not answer, or cannot be read before something is repaired,
                which is then the cause; every failure is a note of it.
            UnknownFormatError: A newer version of Statekeep wrote the version on this disk.
            TaskFencedError: A backend found a newer owner.
        """
        began_ns = self._clock.monotonic_ns()
        self._failures = []
        self._meter = FetchMeter(self._task.task_name, self._on_progress)
        try:
            async for candidate in _chain(candidates, find_older):
                self._obstacles = []
                try:
                    version, sources = await self._restore_candidate(candidate)
                except StoreOutOfReachError as exc:
                    if exc.is_for_good:
                        continue
                    error, cause = self._obstructed()
                    raise error from cause
                elapsed_ns = self._clock.monotonic_ns() - began_ns
                self._report(
                    TaskRestored(
                        self._task.task_name,
                        {str(store): source for store, source in sources.items()},
                        self._meter.done_bytes,
                        elapsed_ns,
                    )
                )
                elapsed_ms = elapsed_ns // 1_000_000
                return self._outcome(candidate, version, sources, elapsed_ms)
        finally:
            self._meter.end()
        error = self._error(is_for_good=True)
        error.add_note(
            "hint: put back from a copy what is missing or damaged and start again; or begin with empty"
            " state: reset the job, or choose another job.name"
        )
        raise error

    async def _restore_candidate(
        self, candidate: RestoreCandidate
    ) -> tuple[SealedVersion | None, Mapping[StoreName, str]]:
        if candidate.version is None:
            return None, {}
        if candidate.checkpoint is None:
            local = await self._find_local(candidate.version)
            if local is None:
                self._record_local(
                    candidate.version, "the version is not on this disk and was never backed up"
                )
                raise StoreOutOfReachError(is_for_good=True)
            return local, self._local_sources(local)
        plans = plan_restore(
            self._task.task_name,
            self._stores,
            candidate.checkpoint,
            listed=candidate.listed,
            bad_markers=self._bad_markers,
        )
        # A store that the settings have forgotten begins empty on this disk too.
        forgotten = [n for n, settings in self._stores.items() if not settings.restore_factories]
        self._require_sources({name: plans[name] for name in forgotten})
        wanted = [name for name, plan in plans.items() if plan.is_held]
        local = await self._find_local(candidate.version, wanted, self._unlisted(plans))
        if local is not None:
            return local, self._local_sources(local)
        self._require_sources(plans)
        return await self._fetch(candidate.version, candidate.checkpoint, plans)

    def _unlisted(self, plans: Mapping[StoreName, StorePlan]) -> list[StoreName]:
        """Return the stores that the commit does not list, without those that always begin empty."""
        return [n for n, plan in plans.items() if plan.is_new and self._stores[n].restore_factories]

    async def _find_local(
        self,
        version_id: VersionId,
        wanted: Sequence[StoreName] = (),
        unlisted: Sequence[StoreName] = (),
    ) -> SealedVersion | None:
        """Return the local version if it is whole: every store, every byte as it was sealed.

        A start with fewer stores fetches no more than those, and leaves them under this name. Its
        commits may keep a version that has more stores than they list, with what those held before.
        """
        if self._is_clean_start:
            return None
        try:
            version = await self._executor.run(self._find_sound, version_id)
        except UnknownFormatError:
            raise
        except (VersionDamagedError, ConfigError, OSError) as exc:
            # What keeps anyone from using the disk keeps the fetch from it too, and ends that.
            self._record_local(version_id, redact_text(str(exc)))
            return None
        if version is not None and (missing := version.lacks(wanted)):
            logger.warning(
                "local version lacks stores and is fetched: task=%s version=%s stores=%s",
                self._task.task_name,
                version_id,
                ",".join(missing),
            )
            return None
        if version is not None and any(version.store_files(store) for store in unlisted):
            logger.warning(
                "local version has stores that its commit does not list and is fetched: "
                "task=%s version=%s",
                self._task.task_name,
                version_id,
            )
            return None
        return version

    def _find_sound(self, version_id: VersionId) -> SealedVersion | None:
        version = self._directory.find(version_id)
        if version is not None:
            self._directory.require_sound(version, self._engines, self._new_uid())
        return version

    def _local_sources(self, version: SealedVersion) -> Mapping[StoreName, str]:
        return {name: LOCAL for name in self._stores if version.store_files(name)}

    def _require_sources(self, plans: Mapping[StoreName, StorePlan]) -> None:
        """Note each store without a source, which puts the candidate out of reach.

        Raises:
            StoreOutOfReachError: There is one.
        """
        stranded = {name: plan for name, plan in plans.items() if plan.is_stranded}
        for name, plan in stranded.items():
            backends = ",".join(self._stores[name].restore_factories)
            error = "no usable marker in the checkpoint"
            if plan.elsewhere:
                error += (
                    f"; it has one of {','.join(plan.elsewhere)}, which is not in"
                    f" stores.{name}.restore.factories"
                )
            if not plan.is_held:
                error = "no backend has it: it was not backed up at this commit"
            if not (backends and plan.is_held):
                error += (
                    f" (to begin it empty, set stores.{name}.restore.factories to an empty value)"
                )
            self._record(RestoreFailure(name, backends, Marker(""), error=error))
        if stranded:
            # What another backend holds is not lost, and what none held is in no older commit either.
            is_lost = all(plan.is_held and not plan.elsewhere for plan in stranded.values())
            raise StoreOutOfReachError(is_for_good=is_lost)

    async def _fetch(
        self,
        version_id: VersionId,
        checkpoint: CheckpointV2,
        plans: Mapping[StoreName, StorePlan],
    ) -> tuple[SealedVersion, Mapping[StoreName, str]]:
        """Fetch every store into a work directory and adopt it under the committed name."""
        run = self._executor.run
        begin = run(self._directory.begin, self._new_uid(), None, tuple(self._stores))
        work = await shielded(begin, undo=self._discard)
        try:
            fetcher = StoreFetcher(
                self._task,
                self._stores,
                self._factories,
                executor=self._executor,
                clock=self._clock,
                meter=self._meter,
                work=work,
                reusable=await run(self._find_reusable),
                checkpoint=checkpoint,
                version=version_id,
                on_failure=self._record_source,
                report=self._report,
            )
            sources = await fetch_all(fetcher, plans)
            fault_point("restore.before_adopt")
            adopt = run(self._directory.adopt, work, version_id, None, (), engines=self._engines)
            version = await shielded(adopt)
            fault_point("restore.after_adopt")
        finally:
            await self._discard(work)
        return version, sources

    async def _discard(self, work: WorkDirectory) -> None:
        """Remove a work directory; idempotent.

        After a cancel a thread may still write there: then the next sweep removes the rest.
        """
        try:
            await self._executor.run(work.discard)
        except OSError as exc:
            logger.warning(
                "work directory is left to the next sweep: task=%s path=%s error=%s",
                self._task.task_name,
                work.path,
                exc,
            )

    def _find_reusable(self) -> Sequence[SealedVersion]:
        """Return local versions, newest first, whose files may be proven equal and linked."""
        if self._is_clean_start:
            return ()
        found: list[SealedVersion] = []
        for version_id in reversed(self._directory.versions()):
            try:
                version = self._directory.find(version_id)
            except (VersionDamagedError, UnknownFormatError):
                continue  # which matters only to who wants this very version
            if version is not None:
                found.append(version)
        return found

    def _record_local(self, version_id: VersionId, error: str) -> None:
        self._record(RestoreFailure(StoreName("*"), LOCAL, Marker(str(version_id)), error=error))

    def _record_source(
        self, store: StoreName, backend: str, marker: Marker, exc: Exception, *, is_bad: bool
    ) -> None:
        if not is_bad:
            self._obstacles.append(exc)
        self._record(RestoreFailure(store, backend, marker, text_of(exc)[:_LONGEST_REASON], is_bad))

    def _record(self, failure: RestoreFailure) -> None:
        """Log every step down as an error: a person should look at it."""
        self._failures.append(failure)
        logger.error(
            "state cannot be restored from this backend: task=%s backend=%s store=%s marker=%s "
            "error=%s",
            self._task.task_name,
            failure.backend,
            failure.store,
            failure.marker,
            failure.error,
        )

    def _outcome(
        self,
        candidate: RestoreCandidate,
        version: SealedVersion | None,
        sources: Mapping[StoreName, str],
        elapsed_ms: int,
    ) -> RestoreOutcome:
        logger.info(
            "state is restored: task=%s checkpoint_id=%s version=%s sources=%s bytes=%d elapsed_ms=%d",
            self._task.task_name,
            candidate.checkpoint.checkpoint_id if candidate.checkpoint else None,
            candidate.version,
            ",".join(f"{store}:{source}" for store, source in sources.items()),
            self._meter.done_bytes,
            elapsed_ms,
        )
        return RestoreOutcome(
            version=version,
            sources=sources,
            bytes_fetched=self._meter.done_bytes,
            failures=tuple(self._failures),
            elapsed_ms=elapsed_ms,
            candidate=candidate,
        )

    def _obstructed(self) -> tuple[RestoreFailedError, ConfigError | None]:
        """Return the error of a commit that is not lost, and what to mend if that is all it takes."""
        error = self._error(is_for_good=False)
        to_mend = [exc for exc in self._obstacles if isinstance(exc, ConfigError)]
        for hint in dict.fromkeys(hint for exc in to_mend for hint in exc.hints):
            error.add_note(f"hint: {hint}")
        if to_mend and len(to_mend) == len(self._obstacles):
            return error, to_mend[0]
        error.add_note(
            "hint: start again once the backend answers, or with settings that name the one that has"
            " the state; take a backend that is gone for good out of stores.<name>.restore.factories"
        )
        return error, None

    def _error(self, *, is_for_good: bool) -> RestoreFailedError:
        error = RestoreFailedError(
            f"no retained commit can be restored: tries={len(self._failures)}",
            task_name=self._task.task_name,
            store_names=list(dict.fromkeys(failure.store for failure in self._failures)),
            is_for_good=is_for_good,
        )
        for failure in self._failures:
            error.add_note(
                f"store={failure.store} backend={failure.backend} marker={failure.marker}: "
                f"{failure.error}"
            )
        return error
