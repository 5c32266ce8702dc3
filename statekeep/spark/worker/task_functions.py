"""The short jobs of a task besides processing: locate, restore, submit, read output."""

import asyncio
import json
import logging
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from statekeep.checkpoint.checkpoints import StoreName, VersionId
from statekeep.checkpoint.error_summary import text_of
from statekeep.checkpoint.names import MAIN_OPERATOR, escape_name
from statekeep.commit.executor import BoundedExecutor
from statekeep.config.store_settings import StoreFactoryName
from statekeep.errors import (
    ConfigError,
    RetriableError,
    StateBackupError,
    UnknownFormatError,
    VersionDamagedError,
)
from statekeep.fault_points import fault_point
from statekeep.spark.operator.registry import REGISTRY_KEY
from statekeep.spark.placement import ANSWER_COLUMN
from statekeep.spark.sidecar.client import SidecarError, ask, ask_to_stop, start_ahead
from statekeep.spark.sidecar.launch import has_living_holder
from statekeep.spark.sidecar.paths import SidecarPaths, SidecarSpec
from statekeep.spark.sidecar.protocol import (
    NOTHING,
    Candidate,
    Done,
    Follow,
    FollowedTask,
    OtherVersion,
    Restore,
    SubmitVersion,
)
from statekeep.spark.tasks import SCRATCH, SCRATCH_PREFIX
from statekeep.spark.worker.executor_identity import executor_identity
from statekeep.spark.worker.job_spec import (
    VERSION_NOT_HERE,
    FollowPlan,
    JobSpec,
    SubmitPlan,
    TaskCommit,
)
from statekeep.spark.worker.open_tasks import open_tasks, session_prefix
from statekeep.stores.change_set import ChangeSet
from statekeep.stores.temporary_directory import sweep_temporary

logger = logging.getLogger(__name__)

MISSING_OUTPUT = "statekeep-missing-output"
"""Marks the one error of a sink's job that the batch call heals."""


_RESTORES_AT_A_TIME: Final = 8
"""By one slot: the sidecar has its own limit, and memory for so many."""
_VERSIONS_A_REQUEST: Final = 8
"""Uploads of these begin before the images of the next ones are written: with 32, and 64 tasks, half a second
of uploads was left after the last image, with 8 a tenth. And a request has its longest frame."""


class MissingOutputError(StateBackupError):
    """Raised in a task whose output file is not on its host."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a sidecar restored for one task."""

    partition: int
    version: str = ""
    candidate: int = 0
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    bytes_fetched: int = 0
    elapsed_ms: int = 0
    failures: Sequence[Mapping[str, Any]] = ()
    error: str = ""
    registries: Mapping[str, str] = field(default_factory=dict[str, str])
    """``{store: its state variables}``; only of one task of each operator in a slot."""
    events: str = ""
    """As `Done.events`."""


def own_partition() -> int:
    """Return the partition that this task runs."""
    context = TaskContext.get()
    if context is None:
        msg = "not inside a Spark task"
        raise RuntimeError(msg)
    return context.partitionId()


def answer(fields: Mapping[str, Any]) -> pa.RecordBatch:
    """Return the one row that a task sends to the driver."""
    return pa.RecordBatch.from_pydict({ANSWER_COLUMN: [json.dumps(fields)]})


