"""The short jobs of a task besides processing: locate, restore, hand over, read output."""

# The JVM's objects and pyarrow have no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false, reportOptionalCall=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false

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

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.checkpoint.log_scope import MAIN_OPERATOR
from statekeep.checkpoint.version_id import VersionId
from statekeep.commit.executor import BoundedExecutor
from statekeep.config.store_keys import StoreFactoryName
from statekeep.errors import (
    ConfigError,
    RetriableError,
    StateBackupError,
    UnknownFormatError,
    VersionDamagedError,
)
from statekeep.fault_points import fault_point
from statekeep.spark.anchor import ANSWER_COLUMN
from statekeep.spark.container.client import ContainerError, ask, start_ahead, tell_to_stop
from statekeep.spark.container.launch import has_living_holder
from statekeep.spark.container.place import ContainerPlace, ContainerSpec, container_place
from statekeep.spark.container.protocol import NOTHING, Candidate, HandOver, Restore
from statekeep.spark.tasks import STATE_STORE
from statekeep.spark.worker.executor_identity import executor_identity
from statekeep.spark.worker.job_spec import VERSION_NOT_HERE, HandOverPlan, JobSpec
from statekeep.spark.worker.open_tasks import open_tasks, session_prefix
from statekeep.stores.change_set import ChangeSet

logger = logging.getLogger(__name__)

MISSING_OUTPUT = "statekeep-missing-output"
"""Marks the one error of a sink's job that the batch call heals."""


_RESTORES_AT_A_TIME: Final = 8
"""By one slot: the container has its own limit, and memory for so many."""


class MissingOutputError(StateBackupError):
    """Raised in a task whose output file is not on its host."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a container restored for one task."""

    partition: int
    version: str = ""
    candidate: int = 0
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    bytes_fetched: int = 0
    elapsed_ms: int = 0
    failures: Sequence[Mapping[str, Any]] = ()
    error: str = ""


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


_started_ahead: Final[dict[str, int]] = {}
"""``{local directory of a job: epoch}`` of the driver sessions whose container was started here."""


def beside_container(
    work: Iterator[pa.RecordBatch], spec: JobSpec, epoch: int
) -> Iterator[pa.RecordBatch]:
    """Do the work of a slot; start this executor's container beside the first of a driver session.

    A container takes some tenths of a second of processor time to start, which a restore, the
    first commit or a stop would otherwise wait for.
    """
    if _started_ahead.get(spec.local_name) == epoch:
        yield from work
        return
    _started_ahead[spec.local_name] = epoch
    starting = threading.Thread(
        target=start_ahead, args=_container(spec), name="statekeep-start", daemon=True
    )
    starting.start()
    yield from work
    starting.join()


def locate(
    tasks: Sequence[int],
    spec: JobSpec,
    candidates: Mapping[int, Sequence[str]],
    *,
    is_thorough: bool,
) -> Iterator[pa.RecordBatch]:
    """Answer for each task with the first candidate that is here, sound, or None."""
    for task in tasks:
        found = next(
            (
                name
                for name in candidates.get(task, ())
                if not name or _is_here(spec, task, name, is_thorough=is_thorough)
            ),
            None,
        )
        yield answer({"partition": task, "version": found})


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
    candidates: Mapping[int, Sequence[tuple[str, bytes | None]]],
    *,
    bad_markers: Sequence[tuple[str, str, str, str]],
    epoch: int,
) -> Iterator[pa.RecordBatch]:
    """Let the container bring one of the candidates of each task here; answer what came of it.

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

    for restored in asyncio.run(restore_all()):
        yield answer(asdict(restored))


def _restored(
    partition: int,
    spec: JobSpec,
    candidates: Mapping[int, Sequence[tuple[str, bytes | None]]],
    bad_markers: Sequence[tuple[str, str, str, str]],
    epoch: int,
) -> Restored:
    request = Restore(
        epoch=epoch,
        partition=partition,
        candidates=[
            Candidate(version=version, checkpoint=NOTHING if raw is None else msgspec.Raw(raw))
            for version, raw in candidates[partition]
        ],
        bad_markers=bad_markers,
    )
    place, container = _container(spec)
    fault_point("restore.before_request")
    try:
        done = ask(place, container, request)
    except (ContainerError, RetriableError) as exc:
        return Restored(partition, error=_described(exc))
    return Restored(
        partition=partition,
        version=done.version,
        candidate=done.candidate,
        sources=done.sources,
        bytes_fetched=done.bytes_fetched,
        elapsed_ms=done.elapsed_ms,
        failures=[msgspec.structs.asdict(failure) for failure in done.failures],
    )


@dataclass(frozen=True, slots=True)
class Submitted:
    """What came of submitting a task's version for a commit."""

    error: str = ""
    """Why it failed, or ""."""
    pause_ns: int = 0
    """What the image took that was written for it; 0 where one was there."""


def hand_over(tasks: Sequence[int], spec: JobSpec, plan: HandOverPlan) -> Iterator[pa.RecordBatch]:
    """Submit the versions of a slot's tasks; answer with the error of each, if any."""
    for task in tasks:
        yield answer({"partition": task, "error": submit_version(spec, plan, task).error})


