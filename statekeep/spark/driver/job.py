"""One stateful query on the driver: takes over the job, runs its batches, ends with a commit."""

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from statekeep.checkpoint.checkpoint_id import CheckpointId
from statekeep.checkpoint.records import BatchRecord, TaskBatch
from statekeep.clock import Clock
from statekeep.config.model import Config
from statekeep.errors import RestoreFailedError, StateBackupError
from statekeep.spark.anchor import ROUTER, Anchor, expected_executors, wait_for_executors
from statekeep.spark.driver.committer import CommitSummary
from statekeep.spark.driver.events import EventList
from statekeep.spark.driver.history import VersionHistory
from statekeep.spark.driver.location import CheckpointLocation, parse_batch_time
from statekeep.spark.driver.processing import BatchProcessor, BatchResult
from statekeep.spark.driver.recovery import Recovery
from statekeep.spark.driver.reign import Reign, Resumption, new_identity
from statekeep.spark.driver.task_jobs import TaskJobs
from statekeep.spark.operator.runner import BatchClock, OperatorSpec
from statekeep.spark.worker.errands import MISSING_OUTPUT, whereabouts
from statekeep.spark.worker.job_spec import (
    HandOverPlan,
    JobSpec,
    OutputPlan,
    partition_of,
    task_name,
)

logger = logging.getLogger(__name__)

Sink = Callable[[DataFrame, int], None]

_MAX_ROUNDS: Final = 8
_REPLAY_MARGIN: Final = 2
_POLL_S: Final = 0.25
_IDLE_S: Final = 1.0
"""A commit that is due waits so long for a batch to ride on before it gets a job of its own."""


@dataclass(slots=True)
class BatchStatistics:
    """What the newest batch did, for progress reports."""

    batch: int = -1
    rows_in: int = 0
    rows_out: int = 0
    changed_keys: int = 0
    pauses_ns: list[int] = field(default_factory=list)