def executor_of(tasks: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Answer with the executor that runs a slot."""
    yield answer({"tasks": list(tasks), "executor": executor_identity().executor_id})


_started_ahead: Final[dict[str, int]] = {}
"""``{local directory of a job: epoch}`` of the driver sessions whose sidecar was started here."""


def beside_sidecar(
    work: Iterator[pa.RecordBatch], spec: JobSpec, epoch: int
) -> Iterator[pa.RecordBatch]:
    """Do the work of a slot; start this executor's sidecar beside the first of a driver session.

    A sidecar takes some tenths of a second of processor time to start, which a restore, the
    first commit or a stop would otherwise wait for.
    """
    if _started_ahead.get(spec.local_name) == epoch:
        yield from work
        return
    _started_ahead[spec.local_name] = epoch
    starting = threading.Thread(
        target=start_ahead, args=_sidecar(spec), name="statekeep-start", daemon=True
    )
    starting.start()
    yield from work
    starting.join()


def locate(
    tasks: Sequence[int],
    spec: JobSpec,
    candidates: Mapping[int, Sequence[str]],
    *,
    epoch: int,
    is_thorough: bool,
) -> Iterator[pa.RecordBatch]:
    """Answer for each task with the first candidate that is here, sound, or None.

    A thorough look also answers with the state variables of one task of each operator.
    """
    known: set[int] = set()
    for task in tasks:
        found = next(
            (
                name
                for name in candidates.get(task, ())
                if not name or _is_here(spec, task, name, is_thorough=is_thorough)
            ),
            None,
        )
        registries: Mapping[str, str] = {}
        if found and is_thorough and spec.operator_of(task) not in known:
            registries = _registries(spec, epoch, task, found)
            known |= {spec.operator_of(task)} if registries else set()
        yield answer({"partition": task, "version": found, "registries": registries})


def has_output(
    tasks: Sequence[int], spec: JobSpec, versions: Mapping[int, str]
) -> Iterator[pa.RecordBatch]:
    """Answer with the tasks of the slot whose output lies on this host."""
    for task in tasks:
        changes = _change_set(spec, task, versions.get(task))
        is_here = changes is not None and changes.output_path.exists()
        yield answer({"partition": task, "is_here": is_here})


def restore(
    tasks: Sequence[int],
    spec: JobSpec,
    candidates: Mapping[int, Sequence[TaskCommit]],
    *,
    bad_markers: Sequence[tuple[str, str, str, str]],
    epoch: int,
) -> Iterator[pa.RecordBatch]:
    """Let the sidecar bring one of the candidates of each task here; answer what came of it.

    Several at a time, as a restore mostly waits for a backend.
    """
    wanted = [task for task in tasks if task in candidates]

    async def restore_all() -> list[Restored]:
        executor = BoundedExecutor(_RESTORES_AT_A_TIME, "statekeep-restore-requests")
        try:
            return await asyncio.gather(
                *(
                    executor.run(_restored, task, spec, candidates, bad_markers, epoch)
                    for task in wanted
                )
            )
        finally:
            await executor.close()

    known: set[int] = set()
    for restored in asyncio.run(restore_all()):
        operator = spec.operator_of(restored.partition)
        registries: Mapping[str, str] = {}
        if restored.version and operator not in known:
            registries = _registries(spec, epoch, restored.partition, restored.version)
            known |= {operator} if registries else set()
        yield answer(asdict(replace(restored, registries=registries)))


def _restored(
    partition: int,
    spec: JobSpec,
    candidates: Mapping[int, Sequence[TaskCommit]],
    bad_markers: Sequence[tuple[str, str, str, str]],
    epoch: int,
) -> Restored:
    request = Restore(
        epoch=epoch,
        partition=partition,
        candidates=[_candidate(found) for found in candidates[partition]],
        bad_markers=bad_markers,
    )
    paths, sidecar = _sidecar(spec)
    fault_point("restore.before_request")
    try:
        done = ask(paths, sidecar, request)
    except (SidecarError, RetriableError) as exc:
        return Restored(partition, error=text_of(exc))
    return Restored(
        partition=partition,
        version=done.version,
        candidate=done.candidate,
        sources=done.sources,
        bytes_fetched=done.bytes_fetched,
        elapsed_ms=done.elapsed_ms,
        failures=[msgspec.structs.asdict(failure) for failure in done.failures],
        events=bytes(done.events).decode(),
    )


def follow(spec: JobSpec, plan: FollowPlan, slot: int, *, epoch: int) -> Mapping[str, int] | None:
    """Have this executor's sidecar bring commits of other tasks here; see `Follow`.

    What keeps it from that is logged: no batch ends for a copy.

    Returns:
        `Followed`; None if there is nothing to ask here, or the sidecar did not answer.
    """
    executor, tasks = plan.slots.get(slot, ("", {}))
    if executor != executor_identity().executor_id:
        return None
    try:
        done = _ask_to_follow(spec, tasks, plan.bad_markers, epoch=epoch, is_awaited=False)
    except (SidecarError, RetriableError) as exc:
        logger.warning("no copies of tasks are made here: tasks=%d error=%s", len(tasks), exc)
        return None
    return msgspec.structs.asdict(done.followed)


def fetch_ahead(
    tasks: Sequence[int],
    spec: JobSpec,
    commits: Mapping[int, TaskCommit],
    *,
    bad_markers: Sequence[tuple[str, str, str, str]],
    epoch: int,
) -> Iterator[pa.RecordBatch]:
    """Have the sidecar bring commits of tasks here that are to move here; answer how many it lacks."""
    wanted = {task: commits[task] for task in tasks if task in commits}
    error, waiting = "", 0
    if wanted:
        try:
            done = _ask_to_follow(spec, wanted, bad_markers, epoch=epoch, is_awaited=True)
            waiting = done.followed.waiting
        except (SidecarError, RetriableError) as exc:
            error = text_of(exc)
    yield answer({"error": error, "waiting": waiting})


def _ask_to_follow(
    spec: JobSpec,
    commits: Mapping[int, TaskCommit],
    bad_markers: Sequence[tuple[str, str, str, str]],
    *,
    epoch: int,
    is_awaited: bool,
) -> Done:
    request = Follow(
        epoch=epoch,
        tasks=[
            FollowedTask(partition=task, candidate=_candidate(found))
            for task, found in commits.items()
        ],
        bad_markers=bad_markers,
        is_awaited=is_awaited,
    )
    paths, sidecar = _sidecar(spec)
    return ask(paths, sidecar, request)


def _candidate(found: TaskCommit) -> Candidate:
    return Candidate(
        version=found.version,
        checkpoint=NOTHING if found.checkpoint is None else msgspec.Raw(found.checkpoint),
        stores=found.stores,
    )


@dataclass(frozen=True, slots=True)
class Submitted:
    """What came of submitting a task's version for a commit."""

    error: str = ""
    """Why it failed, or ""."""
    pause_ns: int = 0
    """What the image took that was written for it; 0 where one was there."""


def submit_versions(
    tasks: Sequence[int], spec: JobSpec, plan: SubmitPlan
) -> Iterator[pa.RecordBatch]:
    """Submit the versions of a slot's tasks; answer with the error of each, if any."""
    for task, done in submit(tasks, spec, plan).items():
        yield answer({"partition": task, "error": done.error})


def submit(tasks: Sequence[int], spec: JobSpec, plan: SubmitPlan) -> dict[int, Submitted]:
    """Write the images of versions where there are none, and hand them to this executor's sidecar.

    Many go in one request, as most of what a small one takes is its connection. What keeps the
    sidecar from one of them is the error of all.

    Returns:
        What came of it for each of the tasks, also of those that have nothing to submit.
    """
    found = {task: Submitted() for task in tasks}
    wanted = [task for task in tasks if task in plan.versions]
    versions = {task: VersionId.parse(plan.versions[task]) for task in wanted}
    open_tasks.begin_seals(spec, plan.epoch, versions)
    for at in range(0, len(wanted), _VERSIONS_A_REQUEST):
        sealed = {t: _prepared(spec, plan, t) for t in wanted[at : at + _VERSIONS_A_REQUEST]}
        found |= sealed
        ready = [task for task, done in sealed.items() if not done.error]
        error = _send(spec, plan, ready) if ready else ""
        if error:
            found |= {task: replace(found[task], error=error) for task in ready}
    return found


def _prepared(spec: JobSpec, plan: SubmitPlan, partition: int) -> Submitted:
    """Write the image of a version where there is none."""
    version = plan.versions[partition]
    fault_point("submit_versions.before")
    try:
        sealed = _sealed(spec, plan, partition, VersionId.parse(version))
    except StateBackupError as exc:  # the batch that it rides on can do nothing about it
        logger.exception("no image can be written: task=%s version=%s", partition, version)
        return Submitted(text_of(exc))
    return Submitted(f"{VERSION_NOT_HERE}: version={version}") if sealed is None else sealed


def _send(spec: JobSpec, plan: SubmitPlan, tasks: Sequence[int]) -> str:
    """Hand versions that have an image to this executor's sidecar; return why not, or ""."""
    versions = [_submitted(plan, task) for task in tasks]
    first = msgspec.structs.asdict(versions[0])
    request = SubmitVersion(
        epoch=plan.epoch,
        attempt=plan.attempt,
        is_awaited=plan.is_awaited,
        is_observed=plan.is_observed,
        others=tuple(versions[1:]),
        **first,
    )
    paths, sidecar = _sidecar(spec)
    try:
        ask(paths, sidecar, request)
    except (SidecarError, RetriableError) as exc:
        return text_of(exc)
    fault_point("submit_versions.after")
    return ""


def _submitted(plan: SubmitPlan, partition: int) -> OtherVersion:
    base = plan.bases.get(partition)
    return OtherVersion(
        partition=partition,
        version=plan.versions[partition],
        checkpoint=msgspec.Raw(plan.checkpoints[partition]),
        base=NOTHING if base is None else msgspec.Raw(base[1]),
        base_version="" if base is None else base[0],
    )


def is_version_lost(error: str) -> bool:
    """Whether a submit failed because the version is not on this host."""
    return error.startswith(VERSION_NOT_HERE)


def _sealed(
    spec: JobSpec, plan: SubmitPlan, partition: int, version: VersionId
) -> Submitted | None:
    """Make sure that a version has an image; None if the version is not on this host.

    An image without a store is from before the settings had that store, and is made anew.
    """
    directory = spec.directory(partition)
    try:
        image = directory.find_image(version)
        if image is not None and not image.lacks(spec.lasting_stores):
            return Submitted()
    except UnknownFormatError:  # the restore says so
        logger.exception("local version cannot be used: version=%s", version)
        return None
    stores = open_tasks.get(spec, plan.epoch, partition, plan.batch)
    if not stores.go_to(version):
        return None
    base = plan.bases.get(partition)
    began_ns = time.monotonic_ns()
    fault_point("seal.before")
    if image is not None:
        directory.set_aside(image.directory)
    stores.seal(None if base is None else VersionId.parse(base[0]))
    fault_point("seal.after")
    return Submitted("", time.monotonic_ns() - began_ns)


def held_uploads(spec: JobSpec, plan: SubmitPlan) -> Iterator[pa.RecordBatch]:
    """Answer which versions of an attempt a living sidecar of this host has to upload.

    Of any task: a version is uploaded on the host where it was made, and its task may be placed on
    another one by now.
    """
    paths, _ = _sidecar(spec)
    job_directory = paths.directory.parent
    held = [
        t for t in plan.versions if has_living_holder(job_directory, plan.epoch, plan.attempt, t)
    ]
    yield answer({"held": held})


def read_output(
    tasks: Sequence[int], spec: JobSpec, versions: Mapping[int, str]
) -> Iterator[pa.RecordBatch]:
    """Yield the output rows of a slot's tasks in the batch.

    Raises:
        MissingOutputError: A change set is not on this host; the batch call heals it.
    """
    for task in tasks:
        if task not in versions:
            continue
        fault_point("output.before_read")
        changes = _change_set(spec, task, versions[task])
        if changes is None or not changes.output_path.exists():
            msg = f"{MISSING_OUTPUT} partition={task} version={versions[task]}"
            raise MissingOutputError(msg)
        with (
            pa.memory_map(str(changes.output_path)) as file,
            pa.ipc.open_file(file) as reader,
        ):
            for index in range(reader.num_record_batches):
                yield reader.get_batch(index)


def end_session(
    own: Sequence[int], spec: JobSpec, tasks: int, *, epoch: int, is_committed: bool
) -> Iterator[pa.RecordBatch]:
    """End what a driver session has on this executor: its open stores and its sidecar.

    Waits until the sidecar has ended. Stores that are open in a worker that this call does not
    reach lose their files, and are closed when that worker is used again or ends.

    Args:
        own: The tasks of the slot: it begins with these, and finds others looked after by their slots.
        spec: The job.
        tasks: How many it has.
        epoch: The driver session.
        is_committed: Whether its last batch is: then nothing here is needed that backups do not hold.
    """
    # First: other slots that are done remove the files of all tasks, and then a close takes a second.
    removing = open_tasks.close_job(spec, epoch)
    paths, sidecar = _sidecar(spec)
    try:
        ask_to_stop(paths, sidecar, epoch)
    except (RetriableError, SidecarError) as exc:
        logger.info("the sidecar could not be stopped now: error=%s", exc)
    removing.join()
    for task in dict.fromkeys([*own, *range(tasks)]):
        directory = spec.directory(task)
        if directory.is_tidy(is_dispensable=is_committed):
            continue
        directory.remove_work(session_prefix(epoch))
        directory.sweep()  # what killed workers of earlier sessions have left
        # A task that is open still belongs to a newer session, which this one has not heard of.
        if is_committed and directory.is_unused_since(time.time_ns()):
            directory.mark_dispensable()
    # Of a start with another number of tasks that was killed.
    job_directory = spec.job.local_dir / escape_name(spec.local_name)
    sweep_temporary(SCRATCH_PREFIX, job_directory / SCRATCH)
    yield answer({})


def _registries(spec: JobSpec, epoch: int, task: int, version: str) -> Mapping[str, str]:
    """Return which state variables each store of a version holds, without those that hold none.

    Caches are left out: the first batch empties them.
    """
    stores = open_tasks.get(spec, epoch, task, 0)
    if not stores.go_to(VersionId.parse(version)):
        return {}
    found = {name: stores.store(name).get(REGISTRY_KEY) for name in spec.lasting_stores}
    return {name: registry.decode() for name, registry in found.items() if registry is not None}


def _is_here(spec: JobSpec, task: int, name: str, *, is_thorough: bool) -> bool:
    """Return whether a version can be made of what is on this host."""
    directory = spec.directory(task)
    try:
        path = directory.find_path(VersionId.parse(name), None, spec.stores, spec.listed_stores)
        if path is not None and is_thorough:
            engines: Mapping[StoreName, StoreFactoryName] = {
                store: spec.config.store(store).factory for store in spec.stores
            }
            directory.require_sound_path(path, engines, uuid.uuid4().hex)
    except (VersionDamagedError, ConfigError):
        logger.exception("local version cannot be used: version=%s", name)
        return False
    return path is not None


def _change_set(spec: JobSpec, task: int, version: str | None) -> ChangeSet | None:
    return None if version is None else spec.directory(task).change_set(VersionId.parse(version))


def _sidecar(spec: JobSpec) -> tuple[SidecarPaths, SidecarSpec]:
    executor = executor_identity()
    job = spec.job
    sidecar = SidecarSpec(
        job_name=job.name,
        job_uid=spec.job_uid,
        local_name=spec.local_name,
        operator=MAIN_OPERATOR,
        settings=spec.config.as_dict(),
        stores=list(spec.stores),
        log_backend=spec.log_backend,
        local_dir=str(job.local_dir),
        app_id=spec.app_id,
        executor_id=executor.executor_id,
        jvm_pid=executor.jvm_pid,
        python_path=list(spec.python_path),
        session=spec.session,
    )
    return spec.sidecar_paths, sidecar