def submit_version(spec: JobSpec, plan: HandOverPlan, partition: int) -> Submitted:
    """Write the image of a version where there is none, and hand it to this executor's container."""
    version = plan.versions.get(partition)
    if version is None:
        return Submitted()
    fault_point("hand_over.before")
    try:
        sealed = _sealed(spec, plan, partition, VersionId.parse(version))
    except StateBackupError as exc:  # the batch that it rides on can do nothing about it
        logger.exception("no image can be written: task=%s version=%s", partition, version)
        return Submitted(_described(exc))
    if sealed is None:
        return Submitted(f"{VERSION_NOT_HERE}: version={version}")
    base = plan.bases.get(partition)
    request = HandOver(
        epoch=plan.epoch,
        attempt=plan.attempt,
        partition=partition,
        version=version,
        checkpoint=msgspec.Raw(plan.checkpoints[partition]),
        base=NOTHING if base is None else msgspec.Raw(base[1]),
        base_version="" if base is None else base[0],
    )
    place, container = _container(spec)
    try:
        ask(place, container, request)
    except (ContainerError, RetriableError) as exc:
        return replace(sealed, error=_described(exc))
    fault_point("hand_over.after")
    return sealed


def is_version_lost(error: str) -> bool:
    """Whether a submit failed because the version is not on this host."""
    return error.startswith(VERSION_NOT_HERE)


def _sealed(
    spec: JobSpec, plan: HandOverPlan, partition: int, version: VersionId
) -> Submitted | None:
    """Make sure that a version has an image; None if the version is not on this host."""
    try:
        if spec.directory(partition).find_image(version) is not None:
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
    stores.seal(None if base is None else VersionId.parse(base[0]))
    fault_point("seal.after")
    return Submitted("", time.monotonic_ns() - began_ns)


def held_uploads(spec: JobSpec, plan: HandOverPlan) -> Iterator[pa.RecordBatch]:
    """Answer which versions of an attempt a living container of this host has to upload.

    Of any task: a version is uploaded on the host where it was made, and its task may be placed on
    another one by now.
    """
    place, _ = _container(spec)
    places = place.directory.parent
    held = [t for t in plan.versions if has_living_holder(places, plan.epoch, plan.attempt, t)]
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
    spec: JobSpec, tasks: int, *, epoch: int, is_committed: bool
) -> Iterator[pa.RecordBatch]:
    """End what a driver session has on this executor: its open stores and its container.

    Waits until the container has ended. Stores that are open in a worker that this call does not
    reach lose their files, and are closed when that worker is used again or ends.

    Args:
        spec: The job.
        tasks: How many it has.
        epoch: The driver session.
        is_committed: Whether its last batch is: then nothing here is needed that backups do not hold.
    """
    # First: other slots that are done remove the files of all tasks, and then a close takes a second.
    open_tasks.close_job(spec, epoch)
    place, _ = _container(spec)
    try:
        tell_to_stop(place, epoch)
    except (RetriableError, ContainerError) as exc:
        logger.info("the container goes on for now: error=%s", exc)
    for task in range(tasks):
        directory = spec.directory(task)
        directory.remove_work(session_prefix(epoch))
        directory.sweep()  # what killed workers of earlier sessions have left
        # A task that is open still belongs to a newer session, which this one has not heard of.
        if is_committed and directory.is_unused_since(time.time_ns()):
            directory.mark_dispensable()
    yield answer({})


def _is_here(spec: JobSpec, task: int, name: str, *, is_thorough: bool) -> bool:
    """Tell whether a version can be made of what is on this host."""
    directory = spec.directory(task)
    try:
        path = directory.find_path(VersionId.parse(name), None, (STATE_STORE,))
        if path is not None and is_thorough:
            engines: Mapping[StoreName, StoreFactoryName] = {
                STATE_STORE: spec.config.store(STATE_STORE).factory
            }
            directory.require_sound_path(path, engines, uuid.uuid4().hex)
    except (VersionDamagedError, ConfigError):
        logger.exception("local version cannot be used: version=%s", name)
        return False
    return path is not None


def _change_set(spec: JobSpec, task: int, version: str | None) -> ChangeSet | None:
    return None if version is None else spec.directory(task).change_set(VersionId.parse(version))


def _described(exc: StateBackupError) -> str:
    notes: list[str] = getattr(exc, "__notes__", [])
    return "; ".join([f"{type(exc).__name__}: {exc}", *notes])


def _container(spec: JobSpec) -> tuple[ContainerPlace, ContainerSpec]:
    executor = executor_identity()
    job = spec.config.job
    place = container_place(job.local_dir, spec.local_name, spec.app_id, executor.executor_id)
    container = ContainerSpec(
        job_name=job.name,
        job_uid=spec.job_uid,
        local_name=spec.local_name,
        operator=MAIN_OPERATOR,
        settings=spec.config.as_dict(),
        stores=[STATE_STORE],
        log_backend=spec.log_backend,
        local_dir=str(job.local_dir),
        app_id=spec.app_id,
        executor_id=executor.executor_id,
        jvm_pid=executor.jvm_pid,
        python_path=list(spec.python_path),
    )
    return place, container
