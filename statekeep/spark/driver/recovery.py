"""Bring every task to one head: obtain versions, then replay what is lacking (R6)."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame

from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.checkpoint.records import (
    BadMarkerRecord,
    BatchRecord,
    CommitRecord,
    JobIdentity,
    TaskBatch,
)
from statekeep.checkpoint.serde import decode_events
from statekeep.clock import Clock
from statekeep.errors import (
    ReplayDivergedError,
    RestoreFailedError,
)
from statekeep.events import BatchReplayed, Recovered, Report, TaskRestored
from statekeep.fault_points import fault_point
from statekeep.spark.driver.commit_thread import CommitThread
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.processing import (
    EMPTY,
    VersionHistory,
    clock_of,
    process_batch,
    replayed_record,
)
from statekeep.spark.driver.progress import Stopwatch
from statekeep.spark.driver.replaying import (
    SOURCE_HINT,
    recorded_batches,
    replay,
    shadow_beside,
)
from statekeep.spark.driver.task_jobs import TaskJobs
from statekeep.spark.operator.clock import BatchClock
from statekeep.spark.tasks import partition_of, task_name
from statekeep.spark.worker.job_spec import BatchPlan, TaskCommit

logger = logging.getLogger(__name__)

RECOVERY_STEPS: Final = ("restore", "replay")
MAX_ROUNDS: Final = 8
"""Any step may find more versions lost; a cluster that loses some in each round is failing."""
_DIVERGED = (
    "the processor gave another result for the same rows: it is not deterministic, or sums floats"
    " in the order of the rows"
)
_DIVERGENCE_HINT = (
    "hint: start with task.replay.on.divergence=warn to go on with the new result. To avoid this from"
    " then on, set task.commit.every.batch=true: no delivered batch is then processed again"
)
_OLDER_COMMITS = (
    "hint: older commits are kept, by a pin or by their age, and no task goes back to them by itself: "
    "`statekeep checkpoints list` shows them, and `statekeep savepoint restore NAME --as JOB` makes a new "
    "job from a pinned one"
)


@dataclass
class RecoverySummary:
    """What one recovery did, for people and the event list."""

    head: int
    tasks: int
    restored: dict[int, str] = field(default_factory=dict[int, str])
    """``{partition: where from}`` of tasks that were not on their host."""
    bytes_fetched: int = 0
    replayed: list[int] = field(default_factory=list[int])
    """Batches that ran again."""
    rows_replayed: int = 0
    failures: list[str] = field(default_factory=list[str])
    """Backends that could not serve a store, before another one did."""
    diverged: int = 0
    """Replays of a task's batch that gave another output or state than recorded."""
    first_diverged: str = ""
    """Task, batch and keys of the first of them."""
    phases_ms: dict[str, int] = field(default_factory=dict[str, int])
    """How long each of `RECOVERY_STEPS` took, of all rounds together."""

    def tell(self, report: Report, elapsed_ms: int, reason: str) -> None:
        """Log what was restored and replayed, nothing if all was there; report the recovery.

        Args:
            report: Gets a `Recovered`.
            elapsed_ms: What it took as a whole.
            reason: As `Recovered.reason`.
        """
        if self.restored:
            logger.info(
                "state is restored: tasks=%d of=%d sources=%s bytes=%d",
                len(self.restored),
                self.tasks,
                ",".join(sorted(set(self.restored.values()))),
                self.bytes_fetched,
            )
        if self.replayed:
            logger.info(
                "batches are replayed, without output: first=%d last=%d rows=%d",
                min(self.replayed),
                max(self.replayed),
                self.rows_replayed,
            )
        if self.restored or self.replayed:
            logger.info("state is as after batch %d: elapsed_ms=%d", self.head, elapsed_ms)
        if self.diverged:
            logger.warning(
                "%s: replays=%d first: %s", _DIVERGED, self.diverged, self.first_diverged
            )
        report(Recovered(elapsed_ms=elapsed_ms, reason=reason, **asdict(self)))


class _LostAgainError(Exception):
    """A version was lost while its task was being replayed; the recovery begins another round."""

    def __init__(self, partitions: Collection[int]) -> None:
        super().__init__(f"versions lost during replay: partitions={sorted(partitions)}")
        self.partitions = frozenset(partitions)


