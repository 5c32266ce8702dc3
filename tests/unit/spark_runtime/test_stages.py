"""Several operators in one query, without Spark: stages of a batch, and how far a replay goes back."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from log_kit import UID, commit_record

from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import BatchRecord, TaskBatch
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.errors import (
    ConfigError,
    ReplayDivergedError,
    RestoreFailedError,
    StateBackupError,
)
from statekeep.events import report_nothing
from statekeep.spark.driver import recovery as recovery_module
from statekeep.spark.driver.batch_loop import BatchLoop
from statekeep.spark.driver.processing import BatchResult, VersionHistory, process_batch
from statekeep.spark.driver.recovery import Recovery, RecoverySummary
from statekeep.spark.driver.replaying import RecordedBatch
from statekeep.spark.driver.takeover import new_identity, resolved_identity
from statekeep.spark.driver.task_jobs import Answer
from statekeep.spark.driver.ticks import TickRule
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.due import NextTimes
from statekeep.spark.operator.group_state import GroupStateProcessor
from statekeep.spark.placement import ROUTER, operators_of, router_of
from statekeep.spark.stage import operators_with_watermark
from statekeep.spark.tasks import operator_name, operator_tasks, task_name
from statekeep.spark.worker.job_spec import BatchPlan, Receipt
from statekeep.spark.worker.task_functions import MISSING_OUTPUT
from statekeep.testing.clock import FakeClock

if TYPE_CHECKING:
    from statekeep.checkpoint.log_session import LogSession
    from statekeep.spark.driver.job_commits import JobCommits
    from statekeep.spark.driver.task_jobs import TaskJobs
    from statekeep.spark.stage import Stage

STAGES = [range(2), range(2, 4), range(4, 6)]


def test_tasks_are_numbered_through() -> None:
    assert [operator_tasks(number, 3, 6) for number in range(3)] == STAGES
    assert [operator_name(number) for number in range(3)] == ["main", "operator-2", "operator-3"]


def test_a_router_says_how_many_operators_there_are() -> None:
    assert router_of(1) == ROUTER
    assert [operators_of(router_of(count)) for count in (1, 2, 12)] == [1, 2, 12]
    assert [operators_of(name) for name in ("", "hash-1", f"{ROUTER}-by-operator-x")] == [None] * 3


def test_a_watermark_goes_as_far_as_operators_pass_it_on() -> None:
    none, processing, event = TimeMode
    by_function = object.__new__(GroupStateProcessor)

    def reached(*operators: tuple[TimeMode, object]) -> list[bool]:
        stages = [
            SimpleNamespace(operator=SimpleNamespace(time_mode=mode, processor=processor))
            for mode, processor in operators
        ]
        return operators_with_watermark(cast("list[Stage]", stages))

    assert reached((none, None), (event, None), (processing, None)) == [True, True, True]
    assert reached((processing, None), (event, None), (none, None)) == [True, False, False]
    assert reached((event, by_function), (event, None)) == [True, False]
    assert BatchClock(7, 5, 4).without_watermark() == BatchClock(7, 0, 0)


class StageJobs:
    """Operators whose tasks answer as they are told to; keeps what they were asked."""

    def __init__(self, *, missing: Collection[int] = (), unread: Collection[int] = ()) -> None:
        self.tasks = STAGES
        self.missing = missing
        self.unread = unread
        """Operators whose output cannot be read."""
        self.rows: list[object] = []
        self.asked: list[tuple[int, list[int] | None]] = []
        self.submitted: list[int] = []

    def process(self, number: int, rows: object, plan: BatchPlan) -> dict[int, Answer]:
        self.rows.append(rows)
        self.asked.append((number, None if plan.only is None else sorted(plan.only)))
        wanted = [t for t in STAGES[number] if plan.only is None or t in plan.only]
        return {t: self._answer(t) for t in wanted}

    def _answer(self, task: int) -> Answer:
        if task in self.missing:
            return Answer(Receipt(task, "0_a", is_missing=True), ())
        in_file = task % 2 == 1
        output = () if in_file else (f"output of {task}".encode(),)
        receipt = Receipt(task, f"1_{task}", has_output=True, is_output_in_file=in_file)
        return Answer(receipt, output)

    def rows_behind(
        self, number: int, inline: Sequence[bytes], in_files: Mapping[int, str]
    ) -> object:
        if number in self.unread:
            raise RuntimeError(f"{MISSING_OUTPUT} partition={max(in_files)}")
        return (number, list(inline), dict(in_files))

    def with_output(self, versions: Mapping[int, str]) -> frozenset[int]:
        return frozenset()

    def submit_versions(self, plan: object) -> Mapping[int, str]:
        return {}


def process(jobs: StageJobs, only: Collection[int] | None = None) -> BatchResult:
    rows: Any = "rows of the source"
    wanted = None if only is None else frozenset(only)
    bases = {t: "0_a" for t in range(6) if wanted is None or t in wanted}
    plan = BatchPlan(1, bases, BatchClock(-1, -1), only=wanted)
    return process_batch(cast("TaskJobs", jobs), rows, plan)


def test_each_operator_gets_what_the_chosen_versions_of_the_one_before_put_out() -> None:
    jobs = StageJobs()
    result = process(jobs)
    assert jobs.rows == [
        "rows of the source",
        (0, [b"output of 0"], {1: "1_1"}),
        (1, [b"output of 2"], {3: "1_3"}),
    ]
    assert result.is_whole
    assert sorted(result.tasks) == list(range(6))
    assert result.output_of(STAGES[2]) == ([b"output of 4"], {5: "1_5"})
    whole = BatchResult()
    for part in (process(StageJobs(missing=[3])), result):
        whole.merge(part)
    assert {n: sorted(part.tasks) for n, part in whole.by_operator.items()} == {
        number: list(tasks) for number, tasks in enumerate(STAGES)
    }
    assert whole.by_operator[1].local.misses == 1


def test_no_operator_runs_behind_one_that_misses_a_version() -> None:
    jobs = StageJobs(missing=[3])
    result = process(jobs)
    assert jobs.asked == [(0, None), (1, None)]
    assert result.missing == {3}


def test_output_that_is_lost_between_two_operators_breaks_the_batch_off() -> None:
    jobs = StageJobs(unread=[0])
    result = process(jobs)
    assert jobs.asked == [(0, None)]
    assert result.missing == {1}
    assert not result.is_whole


def test_operators_without_a_wanted_task_do_not_run() -> None:
    jobs = StageJobs()
    assert sorted(process(jobs, [0, 1, 3]).tasks) == [0, 1, 3]
    assert jobs.asked == [(0, [0, 1]), (1, [3])]


def test_no_operator_runs_on_a_part_of_its_rows() -> None:
    with pytest.raises(StateBackupError, match="lacks rows"):
        process(StageJobs(), [0, 3])


def test_what_several_operators_have_lost_is_recovered_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A host that is lost had tasks of each operator; a batch finds out about one operator at a time."""
    caplog.set_level("INFO", logger="statekeep")
    jobs = StageJobs(missing=[1, 3, 5])
    looked_at: list[set[int]] = []

    def recover(
        partitions: Collection[int],
        head: int,
        *,
        is_thorough: bool,
        on_phase: Callable[[str], None],
    ) -> RecoverySummary:
        looked_at.append(set(partitions))
        on_phase("restore")
        jobs.missing = set(jobs.missing).difference(partitions)
        return RecoverySummary(head, len(partitions))

    loop = loop_over(jobs)
    recovery: Any = loop._recovery
    recovery.recover = recover
    rows: Any = "rows of the source"
    assert loop._process_all(rows, 1, OFFSETS, None).is_whole
    assert looked_at == [set(range(6))]
    assert [number for number, _ in jobs.asked] == [0, 0, 1, 2]
    phases = re.search("lost state is recovered: batch=1 (.*)", caplog.text)
    assert phases is not None
    assert re.findall(r"(\w+)_s=", phases[1]) == ["total", "find", "restore", "replay", "process"]


