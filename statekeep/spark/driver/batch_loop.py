"""The batch loop: process, deliver, record; heal what is lost in between (R3-R6)."""

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Final

from pyspark.sql import DataFrame

from statekeep.checkpoint.checkpoints import CheckpointId
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.checkpoint.records import JobIdentity
from statekeep.clock import Clock
from statekeep.commit.gate import CommitPolicy, Urgency
from statekeep.config.model import Config
from statekeep.errors import (
    CommitFailedError,
    RestoreFailedError,
    StateBackupError,
)
from statekeep.events import (
    BatchDone,
    CopiesMade,
    OutputHealed,
    Report,
    StateUndeclared,
)
from statekeep.fault_points import fault_point
from statekeep.spark.batch_token import BatchToken, delivering
from statekeep.spark.driver.commit_thread import CommitThread
from statekeep.spark.driver.first_start import first_commit, with_query
from statekeep.spark.driver.job_commits import JobCommits, Submission
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.processing import (
    BatchResult,
    LocalState,
    VersionHistory,
    batch_record,
    clock_of,
    process_batch,
)
from statekeep.spark.driver.progress import (
    KEPT_BATCHES,
    RECOVERY_PHASES,
    BatchStatistics,
    Stopwatch,
    statistics_of,
)
from statekeep.spark.driver.recovery import MAX_ROUNDS, Recovery
from statekeep.spark.driver.standbys import Standbys
from statekeep.spark.driver.takeover import Resumption
from statekeep.spark.driver.task_jobs import TaskJobs
from statekeep.spark.driver.task_moves import TaskMoves
from statekeep.spark.driver.ticks import TickRule
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.runner import OperatorSpec
from statekeep.spark.tasks import partition_of, task_name
from statekeep.spark.worker.job_spec import BatchPlan, FollowPlan, SubmitPlan
from statekeep.spark.worker.task_functions import MISSING_OUTPUT

logger = logging.getLogger(__name__)

Sink = Callable[[DataFrame, int], None]

_FRESH_NS: Final = 1_000_000_000
"""How long the append of the batch record stands for a look for a successor. The append finds one, too,
and usually ends within this time, so that a look costs a request only where something took long. A
successor needs longer than this to take over, recover, and deliver a batch."""


class DeliveryFence:
    """Keeps a driver that was paused after it recorded a batch from delivering it; on the batch thread.

    A process can be stopped at any instruction: it may still be stopped after `check` and go on
    later. `statekeep.spark.current_batch` is for sinks that must refuse it even then.
    """

    def __init__(self, thread: CommitThread, log: LogSession, clock: Clock) -> None:
        self._thread = thread
        self._log = log
        self._clock = clock
        self._recorded_at_ns = self._now_ns()

    def begin(self) -> None:
        """Keep the time: the record of the batch is appended next."""
        self._recorded_at_ns = self._now_ns()

    def check(self) -> None:
        """Read the end of the job log, unless the record was appended just now.

        Raises:
            TaskFencedError: Another driver has taken over.
            RetriableError: The job log does not answer.
        """
        # The monotonic clock may stand still while the machine is suspended. The wall clock catches
        # up then. Where it is wrong it can only bring about one more look.
        passed_ns = [
            abs(now - then) for now, then in zip(self._now_ns(), self._recorded_at_ns, strict=True)
        ]
        if max(passed_ns) > _FRESH_NS:
            self._thread.run(self._log.check_fence())

    def _now_ns(self) -> tuple[int, int]:
        return self._clock.monotonic_ns(), self._clock.time_ns()


