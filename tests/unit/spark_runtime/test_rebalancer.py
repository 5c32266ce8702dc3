"""When tasks move, and what is left where a move fails."""

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from statekeep.checkpoint.records import TaskBatch
from statekeep.errors import (
    ReplayDivergedError,
    RestoreFailedError,
    RetriableError,
    StateBackupError,
    TaskFencedError,
)
from statekeep.events import Event
from statekeep.spark.driver import rebalancer as module
from statekeep.spark.driver.processing import VersionHistory
from statekeep.spark.driver.rebalancer import Rebalancer
from statekeep.spark.driver.recovery import RecoverySummary
from statekeep.spark.driver.task_moves import TaskMoves
from statekeep.spark.placement import Placement
from statekeep.testing.clock import FakeClock

OPERATORS = [range(4)]
ALL_ON_A = dict.fromkeys(range(4), "a")


class Table:
    """A placement whose slots are on the given executors."""

    executors: Sequence[str] = "a"

    def __init__(self, _spark: Any, slots: Sequence[tuple[int, ...]], tag: str) -> None:
        self.slots, self.tag = tuple(slots), tag
        self.tasks = sum(map(len, slots))
        self.closed: list[bool] = []
        self.given_up: list[bool] = []

    def anew(self, slots: int, tag: str | None = None) -> "Table":
        return Table(None, [(slot,) for slot in range(slots)], tag or self.tag)

    def with_slots(self, slots: Sequence[tuple[int, ...]]) -> Self:
        self.slots = tuple(slots)
        return self

    def apart(self, tag: str) -> "Table":
        return Table(None, self.slots, tag)

    def run(self, _function: Callable[..., Any]) -> list[dict[str, Any]]:
        return [{"tasks": [slot], "executor": name} for slot, name in enumerate(self.executors)]

    def give_up(self) -> None:
        self.given_up.append(True)

    def close(self) -> None:
        self.closed.append(True)


@pytest.fixture
def rebalancer(monkeypatch: pytest.MonkeyPatch) -> Rebalancer:
    """Four tasks in two slots; a new table has one slot on each of two executors."""
    monkeypatch.setattr(module, "Placement", Table)
    monkeypatch.setattr(module, "slot_count", lambda _spark, _tasks: 2)
    monkeypatch.setattr(Table, "executors", ["a", "b"])
    return Rebalancer(cast("SparkSession", None), 4, "tag", at_once)


def at_once(call: Callable[[], None]) -> Future[None]:
    done: Future[None] = Future()
    try:
        call()
    except PySparkException as exc:
        done.set_exception(exc)
    else:
        done.set_result(None)
    return done


def test_tasks_move_after_the_commit_that_follows_a_change(rebalancer: Rebalancer) -> None:
    assert not rebalancer.is_due(3)
    rebalancer.note_change(is_settled=True)
    assert not rebalancer.is_due(3)
    assert not rebalancer.is_due(3)
    assert rebalancer.is_due(4)
    rebalancer.prepare(OPERATORS, ALL_ON_A)
    with rebalancer.moving():
        pass
    assert not rebalancer.is_due(5)


def test_no_task_moves_before_the_executors_are_ready(rebalancer: Rebalancer) -> None:
    started: list[Future[None]] = []

    def later(_: Callable[[], None]) -> Future[None]:
        started.append(Future())
        return started[-1]

    rebalancer._background = later
    rebalancer.note_change(is_settled=True)
    assert not rebalancer.is_due(3)
    assert not rebalancer.is_due(4)
    started[0].set_result(None)
    assert rebalancer.is_due(4)
    rebalancer.note_change(is_settled=True)  # another one, which is not ready
    assert not rebalancer.is_due(5)
    assert not rebalancer.is_due(6)
    started[1].set_result(None)
    assert rebalancer.is_due(6)


def test_executors_that_cannot_be_made_ready_get_no_tasks_until_the_next_change(
    rebalancer: Rebalancer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_table: Table, _function: Callable[..., Any]) -> list[dict[str, Any]]:
        raise PySparkException("an executor was lost")

    with monkeypatch.context() as patch:
        patch.setattr(Table, "run", failing)
        rebalancer.note_change(is_settled=True)
        assert not any(rebalancer.is_due(batch) for batch in range(3, 9))
    rebalancer.note_change(is_settled=True)
    assert not rebalancer.is_due(9)
    assert rebalancer.is_due(10)


