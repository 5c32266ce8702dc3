"""Bring every task to one head: obtain versions, then replay what is lacking (R6)."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pyspark.sql import DataFrame

from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import BadMarkerRecord, BatchRecord, CommitRecord, TaskBatch
from statekeep.errors import ReplayDivergedError, RestoreFailedError
from statekeep.fault_points import fault_point
from statekeep.spark.driver.commit_thread import CommitThread
from statekeep.spark.driver.history import EMPTY, VersionHistory, replayed_record
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.processing import BatchProcessor, clock_of
from statekeep.spark.driver.replay import (
    SOURCE_HINT,
    RecordedBatch,
    boundaries_are_gone,
    replay,
)
from statekeep.spark.driver.task_jobs import TaskJobs
from statekeep.spark.operator.clock import BatchClock
from statekeep.spark.tasks import partition_of, task_name

logger = logging.getLogger(__name__)

_MAX_ROUNDS = 8
"""Any step may find more versions lost; a cluster that loses some in each round is failing."""
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
        processor: BatchProcessor,
        history: VersionHistory,
        log: LogSession,
        thread: CommitThread,
        is_divergence_fatal: bool,
    ) -> None:
        """Wire the recovery.

        Args:
            frame: The streaming input.
            location: The query's checkpoint location.
            jobs: The anchored jobs.
            processor: Processes one batch for some tasks.
            history: Which version each task has after each batch; replaced where tasks replay.
            log: Has commits and boundaries; takes the records of batches that replayed, and of
                markers that must not be used again.
            thread: Runs what the log is asked.
            is_divergence_fatal: Whether other output or changes than recorded are an error.
        """
        self._frame = frame
        self._location = location
        self._jobs = jobs
        self._processor = processor
        self._history = history
        self._log = log
        self._thread = thread
        self._is_divergence_fatal = is_divergence_fatal

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
    ) -> RecoverySummary:
        """Bring the tasks to their state after batch ``head``, on whatever host they are now.

        Args:
            partitions: The tasks to look at.
            head: H, the newest batch that counts.
            is_thorough: Check every byte of local versions before use, as after a restart.
            on_phase: Told of the end of each ``restore`` and ``replay``.

        Raises:
            RestoreFailedError: A task's state is out of reach of every backend.
            ReplayDivergedError: The source no longer holds what it held.
            CheckpointLocationError: Boundaries of a batch are gone.
        """
        summary = RecoverySummary(head, len(partitions))
        lost: Collection[int] = partitions
        for _ in range(_MAX_ROUNDS):
            fault_point("recovery.before")
            starts = self._obtain(lost, head, summary, is_thorough=is_thorough)
            on_phase("restore")
            behind = {partition: start for partition, start in starts.items() if start < head}
            if not behind:
                return summary
            try:
                self._replay(behind, head, summary)
            except _LostAgainError as exc:
                lost = behind.keys() | exc.partitions
                logger.warning("recovery begins again: partitions=%s", sorted(lost))
            else:
                return summary
            finally:
                on_phase("replay")
        msg = f"gave up after {_MAX_ROUNDS} recovery rounds, as versions were lost each time"
        raise RestoreFailedError(msg, task_name=task_name(min(lost)), store_names=["state"])

    def _obtain(
        self,
        partitions: Collection[int],
        head: int,
        summary: RecoverySummary,
        *,
        is_thorough: bool,
    ) -> dict[int, int]:
        """Return s_p, the batch that each task starts from, with its version on its host."""
        # An old version on the host is no better than the newest commit in a backend.
        floor = max((c.batch for c in self._view.comparable_commits if c.batch <= head), default=-1)
        candidates = {
            p: [found for found in self._history.candidates(p, head) if found[0] >= floor]
            for p in partitions
        }
        names = {p: [version for _, version in found] for p, found in candidates.items()}
        located = self._jobs.locate(names, is_thorough=is_thorough)
        starts = {
            p: next(batch for batch, version in candidates[p] if version == located[p])
            for p in located
        }
        absent = [p for p in partitions if p not in located]
        if absent:
            starts |= self._restore(absent, head, summary)
        return starts

    def _restore(
        self, partitions: Collection[int], head: int, summary: RecoverySummary
    ) -> dict[int, int]:
        commits = [c for c in reversed(self._view.comparable_commits) if c.batch <= head]
        candidates = {p: [_candidate(commit, p) for commit in commits] for p in partitions}
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

    def _replay(self, starts: Mapping[int, int], head: int, summary: RecoverySummary) -> None:
        first = min(starts.values())
        recorded = self._recorded(first, head)

        def call(rows: DataFrame, batch: int) -> None:
            only = frozenset(p for p, start in starts.items() if start < batch)
            previous = recorded[batch - 1].offsets if batch > 0 else None
            clock = clock_of(batch, recorded[batch].offsets, previous)
            self._replay_batch(rows, batch, only, clock, summary)

        logger.info("replay begins: first=%d last=%d tasks=%d", first + 1, head, len(starts))
        replay(
            self._frame,
            self._location,
            recorded,
            call,
            start=first,
            end=head,
            epoch=self._view.epoch,
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
    ) -> None:
        expected = self._expected(batch)
        done = self._processor.process_once(
            rows,
            batch,
            {p: self._history.of(batch - 1)[p].version for p in only},
            clock,
            only,
            is_sorted=any(expected[p].is_sorted for p in only if p in expected),
            has_initial_state=self._history.begins_at(batch),
        )
        if done.missing:
            raise _LostAgainError(done.missing)
        for partition, outcome in done.tasks.items():
            if partition in expected:
                self._compare(
                    expected[partition], outcome, partition, batch, done.key_ranges[partition]
                )
            summary.rows_replayed += outcome.rows_in
        self._history.put(batch, done.tasks)

    def _expected(self, batch: int) -> dict[int, TaskBatch]:
        """Return what each task did by the newest readable record, whose versions may be lost."""
        record = self._view.batches.get(batch)
        if record is None:
            logger.warning("no record of a replayed batch is readable: batch=%d", batch)
            return {}
        return {partition_of(task): done for task, done in record.tasks.items()}

    def _compare(
        self, before: TaskBatch, now: TaskBatch, partition: int, batch: int, keys: str
    ) -> None:
        if (before.rows_in, before.input_digest) != (now.rows_in, now.input_digest):
            msg = (
                "the source no longer gives the rows of a delivered batch:"
                f" recorded_rows={before.rows_in} replayed_rows={now.rows_in}"
            )
            error = ReplayDivergedError(msg, task_name=task_name(partition), batch=batch, keys=keys)
            error.add_note(SOURCE_HINT)
            raise error
        was = (before.rows_out, before.output_digest, before.changes_digest)
        if was == (now.rows_out, now.output_digest, now.changes_digest):
            return
        msg = "the processor is not deterministic, or sums floats in the order of the rows"
        if self._is_divergence_fatal:
            error = ReplayDivergedError(msg, task_name=task_name(partition), batch=batch, keys=keys)
            error.add_note("hint: set task.commit.every.batch=true for such a processor")
            raise error
        logger.warning(
            "replay differs, %s: task=%s batch=%d keys=%s", msg, task_name(partition), batch, keys
        )

    def _recorded(self, first: int, head: int) -> dict[int, RecordedBatch]:
        """Gather the boundaries of the batches from ``first`` to ``head``."""
        found: dict[int, RecordedBatch] = {}
        for commit in self._view.comparable_commits:
            if commit.query is not None and commit.query.offsets is not None:
                found[commit.batch] = RecordedBatch(commit.query.offsets, commit.query.commit)
        for batch, record in list(self._view.batches.items()):
            following = self._view.batches.get(batch + 1)
            commit_text = None if following is None else following.previous_commit
            known = found.get(batch)
            found[batch] = RecordedBatch(
                record.offsets, commit_text or (known.commit if known is not None else None)
            )
        return {
            batch: self._completed(batch, found.get(batch))
            for batch in range(max(first, 0), head + 1)
        }

    def _completed(self, batch: int, known: RecordedBatch | None) -> RecordedBatch:
        """Fill from the query's own location what no record holds."""
        offsets = known.offsets if known is not None else None
        commit = known.commit if known is not None else None
        offsets = offsets or self._location.read(f"offsets/{batch}")
        if offsets is None:
            raise boundaries_are_gone(batch)
        return RecordedBatch(offsets, commit or self._location.read(f"commits/{batch}"))


def _candidate(commit: CommitRecord, partition: int) -> tuple[str, bytes | None]:
    name = task_name(partition)
    version = commit.versions.get(name, "")
    raw = commit.checkpoints.get(name)
    return version, bytes(raw) if version and raw is not None else None