class Recovery:
    """Recovers tasks at a start and inside a waiting batch call, by one path.

    Blocking, on the thread that runs batches. Neither sink nor commit runs meanwhile.
    """

    def __init__(
        self,
        *,
        frame: DataFrame,
        location: CheckpointLocation,
        jobs: TaskJobs,
        history: VersionHistory,
        log: LogSession,
        operators: Sequence[range],
        identity: JobIdentity,
        thread: CommitThread,
        is_divergence_fatal: bool,
        report: Report,
        clock: Clock,
    ) -> None:
        """Wire the recovery.

        Args:
            frame: The streaming input.
            location: The query's checkpoint location.
            jobs: The placed jobs.
            history: Which version each task has after each batch; replaced where tasks replay.
            log: Has commits and boundaries; takes the records of batches that replayed, and of
                markers that must not be used again.
            operators: The tasks of each operator; one reads the output of the one before.
            identity: The job as it is now.
            thread: Runs what the log is asked.
            is_divergence_fatal: Whether other output or changes than recorded are an error.
            report: Gets each restore and replay.
            clock: For their durations.
        """
        self._frame = frame
        self._location = location
        self._jobs = jobs
        self._history = history
        self._log = log
        self._operators = operators
        self._identity = identity
        self._thread = thread
        self._is_divergence_fatal = is_divergence_fatal
        self._report = report
        self._clock = clock

    @property
    def _view(self) -> LogView:
        return self._log.view

    def _append(self, record: BatchRecord | BadMarkerRecord) -> None:
        self._thread.run(self._log.append(record))

    def recover(
        self,
        partitions: Collection[int],
        head: int,
        *,
        is_thorough: bool,
        on_phase: Callable[[str], None] = lambda _: None,
        is_optional: bool = False,
        fetched: int | None = None,
    ) -> RecoverySummary:
        """Bring the tasks to their state after batch ``head``, on whatever host they are now.

        Args:
            partitions: The tasks to look at.
            head: H, the newest batch that counts.
            is_thorough: Check every byte of local versions before use, as after a restart.
            on_phase: Called with the end of each ``restore`` and ``replay``.
            is_optional: Nothing is lost: another result than recorded is an error, whatever the settings
                say, as there is exact state to go on with.
            fetched: Begin with no older commit than this one, nor wait for a newer one: what is not there
                is an error. None: the newest commit is restored where it is not there.

        Raises:
            RestoreFailedError: A task's state is out of reach of every backend.
            ReplayDivergedError: The source no longer holds what it held.
            CheckpointLocationError: Boundaries of a batch are gone.
        """
        summary = RecoverySummary(head, len(partitions))
        stopwatch = Stopwatch(self._clock, RECOVERY_STEPS)

        def end_phase(phase: str) -> None:
            stopwatch.lap(phase)
            summary.phases_ms = stopwatch.phases_ms
            on_phase(phase)

        lost: Collection[int] = partitions
        for _ in range(MAX_ROUNDS):
            fault_point("recovery.before")
            starts = self._obtain(lost, head, summary, is_thorough=is_thorough, fetched=fetched)
            starts |= self._rewind(starts, head, summary, is_thorough=is_thorough, fetched=fetched)
            end_phase("restore")
            behind = {partition: start for partition, start in starts.items() if start < head}
            if not behind:
                return summary
            try:
                self._replay(behind, head, summary, is_optional=is_optional)
            except _LostAgainError as exc:
                lost = behind.keys() | exc.partitions
                logger.warning("recovery begins again: partitions=%s", sorted(lost))
            else:
                return summary
            finally:
                end_phase("replay")
        msg = f"gave up after {MAX_ROUNDS} recovery rounds, as versions were lost each time"
        raise RestoreFailedError(
            msg, task_name=task_name(min(lost)), store_names=self._identity.stores[MAIN_OPERATOR]
        )

    def _obtain(
        self,
        partitions: Collection[int],
        head: int,
        summary: RecoverySummary,
        *,
        is_thorough: bool,
        fetched: int | None = None,
    ) -> dict[int, int]:
        """Return s_p, the batch that each task starts from, with its version on its host."""
        # An old version on the host is no better than the newest commit in a backend.
        floor = fetched
        if floor is None:
            commits = (c.batch for c in self._view.comparable_commits if c.batch <= head)
            floor = max(commits, default=-1)
        candidates = {
            p: [found for found in self._history.candidates(p, head) if found[0] >= floor]
            for p in partitions
        }
        names = {p: [version for _, version in found] for p, found in candidates.items()}
        located: Mapping[int, str] = {}
        # What lies on hosts from before the stores changed may lack one, or hold what was given up.
        if not (is_thorough and self._are_stores_changed()):
            located = self._jobs.locate(names, is_thorough=is_thorough)
        starts = {
            p: next(batch for batch, version in candidates[p] if version == located[p])
            for p in located
        }
        absent = [p for p in partitions if p not in located]
        if absent and fetched is not None:
            raise RestoreFailedError(
                f"the restored state is gone again: tasks={len(absent)}",
                task_name=task_name(absent[0]),
                store_names=(),
            )
        if absent:
            starts |= self._restore(absent, head, summary)
        return starts

    def _are_stores_changed(self) -> bool:
        commit = self._view.last_commit
        return commit is not None and commit.identity.stores != self._identity.stores

    def _rewind(
        self,
        starts: Mapping[int, int],
        head: int,
        summary: RecoverySummary,
        *,
        is_thorough: bool,
        fetched: int | None,
    ) -> dict[int, int]:
        """Return where the tasks begin whose output of old batches a task of ``starts`` reads again.

        Output is not kept. So an operator that has to replay a batch needs all tasks of the operators
        before it at the state before that batch.
        """
        found: dict[int, int] = {}
        for before, own in reversed(list(pairwise(self._operators))):
            reached = {**starts, **found}
            first = min((reached[p] for p in own if p in reached), default=head)
            ahead = [p for p in before if reached.get(p, head) > first]
            if ahead:
                found |= self._obtain(
                    ahead, first, summary, is_thorough=is_thorough, fetched=fetched
                )
        return found

    def _restore(
        self, partitions: Collection[int], head: int, summary: RecoverySummary
    ) -> dict[int, int]:
        commits = [c for c in reversed(self._view.comparable_commits) if c.batch <= head]
        candidates = {p: [task_commit(commit, p) for commit in commits] for p in partitions}
        try:
            restored = self._jobs.restore(candidates, self._view.bad_markers)
        except RestoreFailedError as exc:
            if len(self._view.commits) > len(commits):
                exc.add_note(_OLDER_COMMITS)
            raise
        starts: dict[int, int] = {}
        for partition in partitions:
            outcome = restored[partition]
            commit = commits[outcome.candidate]
            starts[partition] = commit.batch
            known = self._history.of(commit.batch).get(partition, EMPTY)
            put = msgspec.structs.replace(known, version=outcome.version)
            self._history.put(commit.batch, {partition: put})
            summary.restored[partition] = ",".join(sorted(set(outcome.sources.values()))) or "empty"
            summary.bytes_fetched += outcome.bytes_fetched
            self._note_failures(partition, outcome.failures, summary)
            for event in decode_events(outcome.events.encode()):
                self._report(event)
            elapsed_ns = outcome.elapsed_ms * 1_000_000
            self._report(
                TaskRestored(
                    task_name(partition), outcome.sources, outcome.bytes_fetched, elapsed_ns
                )
            )
        return starts

    def _note_failures(
        self, partition: int, failures: Sequence[Mapping[str, Any]], summary: RecoverySummary
    ) -> None:
        """Keep what failed on record, and bad markers out of use for good (R11)."""
        name = task_name(partition)
        for failure in failures:
            summary.failures.append(f"{name} {failure['backend']}: {failure['error']}")
            if failure["is_marker_bad"]:
                self._append(
                    BadMarkerRecord(
                        backend=failure["backend"],
                        task=name,
                        store=failure["store"],
                        marker=failure["marker"],
                        reason=failure["error"],
                    )
                )

    def _replay(
        self,
        starts: Mapping[int, int],
        head: int,
        summary: RecoverySummary,
        *,
        is_optional: bool,
    ) -> None:
        first = min(starts.values())
        recorded = recorded_batches(self._view, self._location, first, head)
        is_fatal = self._is_divergence_fatal or is_optional

        def call(rows: DataFrame, batch: int) -> None:
            only = frozenset(p for p, start in starts.items() if start < batch)
            previous = recorded[batch - 1].offsets if batch > 0 else None
            clock = clock_of(batch, recorded[batch].offsets, previous)
            self._replay_batch(rows, batch, only, clock, summary, is_fatal=is_fatal)

        logger.info(
            "a replay begins: batches=%d tasks=%d first=%d last=%d",
            head - first,
            len(starts),
            first + 1,
            head,
        )
        replay(
            self._frame,
            self._location,
            recorded,
            call,
            start=first,
            end=head,
            shadow=shadow_beside(self._location, self._view.epoch),
        )
        for batch in range(first + 1, head + 1):
            fault_point("replay.before_record")
            tasks = self._history.of(batch)
            self._append(replayed_record(self._location, self._view, batch, tasks))
        summary.replayed += range(first + 1, head + 1)

    def _replay_batch(
        self,
        rows: DataFrame,
        batch: int,
        only: frozenset[int],
        clock: BatchClock,
        summary: RecoverySummary,
        *,
        is_fatal: bool,
    ) -> None:
        expected, began_ns = self._expected(batch), self._clock.monotonic_ns()
        plan = BatchPlan(
            batch,
            {p: self._history.of(batch - 1)[p].version for p in only},
            clock,
            only=only,
            has_initial_state=self._history.begins_at(batch),
        )
        sorted_tasks = {p for p in only if p in expected and expected[p].is_sorted}
        done = process_batch(self._jobs, rows, plan, sorted_tasks)
        if not done.is_whole:
            raise _LostAgainError(done.missing)
        elapsed_ns = self._clock.monotonic_ns() - began_ns
        rows_in = sum(outcome.rows_in for outcome in done.tasks.values())
        self._report(BatchReplayed(batch, len(done.tasks), rows_in, elapsed_ns))
        for partition, outcome in done.tasks.items():
            if partition in expected:
                keys = done.key_ranges[partition]
                if self._differs(
                    expected[partition], outcome, partition, batch, keys, is_fatal=is_fatal
                ):
                    summary.diverged += 1
                    where = f"task={task_name(partition)} batch={batch} keys={keys}"
                    summary.first_diverged = summary.first_diverged or where
            summary.rows_replayed += outcome.rows_in
        self._history.put(batch, done.tasks)

    def _expected(self, batch: int) -> dict[int, TaskBatch]:
        """Return what each task did by the newest readable record, whose versions may be lost."""
        record = self._view.batches.get(batch)
        if record is None:
            logger.warning("no record of a replayed batch is readable: batch=%d", batch)
            return {}
        return {partition_of(task): done for task, done in record.tasks.items()}

    def _differs(
        self,
        before: TaskBatch,
        now: TaskBatch,
        partition: int,
        batch: int,
        keys: str,
        *,
        is_fatal: bool,
    ) -> bool:
        """Whether a replay gave another result than recorded, where that is no error."""
        is_input_equal = (before.rows_in, before.input_digest) == (now.rows_in, now.input_digest)
        # The input of a later operator is what the one before has put out.
        if not is_input_equal and partition in self._operators[0]:
            msg = (
                "the source no longer gives the rows of a delivered batch:"
                f" recorded_rows={before.rows_in} replayed_rows={now.rows_in}"
            )
            error = ReplayDivergedError(msg, task_name=task_name(partition), batch=batch, keys=keys)
            error.add_note(SOURCE_HINT)
            raise error
        was = (before.rows_out, before.output_digest, before.changes_digest)
        if is_input_equal and was == (now.rows_out, now.output_digest, now.changes_digest):
            return False
        if is_fatal:
            error = ReplayDivergedError(
                _DIVERGED, task_name=task_name(partition), batch=batch, keys=keys
            )
            error.add_note(_DIVERGENCE_HINT)
            raise error
        return True


def task_commit(commit: CommitRecord, partition: int) -> TaskCommit:
    """Return what a commit record says of a task, for a restore."""
    name = task_name(partition)
    version = commit.versions.get(name, "")
    raw = commit.checkpoints.get(name)
    return TaskCommit(
        version,
        bytes(raw) if version and raw is not None else None,
        tuple(store for stores in commit.identity.stores.values() for store in stores),
    )
