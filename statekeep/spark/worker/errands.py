"""The short jobs of a task besides processing: locate, restore, hand over, read output."""

# The JVM's objects and pyarrow have no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false, reportOptionalCall=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false

import json
import logging
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.checkpoint.log_scope import MAIN_OPERATOR
from statekeep.checkpoint.version_id import VersionId
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
from statekeep.spark.container.client import ContainerError, ask, tell_to_stop
from statekeep.spark.container.launch import has_living_holder
from statekeep.spark.container.place import ContainerPlace, ContainerSpec, container_place
from statekeep.spark.container.protocol import NOTHING, Candidate, HandOver, Restore
from statekeep.spark.tasks import STATE_STORE
from statekeep.spark.worker.executor_identity import executor_identity
from statekeep.spark.worker.job_spec import (
    OUTPUT_FILE,
    VERSION_NOT_HERE,
    HandOverPlan,
    JobSpec,
    OutputPlan,
)
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion

logger = logging.getLogger(__name__)

MISSING_OUTPUT = "statekeep-missing-output"
"""Marks the one error of a sink's job that the batch call heals."""


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


def whereabouts(partition: int) -> Iterator[pa.RecordBatch]:
    """Answer with the executor and host of this partition."""
    yield answer(
        {
            "partition": partition,
            "executor": executor_identity().executor_id,
            "host": socket.gethostname(),
            "jvm_pid": executor_identity().jvm_pid,
        }
    )


def locate(
    partition: int, spec: JobSpec, candidates: Mapping[int, Sequence[str]], *, is_thorough: bool
) -> Iterator[pa.RecordBatch]:
    """Answer with the first candidate that is here, sound, or None."""
    found: str | None = None
    directory = spec.directory(partition)
    for name in candidates.get(partition, ()):
        version = None if not name else find_version(directory, name)
        if not name or (
            version is not None and (not is_thorough or _is_sound(directory, version, spec))
        ):
            found = name
            break
    yield answer({"partition": partition, "version": found})


def restore(
    partition: int,
    spec: JobSpec,
    candidates: Mapping[int, Sequence[tuple[str, bytes | None]]],
    *,
    bad_markers: Sequence[tuple[str, str, str, str]],
    epoch: int,
) -> Iterator[pa.RecordBatch]:
    """Let the container bring one of the candidates here; answer what came of it."""
    if partition not in candidates:
        return
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
        yield answer(asdict(Restored(partition, error=_described(exc))))
        return
    restored = Restored(
        partition=partition,
        version=done.version,
        candidate=done.candidate,
        sources=done.sources,
        bytes_fetched=done.bytes_fetched,
        elapsed_ms=done.elapsed_ms,
        failures=[msgspec.structs.asdict(failure) for failure in done.failures],
    )
    yield answer(asdict(restored))


def hand_over(partition: int, spec: JobSpec, plan: HandOverPlan) -> Iterator[pa.RecordBatch]:
    """Hand this task's version to the container; answer with the error, if any."""
    yield answer({"partition": partition, "error": hand_over_version(spec, plan, partition)})


def hand_over_version(spec: JobSpec, plan: HandOverPlan, partition: int) -> str:
    """Hand a version to the container of this executor; return why it failed, or ""."""
    version = plan.versions.get(partition)
    if version is None:
        return ""
    if find_version(spec.directory(partition), version) is None:
        return f"{VERSION_NOT_HERE}: version={version}"
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
    fault_point("hand_over.before")
    try:
        ask(place, container, request)
    except (ContainerError, RetriableError) as exc:
        return _described(exc)
    fault_point("hand_over.after")
    return ""


def is_abandoned(partition: int, spec: JobSpec, plan: HandOverPlan) -> Iterator[pa.RecordBatch]:
    """Answer whether nobody is left to back up this task's version, as far as one can tell here.

    A version is handed over on the host where it was sealed. Where it is, and no container that
    lives has the hand-over, there was none or its container has died with it.
    """
    version = plan.versions.get(partition)
    is_here = version is not None and find_version(spec.directory(partition), version) is not None
    place, _ = _container(spec)
    places = place.directory.parent
    is_held = has_living_holder(places, plan.epoch, plan.attempt, partition)
    yield answer({"partition": partition, "is_abandoned": is_here and not is_held})


def read_output(partition: int, spec: JobSpec, plan: OutputPlan) -> Iterator[pa.RecordBatch]:
    """Yield the output rows of this task in the batch.

    Raises:
        MissingOutputError: The version is not on this host; the batch call heals it.
    """
    name = plan.versions.get(partition)
    if name is None:
        return
    fault_point("output.before_read")
    version = find_version(spec.directory(partition), name)
    if version is None:
        msg = f"{MISSING_OUTPUT} partition={partition} version={name}"
        raise MissingOutputError(msg)
    with (
        pa.memory_map(str(version.directory / OUTPUT_FILE)) as file,
        pa.ipc.open_file(file) as reader,
    ):
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)


def stop_container(partition: int, spec: JobSpec, *, epoch: int) -> Iterator[pa.RecordBatch]:
    """Tell the container of this executor to end, if there is one, and wait until it has."""
    place, _ = _container(spec)
    try:
        tell_to_stop(place, epoch)
    except (RetriableError, ContainerError) as exc:
        logger.info("the container goes on for now: error=%s", exc)
    yield answer({"partition": partition})


def find_version(directory: TaskDirectory, name: str) -> SealedVersion | None:
    """Return a local version by name; None if it is absent or of no use here."""
    try:
        return directory.find(VersionId.parse(name))
    except (VersionDamagedError, UnknownFormatError):  # the restore tells the two apart
        logger.exception("local version cannot be used: version=%s", name)
        return None


def _described(exc: StateBackupError) -> str:
    notes: list[str] = getattr(exc, "__notes__", [])
    return "; ".join([f"{type(exc).__name__}: {exc}", *notes])


def _is_sound(directory: TaskDirectory, version: SealedVersion, spec: JobSpec) -> bool:
    engines: Mapping[StoreName, StoreFactoryName] = {
        STATE_STORE: spec.config.store(STATE_STORE).factory
    }
    try:
        directory.require_sound(version, engines, uuid.uuid4().hex)
    except (VersionDamagedError, ConfigError):
        logger.exception("local version cannot be used: directory=%s", version.directory)
        return False
    return True


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
