"""Executors that come and go: which task is in which slot, and jobs that wait for an executor that is gone."""

import logging
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from statekeep.clock import Clock
from statekeep.errors import StateBackupError
from statekeep.fault_points import fault_point
from statekeep.spark.placement import Placement, SlotFunction, slot_count, spread
from statekeep.spark.worker import task_functions

logger = logging.getLogger(__name__)

Background = Callable[[Callable[[], None]], Future[None]]
"""Starts a blocking call beside the batches."""


@dataclass(frozen=True, slots=True)
class _WarmUp:
    """Lets executors start their Python workers."""

    table: Placement
    running: Future[None]

    @property
    def has_ended_well(self) -> bool:
        """Whether the executors are ready."""
        done = self.running.done() and not self.running.cancelled()
        return done and self.running.exception() is None


Fetch = Callable[[Placement], bool]
"""Asks executors, by a job on the table, to fetch state; returns whether all of it is there."""


@dataclass(slots=True)
class Move:
    """A table that takes the place of the one in use once the state of its tasks is where it needs it."""

    table: Placement
    tasks: frozenset[int]
    """Those that are on another executor by it."""
    batch: int = -1
    """Of the commit that is fetched for them, or was fetched last."""
    is_there: bool = False
    """Whether it has been fetched."""
    fetch: Fetch | None = None
    apart: Placement | None = None
    """The table in jobs that fetch."""
    job: Future[None] | None = None
    """The one that asks the executors to fetch, or how far they are."""
    asked_ns: int = 0
    """When it began."""

    @property
    def is_asking(self) -> bool:
        """Whether the executors are being asked."""
        return self.job is not None and not self.job.done()

    @property
    def error(self) -> BaseException | None:
        """What the fetch has failed with."""
        if self.job is None or not self.job.done() or self.job.cancelled():
            return None
        return self.job.exception()

    def give_up(self) -> None:
        """Ask no executor any more, and release the table."""
        if self.apart is not None and self.is_asking:
            self.apart.give_up()
        self.table.close()