@pytest.mark.parametrize("diverged", [0, 1])
def test_what_tasks_wait_for_is_not_known_any_more_once_a_replay_has_diverged(
    diverged: int,
) -> None:
    """Else a timer that only the new state has would never fire on an idle stream."""
    jobs = StageJobs()
    loop = loop_over(jobs)
    clock, idle = BatchClock(1, 1), {task: NextTimes() for task in range(6)}
    rule = TickRule(TimeMode.PROCESSING, range(6), FakeClock(), lambda: 0)
    rule.note_batch(clock, idle)
    loop._tick_rules = [rule]
    recovery: Any = loop._recovery
    recovery.recover = lambda *_, **__: RecoverySummary(0, 6, diverged=diverged)
    loop.heal(frozenset({1}), 0)
    assert len(rule.waiting(clock)) == 6 * diverged


OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1}\n{}'


def loop_over(jobs: StageJobs) -> BatchLoop:
    """Return the batches of a job after batch 0, of which nothing is committed or being committed."""
    unused = cast("Any", None)
    untimed: Any = SimpleNamespace(time_mode=TimeMode.NONE, output_time_column=None)
    loop = BatchLoop(
        frame=unused,
        operators=[untimed] * 3,
        config=load_dict({"job.name": "three"}),
        location=unused,
        identity=msgspec.structs.replace(commit_record(1, 0).identity, partitions=6),
        thread=cast("Any", SimpleNamespace(run=lambda _: None)),
        log=cast("LogSession", SimpleNamespace(view=LogView())),
        commits=cast(
            "JobCommits",
            SimpleNamespace(committed_batch=-1, open_batch=None, abort_if_lost=lambda _: None),
        ),
        jobs=cast("Any", jobs),
        sink=unused,
        report=report_nothing,
        clock=SystemClock(),
    )
    loop._history.put(0, {task: TaskBatch(version="0_a") for task in range(6)})
    return loop


