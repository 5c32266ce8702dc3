"""What travels from the driver to the tasks: the job, and what one placed job is to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final

from typing_extensions import override

from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.config.job_settings import JobSettings
from statekeep.config.model import Config
from statekeep.spark.operator.clock import BatchClock
from statekeep.spark.operator.runner import OperatorSpec
from statekeep.spark.sidecar.launch import has_ended
from statekeep.spark.sidecar.paths import SidecarPaths, sidecar_paths
from statekeep.spark.tasks import STATE_STORE, local_directory, task_name
from statekeep.spark.worker.executor_identity import executor_identity
from statekeep.stores.task_directory import TaskDirectory

VERSION_NOT_HERE: Final = "the version is not here"
"""Begins a task's answer to a submission whose version is not on its host: no backend failed."""


@dataclass(frozen=True)
class JobSpec:
    """What stays the same for all placed jobs of an operator; pickled with each of them."""

    config: Config
    job_uid: str
    """Keeps apart the local directories of two jobs that were given one name."""
    log_backend: str
    """The backend that holds the job log and the tasks' checkpoints."""
    app_id: str
    operator: OperatorSpec
    processor: bytes
    """The user's, pickled as Spark does: each task gets one of its own."""
    session: str
    """Drawn by the driver: another one for each start of the query."""
    python_path: tuple[str, ...]
    """``sys.path`` of the driver, for sidecars: a user's own backend must be importable there."""
    stores: tuple[StoreName, ...] = (STATE_STORE,)
    """Those of every task, `STATE_STORE` first."""
    lasting_stores: tuple[StoreName, ...] = (STATE_STORE,)
    """Those of them that a commit holds: all but caches."""
    listed_stores: tuple[StoreName, ...] = ()
    """Those of them that the newest commit lists, as the driver session begins: a local image without
    one is not the version that was committed."""
    tasks: range | None = None
    """Those of the operator; None: all of the query."""

    @cached_property
    def job(self) -> JobSettings:
        """The job's settings as they are on this host, parsed once: each batch asks for them often."""
        return self.config.job

    @override
    def __getstate__(self) -> dict[str, Any]:
        # Without `job`: another host may have another local directory.
        return {declared.name: getattr(self, declared.name) for declared in fields(self)}

    def task(self, partition: int) -> TaskIdentity:
        """Return the identity of the task of a partition."""
        return TaskIdentity(
            self.job.name, MAIN_OPERATOR, task_name(partition), job_uid=self.job_uid
        )

    def operator_of(self, partition: int) -> int:
        """Return the number of the operator that a task belongs to."""
        return 0 if self.tasks is None else partition // len(self.tasks)

    @property
    def local_name(self) -> str:
        """Name of the job's directory on a host: two jobs of one name never share it."""
        return f"{self.job.name}-{self.job_uid[:8]}"

    @property
    def sidecar_paths(self) -> SidecarPaths:
        """Paths of the sidecar beside this Python worker."""
        executor = executor_identity().executor_id
        return sidecar_paths(self.job.local_dir, self.local_name, self.app_id, executor)

    @property
    def has_ended(self) -> bool:
        """Whether the driver session has ended here, and Spark has not yet stopped this task of it."""
        return has_ended(self.sidecar_paths, self.session)

    def directory(self, partition: int) -> TaskDirectory:
        """Return the task's local directory on this host."""
        return local_directory(self.job.local_dir, self.local_name, partition)


@dataclass(frozen=True, slots=True)
class TaskCommit:
    """What a commit record says of one task, for a restore."""

    version: str
    """"" for empty state."""
    checkpoint: bytes | None
    """CheckpointV2 in JSON; None for empty state."""
    stores: tuple[str, ...]
    """Those that the record lists: another one is new."""