class Rebalancer:
    """Spreads tasks over the executors that there are, once some have come or gone.

    `note_change` is called from any thread, the rest between two batches, by one thread at a time.
    """

    def __init__(self, spark: SparkSession, tasks: int, tag: str, background: Background) -> None:
        """Spread the tasks over the slots that there are.

        Args:
            spark: The session.
            tasks: Of all operators.
            tag: Put on every Spark job.
            background: Runs what new executors do before they get tasks.
        """
        self._spark = spark
        self._background = background
        self.placement = Placement(spark, spread(tasks, slot_count(spark, tasks)), tag)
        """The table as it is now."""
        self._has_changed = False
        self._committed = -1
        """The batch of the newest commit that has been seen."""
        self._warm_up: _WarmUp | None = None
        """Since the newest change that has been seen between two batches."""
        self._commits_left: int | None = None
        """How many must end before tasks move; None while nothing has to move."""
        self._pause = 1
        """How many commits to wait before the next try."""
        self.move: Move | None = None
        """The one that is being prepared."""
        self._has_fetched = False
        """Whether executors were asked to fetch state, which may never have got a task."""
        self._ending: Placement | None = None
        """The table as `run_on_all` uses it."""

    def note_change(self, *, is_settled: bool) -> None:
        """Take note that executors have come or gone.

        Args:
            is_settled: Whether no batch waits for one that is gone: what makes others ready would take
                cores away from it. If not, this is called again.
        """
        self._has_changed = is_settled

    def is_due(self, committed_batch: int) -> bool:
        """Whether executors have come or gone, are ready, and a commit has ended since.

        A task that moves to another host begins there with the newest commit, and replays what came
        after it: that is least right after a commit. The first call after a change lets the executors
        start their Python workers, which takes seconds, beside the batches. If that fails, no task
        moves until the next change.

        Args:
            committed_batch: The batch of the newest commit.
        """
        if committed_batch > self._committed:
            self._committed = committed_batch
            if self._commits_left:
                self._commits_left -= 1
        if self._has_changed and (self._warm_up is None or self._warm_up.running.done()):
            self._has_changed, self._commits_left, self._pause = False, 1, 1
            self.give_up_move()
            self._warm_up = self._begin_warm_up()
        return (
            self._commits_left == 0 and self._warm_up is not None and self._warm_up.has_ended_well
        )

    def close(self) -> None:
        """Release the table, and give up what still runs beside the batches. Idempotent."""
        if self._warm_up is not None and not self._warm_up.running.done():
            self._warm_up.table.give_up()
        self.give_up_move()
        self.placement.close()

    def run_on_all(self, function: SlotFunction) -> None:
        """Run a function on each executor that may work for the job, at its end; some run it twice.

        Also where the jobs of the batches were given up: see `give_up_end`.
        """
        self.give_up_move()
        self._ending = ending = self.placement.apart(_end_tag(self.placement.tag))
        ending.run(function)
        if self._has_fetched:
            fresh = ending.anew(min(ending.tasks, slot_count(self._spark, ending.tasks)))
            try:
                fresh.run(function)
            finally:
                fresh.close()

    def give_up_end(self) -> None:
        """Wait no longer for `run_on_all`; from any thread, again until it has returned."""
        if self._ending is not None:
            self._ending.give_up()

    def rearrange(self, slots: Sequence[tuple[int, ...]]) -> None:
        """Put tasks into other slots of the table, which stays where it is."""
        self.give_up_move()
        self.placement = self.placement.with_slots(slots)

    def prepare(self, operators: Sequence[range], executors: Mapping[int, str]) -> None:
        """Make another table, if it is a better one, and leave the one in use; see `move`.

        Args:
            operators: The tasks of each operator.
            executors: Where each task has run last.
        """
        self._commits_left = None
        self.give_up_move()
        fresh = self._fresh()
        try:
            self.move = self._better(fresh, operators, executors)
        finally:
            if self.move is None:
                fresh.close()

    def fetch(self, move: Move, batch: int, fetch: Fetch, now_ns: int) -> None:
        """Have a commit of the tasks that are to move brought where they go, beside the batches.

        Args:
            move: That of `move`.
            batch: Of the commit.
            fetch: Asks the executors for that.
            now_ns: Monotonic clock.
        """
        move.batch, move.fetch, move.is_there = batch, fetch, False
        self._has_fetched = True
        self.ask_again(move, now_ns)

    def ask_again(self, move: Move, now_ns: int) -> None:
        """Ask the executors how far they are, by a short job beside the batches."""
        fetch, move.asked_ns = move.fetch, now_ns
        assert fetch is not None  # noqa: S101 - see `fetch`
        table = move.apart = move.table.apart(f"fetch-{self.placement.tag}")

        def ask() -> None:
            move.is_there = fetch(table)

        move.job = self._background(ask)

    def give_up_move(self, *, is_again: bool = False) -> None:
        """Stay with the table in use.

        Args:
            is_again: Try again, after one commit, then two, four and so on.
        """
        move, self.move = self.move, None
        if move is not None:
            move.give_up()
        if is_again:
            self._commits_left, self._pause = self._pause, 2 * self._pause

    @contextmanager
    def moving(self) -> Generator[frozenset[int]]:
        """Have the table of `move` inside and from then on.

        Yields:
            The tasks that are on another executor now. If they cannot go on there, an error raised
            inside puts the table back that there was before, until the next try.
        """
        move, before = self.move, self.placement
        assert move is not None  # noqa: S101 - see `prepare`
        self.move = None
        kept = before
        try:
            self.placement = move.table
            fault_point("move.after_table")
            yield move.tasks
            kept = move.table
        except BaseException:
            self.give_up_move(is_again=True)
            raise
        finally:
            self.placement = kept
            (move.table if kept is before else before).close()

    def _fresh(self, tag: str | None = None) -> Placement:
        tasks = self.placement.tasks
        return self.placement.anew(min(tasks, slot_count(self._spark, tasks)), tag)

    def _begin_warm_up(self) -> _WarmUp:
        """Run a table that is thrown away: its slots may all be where no batch runs at the moment."""
        table = self._fresh(f"warm-up-{self.placement.tag}")

        def run() -> None:
            try:
                table.run(task_functions.executor_of)
            except (StateBackupError, PySparkException, Py4JError, OSError) as exc:
                logger.info(
                    "tasks are not moved, as the executors could not be prepared: error=%s", exc
                )
                raise
            finally:
                table.close()

        return _WarmUp(table, self._background(run))

    def _better(
        self, fresh: Placement, operators: Sequence[range], executors: Mapping[int, str]
    ) -> Move | None:
        """Return the move to a new table, if that is a better one."""
        answers = fresh.run(task_functions.executor_of)
        found = {int(slot): str(a["executor"]) for a in answers for slot in a["tasks"]}
        of_slots = [found[slot] for slot in range(len(fresh.slots))]
        if not set(executors.values()) <= set(of_slots):
            # An executor has no slot: it was busy, and its tasks would have to leave their state, or
            # it has just gone.
            self.give_up_move(is_again=True)
            return None
        slots = assigned(operators, of_slots, executors)
        moved = frozenset(
            task
            for tasks, executor in zip(slots, of_slots, strict=True)
            for task in tasks
            if executors.get(task) != executor
        )
        if not moved and len(slots) == len(self.placement.slots):
            return None
        return Move(fresh.with_slots(slots), moved)