class Hosts:
    """Hosts that have the given versions of each task."""

    def __init__(self, here: Mapping[int, Sequence[int]]) -> None:
        self._here = here

    def locate(
        self, candidates: Mapping[int, Sequence[str]], *, is_thorough: bool
    ) -> dict[int, str]:
        found: dict[int, str] = {}
        for task, names in candidates.items():
            here = [name for name in names if int(name.split("_")[0]) in self._here[task]]
            if here:
                found[task] = here[0]
        return found


def recovery_of(here: Mapping[int, Sequence[int]]) -> Recovery:
    """Return the recovery of three operators; batches 0 to 5 changed each task, 0 is committed."""
    history, view, unused = VersionHistory(6), LogView(), cast("Any", None)
    view.fold(0, commit_record(1, 0))
    for batch in range(6):
        history.put(batch, {task: TaskBatch(version=f"{batch}_{UID}") for task in range(6)})
    return Recovery(
        frame=unused,
        location=unused,
        jobs=cast("TaskJobs", Hosts(here)),
        history=history,
        log=cast("LogSession", SimpleNamespace(view=view)),
        operators=STAGES,
        identity=commit_record(1, 0).identity,
        thread=unused,
        is_divergence_fatal=False,
        report=report_nothing,
        clock=FakeClock(),
    )