@dataclass(frozen=True, slots=True)
class SubmitPlan:
    """One commit attempt: the versions that tasks hand to their sidecars."""

    epoch: int
    attempt: int
    checkpoint_id: str
    batch: int
    versions: Mapping[int, str]
    """``{partition: VersionId}`` of the tasks that have something to upload."""
    bases: Mapping[int, tuple[str, bytes]]
    """``{partition: (VersionId, CheckpointV2 in JSON)}`` of the newest commit."""
    checkpoints: Mapping[int, bytes]
    """``{partition: CheckpointV2 in JSON}`` without markers, of the tasks in ``versions``: id and
    input offsets."""
    is_awaited: bool = False
    """The driver waits for this commit."""
    is_observed: bool = False
    """The driver has listeners, which want to know what sidecars see."""


@dataclass(frozen=True, slots=True)
class FollowPlan:
    """Which executors are to have the newest commit of tasks that run on others."""

    batch: int
    """Of the commit."""
    slots: Mapping[int, tuple[str, Mapping[int, TaskCommit]]]
    """``{slot: (executor, {partition: commit})}``: one slot of an executor asks for all of it."""
    bad_markers: tuple[tuple[str, str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What the tasks do in one process job."""

    batch: int
    bases: Mapping[int, str]
    """``{partition: VersionId}`` to process on; "" is empty state."""
    clock: BatchClock
    epoch: int = 0
    """Of the driver; set where the job is run, as are the bytes of output."""
    inline_bytes: int = 0
    """Most bytes of output that a Spark task sends along with its receipts."""
    only: frozenset[int] | None = None
    """The partitions that process; None is all of them."""
    is_sorted: bool = False
    has_initial_state: bool = False
    """The rows of the initial state are among those of the batch."""
    waiting: frozenset[int] | None = None
    """The tasks that may have something to do without rows, as timers are due; None: any."""
    submit_plan: SubmitPlan | None = None
    follow_plan: FollowPlan | None = None
    keep: Mapping[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])
    """Local versions that must stay, besides those newer than ``resolved_batch``."""
    resolved_batch: int = -1
    committed: Mapping[int, str] = field(default_factory=dict[int, str])
    """``{partition: VersionId}`` of the newest commit: older changes are carried no further."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a task did with its part of a batch."""

    partition: int
    version: str
    """The version after the batch; "" is empty state."""
    is_missing: bool = False
    """The task does not have its base here."""
    is_overflow: bool = False
    """Too many rows to group in the task: Spark must sort them."""
    rows_in: int = 0
    rows_out: int = 0
    changed_keys: int = 0
    changed_bytes: int = 0
    """Of the change set, without caches; 0 where none was made."""
    has_output: bool = False
    is_output_in_file: bool = False
    """Whether the output lies in the change set; else it came with the receipt."""
    input_digest: str = ""
    output_digest: str = ""
    changes_digest: str = ""
    late_rows: int = 0
    registered_timers: int = 0
    deleted_timers: int = 0
    fired_timers: int = 0
    expired_values: int = 0
    next_times: Mapping[str, int | None] | None = None
    """`NextTimes` of the version after the batch; None where it was not determined."""
    key_range: str = ""
    """The first and the last grouping key of the rows, for people."""
    undeclared: Sequence[str] = ()
    """State variables of the task that the processor does not declare."""
    variables: Sequence[str] | None = None
    """Those that it declares or deletes, where its ``init`` fails on the driver."""
    pause_ns: int = 0
    """Sync pause: what the image took that was written before the batch; 0 where none was."""
    state_bytes: int = 0
    """Of the stores after the batch; 0 where the batch changed nothing."""
    local_versions: int = 0
    """Versions of the task on its host; 0 where they were not counted."""
    local_bytes: int = 0
    """Of those versions; what they share is counted once."""
    executor: str = ""
    disk: str = ""
    """`local_disk` of that executor; "" where no copies are kept, or no state was written yet."""
    followed: Mapping[str, int] | None = None
    """`Followed` of the sidecar, in one receipt of a slot that has asked it; None in others."""
    submit_error: str = ""

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> "Receipt":
        """Read a task's JSON answer."""
        return cls(**answer)
