"""Erases grouping keys from a stopped job: from its state, and from what its backups still hold of them."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from pyspark.sql.types import StructType

from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.log_session import random_nonce, require_no_clones
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.checkpoint.records import CommitRecord, ReleaseRecord, StateChange
from statekeep.clock import SystemClock
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.fault_points import fault_point
from statekeep.inspection.clean_up import Sweep, delete_leftovers
from statekeep.inspection.job import InspectedJob, OpenJob, open_job
from statekeep.inspection.state_change import (
    ERASE,
    Changing,
    Edit,
    change_state,
    find_changeable,
    holders_of,
    person,
)
from statekeep.inspection.task_restore import stores_of
from statekeep.spark.operator.clock import TIME_BYTES
from statekeep.spark.operator.registry import PROCESSOR_KINDS, stored_variables
from statekeep.spark.state.key_text import parse_fields
from statekeep.spark.state.keys import KeyRouter
from statekeep.spark.state.plan import by_age, tasks_of, with_tasks
from statekeep.spark.state.restored import RestoredTask
from statekeep.spark.state.writing import open_in, require_reason, task_of_key
from statekeep.spark.tasks import STATE_STORE
from statekeep.stores.base import KeyValueStore
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion

_ID_BYTES: Final = 2
_CHUNK: Final = 10_000
"""Entries in one write."""


@dataclass(frozen=True, slots=True)
class EraseRequest:
    """What is to be erased, and why."""

    config: Config
    keys: Sequence[str]
    """As the user typed them."""
    reason: str
    operator: str | None = None
    """None: the one operator of the job."""
    is_dropping_savepoints: bool = False
    """Also if commits from before are kept under names."""
    is_forced: bool = False
    """Also if the newest state has nothing of a key: an older commit may."""


@dataclass(frozen=True, slots=True)
class Erased:
    """What was done."""

    position: int
    """Of the commit without the keys. Older ones are left only under names, and never held the keys."""
    entries: int
    """How many of the newest state are gone: values, lists, entries of maps, timers, and of indexes."""
    released: Sequence[int]
    """Commits from before."""
    dropped: Sequence[str]
    """Names under which some of them were kept."""
    unreached: Sequence[str]
    """Backends that older commits name and the settings do not: what is there stays."""


async def erase_keys(
    request: EraseRequest, changing: Changing, open_it: OpenJob = open_job
) -> Erased:
    """Erase keys: a new commit without them, and no commit from before.

    The tasks of the keys are written anew, entry by entry, and uploaded whole: neither their files nor
    what they refer to has ever held the keys. If it was cut off, the same call does the rest.

    Raises:
        ConfigError: Commits are kept under names or for clones, the newest state has nothing of a key, a key does not fit,
            or there is no such job or operator; or as `change_state`. Nothing was changed, unless it says
            that a commit was kept under a name meanwhile.
        StateBackupError: As `change_state`, or while the old commits were deleted: repeat the call.
    """
    require_reason(request.reason)
    async with open_it(request.config, SystemClock()) as job:
        _, commit = await find_changeable(job, changing)
        tasks = tasks_of(commit, request.operator)
        keys = await _key_schema(job, with_tasks(commit, tasks), changing)
        router = KeyRouter(keys, commit.identity.router, tasks)
        found: dict[TaskName, dict[bytes, str]] = {}
        for text in request.keys:
            front = router.encode(parse_fields(text, keys))
            found.setdefault(task_of_key(router, front), {})[front] = text

        def check(view: LogView) -> None:
            require_no_clones(view.clones, _kept_names(job, view, found))
            if not request.is_dropping_savepoints:
                _refuse_names(_kept_names(job, view, found))

        check(job.view)
        # An erasure that was cut off has left older commits, and nothing of the keys in the newest one.
        is_repeated = commit.change is not None and commit.change.kind == ERASE
        is_forced = request.is_forced or is_repeated
        erasing = {
            task: _Erasing(request.config, commit, texts, is_forced=is_forced)
            for task, texts in found.items()
        }
        change = StateChange(
            kind=ERASE,
            by=person(),
            reason=request.reason,
            operator=request.operator or MAIN_OPERATOR,
            keys=len(request.keys),
        )
        edits: dict[TaskName, Edit] = {task: edit.run for task, edit in erasing.items()}
        made = await change_state(job, change, edits, changing, check=check, is_whole=True)
        log = made.log
        fault_point("release.before")
        names = _kept_names(job, log.view, found) if request.is_dropping_savepoints else []
        require_no_clones(log.view.clones, names)
        for name in names:
            await log.unpin(name)
        older = [position for position in log.view.commits if position != made.position]
        unpinned = [position for position in older if position not in log.view.pins.values()]
        if unpinned:
            await log.append(ReleaseRecord(positions=unpinned))
        released = [position for position in older if position not in log.view.commits]
        sweep = await Sweep.of(log.view, commit.identity, log.read_commits)
        await delete_leftovers(job.storage, request.config, sweep)
        require_no_clones(log.view.clones, _kept_names(job, log.view, found))
        _refuse_names(_kept_names(job, log.view, found))  # of a pin that was made meanwhile
        return Erased(
            made.position,
            sum(edit.entries for edit in erasing.values()),
            released,
            names,
            _unreached(job, older),
        )


def _refuse_names(names: Sequence[str]) -> None:
    if names:
        raise ConfigError(
            f"commits that may hold the keys are kept under names: names={','.join(names)}",
            hint="give --drop-savepoints to drop them with the keys, or drop them one by one",
        )


def _kept_names(job: InspectedJob, view: LogView, tasks: Collection[TaskName]) -> list[str]:
    """Return the names of commits from before in which one of the tasks has state.

    In a commit with another number of tasks, any of them may have the keys.
    """
    newest = job.find_commit()[1].identity.partitions
    kept = {n: job.commit_at(p) for n, p in view.pins.items() if p in job.view.commits}
    return sorted(
        name
        for name, commit in kept.items()
        if any(
            map(
                commit.versions.get,
                tasks if commit.identity.partitions == newest else commit.versions,
            )
        )
    )


def _unreached(job: InspectedJob, positions: Iterable[int]) -> list[str]:
    """Return the backends of commits that the settings do not name."""
    named = {backend for at in positions for backend, _ in holders_of(job.commit_at(at))}
    return sorted(named - job.storage.factories.keys())


async def _key_schema(job: InspectedJob, commit: CommitRecord, changing: Changing) -> StructType:
    """Return the schema of the grouping key, which each task with state has."""
    for task in by_age(commit):
        restored = await RestoredTask.restore(
            job.storage,
            job.config,
            commit,
            task,
            changing.directory / "schema",
            store=STATE_STORE,
            bad_markers=job.view.bad_markers,
            on_progress=changing.on_progress,
        )
        schema = await job.executor.run(_read_key_schema, restored)
        if schema.fields:
            return schema
    raise ConfigError(f"the operator has no state yet: job={job.config.job.name}")


def _read_key_schema(restored: RestoredTask) -> StructType:
    with restored.store() as store:
        return stored_variables(store)[0]


class _Erasing:
    """Writes one task anew without some keys."""

    def __init__(
        self, config: Config, commit: CommitRecord, texts: Mapping[bytes, str], *, is_forced: bool
    ) -> None:
        self._found = dict.fromkeys(texts, 0)
        self._config = config
        self._commit = commit
        self._texts = texts
        self._fronts = tuple(texts)
        self._is_forced = is_forced

    @property
    def entries(self) -> int:
        """How many were left out."""
        return sum(self._found.values())

    def run(
        self, directory: TaskDirectory, version: SealedVersion | None, uid: str
    ) -> SealedVersion | None:
        """As an `Edit`; a task without state has nothing to erase."""
        if version is None:
            self._require_found()
            return None
        stores = [store for found in stores_of(self._commit).values() for store in found]
        present = [store for store in stores if version.store_files(store)]
        with (
            directory.begin(random_nonce(), version, present) as old,
            directory.begin(uid, None, present) as new,
        ):
            for store in present:
                self._copy(open_in(old, store, self._config), open_in(new, store, self._config))
            self._require_found()
            return new.seal(self._commit.batch, uid, None)

    def _require_found(self) -> None:
        """Make sure that each key was there: one that was mistyped would cost all older commits."""
        for front, entries in self._found.items():
            if not entries and not self._is_forced:
                raise ConfigError(
                    f"the newest state does not have the key: key={self._texts[front]!r}",
                    hint="check how it is written, with `statekeep state get`; if it is right, an older"
                    " commit may still hold it: give --force to delete all older commits",
                )

    def _copy(self, source: KeyValueStore, target: KeyValueStore) -> None:
        kept = self._kept(source)
        while chunk := dict(islice(kept, _CHUNK)):
            target.write(chunk)

    def _kept(self, source: KeyValueStore) -> Iterator[tuple[bytes, bytes]]:
        starts = _key_starts(source)
        for key, value in source.scan():
            start = starts.get(key[:_ID_BYTES])
            if start is not None and key.startswith(self._fronts, start):
                self._found[next(f for f in self._fronts if key.startswith(f, start))] += 1
            else:
                yield key, value


def _key_starts(store: KeyValueStore) -> Mapping[bytes, int]:
    """Return where the grouping key begins in the keys of each variable and index, by their ids."""
    variables = stored_variables(store)[1].values()
    by_key = {*PROCESSOR_KINDS, "timers"}
    return {v.prefix: _ID_BYTES + (0 if v.kind in by_key else TIME_BYTES) for v in variables}


_REMAINS: Final = {
    "kafka": "the changelog topic has the old records until the broker compacts it; it leaves the newest"
    " segment alone, and waits for min.compaction.lag.ms and delete.retention.ms",
    "hdfs": "files are deleted past the trash; snapshots of the directory still have them",
    "blob": "a bucket or sidecar with versions, soft delete or replication keeps what was deleted, for"
    " as long as its lifecycle rules say",
}
_ELSEWHERE: Final = {
    "local disks": "hosts that ran the tasks have the old files until the job has started and committed"
    " there; a host that it does not use again has them for 30 days after another job ran there",
    "other jobs": "one that `savepoint restore` or `rescale` made of this one has a copy of its own; what this"
    " one is a clone of has its own state",
    "outside": "source, sink, checkpoint location and log files of the query",
}


def remains_of(config: Config, unreached: Iterable[str] = ()) -> Mapping[str, str]:
    """Return what may still hold keys that were erased from a job, by where they are.

    Args:
        config: Of the job.
        unreached: As of `Erased`.
    """
    kinds = {name: config.backend_factory(name) for name in config.backend_names()}
    kept = {
        name: _REMAINS.get(kind, "whatever the backend keeps of what was deleted")
        for name, kind in kinds.items()
    }
    left = dict.fromkeys(
        unreached, "all that older commits have there: the settings do not name it"
    )
    return {**kept, **left, **_ELSEWHERE}