def test_executors_are_not_made_ready_while_a_batch_may_wait_for_one_that_is_gone(
    rebalancer: Rebalancer,
) -> None:
    rebalancer.note_change(is_settled=True)
    rebalancer.note_change(is_settled=False)
    assert not any(rebalancer.is_due(batch) for batch in range(3, 9))
    rebalancer.note_change(is_settled=True)
    assert not rebalancer.is_due(9)
    assert rebalancer.is_due(10)


def test_what_makes_executors_ready_is_one_job_at_a_time_with_a_tag_of_its_own(
    rebalancer: Rebalancer,
) -> None:
    started: list[Future[None]] = []

    def later(_: Callable[[], None]) -> Future[None]:
        started.append(Future())
        return started[-1]

    rebalancer._background = later
    for batch in (3, 4):
        rebalancer.note_change(is_settled=True)
        assert not rebalancer.is_due(batch)
    assert len(started) == 1
    assert rebalancer._warm_up is not None
    assert rebalancer._warm_up.table.tag != rebalancer.placement.tag
    started[0].set_result(None)
    assert not rebalancer.is_due(5)
    assert len(started) == 2


def test_what_runs_beside_the_batches_is_given_up_at_the_end(rebalancer: Rebalancer) -> None:
    table = cast("Table", rebalancer.placement)
    rebalancer._background = lambda _: Future()
    rebalancer.note_change(is_settled=True)
    rebalancer.is_due(3)
    assert rebalancer._warm_up is not None
    rebalancer.close()
    assert (table.given_up, table.closed) == ([], [True])
    assert cast("Table", rebalancer._warm_up.table).given_up == [True]


def test_a_table_that_is_given_up_runs_nothing_any_more() -> None:
    table = object.__new__(Placement)
    table.tag, table._given_up = "tag", threading.Event()
    table._given_up.set()
    with pytest.raises(StateBackupError, match="this Spark job is no longer waited for"):
        table._collect(cast("SparkSession", None), cast("DataFrame", None))


def test_a_table_takes_the_place_of_the_one_before(rebalancer: Rebalancer) -> None:
    before = cast("Table", rebalancer.placement)
    rebalancer.prepare(OPERATORS, ALL_ON_A)
    assert rebalancer.placement is cast("Any", before)  # until the state is where it is to go
    with rebalancer.moving() as moved:
        assert moved == {2, 3}
        assert rebalancer.placement.slots == ((0, 1), (2, 3))
        assert before.closed == []
    assert rebalancer.placement.slots == ((0, 1), (2, 3))
    assert before.closed == [True]


def test_a_table_in_which_nothing_would_move_is_not_taken(rebalancer: Rebalancer) -> None:
    before = rebalancer.placement
    rebalancer.prepare(OPERATORS, {0: "a", 1: "b", 2: "a", 3: "b"})
    assert rebalancer.move is None
    assert rebalancer.placement is before
    assert cast("Table", before).closed == []


def test_fewer_slots_are_taken_though_nothing_moves(
    rebalancer: Rebalancer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "slot_count", lambda _spark, _tasks: 4)
    monkeypatch.setattr(Table, "executors", ["a", "a", "a", "a"])
    rebalancer.prepare(OPERATORS, ALL_ON_A)
    with rebalancer.moving() as moved:
        assert moved == frozenset()
    assert rebalancer.placement.slots == ((0,), (1,), (2,), (3,))