def assigned(
    operators: Sequence[range], executors: Sequence[str], current: Mapping[int, str]
) -> list[tuple[int, ...]]:
    """Return the tasks of each slot: of each operator as many in each slot, and few that move.

    An executor with four slots runs four tasks at a time: it gets twice as many as one with two.

    Args:
        operators: The tasks of each operator.
        executors: That of each slot.
        current: Where each task is now; of an executor that is gone, or unknown, it may go anywhere.
    """
    slots: list[list[int]] = [[] for _ in executors]
    slots_of = Counter(executors)
    names = sorted(slots_of)
    load = dict.fromkeys(names, 0)
    most = -(-sum(map(len, operators)) // len(slots))
    """Tasks of a slot, if none can have fewer."""
    for tasks in operators:
        own = {name: [t for t in tasks if current.get(t) == name] for name in names}
        room = {name: len(tasks) * slots_of[name] // len(slots) for name in names}
        # What cannot be shared out goes to those that have most already: then fewest tasks move.
        names.sort(
            key=lambda name: (
                load[name] + room[name] >= most * slots_of[name],
                -len(own[name]),
                load[name] / slots_of[name],
                name,
            )
        )
        for name in names[: len(tasks) - sum(room.values())]:
            room[name] += 1
        chosen = {name: own[name][: room[name]] for name in names}
        homeless = [t for t in tasks if not any(t in found for found in chosen.values())]
        for name in names:
            lacking = room[name] - len(chosen[name])
            chosen[name] += homeless[:lacking]
            del homeless[:lacking]
            load[name] += room[name]
            of_executor = [slot for slot, at in zip(slots, executors, strict=True) if at == name]
            for task in sorted(chosen[name]):
                min(of_executor, key=len).append(task)
    return [tuple(slot) for slot in slots]


def _end_tag(tag: str) -> str:
    """Return the tag of what `Rebalancer.run_on_all` runs: it is not given up with the batches."""
    return f"end-{tag}"


_POLL_S: Final = 1.0
_DRIVER_ALONE: Final = 1
_IDLE_POLLS: Final = 3
"""Polls in a row at which nothing of a job runs: Spark needs a moment to send tasks again."""


class StallGuard:
    """Cancels placed jobs that wait for an executor that is gone, so that they run again elsewhere.

    A task that was sent to an executor which then dies goes back to that executor's own queue, and
    Spark lets it wait there for ``spark.locality.wait`` before it tries another one. Placed tasks need
    that wait to be long; so after a loss, a job of which nothing runs any more is cancelled by its tag,
    and its caller starts it again with the locations as they are then. On the commit thread's loop.
    """

    def __init__(
        self,
        spark: SparkSession,
        tag: str,
        clock: Clock,
        on_change: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """Take what to watch.

        Args:
            spark: The session.
            tag: Carried by every Spark job of a batch, and by no other; that of `Rebalancer`.
            clock: For polling.
            on_change: Called when executors have come or gone: whether no batch waits for one of those
                that are gone. If one might, called again once none does.
        """
        self._on_change = on_change
        self._context = spark.sparkContext
        self._tags = (tag, _end_tag(tag))
        self._clock = clock
        self._executors = self._alive()
        self._idle_polls: dict[int, int] = {}
        self._is_suspicious = False

    async def watch(self) -> None:
        """Poll until cancelled; each poll is a few look-ups in the driver's own memory."""
        while True:
            await self._clock.sleep(_POLL_S)
            try:
                self.poll()
            except (Py4JError, PySparkException, OSError) as exc:
                logger.warning("executors could not be listed: error=%s", exc)

    def poll(self) -> None:
        """Compare executors once; cancel the jobs of a batch if one of them has stalled after a loss."""
        was_suspicious, before = self._is_suspicious, self._executors
        self._compare()
        if self._executors != before or (was_suspicious and not self._is_suspicious):
            self._on_change(not self._is_suspicious)

    def _compare(self) -> None:
        alive = self._alive()
        if self._executors - alive:
            logger.warning("executors lost: %s", ",".join(sorted(self._executors - alive)))
            self._is_suspicious = True
            self._idle_polls.clear()
        if alive - self._executors:
            logger.info("executors added: %s", ",".join(sorted(alive - self._executors)))
        self._executors = alive
        if not self._is_suspicious:
            return
        if len(alive) <= _DRIVER_ALONE:
            # There is nowhere else to run: the cluster manager may still give new executors.
            self._idle_polls.clear()
            return
        stalled = self._stalled_jobs()
        if stalled is None:
            self._is_suspicious = False
        elif stalled:
            logger.warning("Spark jobs that wait for a lost executor run again: jobs=%s", stalled)
            for tag in self._tags:
                self._context.cancelJobsWithTag(tag)
            self._idle_polls.clear()

    def _stalled_jobs(self) -> list[int] | None:
        """Return the jobs of which nothing has run for some polls; None when none is active.

        Those of a batch, and the one of the end, which has to reach each executor.
        """
        java: Any = self._context._jsc  # noqa: SLF001 - Python does not look jobs up by their tag
        tracker = java.sc().statusTracker()
        tagged = [job for tag in self._tags for job in tracker.getJobIdsForTag(tag)]
        active = set(self._context.statusTracker().getActiveJobsIds()).intersection(tagged)
        if not active:
            return None
        self._idle_polls = {
            job: self._idle_polls.get(job, 0) + 1 for job in active if not self._is_running(job)
        }
        return [job for job, polls in self._idle_polls.items() if polls >= _IDLE_POLLS]

    def _is_running(self, job: int) -> bool:
        tracker = self._context.statusTracker()
        info = tracker.getJobInfo(job)
        stages = [tracker.getStageInfo(stage) for stage in (info.stageIds if info else [])]
        return any(stage is not None and stage.numActiveTasks > 0 for stage in stages)

    def _alive(self) -> frozenset[str]:
        java: Any = self._context._jsc  # noqa: SLF001 - no public count of executors in Python
        names = java.sc().getExecutorMemoryStatus().keySet().toSeq()
        return frozenset(str(names.apply(index)) for index in range(names.size()))
