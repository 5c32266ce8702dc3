"""A start with another ``task.count``: the state is given to so many tasks, as one commit (decision 0065)."""

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention

from statekeep.backends.base import StateBackendFactory
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    SystemStreamPartition,
    VersionId,
)
from statekeep.checkpoint.log_session import LogSession, random_nonce
from statekeep.checkpoint.log_view import checkpoint_of, version_of
from statekeep.checkpoint.records import RESHAPE, CommitRecord, JobIdentity, StateChange
from statekeep.clock import Clock
from statekeep.config.model import Config
from statekeep.errors import ConfigError, StateBackupError
from statekeep.fault_points import fault_point
from statekeep.inspection.state_change import person
from statekeep.spark.driver.commit_records import KAFKA, by_task
from statekeep.spark.driver.commit_thread import CommitThread
from statekeep.spark.driver.task_jobs import job_bar, progress_of_newest_job
from statekeep.spark.placement import bucket_values, operators_of
from statekeep.spark.tasks import task_name
from statekeep.spark.worker.reshaping import (
    MADE_SCHEMA,
    SPLIT_SCHEMA,
    Made,
    Reshape,
    empty_task,
    make_tasks,
    parse_made,
    split_tasks,
)

logger = logging.getLogger(__name__)

_ROWS_AT_ONCE: Final = 16
"""In one record batch between Spark and Python: a row holds many entries."""
_BUCKET: Final = "bucket"
_LOGGED_EVERY_S: Final = 10.0


def check_reshape(
    found: JobIdentity,
    expected: JobIdentity,
    backends: Mapping[BackendName, StateBackendFactory],
    listed: Collection[str],
) -> None:
    """Refuse another number of tasks where the state cannot be given to them safely.

    Args:
        found: The job as its newest commit has it.
        expected: As it is configured now.
        backends: By name.
        listed: Those that hold state.

    Raises:
        ConfigError: A backend does not keep old commits, or the stores are to change too.
    """
    if found.partitions == expected.partitions:
        return
    operators = operators_of(found.router) or 1
    numbers = f"before={found.partitions // operators} now={expected.partitions // operators}"
    for name in listed:
        if not backends[BackendName(name)].properties.keeps_every_commit:
            raise ConfigError(
                "the number of tasks cannot change where a backend overwrites its older commits: "
                f"backend={name} {numbers}",
                key="task.count",
                hint="set task.count to the former value, or leave it out; or make a job with other tasks"
                " from the stopped one: `statekeep rescale --partitions M --as JOB`",
            )
    if found.stores != expected.stores:
        raise ConfigError(
            "the number of tasks and the stores cannot change in one start: "
            f"{numbers} stores={expected.stores} stores_before={found.stores}",
            key="task.count",
            hint="start once with the former task.count and stop the query, then change task.count",
        )