def starts_of(lost: Collection[int], here: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Return from which batch each task replays to batch 5, for the recovery of ``lost``."""
    recovery, found = recovery_of(here), dict[int, int]()

    def replay(starts: Mapping[int, int], *_: object, **__: object) -> None:
        found.update(starts)

    recovery._replay = replay  # type: ignore[method-assign]
    recovery.recover(lost, 5, is_thorough=True)
    return found


EVERYTHING = range(6)


def test_a_task_of_the_first_operator_replays_alone() -> None:
    assert starts_of([1], {1: [2]}) == {1: 2}


def test_what_reads_old_output_takes_all_before_it_back() -> None:
    here = {0: EVERYTHING, 1: [0, 1, 4, 5], 2: EVERYTHING, 3: EVERYTHING, 4: [3]}
    assert starts_of([4], here) == {4: 3, 2: 3, 3: 3, 0: 3, 1: 1}


def test_a_task_that_goes_further_back_takes_those_before_it_along() -> None:
    here = {0: EVERYTHING, 1: EVERYTHING, 2: [0, 2, 5], 3: EVERYTHING, 5: [3]}
    assert starts_of([5], here) == {5: 3, 2: 2, 3: 3, 0: 2, 1: 2}


def test_nothing_goes_back_where_nothing_is_replayed() -> None:
    assert starts_of([4, 5], {4: [5], 5: [5]}) == {}


def test_a_move_restores_no_task_of_the_operators_before() -> None:
    """Batches wait for a move: what the hosts lack would be downloaded meanwhile."""
    here = {0: [0, 5], 1: EVERYTHING, 2: EVERYTHING, 3: EVERYTHING, 4: [3]}
    with pytest.raises(RestoreFailedError, match="restored state is gone again: tasks=1"):
        recovery_of(here).recover([4], 5, is_thorough=False, is_optional=True, fetched=3)


@pytest.mark.parametrize("task", [0, 2])
def test_other_input_is_the_fault_of_the_source_in_the_first_operator_only(task: int) -> None:
    before, now = TaskBatch(version="1_a", rows_in=1), TaskBatch(version="1_b", rows_in=2)
    words = "source no longer gives" if task == 0 else "not deterministic"
    with pytest.raises(ReplayDivergedError, match=words):
        recovery_of({})._differs(before, now, task, 1, "a..b", is_fatal=True)
    if task > 0:
        assert recovery_of({})._differs(before, now, task, 1, "a..b", is_fatal=False)


def test_exact_state_does_not_give_way_to_what_an_optional_replay_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recovery, asked = recovery_of({0: [4]}), list[Collection[int]]()
    done = BatchResult(tasks={0: TaskBatch(version="5_b", rows_out=1)}, key_ranges={0: "a..b"})

    def process_batch(
        _jobs: object, _rows: object, plan: BatchPlan, _sorted: object
    ) -> BatchResult:
        assert plan.only is not None
        asked.append(plan.only)
        return done

    def call_for_5(
        _frame: object, _location: object, _recorded: object, call: Any, **_: Any
    ) -> None:
        call(None, 5)

    known = BatchRecord(
        query_id="q", batch=5, offsets="", tasks={task_name(0): TaskBatch(version="5_a")}
    )
    recovery._view.batches[5] = known
    offsets = RecordedBatch("", None)
    monkeypatch.setattr(recovery_module, "process_batch", process_batch)
    monkeypatch.setattr(recovery_module, "recorded_batches", lambda *_: {4: offsets, 5: offsets})
    monkeypatch.setattr(recovery_module, "shadow_beside", lambda *_: None)
    monkeypatch.setattr(recovery, "_append", lambda _: None)
    monkeypatch.setattr(recovery_module, "clock_of", lambda *_: None)
    monkeypatch.setattr(recovery_module, "replay", call_for_5)
    with pytest.raises(ReplayDivergedError):
        recovery.recover([0], 5, is_thorough=False, is_optional=True)
    assert recovery._history.of(5)[0].version == f"5_{UID}"
    assert recovery.recover([0], 5, is_thorough=False).diverged == 1
    assert asked == [{0}, {0}]


def test_another_number_of_operators_is_refused() -> None:
    commit = commit_record(1, 0)
    config = load_dict({"job.name": commit.identity.job_name})
    key = commit.identity.key_schema
    wanted = new_identity(config, 2 * commit.identity.partitions, router_of(2), f"{key}; {key}")
    with pytest.raises(ConfigError, match="former number of stateful operators"):
        resolved_identity(commit, wanted)
