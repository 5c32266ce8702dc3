"""One stateful query on the driver: takes over the job, runs its batches, ends with a commit."""

# The JVM's objects and pyarrow have no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false, reportOptionalCall=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from statekeep.clock import Clock
from statekeep.config.model import Config
from statekeep.errors import ConfigError, StateBackupError
from statekeep.spark.anchor import ROUTER, Anchor, expected_executors, wait_for_executors
from statekeep.spark.driver.batch_loop import REPLAY_MARGIN, BatchLoop, Sink
from statekeep.spark.driver.committer import CommitSummary
from statekeep.spark.driver.events import EventList
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.reign import Reign, new_identity
from statekeep.spark.driver.stall_guard import StallGuard
from statekeep.spark.driver.task_jobs import TaskJobs
from statekeep.spark.operator.runner import OperatorSpec
from statekeep.spark.worker.errands import whereabouts
from statekeep.spark.worker.job_spec import VERSION_NOT_HERE, HandOverPlan, JobSpec

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.25
_IDLE_S: Final = 1.0
"""A commit that is due waits so long for a batch to ride on before it gets a job of its own."""


class StatefulJob:
    """One stateful query: what is set up before it, watched beside it, and ended after it.

    `open` runs on the thread that starts the query, `run_batch` on the one where Spark calls
    ``foreachBatch``, commits of an idle or ended query on the commit thread; ``_turn`` lets exactly
    one of them work at a time.
    """

    def __init__(
        self,
        *,
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
        self.last_commit: CommitSummary | None = None
        self.failure: BaseException | None = None
        """What the batch call raised, as Python has it."""
        self._turn = threading.Lock()
        self._reign = Reign(config, location, clock)
        self._last_batch_ns = clock.monotonic_ns()
        self._is_open = False
        self._commit_made = threading.Condition()
        self._ended = threading.Event()
        self._end_error: Exception | None = None
        self._awaited_plan: HandOverPlan | None = None
        self._repeat_at_ns = 0
        self._closing = threading.Lock()
        self._is_closed = False

    def open(self) -> None:
        """Take over the job and bring every task to the newest batch that counts.

        Raises:
            ConfigError: A setting, a backend or the job's identity is wrong.
            CheckpointLocationError: The checkpoint location is not the job's.
            RestoreFailedError: State is out of reach.
        """
        self._check_retention()
        commit = self._reign.open()
        partitions = self._config.task.count or int(
            self._spark.conf.get("spark.sql.shuffle.partitions") or 200
        )
        expected = new_identity(self._config, partitions, ROUTER, self._key_schema())
        self._identity = self._reign.identity(commit, expected)
        self._reign.check_location(commit)
        spec = JobSpec(
            config=self._config,
            job_uid=self._identity.job_uid,
            log_backend=self._reign.log_backend,
            captured_stores=self._reign.captured_stores,
            app_id=self._spark.sparkContext.applicationId,
            operator=self._operator,
            python_path=tuple(sys.path),
        )
        tag = f"statekeep-{self._identity.job_uid}"
        wait_for_executors(self._spark, expected_executors(self._spark))
        self._jobs = TaskJobs(self._spark, Anchor(self._spark, partitions, tag), spec, self._reign)
        self._jobs.anchor.place(whereabouts)
        self._reign.spawn(StallGuard(self._spark, tag, self._clock).watch())
        resumption = self._reign.take_over(spec, self._identity, self._committed)
        self._batches = BatchLoop(
            frame=self._frame,
            operator=self._operator,
            config=self._config,
            location=self._location,
            identity=self._identity,
            reign=self._reign,
            jobs=self._jobs,
            sink=self._sink,
            events=self.events,
            clock=self._clock,
        )
        if resumption is not None:
            self._batches.resume(resumption)
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
                self._batches.run(rows, batch)
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

    def wait_committed(self, batch: int, timeout_s: float) -> bool:
        """Wait until a commit of ``batch`` or a later one is durable; False after the time-out."""
        with self._commit_made:
            return self._commit_made.wait_for(
                lambda: self.last_commit is not None and self.last_commit.batch >= batch, timeout_s
            )

    def raise_if_failed(self) -> None:
        """Raise what kept the last commit from being made, if anything."""
        if self._end_error is not None:
            raise self._end_error

    def close(self) -> None:
        """Release the commit thread. Idempotent, from any thread."""
        self._ended.set()
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
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
        done = self._batches.last_batch
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
                await self._repeat_hand_over()
            await self._end(is_committing=await self._reign.blocking(is_sound))
        except Exception as exc:
            logger.exception("the job did not end well")
            self._end_error = exc
        finally:
            self._is_open = False
            self._ended.set()

    async def _commit_if_idle(self) -> None:
        """Commit the newest batch if that is due and no batch comes along to ride on."""
        committer = self._reign.committer
        idle_s = (self._clock.monotonic_ns() - self._last_batch_ns) / 1e9
        has_new = self._batches.head > committer.committed_batch
        if idle_s < _IDLE_S or not has_new or committer.open_batch is not None:
            return
        if not committer.is_due():
            return
        if not self._turn.acquire(blocking=False):
            return
        try:
            await self._commit_settled_batch(is_forced=False)
        except (StateBackupError, PySparkException, Py4JError, OSError) as exc:
            # The next batch call meets the same error and fails the query with it.
            logger.warning("commit of the idle stream failed: error=%s", exc)
        finally:
            self._turn.release()

    async def _repeat_hand_over(self) -> None:
        """Hand an attempt over once more if it takes long: its container may have died.

        A container ignores what it works on already or has finished; a new one begins.
        """
        committer = self._reign.committer
        plan, now_ns = committer.open_plan, self._clock.monotonic_ns()
        patience_ns = self._config.task.commit_max_delay_ms * 500_000
        if plan is not self._awaited_plan:
            self._awaited_plan, self._repeat_at_ns = plan, now_ns + patience_ns
        if plan is None or now_ns < self._repeat_at_ns:
            return
        self._repeat_at_ns = now_ns + patience_ns
        logger.warning("commit takes long, its hand-over is repeated: batch=%d", plan.batch)
        try:
            errors = await self._reign.blocking(self._jobs.hand_over, plan)
        except (StateBackupError, PySparkException, Py4JError, OSError) as exc:
            logger.warning("hand-over could not be repeated: error=%s", exc)
            return
        lost = [p for p, error in errors.items() if error.startswith(VERSION_NOT_HERE)]
        await committer.void_if_lost({p: plan.versions[p] for p in lost})

    async def _end(self, *, is_committing: bool) -> None:
        """Commit what was delivered, within ``task.shutdown.ms``; then let the containers end."""
        timeout_s = self._config.task.shutdown_ms / 1000
        if not await self._reign.blocking(self._turn.acquire, timeout=timeout_s):
            logger.warning("the running batch does not end: timeout_s=%s", timeout_s)
            return
        try:
            if is_committing:
                await self._commit_last_batch(timeout_s)
        finally:
            await self._stop_containers(timeout_s)

    async def _commit_last_batch(self, timeout_s: float) -> None:
        committer = self._reign.committer
        await committer.settle(timeout_s)
        await self._commit_settled_batch(is_forced=True)
        await committer.settle(timeout_s)
        newest = await self._reign.blocking(self._location.newest, "commits")
        if committer.committed_batch < min(newest, self._batches.head):
            msg = (
                "the last commit did not become durable, a restart will replay from the one before:"
                f" committed={committer.committed_batch} delivered={self._batches.head}"
            )
            raise StateBackupError(msg)

    async def _stop_containers(self, timeout_s: float) -> None:
        """Let the containers end once their uploads are done, if there still are executors."""
        stopping = asyncio.ensure_future(self._reign.blocking(self._jobs.stop_containers))
        await asyncio.wait([stopping], timeout=timeout_s)
        if not stopping.done():
            self._jobs.anchor.give_up()
        try:
            await stopping
        except (StateBackupError, PySparkException, Py4JError, OSError) as exc:
            logger.warning("containers end with their executors: error=%s", exc)

    async def _commit_settled_batch(self, *, is_forced: bool) -> None:
        """Hand over the newest batch whose ``commits/`` file is there, by a job of its own."""
        committer = self._reign.committer
        batch = min(
            self._batches.head, await self._reign.blocking(self._location.newest, "commits")
        )
        if batch <= committer.committed_batch:
            return
        plan = await committer.prepare(batch, self._batches.versions(batch), is_forced=is_forced)
        if plan is None:
            return
        try:
            errors = await self._reign.blocking(self._jobs.hand_over, plan)
        except (StateBackupError, PySparkException, Py4JError, OSError) as exc:
            errors = dict.fromkeys(plan.versions, f"{type(exc).__name__}: {exc}")
        await committer.handed_over(plan, errors)

    def _committed(self, summary: CommitSummary) -> None:
        with self._commit_made:
            self.last_commit = summary
            self._commit_made.notify_all()
        self.events.add(
            "commit",
            batch=summary.batch,
            checkpoint_id=summary.checkpoint_id,
            elapsed_ms=summary.elapsed_ms,
            tasks_uploaded=summary.tasks_uploaded,
            was_rolled_forward=summary.was_rolled_forward,
        )

    def _check_retention(self) -> None:
        """Spark must keep the boundaries of every batch that a replay may need (R12)."""
        key = "spark.sql.streaming.minBatchesToRetain"
        kept = int(self._spark.conf.get(key) or 100)
        wanted = self._config.task.replay_max_batches
        if wanted > kept - REPLAY_MARGIN:
            raise ConfigError(
                f"Spark forgets batches that a replay may need: task.replay.max.batches={wanted}"
                f" {key}={kept}",
                key="task.replay.max.batches",
                hint=f"raise {key} to at least {wanted + REPLAY_MARGIN}",
            )

    def _key_schema(self) -> str:
        return self._operator.key_schema.simpleString()