@dataclass(frozen=True, slots=True)
class Reshaper:
    """Makes the commit. Blocking, on the thread that starts the query; the driver owns the log."""

    spark: SparkSession
    thread: CommitThread
    log: LogSession
    config: Config
    """Names the backend of the job log."""
    local_name: str
    """Of the job's directory on a host."""
    operators: int
    clock: Clock

    def run(self, partitions: int) -> None:
        """Give the state of the newest commit, which holds all state, to so many tasks.

        Until the commit record is written, the newest commit is that of before: a start that is cut off is
        repeated. The commit of before is kept under a name.

        Args:
            partitions: Of all operators.

        Raises:
            PySparkException: The state of a task is out of reach, or a backend did not take one. Spark has
                tried it several times, and its text has the error.
            TaskFencedError: Another driver has taken over.
        """
        view = self.log.view
        position, commit = view.last_commit_position, view.last_commit
        if commit is None:
            raise ValueError("a job without a commit has no tasks yet")
        began_ns = self.clock.monotonic_ns()
        before = commit.identity.partitions
        with_state = sum(map(bool, commit.versions.values()))
        pin = f"before-task-count-{partitions // self.operators}-commit-{position}"
        logger.info(
            "the number of tasks changes, all state is read and written once: job=%s before=%d now=%d"
            " with_state=%d batch=%d; the commit before is kept as savepoint %s",
            commit.identity.job_name,
            before,
            partitions,
            with_state,
            commit.batch,
            pin,
        )
        fault_point("reshape.before_pin")
        self.thread.run(self.log.pin(pin, position))
        fault_point("reshape.after_pin")
        try:
            made = self._commit(commit, partitions)
        except BaseException as exc:
            with suppress(StateBackupError):  # then the next owner aborts it; the pin does no harm
                reason = "the number of tasks was not changed"
                self.thread.run(self.log.close_attempt(reason))
                # An interrupt may come when the commit is there.
                if self.log.view.last_commit_position == position:
                    exc.add_note(f"hint: {reason}, the state is in {before} tasks as before")
                    self.thread.run(self.log.unpin(pin))
            raise
        logger.info(
            "the number of tasks has changed: job=%s before=%d now=%d entries=%d bytes_uploaded=%d"
            " elapsed_ms=%d; `statekeep savepoint drop %s` releases the state in the former tasks,"
            " once you do not need it",
            commit.identity.job_name,
            before,
            partitions,
            sum(task.entries for task in made),
            sum(task.bytes_uploaded for task in made),
            (self.clock.monotonic_ns() - began_ns) // 1_000_000,
            pin,
        )

    def _commit(self, commit: CommitRecord, partitions: int) -> list[Made]:
        """Make the new tasks, then append the commit record."""
        # A new query is told by this id which commit it is to go on from.
        is_begun = commit.query is not None
        checkpoint_id = (
            CheckpointId.at(self.clock.time_ns())
            if is_begun
            else CheckpointId.parse(commit.checkpoint_id)
        )
        # Named by a batch: none that follows may have a lower number.
        batches = [v.batch for t in commit.versions if (v := version_of(commit, t)) is not None]
        newest = max(batches, default=0)
        versions = {p: str(VersionId(newest, random_nonce())) for p in range(partitions)}
        names = {p: task_name(p) for p in versions}
        fault_point("attempt_record.before")
        attempt = self.thread.run(
            self.log.begin_attempt(
                commit.batch,
                checkpoint_id,
                {names[p]: version for p, version in versions.items()},
                list(names.values()),
            )
        )
        fault_point("attempt_record.after")
        made = self._make(
            Reshape(
                config=self.config,
                local_name=self.local_name,
                commit=msgspec.structs.replace(commit, query=None),
                bad_markers=tuple(self.log.view.bad_markers),
                operators=self.operators,
                partitions=partitions,
                epoch=self.log.epoch,
                attempt=attempt,
                checkpoint_id=checkpoint_id.serialize(),
                versions=versions,
                inputs=_inputs(commit, partitions),
            )
        )
        count, count_before = (
            n // self.operators for n in (partitions, commit.identity.partitions)
        )
        record = msgspec.structs.replace(
            commit,
            attempt_epoch=self.log.epoch,
            attempt=attempt,
            checkpoint_id=checkpoint_id.serialize(),
            identity=msgspec.structs.replace(commit.identity, partitions=partitions),
            # The commit with which a query begins names no task.
            checkpoints={names[m.task]: msgspec.Raw(m.checkpoint.encode()) for m in made}
            if commit.versions
            else {},
            versions={names[m.task]: m.version for m in made} if commit.versions else {},
            change=StateChange(
                kind=RESHAPE,
                by=person(),
                reason=f"task.count is {count}, it was {count_before}",
                made_from=commit.checkpoint_id,
            ),
        )
        fault_point("commit_record.before")
        self.thread.run(self.log.append(record))
        fault_point("commit_record.after")
        return made

    def _make(self, reshape: Reshape) -> list[Made]:
        """Run the Spark job; return what each new task has."""
        made = {}
        if reshape.sources:
            with job_bar(self.spark, self.thread, "giving the state to other tasks"):
                stop = self.thread.watch(self._log_progress)
                try:
                    made = {m.task: m for m in self._run_job(reshape)}
                finally:
                    stop()
        empty = (p for p in range(reshape.partitions) if p not in made)
        made |= {p: empty_task(reshape, p) for p in empty}
        return [made[p] for p in sorted(made)]

    def _run_job(self, reshape: Reshape) -> list[Made]:
        # Of its own settings, which other queries of the session are spared.
        spark = self.spark.newSession()
        spark.conf.set("spark.sql.adaptive.enabled", "false")
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(_ROWS_AT_ONCE))
        buckets = F.array(*[F.lit(b).cast("long") for b in bucket_values(reshape.partitions)])
        count = len(reshape.sources)
        split = spark.range(0, count, 1, count).mapInArrow(
            lambda batches: split_tasks(batches, reshape), SPLIT_SCHEMA
        )
        # A bucket and a partition for each new task.
        by_task = split.withColumn(_BUCKET, F.element_at(buckets, F.col("task") + 1)).repartition(
            reshape.partitions, _BUCKET
        )
        made = by_task.mapInArrow(lambda batches: make_tasks(batches, reshape), MADE_SCHEMA)
        return [parse_made(row[0]) for row in made.collect()]

    async def _log_progress(self) -> None:
        while True:
            await self.clock.sleep(_LOGGED_EVERY_S)
            done, total = progress_of_newest_job(self.spark)
            logger.info("state is given to other tasks: done=%d of=%s Spark tasks", done, total)


def _inputs(
    commit: CommitRecord, partitions: int
) -> Mapping[int, Mapping[SystemStreamPartition, str]]:
    """Return the inputs of the new tasks' checkpoints: the batch, and a share of the topics' partitions."""
    every: dict[SystemStreamPartition, str] = {}
    for task in commit.checkpoints:
        checkpoint = checkpoint_of(commit, task)
        every |= {} if checkpoint is None else checkpoint.input_offsets
    batch = {ssp: offset for ssp, offset in every.items() if ssp.system != KAFKA}
    topics = {ssp: offset for ssp, offset in every.items() if ssp.system == KAFKA}
    return {p: {**batch, **share} for p, share in by_task(topics, partitions).items()}