def test_a_table_without_a_slot_on_an_executor_that_has_tasks_is_not_taken(
    rebalancer: Rebalancer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another query may occupy an executor while the slots are laid out."""
    before = rebalancer.placement
    monkeypatch.setattr(Table, "executors", ["b", "b"])
    rebalancer.note_change(is_settled=True)
    tried = []
    for batch in range(3, 20):
        if rebalancer.is_due(batch):
            tried.append(batch)
            rebalancer.prepare(OPERATORS, ALL_ON_A)
            assert rebalancer.move is None
    assert tried == [4, 5, 7, 11, 19]
    assert rebalancer.placement is before


def test_executors_that_come_or_go_end_the_move_that_is_prepared(rebalancer: Rebalancer) -> None:
    rebalancer.prepare(OPERATORS, ALL_ON_A)
    move = rebalancer.move
    assert move is not None
    prepared = cast("Table", move.table)
    rebalancer.note_change(is_settled=True)
    assert not rebalancer.is_due(3)
    assert rebalancer.move is None
    assert prepared.closed == [True]


def test_tasks_that_go_to_their_copies_end_the_move_that_is_prepared(
    rebalancer: Rebalancer,
) -> None:
    rebalancer.prepare(OPERATORS, ALL_ON_A)
    rebalancer.rearrange([(0, 1, 2, 3), ()])
    assert rebalancer.move is None
    assert rebalancer.placement.slots == ((0, 1, 2, 3), ())


class Commits:
    def __init__(self, open_batch: int | None = None) -> None:
        self.committed_batch = 4
        self.open_batch = open_batch


class Log:
    """The newest commit is that of `Commits`."""

    bad_markers = ()

    def __init__(self, commits: Commits) -> None:
        self._commits = commits

    @property
    def view(self) -> "Log":
        return self

    @property
    def last_commit(self) -> Any:
        tasks = [f"Partition {task}" for task in range(4)]
        return SimpleNamespace(
            batch=self._commits.committed_batch,
            versions=dict.fromkeys(tasks, f"{self._commits.committed_batch}_here"),
            checkpoints=dict.fromkeys(tasks, b"{}"),
            identity=SimpleNamespace(stores={}),
        )


class Recoveries:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.tasks: list[Collection[int]] = []
        self.fetched: list[int | None] = []

    def recover(
        self,
        tasks: Collection[int],
        head: int,
        *,
        is_thorough: bool,
        is_optional: bool,
        fetched: int | None,
    ) -> RecoverySummary:
        assert (is_thorough, is_optional) == (False, True)
        self.tasks.append(tasks)
        self.fetched.append(fetched)
        if self.error is not None:
            raise self.error
        return RecoverySummary(head, len(tasks))


class Jobs:
    def __init__(self, rebalancer: Rebalancer) -> None:
        self.rebalancer = rebalancer
        self.tasks, self.executors = OPERATORS, ALL_ON_A
        self.asked: list[tuple[str, list[str]]] = []
        """The tag of each job that fetches, and the versions."""
        self.is_there = True
        self.error: Exception | None = None

    @property
    def placement(self) -> Any:
        return self.rebalancer.placement

    def fetch_ahead(self, table: Table, *, commits: Any, bad_markers: Any) -> bool:
        self.asked.append((table.tag, sorted(found.version for found in commits.values())))
        if self.error is not None:
            raise self.error
        return self.is_there


class Moving:
    """The moves between batches, after batch 5, of a job whose executors have changed before its newest commit."""

    def __init__(
        self,
        rebalancer: Rebalancer,
        recovery: Recoveries,
        commits: Commits,
        events: list[Event],
        *,
        is_each_batch: bool = False,
    ) -> None:
        rebalancer.note_change(is_settled=True)
        assert not rebalancer.is_due(3)
        self.head, self.batch_ns = 5, 0
        self.jobs, self.clock, self.history = Jobs(rebalancer), FakeClock(), VersionHistory(4)
        for batch in (4, 5):
            self.history.put(batch, {2: TaskBatch(version=f"{batch}_here")})
        given: Any = {
            "jobs": self.jobs,
            "commits": commits,
            "log": Log(commits),
            "recovery": recovery,
        }
        self._moves = TaskMoves(
            **given,
            history=self.history,
            is_each_batch=is_each_batch,
            report=events.append,
            clock=self.clock,
        )

    def move_due(self) -> None:
        self._moves.move_due(self.head, self.batch_ns)


def test_tasks_that_move_are_fetched_first_and_recovered_where_they_go(
    rebalancer: Rebalancer,
) -> None:
    recovery = Recoveries()
    events: list[Event] = []
    moving = Moving(rebalancer, recovery, Commits(), events)
    moving.move_due()
    assert moving.jobs.asked == [("fetch-tag", ["4_here", "4_here"])]
    assert recovery.tasks == []
    moving.move_due()
    assert (recovery.tasks, recovery.fetched) == ([{2, 3}], [4])
    assert [event.kind for event in events] == ["recovery", "tasks-moved"]
    moving.move_due()
    assert len(recovery.tasks) == 1


def test_no_batch_waits_for_what_is_fetched(rebalancer: Rebalancer) -> None:
    recovery, commits = Recoveries(), Commits()
    moving = Moving(rebalancer, recovery, commits, [])
    jobs, clock = moving.jobs, moving.clock
    jobs.is_there = False
    for _ in range(3):
        moving.move_due()
    assert len(jobs.asked) == 1  # it costs a Spark job
    clock.advance(2)
    commits.committed_batch = 5  # what is on its way comes first
    moving.move_due()
    jobs.is_there = True
    clock.advance(2)
    moving.move_due()
    assert [versions for _, versions in jobs.asked] == [["4_here"] * 2] * 3
    assert recovery.tasks == []
    moving.move_due()
    assert recovery.fetched == [4]


def test_a_fetch_that_fails_is_begun_again_after_a_commit(rebalancer: Rebalancer) -> None:
    recovery, commits = Recoveries(), Commits()
    moving = Moving(rebalancer, recovery, commits, [])
    before = rebalancer.placement
    jobs = moving.jobs
    jobs.error = PySparkException("no copies could be made")
    moving.move_due()
    jobs.error = None
    for _ in range(3):
        moving.move_due()
    assert (len(jobs.asked), recovery.tasks) == (1, [])
    assert rebalancer.placement is before
    commits.committed_batch = 5
    moving.move_due()
    moving.move_due()
    assert recovery.fetched == [5]


def test_where_each_batch_is_committed_what_came_since_the_fetch_is_restored(
    rebalancer: Rebalancer,
) -> None:
    recovery, commits = Recoveries(), Commits()
    moving = Moving(rebalancer, recovery, commits, [], is_each_batch=True)
    moving.move_due()
    commits.committed_batch = moving.head = 400
    moving.move_due()
    assert recovery.fetched == [None]


@pytest.mark.parametrize(
    ("lag", "batch_s", "moves"), [(3, 60, 1), (4, 60, 0), (40, 0.1, 1), (400, 0.1, 0)]
)
def test_no_task_moves_where_the_batches_would_wait_for_a_long_replay(
    rebalancer: Rebalancer, lag: int, batch_s: float, moves: int
) -> None:
    recovery, commits = Recoveries(), Commits()
    moving = Moving(rebalancer, recovery, commits, [])
    moving.batch_ns = int(batch_s * 1e9)
    moving.head = commits.committed_batch + lag
    moving.history.put(moving.head, {})
    for _ in range(3):
        moving.move_due()
    assert len(recovery.tasks) == moves
    commits.committed_batch = moving.head
    moving.move_due()
    moving.move_due()
    assert len(recovery.tasks) == 1


def test_no_task_moves_while_a_commit_is_open(rebalancer: Rebalancer) -> None:
    recovery, commits = Recoveries(), Commits()
    moving = Moving(rebalancer, recovery, commits, [])
    moving.move_due()
    commits.open_batch = 5
    moving.move_due()
    assert recovery.tasks == []


@pytest.mark.parametrize(
    "error",
    [
        RestoreFailedError("down", task_name="Partition 2", store_names=["state"]),
        ReplayDivergedError("other", task_name="Partition 2", batch=5, keys=""),
        RetriableError("no answer"),
        PySparkException("an executor was lost"),
        Py4JError("no answer"),
        ConnectionError("no answer"),
    ],
)
def test_tasks_that_cannot_be_moved_stay_where_they_are(
    rebalancer: Rebalancer, error: Exception
) -> None:
    before = rebalancer.placement
    events: list[Event] = []
    recovery = Recoveries(error)
    moving = Moving(rebalancer, recovery, Commits(), events)
    recovered = recovery.recover

    def recover(*given: Any, **named: Any) -> RecoverySummary:
        moving.history.put(5, {2: TaskBatch(version="5_there")})  # as a replay does
        return recovered(*given, **named)

    recovery.recover = recover  # type: ignore[method-assign]
    moving.move_due()
    moving.move_due()
    assert rebalancer.placement is before
    assert moving.history.versions(5) == {2: "5_here"}
    assert cast("Table", before).closed == []
    assert events == []


def test_tasks_that_could_not_be_moved_are_tried_again_after_a_commit(
    rebalancer: Rebalancer,
) -> None:
    recovery, commits = Recoveries(RetriableError("no answer")), Commits()
    moving = Moving(rebalancer, recovery, commits, [])
    for _ in range(4):
        moving.move_due()
    assert len(recovery.tasks) == 1
    recovery.error = None
    commits.committed_batch = 5
    for _ in range(3):
        moving.move_due()
    assert recovery.fetched == [4, 5]
    assert rebalancer.placement.slots == ((0, 1), (2, 3))


def test_tasks_stay_where_nothing_can_be_run_beside_the_batches(rebalancer: Rebalancer) -> None:
    moving = Moving(rebalancer, Recoveries(), Commits(), [])

    def failing(_: Callable[[], None]) -> Future[None]:
        raise RetriableError("no thread")

    rebalancer._background = failing
    rebalancer.note_change(is_settled=True)
    moving.move_due()


def test_a_driver_that_is_replaced_moves_no_task_and_ends(rebalancer: Rebalancer) -> None:
    before = rebalancer.placement
    error = TaskFencedError("replaced", own_epoch=1, newer_epoch=2)
    moving = Moving(rebalancer, Recoveries(error), Commits(), [])
    moving.move_due()
    with pytest.raises(TaskFencedError):
        moving.move_due()
    assert rebalancer.placement is before