class StatefulJob:
    """The batch loop of one query.

    `open` runs on the thread that starts the query, `run_batch` on the one where Spark calls
    ``foreachBatch``, commits of an idle or ended query on the commit thread; ``_turn`` lets exactly
    one of them work at a time.
    """

    def __init__(
        self,
        spark: SparkSession,
        frame: DataFrame,
        operator: OperatorSpec,
        config: Config,
        location: CheckpointLocation,
        sink: Sink,
        clock: Clock,
    ) -> None:
        """Wire the job; no I/O.

        Args:
            spark: The session.
            frame: The streaming input.
            operator: The stateful operator.
            config: Checked settings; names the job.
            location: The query's checkpoint location.
            sink: Gets the output of each batch, with its number.
            clock: For delays.
        """
        self._spark = spark
        self._frame = frame
        self._operator = operator
        self._config = config
        self._location = location
        self._sink = sink
        self._clock = clock
        self.events = EventList(clock)
        self.last_batch = BatchStatistics()
        self.last_commit: CommitSummary | None = None
        self.failure: BaseException | None = None
        """What the batch call raised, as Python has it."""
        self._turn = threading.Lock()
        self._reign = Reign(config, location, clock)
        self._head = -1
        self._last_batch_ns = clock.monotonic_ns()
        self._is_new = True
        self._is_open = False
        self._ended = threading.Event()
        self._end_error: Exception | None = None

    def open(self) -> None:
        """Take over the job and bring every task to the newest batch that counts.

        Raises:
            ConfigError: A setting, a backend or the job's identity is wrong.
            CheckpointLocationError: The checkpoint location is not the job's.
            RestoreFailedError: State is out of reach.
        """
        commit = self._reign.open()
        partitions = self._config.task.count or int(
            self._spark.conf.get("spark.sql.shuffle.partitions") or 200
        )
        expected = new_identity(self._config, partitions, ROUTER, self._key_schema())
        self._identity = self._reign.identity(commit, expected)
        resumption = self._reign.check_location(commit)
        spec = JobSpec(
            config=self._config,
            job_uid=self._identity.job_uid,
            log_backend=self._reign.log_backend,
            captured_stores=self._reign.captured_stores,
            app_id=self._spark.sparkContext.applicationId,
            operator=self._operator,
            python_path=tuple(sys.path),
        )
        wait_for_executors(self._spark, expected_executors(self._spark))
        self._jobs = TaskJobs(self._spark, Anchor(self._spark, partitions), spec)
        self._jobs.anchor.place(lambda _: whereabouts())
        self._processor = BatchProcessor(self._jobs)
        self._history = VersionHistory(partitions)
        self._recovery = Recovery(
            self._frame,
            self._location,
            self._jobs,
            self._processor,
            self._history,
            self._reign.view,
            self._record_replayed,
            is_divergence_fatal=self._config.task.divergence == "error",
        )
        resumption = self._reign.take_over(spec, self._identity, resumption, self._committed)
        if resumption is not None:
            self._resume(resumption)
        self._is_open = True

    def run_batch(self, rows: DataFrame, batch: int) -> None:
        """Process one batch, deliver its output, record it (R3-R5); Spark's ``foreachBatch``.

        Raises:
            StateBackupError: The batch is not the next one, or cannot be processed exactly.
            CommitFailedError: More commits failed in a row than are tolerated.
            TaskFencedError: Another driver has taken over.
        """
        try:
            with self._turn:
                self._run_batch(rows, batch)
                self._last_batch_ns = self._clock.monotonic_ns()
        except BaseException as exc:
            self.failure = exc
            raise

    def attach(self, is_active: Callable[[], bool], is_sound: Callable[[], bool]) -> None:
        """Watch the Spark query from now on: commit when idle, commit and close when it ends.

        Args:
            is_active: Whether the Spark query runs.
            is_sound: Whether it ended without an error.
        """
        self._reign.spawn(self._watch(is_active, is_sound))

    @property
    def has_ended(self) -> bool:
        """Whether the query has ended and everything of the job is closed."""
        return self._ended.is_set()

    def wait_ended(self) -> None:
        """Wait for the end of the job after that of its query: at most the last commit."""
        self._ended.wait()
        self.close()

    def raise_if_failed(self) -> None:
        """Raise what kept the last commit from being made, if anything."""
        if self._end_error is not None:
            raise self._end_error

    def close(self) -> None:
        """Release the commit thread. Idempotent."""
        self._ended.set()
        self._reign.close()

    def status(self) -> dict[str, Any]:
        """Return how far commits are."""
        is_open = self._is_open
        return {
            "lastCommittedBatch": self._reign.committer.committed_batch if is_open else None,
            "isCommitting": is_open and self._reign.committer.open_batch is not None,
        }

    def operator_progress(self, batch: int) -> dict[str, Any] | None:
        """Return the entry of ``stateOperators`` for a batch, if it is the newest one."""
        done = self.last_batch
        if done.batch != batch:
            return None
        pause_ms = round(max(done.pauses_ns, default=0) / 1e6, 3)
        return {
            "operatorName": "statekeep",
            "numRowsUpdated": done.changed_keys,
            "numShufflePartitions": self._identity.partitions,
            "numStateStoreInstances": self._identity.partitions,
            "customMetrics": {
                "rowsIn": done.rows_in,
                "rowsOut": done.rows_out,
                "maxSyncPauseMs": pause_ms,
                "committedBatch": -1 if self.last_commit is None else self.last_commit.batch,
            },
        }

    async def _watch(self, is_active: Callable[[], bool], is_sound: Callable[[], bool]) -> None:
        """Runs on the commit thread's loop for as long as the query lives, and ends the job."""
        try:
            while await self._reign.blocking(is_active):
                await self._clock.sleep(_POLL_S)
                await self._commit_if_idle()
            await self._end(is_committing=await self._reign.blocking(is_sound))
        except Exception as exc:
            logger.exception("the job did not end well")
            self._end_error = exc
        finally:
            self._is_open = False
            self._ended.set()

    async def _commit_if_idle(self) -> None:
        """Commit the newest batch if that is due and no batch comes along to ride on."""
        idle_s = (self._clock.monotonic_ns() - self._last_batch_ns) / 1e9
        if idle_s < _IDLE_S or not self._reign.committer.is_due():
            return
        if not self._turn.acquire(blocking=False):
            return
        try:
            await self._commit_settled_batch(is_forced=False)
        except StateBackupError as exc:
            # The next batch call meets the same error and fails the query with it.
            logger.warning("commit of the idle stream failed: error=%s", exc)
        finally:
            self._turn.release()

    async def _end(self, *, is_committing: bool) -> None:
        """Commit what was delivered, within ``task.shutdown.ms``; then let the containers end."""
        timeout_s = self._config.task.shutdown_ms / 1000
        if not await self._reign.blocking(self._turn.acquire, timeout=timeout_s):
            logger.warning("the running batch does not end: timeout_s=%s", timeout_s)
            return
        if is_committing:
            await self._commit_settled_batch(is_forced=True)
            await self._reign.committer.settle(timeout_s)
        await self._reign.blocking(self._jobs.stop_containers)

    async def _commit_settled_batch(self, *, is_forced: bool) -> None:
        """Hand over the newest batch whose ``commits/`` file is there, by a job of its own."""
        committer = self._reign.committer
        batch = min(self._head, await self._reign.blocking(self._location.newest, "commits"))
        if batch <= committer.committed_batch:
            return
        plan = await committer.prepare(batch, self._versions(batch), is_forced=is_forced)
        if plan is not None:
            errors = await self._reign.blocking(self._jobs.hand_over, plan)
            await committer.handed_over(plan, errors)

    def _run_batch(self, rows: DataFrame, batch: int) -> None:
        if self._is_new:
            self._begin()
        if batch <= self._reign.committer.committed_batch:
            self._check_repeated(batch)
            return
        if batch != self._head + 1:
            msg = f"not the next batch: batch={batch} head={self._head}"
            raise StateBackupError(msg)
        offsets = self._location.require(f"offsets/{batch}")
        plan = self._prepare_commit()
        result = self._process_all(rows, batch, offsets, plan)
        self._deliver(rows, batch, offsets, result)
        self._history.put(batch, result.tasks)
        self._reign.record_batch(self._record(batch, offsets, result.tasks))
        self._head = batch
        self._note(batch, result)
        if self._config.task.is_commit_every_batch:
            self._commit_inside_call(batch)

    def _begin(self) -> None:
        millis, nanos = divmod(self._clock.time_ns(), 1_000_000)
        self._reign.begin(self._identity, CheckpointId(millis, nanos).serialize())
        self._is_new = False
        self.events.add("started", partitions=self._identity.partitions)

    def _check_repeated(self, batch: int) -> None:
        """A batch that is committed already: Spark repeats it after a crash; nothing to do (R4)."""
        record = self._reign.view.batches.get(batch)
        if record is not None and record.offsets != self._location.require(f"offsets/{batch}"):
            msg = f"Spark repeats a committed batch with other offsets: batch={batch}"
            raise StateBackupError(msg)

    def _prepare_commit(self) -> HandOverPlan | None:
        committer = self._reign.committer
        lag = self._head - committer.committed_batch
        is_lagging = lag >= self._config.task.replay_max_batches - _REPLAY_MARGIN
        if self._config.task.is_commit_every_batch:
            return None
        return self._reign.run(
            committer.prepare(self._head, self._versions(self._head), is_forced=is_lagging)
        )

    def _process_all(
        self, rows: DataFrame, batch: int, offsets: str, plan: HandOverPlan | None
    ) -> BatchResult:
        """Process a batch in all tasks, healing those that lost their version meanwhile."""
        result = BatchResult()
        only: frozenset[int] | None = None
        for _ in range(_MAX_ROUNDS):
            result.merge(self._process(rows, batch, offsets, only, plan))
            if plan is not None:
                self._reign.run(self._reign.committer.handed_over(plan, result.hand_over_errors))
                plan = None
            if not result.missing:
                return result
            only = frozenset(result.missing)
            self._heal(only, batch - 1)
        msg = f"versions were lost again and again: batch={batch} rounds={_MAX_ROUNDS}"
        raise RestoreFailedError(msg, task_name="", store_names=[])

    def _process(
        self,
        rows: DataFrame,
        batch: int,
        offsets: str,
        only: frozenset[int] | None,
        plan: HandOverPlan | None,
    ) -> BatchResult:
        time = parse_batch_time(offsets, f"offsets/{batch}")
        committer = self._reign.committer
        kept = {committer.committed_batch, self._head, batch - 1}
        if committer.open_batch is not None:
            kept.add(committer.open_batch)
        return self._processor.process_once(
            rows,
            batch,
            self._versions(batch - 1),
            BatchClock(time.processing_time_ms, time.watermark_ms),
            only,
            hand_over=plan,
            keep=self._history.kept(kept),
            settled_batch=batch - 1,
        )

    def _deliver(self, rows: DataFrame, batch: int, offsets: str, result: BatchResult) -> None:
        """Give the sink the output of the chosen versions; heal those that get lost meanwhile."""
        for _ in range(_MAX_ROUNDS):
            outputs = {p: result.tasks[p].version for p in result.with_output}
            plan = OutputPlan(batch, outputs, self._operator.output_schema)
            try:
                self._sink(self._jobs.output(plan), batch)
            except Exception as exc:
                if MISSING_OUTPUT not in str(exc):
                    raise
                self._heal_output(rows, batch, offsets, result)
            else:
                return
        msg = f"output was lost again and again: batch={batch} rounds={_MAX_ROUNDS}"
        raise RestoreFailedError(msg, task_name="", store_names=[])

    def _heal_output(self, rows: DataFrame, batch: int, offsets: str, result: BatchResult) -> None:
        """Process the batch again in the tasks whose output is gone, and only there."""
        outputs = {p: [result.tasks[p].version] for p in result.with_output}
        here = self._jobs.locate(outputs, is_thorough=False)
        lost = frozenset(outputs.keys() - here.keys())
        self.events.add("healed-output", batch=batch, tasks=len(lost))
        if not lost:
            return
        self._heal(lost, batch - 1)
        for partition in lost:
            result.with_output.discard(partition)
        only: frozenset[int] = lost
        for _ in range(_MAX_ROUNDS):
            result.merge(self._process(rows, batch, offsets, only, None))
            if not result.missing:
                return
            only = frozenset(result.missing)
            self._heal(only, batch - 1)

    def _heal(self, partitions: frozenset[int], head: int) -> None:
        """Recover tasks whose versions are lost, inside the waiting batch call (R6)."""
        began_ns = self._clock.monotonic_ns()
        logger.warning("tasks lost their state: count=%d head=%d", len(partitions), head)
        self._reign.run(
            self._reign.committer.void_if_lost({p: self._version_at_open(p) for p in partitions})
        )
        summary = self._recovery.recover(partitions, head, is_thorough=False)
        self._note_recovery(summary.__dict__, began_ns)

    def _version_at_open(self, partition: int) -> str:
        open_batch = self._reign.committer.open_batch
        if open_batch is None or open_batch not in self._history:
            return ""
        return self._history.of(open_batch)[partition].version

    def _resume(self, resumption: Resumption) -> None:
        self._is_new = False
        began_ns = self._clock.monotonic_ns()
        self._load_history(resumption)
        self._head = resumption.head
        everyone = range(self._identity.partitions)
        summary = self._recovery.recover(everyone, resumption.head, is_thorough=True)
        self.events.add("started", head=resumption.head, committed=resumption.committed)
        self._note_recovery(summary.__dict__, began_ns)

    def _load_history(self, resumption: Resumption) -> None:
        """Learn from the log which version each task had after each batch that counts."""
        view = self._reign.view
        for commit in view.commits.values():
            if commit.versions:
                versions = commit.versions.items()
                self._history.put(
                    commit.batch,
                    {partition_of(task): TaskBatch(version=version) for task, version in versions},
                )
        for batch, record in sorted(view.batches.items()):
            if batch <= resumption.head:
                tasks = {partition_of(task): done for task, done in record.tasks.items()}
                self._history.put(batch, tasks)

    def _commit_inside_call(self, batch: int) -> None:
        """Commit the batch that is being called, and wait for it: the every-batch mode (R5)."""
        committer = self._reign.committer
        plan = self._reign.run(
            committer.prepare(batch, self._versions(batch), is_forced=True)
        )
        if plan is not None:
            self._reign.run(committer.handed_over(plan, self._jobs.hand_over(plan)))
        self._reign.run(committer.settle(self._config.task.commit_timeout_ms / 1000))

    def _record(self, batch: int, offsets: str, tasks: Mapping[int, TaskBatch]) -> BatchRecord:
        previous = self._location.read(f"commits/{batch - 1}") if batch > 0 else None
        return BatchRecord(
            epoch=0,
            nonce="",
            query_id=self._location.query_id() or "",
            batch=batch,
            offsets=offsets,
            previous_commit=previous,
            tasks={task_name(partition): done for partition, done in tasks.items()},
        )

    def _record_replayed(self, batch: int) -> None:
        """Append the record of a replayed batch: its new versions take the place of the old."""
        offsets = self._location.require(f"offsets/{batch}")
        self._reign.record_batch(self._record(batch, offsets, self._history.of(batch)))

    def _versions(self, batch: int) -> dict[int, str]:
        return self._history.versions(batch)

    def _committed(self, summary: CommitSummary) -> None:
        self.last_commit = summary
        self.events.add(
            "commit",
            batch=summary.batch,
            checkpoint_id=summary.checkpoint_id,
            elapsed_ms=summary.elapsed_ms,
            tasks_uploaded=summary.tasks_uploaded,
            was_rolled_forward=summary.was_rolled_forward,
        )

    def _note(self, batch: int, result: BatchResult) -> None:
        done = result.tasks.values()
        self.last_batch = BatchStatistics(
            batch=batch,
            rows_in=sum(task.rows_in for task in done),
            rows_out=sum(task.rows_out for task in done),
            changed_keys=result.changed_keys,
            pauses_ns=result.pauses_ns,
        )
        self.events.add(
            "batch",
            batch=batch,
            rows_in=self.last_batch.rows_in,
            rows_out=self.last_batch.rows_out,
            max_pause_ms=round(max(result.pauses_ns, default=0) / 1e6, 2),
        )

    def _note_recovery(self, details: Mapping[str, Any], began_ns: int) -> None:
        elapsed_ms = (self._clock.monotonic_ns() - began_ns) // 1_000_000
        self.events.add("recovery", elapsed_ms=elapsed_ms, **details)

    def _key_schema(self) -> str:
        return self._operator.key_schema.simpleString()