class BatchLoop:
    """Runs the batches of one query in order. Blocking, by one thread at a time.

    A batch is: submit the commit that is due, process, deliver, record. Whatever gets lost on
    the way is recovered inside the waiting call, and only for the tasks that lost it.
    """

    def __init__(
        self,
        *,
        frame: DataFrame,
        operators: Sequence[OperatorSpec],
        config: Config,
        location: CheckpointLocation,
        identity: JobIdentity,
        thread: CommitThread,
        log: LogSession,
        commits: JobCommits,
        jobs: TaskJobs,
        sink: Sink,
        report: Report,
        clock: Clock,
        tick_rules: Sequence[TickRule] = (),
    ) -> None:
        self._is_watermark_needed = any(
            operator.time_mode is TimeMode.EVENT or operator.output_time_column is not None
            for operator in operators
        )
        self._settings = config.task
        self._kept_locally = config.checkpoint.local_retain_versions
        """Of how many commits the versions stay where they are."""
        self._location = location
        self._identity = identity
        self._thread = thread
        self._log = log
        self._commits = commits
        self._jobs = jobs
        self._sink = sink
        self._report = report
        self._clock = clock
        self._tick_rules = tick_rules
        self._is_new = True
        self._undeclared: set[str] = set()
        self.head = -1
        """H: the newest batch that is recorded."""
        self._batch_ns = 0
        """How long the newest batch took."""
        self.recent_batches: deque[Sequence[BatchStatistics]] = deque(maxlen=KEPT_BATCHES)
        """What the newest ones did in each operator."""
        self._local = [LocalState() for _ in jobs.tasks]
        """Of each operator's tasks: what they have on their hosts."""
        self._history = VersionHistory(identity.partitions)
        former = map(partition_of, log.view.tasks)
        self._gone = {p: tuple[str, ...]() for p in former if p >= identity.partitions}
        """The tasks that the job had when it had more of them: what they left on hosts goes."""
        self._fence = DeliveryFence(thread, log, clock)
        self._policy = CommitPolicy(config.task)
        self._standbys = Standbys(config.job.standby_copies)
        self._submission = Submission(thread, commits, jobs.submit_versions)
        self._recovery = Recovery(
            frame=frame,
            location=location,
            jobs=jobs,
            history=self._history,
            log=log,
            operators=jobs.tasks,
            identity=identity,
            thread=thread,
            is_divergence_fatal=config.task.divergence == "error",
            report=report,
            clock=clock,
        )
        self._moves = TaskMoves(
            jobs=jobs,
            commits=commits,
            log=log,
            history=self._history,
            recovery=self._recovery,
            is_each_batch=self._policy.is_each_batch,
            report=report,
            clock=clock,
        )

    def resume(self, resumption: Resumption, stopwatch: Stopwatch) -> None:
        """Bring every task to the newest batch that counts, before the query starts."""
        self._is_new = resumption.is_new_query
        began_ns = self._clock.monotonic_ns()
        self._history.load(self._log.view, resumption.head)
        self.head = resumption.head
        everyone = range(self._identity.partitions)
        summary = self._recovery.recover(
            everyone, resumption.head, is_thorough=True, on_phase=stopwatch.lap
        )
        summary.tell(self._report, self._elapsed_ms(began_ns), "start")

    def commit_head(self) -> None:
        """Commit the newest batch, between `resume` and the start of the query.

        Raises:
            CommitFailedError: It could not be committed.
        """
        self._commit_wholly(self.head)

    @property
    def _has_several(self) -> bool:
        """Whether the query has operators that read the output of others."""
        return len(self._jobs.tasks) > 1

    def run(self, rows: DataFrame, batch: int) -> None:
        """Process one batch, record it, deliver its output.

        Raises:
            StateBackupError: The batch is not the next one, or cannot be processed exactly.
            CommitFailedError: More commits failed in a row than are tolerated.
            TaskFencedError: Another driver has taken over.
        """
        if self._is_new:
            self._begin()
        if batch <= self._commits.committed_batch:
            self._check_repeated(batch)
            return
        if batch > self.head + 1 and batch - 1 in self._log.view.overtaken_batches:
            self._catch_up(batch - 1)
        if batch != self.head + 1:
            msg = f"not the next batch: batch={batch} head={self.head}"
            raise StateBackupError(msg)
        offsets = self._location.require(f"offsets/{batch}")
        self._moves.move_due(self.head, self._batch_ns)
        began_ns = self._clock.monotonic_ns()
        plan = self._prepare_commit()
        result = self._process_all(rows, batch, offsets, plan)
        result = self._deliver(rows, batch, offsets, result)
        self._batch_ns = self._clock.monotonic_ns() - began_ns
        self.head = batch
        for rule in self._tick_rules:
            rule.note_batch(self._clock_of(batch, offsets), result.next_times)
        self._history.forget_below(min(self._retained_batches(), default=-1))
        self._note(batch, result)
        self._commits.note_changes(result.changed_bytes)
        if self._policy.is_each_batch:
            self._commit_inside_call(batch)

    def versions(self, batch: int) -> dict[int, str]:
        """Return ``{partition: VersionId}`` after ``batch``."""
        return self._history.versions(batch)

    def _begin(self) -> None:
        """Write the commit with which a query begins, in its first batch call (R2).

        It is the empty one, unless the job's state is that of a query before.
        """
        began = CheckpointId.at(self._clock.time_ns())
        view = self._log.view
        first = first_commit(view.last_commit, self._identity, began.serialize(), self._log.epoch)
        record = with_query(first, self._location)
        fault_point("empty_commit.before")
        self._thread.run(self._log.append(record))
        fault_point("empty_commit.after")
        if record.identity.stores != self._identity.stores:
            # It lists what its backups hold; the batches that follow are of other stores.
            query_id = self._location.query_id() or ""
            stores = self._identity.stores
            self._thread.run(self._log.go_on_from(query_id, record.batch, stores))
        self._is_new = False

    def _catch_up(self, batch: int) -> None:
        """Take in a batch that Spark need not call: an older driver's query has ended it (R4).

        That driver had recorded it before this one took over, and wrote its ``commits/`` file
        after this one had looked: it was delivered, from versions that must not be used.
        """
        self._location.require(f"commits/{batch}")
        logger.warning("an older driver has ended a batch, it is replayed: batch=%d", batch)
        began_ns = self._clock.monotonic_ns()
        everyone = range(self._identity.partitions)
        summary = self._recovery.recover(everyone, batch, is_thorough=False)
        self.head = batch
        summary.tell(self._report, self._elapsed_ms(began_ns), "catch-up")

    def _check_repeated(self, batch: int) -> None:
        """A batch that is committed already: Spark repeats it after a crash; nothing to do (R4)."""
        known = self._log.view.known_offsets(batch)
        if known is None or known != self._location.require(f"offsets/{batch}"):
            error = StateBackupError(
                f"Spark repeats a committed batch with other offsets: batch={batch}"
            )
            error.add_note("hint: put the checkpoint location back as it was at that batch")
            raise error

    def _prepare_commit(self) -> SubmitPlan | None:
        urgency = self._policy.before_batch(self.head - self._commits.committed_batch)
        if urgency is None:
            return None
        if urgency is Urgency.HOLDS_UP:
            self._commit_at_limit(self.head)
            return None
        is_forced = urgency is Urgency.WAITS_FOR_OPEN
        return self._submission.begin(self.head, self.versions(self.head), is_forced=is_forced)

    def _commit_inside_call(self, batch: int) -> None:
        """Commit the batch that is being called: the mode that commits every batch.

        Raises:
            CommitFailedError: It could not be committed, whatever is tolerated elsewhere: the next
                batch must not be delivered on top of it.
        """
        self._commit_wholly(batch)

    def _commit_wholly(self, batch: int) -> None:
        checkpoint_id = self._commit_now(batch)
        if self._commits.committed_batch < batch:
            msg = f"the batch could not be committed: batch={batch}"
            error = CommitFailedError(msg, checkpoint_id=checkpoint_id, step="record")
            # What it failed by names the task and the backend.
            raise self._commits.final_error or error

    def _commit_at_limit(self, batch: int) -> None:
        """Let no batch be processed before ``batch`` is committed: a replay could be impossible.

        Raises:
            CommitFailedError: More commits failed in a row than are tolerated.
        """
        limit = self._settings.replay_max_batches
        logger.warning(
            "processing waits for a commit: head=%d committed=%d task.replay.max.batches=%d",
            batch,
            self._commits.committed_batch,
            limit,
        )
        try:
            while self._commits.committed_batch < batch:
                self._commit_now(batch)
        except CommitFailedError as exc:
            exc.add_note(
                f"hint: {limit} batches (task.replay.max.batches) are without a commit; repair "
                f"the backend, or raise this together with spark.sql.streaming.minBatchesToRetain"
            )
            raise

    def _commit_now(self, batch: int) -> str:
        """Wait for the end of one attempt, which may fail; return its id."""
        timeout_s = self._settings.commit_timeout_ms / 1000
        checkpoint_id = ""
        for _ in range(MAX_ROUNDS):
            done = self._submission.submit(batch, self.versions(batch), is_forced=True)
            if done is None:
                return checkpoint_id
            checkpoint_id = done.checkpoint_id
            self._thread.run(self._commits.resolve(timeout_s))
            if not done.lost:
                return checkpoint_id
            self.heal(done.lost, batch)
        msg = f"gave up after {MAX_ROUNDS} recovery rounds, as versions were lost each time: batch={batch}"
        raise CommitFailedError(msg, checkpoint_id=checkpoint_id, step="upload")

    def _process_all(
        self,
        rows: DataFrame,
        batch: int,
        offsets: str,
        plan: SubmitPlan | None,
        *,
        only: frozenset[int] | None = None,
    ) -> BatchResult:
        """Process a batch in all tasks, healing those that lost their version meanwhile.

        With several operators it then begins again as a whole: healing one may replay those before
        it, and what these have put out meanwhile comes from versions that were not chosen.
        """
        result = BatchResult()
        stopwatch, phase = Stopwatch(self._clock, RECOVERY_PHASES), "find"
        for _ in range(MAX_ROUNDS):
            if self._has_several:
                result = BatchResult()
            result.merge(self._process(rows, batch, offsets, only, plan))
            if plan is not None:
                self._end_submission(plan, result)
                plan = None
            stopwatch.lap(phase)
            if result.is_whole:
                if phase != "find":
                    logger.info("lost state is recovered: batch=%d %s", batch, stopwatch.summary())
                return result
            phase = "process"
            missing = frozenset(result.missing)
            if missing:
                self.heal(missing, batch - 1, stopwatch.lap)
            if not self._has_several:
                only = missing
        msg = f"gave up after {MAX_ROUNDS} recovery rounds, as versions were lost each time: batch={batch}"
        raise RestoreFailedError(
            msg,
            task_name=task_name(min(result.missing, default=0)),
            store_names=self._identity.stores[MAIN_OPERATOR],
        )

    def _end_submission(self, plan: SubmitPlan, result: BatchResult) -> None:
        """Record how the tasks have submitted; a batch that ended early has not asked all of them."""
        errors: Mapping[int, str] = result.submit_errors
        if self._has_several and not result.is_whole:
            errors = {**self._jobs.submit_versions(plan), **errors}
        self._submission.end(plan, errors)

    def _process(
        self,
        rows: DataFrame,
        batch: int,
        offsets: str,
        only: frozenset[int] | None,
        submit_plan: SubmitPlan | None,
    ) -> BatchResult:
        clock = self._clock_of(batch, offsets)
        follow_plan = self._follow_plan()
        kept = {self._commits.committed_batch, self.head, batch - 1, *self._kept_commits()}
        open_batch = self._commits.open_batch
        if open_batch is not None:
            kept.add(open_batch)
        plan = BatchPlan(
            batch,
            self.versions(batch - 1),
            clock,
            only=only,
            waiting=frozenset[int]().union(*(rule.waiting(clock) for rule in self._tick_rules)),
            submit_plan=submit_plan,
            follow_plan=follow_plan,
            keep={**self._gone, **self._history.kept(kept)},
            resolved_batch=batch - 1,
            committed=self._committed_versions(),
            has_initial_state=self._history.begins_at(batch),
        )
        result = process_batch(self._jobs, rows, plan)
        if follow_plan is not None and result.is_whole:
            self._standbys.have_been_asked(follow_plan, self._jobs.executors)
        if any(result.followed.values()):
            self._report(CopiesMade(**result.followed))
        return result

    def _follow_plan(self) -> FollowPlan | None:
        if not self._standbys.are_wanted:
            return None
        return self._standbys.plan(
            self._log.view.last_commit,
            self._jobs.placement.slots,
            self._jobs.executors,
            self._jobs.disks,
            self._log.view.bad_markers,
        )

    def _clock_of(self, batch: int, offsets: str) -> BatchClock:
        is_known = self._is_watermark_needed and batch > 0
        previous = self._location.require(f"offsets/{batch - 1}") if is_known else None
        return clock_of(batch, offsets, previous)

    def _record_beside(
        self, batch: int, offsets: str, result: BatchResult
    ) -> tuple[BatchToken, Future[int]]:
        """Begin to say in the log which versions a batch made; of several records the last counts.

        The sink waits for it: what was delivered has its boundaries on record, whatever the
        location loses; and a driver that was replaced delivers nothing.
        """
        self._history.put(batch, result.tasks)
        record = batch_record(self._location, batch, offsets, result.tasks)
        token = BatchToken(self._identity.job_uid, record.query_id, self._log.epoch, batch)
        fault_point("batch_record.before")
        self._fence.begin()
        return token, self._thread.submit(self._log.append(record))

    def _kept_commits(self) -> list[int]:
        """Return the batches of the newest commits, whose versions stay where they are."""
        batches = sorted(self._retained_batches())
        return batches[-self._kept_locally :]

    def _retained_batches(self) -> list[int]:
        """Return the batches of this query's commits that are not released."""
        return [commit.batch for commit in self._log.view.comparable_commits]

    def _committed_versions(self) -> dict[int, str]:
        commit = self._log.view.last_commit
        versions: Mapping[str, str] = {} if commit is None else commit.versions
        return {partition_of(task): version for task, version in versions.items()}

    def _deliver(
        self, rows: DataFrame, batch: int, offsets: str, result: BatchResult
    ) -> BatchResult:
        """Give the sink the output of the chosen versions; heal those that get lost meanwhile.

        Returns:
            What was delivered.
        """
        for _ in range(MAX_ROUNDS):
            token, recording = self._record_beside(batch, offsets, result)
            try:
                output = self._output_of(result)
            finally:
                recording.result()
                fault_point("batch_record.after")
            fault_point("sink.before")
            self._fence.check()
            try:
                with self._jobs.placement.tagged(), delivering(token):
                    self._sink(output, batch)
            except Exception as exc:
                if MISSING_OUTPUT not in str(exc) and not self._jobs.placement.was_stalled(exc):
                    raise
                result = self._heal_output(rows, batch, offsets, result)
            else:
                fault_point("sink.after")
                return result
        msg = f"gave up after {MAX_ROUNDS} recovery rounds, as output was lost each time: batch={batch}"
        raise RestoreFailedError(
            msg,
            task_name=task_name(min(result.missing, default=0)),
            store_names=self._identity.stores[MAIN_OPERATOR],
        )

    def _output_of(self, result: BatchResult) -> DataFrame:
        """Return what the tasks of the last operator have put out, in the order of tasks."""
        return self._jobs.output(len(self._jobs.tasks) - 1, *result.output_of(self._jobs.tasks[-1]))

    def _heal_output(
        self, rows: DataFrame, batch: int, offsets: str, result: BatchResult
    ) -> BatchResult:
        """Process the batch again in the tasks whose output is gone, or in all if operators follow."""
        versions = {task: result.tasks[task].version for task in result.in_files}
        lost = frozenset(versions) - self._jobs.with_output(versions)
        self._report(OutputHealed(batch, len(lost)))
        if not lost:
            return result
        self.heal(lost, batch - 1)
        if self._has_several:
            return self._process_all(rows, batch, offsets, None)
        result.in_files -= lost
        result.merge(self._process_all(rows, batch, offsets, None, only=lost))
        return result

    def heal(
        self,
        partitions: frozenset[int],
        head: int,
        on_phase: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Recover tasks whose versions are lost, inside the waiting batch call or in its place (R6).

        Args:
            partitions: The tasks.
            head: The batch after which their state is needed.
            on_phase: Called at the end of each ``restore`` and ``replay``.
        """
        began_ns = self._clock.monotonic_ns()
        logger.warning("tasks lost their state: count=%d head=%d", len(partitions), head)
        self._go_to_copies(partitions)
        # With several operators all tasks are looked at: a host that is lost had tasks of each operator,
        # and a batch finds out about one operator at a time. Tasks that have lost nothing may be replayed,
        # too: their versions are then not those of the attempt.
        concerned = range(self._identity.partitions) if self._has_several else partitions
        lost = {p: self._version_at_open(p) for p in concerned}
        self._thread.run(self._commits.abort_if_lost(lost))
        summary = self._recovery.recover(concerned, head, is_thorough=False, on_phase=on_phase)
        if summary.diverged:
            for rule in self._tick_rules:
                rule.forget()
        summary.tell(self._report, self._elapsed_ms(began_ns), "loss")

    def _go_to_copies(self, partitions: Collection[int]) -> None:
        """Let tasks whose executor is gone run where a copy of their newest commit lies."""
        if not self._standbys.are_wanted:
            return
        slots = self._jobs.placement.slots
        after = self._standbys.slots_after_loss(slots, self._jobs.executors, partitions)
        if after is not None:
            self._jobs.rebalancer.rearrange(after)
            moved = sum(len(set(was) - set(now)) for was, now in zip(slots, after, strict=True))
            logger.info("tasks go on at hosts that have standby copies of them: tasks=%d", moved)

    def _version_at_open(self, partition: int) -> str:
        open_batch = self._commits.open_batch
        if open_batch is None or open_batch not in self._history:
            return ""
        return self._history.of(open_batch)[partition].version

    def _warn_undeclared(self, names: Collection[str]) -> None:
        """Name state that the processor does not declare, once a variable."""
        new = sorted(set(names) - self._undeclared)
        if new:
            self._undeclared.update(new)
            self._report(StateUndeclared(",".join(new)))
            logger.warning(
                "the state holds variables that the processor does not declare; they stay as they are,"
                " until deleteIfExists in init() deletes them: variables=%s",
                ",".join(new),
            )

    def _note(self, batch: int, result: BatchResult) -> None:
        self._warn_undeclared(result.undeclared)
        parts = [part for _, part in sorted(result.by_operator.items())]
        self._local = [
            LocalState(sizes=before.sizes) + part.local
            for part, before in zip(parts, self._local, strict=True)
        ]
        done = [
            statistics_of(batch, part, local)
            for part, local in zip(parts, self._local, strict=True)
        ]
        self.recent_batches.append(done)
        self._report(
            BatchDone(
                batch=batch,
                rows_in=done[0].rows_in,
                rows_out=done[-1].rows_out,
                max_pause_ms=round(max(result.pauses_ns, default=0) / 1e6, 2),
            )
        )

    def _elapsed_ms(self, began_ns: int) -> int:
        return (self._clock.monotonic_ns() - began_ns) // 1_000_000
