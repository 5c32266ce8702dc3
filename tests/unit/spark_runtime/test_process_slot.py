"""A slot's part of a batch, without Spark: tasks one after the other, on stores that stay open."""

import json
import os
import pickle
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from typing_extensions import override

from statekeep.checkpoint.checkpoints import StoreName, VersionId
from statekeep.checkpoint.names import escape_name
from statekeep.config.job_settings import JobSettings
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.errors import StateBackupError
from statekeep.spark.driver.rebalancer import Rebalancer
from statekeep.spark.driver.task_jobs import TaskJobs
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.columns import arrow_schema
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.runner import OperatorSpec
from statekeep.spark.placement import DIGEST_COLUMN, TASK_COLUMN
from statekeep.spark.sidecar.launch import note_end
from statekeep.spark.tasks import STATE_STORE
from statekeep.spark.variable_stores import VariableStores
from statekeep.spark.worker import process, task_functions
from statekeep.spark.worker.job_spec import BatchPlan, JobSpec, Receipt, SubmitPlan
from statekeep.spark.worker.open_tasks import open_tasks
from statekeep.stores.open_task import OpenTask
from statekeep.stores.rocksdb import RocksDbStore
from statekeep.stores.task_directory import TaskDirectory, sweep_unused
from statekeep.stores.temporary_directory import temporary_directory

OUTPUT = parse_schema("key string, n long")
SLOTS = ((0, 2, 4), (1, 3))
Rows = Sequence[tuple[int, str, int]]
"""(task, key, value)"""


class Sum(StatefulProcessor):
    """Adds up per key, and counts in itself how many keys it has seen: one task's, no more."""

    def __init__(self) -> None:
        self.keys_seen = 0

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._sum = handle.getValueState("sum", "n long")

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Any:
        self.keys_seen += 1
        total = (self._sum.get() or (0,))[0] + sum(row.v for row in rows)
        if total == 0:
            return
        self._sum.update((total,))
        yield Row(key=f"{key[0]} {self.keys_seen}", n=total)

    @override
    def close(self) -> None: ...


@pytest.fixture
def spec(tmp_path: Path) -> Iterator[JobSpec]:
    made = spec_in(tmp_path)
    yield made
    open_tasks.close_job(made, 1).join()


def spec_in(directory: Path, grouping_max_bytes: int = 1 << 30) -> JobSpec:
    key = parse_schema("key string")
    return JobSpec(
        config=load_dict({"job.name": "j", "job.logged.store.base.dir": str(directory / "local")}),
        job_uid="77aa77aa",
        log_backend="blob",
        app_id="app",
        operator=OperatorSpec(
            processor=Sum(),
            key_columns=("key",),
            key_schema=key,
            row_schema=parse_schema("key string, v long"),
            output_schema=OUTPUT,
            is_pandas=False,
            grouping_max_bytes=grouping_max_bytes,
        ),
        processor=cloudpickle.dumps(Sum()),  # type: ignore[no-untyped-call]
        session="a1",
        python_path=(),
    )


def plan_of(batch: int, bases: dict[int, str], **changes: Any) -> BatchPlan:
    plan = BatchPlan(
        batch=batch,
        epoch=1,
        bases={task: bases.get(task, "") for task in range(5)},
        clock=BatchClock(-1, -1),
        inline_bytes=1 << 20,
    )
    return replace(plan, **changes)


def batches_of(rows: Rows) -> Iterator[pa.RecordBatch]:
    """Yield the rows as Spark sends them, a few at a time."""
    for start in range(0, len(rows), 3):
        tasks, keys, values = zip(*rows[start : start + 3], strict=True)
        yield pa.RecordBatch.from_pydict(
            {
                "key": pa.array(keys, pa.string()),
                "v": pa.array(values, pa.int64()),
                DIGEST_COLUMN: pa.array(values, pa.int64()),
                TASK_COLUMN: pa.array(tasks, pa.int32()),
            }
        )


Answers = dict[int, tuple[Receipt, list[tuple[str, int]]]]
"""{task: (receipt, output that came along)}"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    def process_slot(spec: JobSpec, plan: BatchPlan, rows: Rows, slot: int = 0) -> Answers:
        monkeypatch.setattr(process, "own_partition", lambda: slot)
        monkeypatch.setattr(process, "freeze_garbage_collector", lambda: None)
        (answers,) = process.process_slot(batches_of(rows), spec, plan, SLOTS)
        found: Answers = {}
        schema = arrow_schema(OUTPUT)
        for text, output in zip(*map(pa.Array.to_pylist, answers.columns), strict=True):
            receipt = Receipt.parse(json.loads(text))
            parts = [pa.ipc.read_record_batch(pa.py_buffer(part), schema) for part in output]
            out = [tuple(row.values()) for part in parts for row in part.to_pylist()]
            found[receipt.partition] = (receipt, out)
        return found

    return process_slot


def versions_of(answers: Answers) -> dict[int, str]:
    return {task: receipt.version for task, (receipt, _) in answers.items()}


def test_each_host_has_the_local_directory_of_its_own_environment(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(spec, config=load_dict({"job.name": "j"}))
    places: list[Path] = []
    for host in ("/disks/a", "/disks/b"):
        monkeypatch.setenv("LOGGED_STORE_BASE_DIR", host)
        places.append(spec.directory(0).root)
        spec = pickle.loads(pickle.dumps(spec))  # noqa: S301 - as Spark ships it
    places.append(spec.directory(0).root)
    assert [place.parts[:3] for place in places] == [
        ("/", "disks", "a"),
        ("/", "disks", "b"),
        ("/", "disks", "b"),
    ]


def test_the_settings_of_a_job_are_parsed_once_for_all_tasks_of_a_slot(
    spec: JobSpec, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = 0
    settings: Any = vars(Config)["job"].fget

    def counted(config: Config) -> JobSettings:
        nonlocal parsed
        parsed += 1
        found: JobSettings = settings(config)
        return found

    monkeypatch.setattr(Config, "job", property(counted))
    run(spec, plan_of(0, {}), [(0, "a", 1), (2, "c", 1), (4, "e", 1)])
    assert parsed == 1


def test_each_task_of_the_slot_gets_its_rows_and_a_processor_of_its_own(
    spec: JobSpec, run: Any
) -> None:
    rows = [(4, "e", 1), (0, "a", 2), (4, "f", 3), (0, "a", 4), (0, "b", 5)]
    answers = run(spec, plan_of(0, {}), rows)
    assert answers[0][1] == [("a 1", 6), ("b 2", 5)]
    assert answers[4][1] == [("e 1", 1), ("f 2", 3)]
    assert [answers[task][0].rows_in for task in (0, 2, 4)] == [3, 0, 2]
    assert answers[2][0].version == ""


def test_state_goes_on_from_batch_to_batch(spec: JobSpec, run: Any) -> None:
    first = run(spec, plan_of(0, {}), [(0, "a", 1), (2, "c", 1)])
    second = run(spec, plan_of(1, versions_of(first)), [(0, "a", 10)])
    assert second[0][1] == [("a 1", 11)]
    assert second[2][0].version == first[2][0].version
    third = run(spec, plan_of(2, versions_of(second)), [(0, "a", 100), (2, "c", 100)])
    assert (third[0][1], third[2][1]) == ([("a 1", 111)], [("c 1", 101)])


def test_an_attempt_that_is_run_again_starts_from_the_base_not_from_the_attempt(
    spec: JobSpec, run: Any
) -> None:
    first = run(spec, plan_of(0, {}), [(0, "a", 1)])
    plan = plan_of(1, versions_of(first))
    attempts = [run(spec, plan, [(0, "a", 10)]) for _ in range(2)]
    assert [attempt[0][1] for attempt in attempts] == [[("a 1", 11)]] * 2
    assert attempts[0][0][0].version != attempts[1][0][0].version


def test_a_task_that_changes_nothing_keeps_its_version(spec: JobSpec, run: Any) -> None:
    first = run(spec, plan_of(0, {}), [(0, "a", 1)])
    second = run(spec, plan_of(1, versions_of(first)), [(0, "b", 0)])
    assert second[0][0].version == first[0][0].version
    assert second[0][0].rows_in == 1


def test_a_batch_leaves_a_change_set_and_a_submission_makes_the_image(
    spec: JobSpec, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = versions_of(run(spec, plan_of(0, {}), [(0, "a", 1)]))
    version = VersionId.parse(versions[0])
    assert spec.directory(0).change_set(version) is not None
    assert spec.directory(0).find_image(version) is None
    monkeypatch.setattr(task_functions, "_sidecar", lambda _: (None, None))
    monkeypatch.setattr(task_functions, "ask", lambda *_: None)
    empty = {0: b"{}"}
    plan = SubmitPlan(
        epoch=1,
        attempt=1,
        batch=0,
        checkpoint_id="1-1",
        versions={0: versions[0]},
        bases={},
        checkpoints=empty,
    )
    answers = run(spec, plan_of(1, versions, submit_plan=plan), [])
    assert answers[0][0].pause_ns > 0
    assert spec.directory(0).find_image(version) is not None


def test_a_task_says_how_many_bytes_it_has_changed(spec: JobSpec, run: Any) -> None:
    first = run(spec, plan_of(0, {}), [(0, "a", 1)])
    versions = versions_of(first)
    changes = spec.directory(0).change_set(VersionId.parse(versions[0]))
    assert changes is not None
    assert first[0][0].changed_bytes == changes.delta_path(STATE_STORE).stat().st_size > 0
    assert first[2][0].changed_bytes == 0
    second = run(spec, plan_of(1, versions), [(0, "b", 0)])  # which changes nothing
    assert second[0][0].changed_bytes == 0


def test_a_task_without_its_base_says_so_and_the_others_go_on(spec: JobSpec, run: Any) -> None:
    answers = run(spec, plan_of(3, {0: "2_00000000aa"}), [(0, "a", 1), (2, "c", 1)])
    assert answers[0][0].is_missing
    assert answers[0][0].version == "2_00000000aa"
    assert answers[2][1] == [("c 1", 1)]


def test_an_operator_leaves_the_tasks_of_others_as_they_are(spec: JobSpec, run: Any) -> None:
    first = versions_of(run(spec, plan_of(0, {}), [(0, "a", 1), (2, "c", 1), (4, "e", 1)]))
    second = replace(spec, tasks=range(2, 4))
    assert [second.operator_of(task) for task in range(5)] == [0, 0, 1, 1, 2]
    answers = run(second, plan_of(1, first), [(2, "c", 10)])
    assert answers.keys() == {2}
    third = run(spec, plan_of(1, first), [(0, "a", 1), (4, "e", 1)])
    assert (third[0][1], third[4][1]) == ([("a 1", 2)], [("e 1", 2)])


def test_an_operator_without_a_task_in_the_slot_answers_nothing(spec: JobSpec, run: Any) -> None:
    assert run(replace(spec, tasks=range(1, 2)), plan_of(0, {}), []) == {}


@pytest.mark.parametrize(
    ("batch", "is_idle", "is_swept"),
    [(64, True, True), (63, True, False), (64, False, False)],
    ids=["it is looked at", "between two looks", "it was used a moment ago"],
)
def test_what_a_task_left_here_that_runs_elsewhere_by_now_is_removed(
    spec: JobSpec, run: Any, *, batch: int, is_idle: bool, is_swept: bool
) -> None:
    rows = [(1, "b", 1), (3, "d", 1)]
    here = versions_of(run(spec, plan_of(0, {}), rows, slot=1))
    open_tasks.close_job(spec, 1).join()
    for task in (1, 3):
        if is_idle:
            os.utime(spec.directory(task).root, (0, 0))
    keep = dict.fromkeys(range(5), (f"{batch - 1}_0c0c0c0c0c",)) | {3: (here[3],)}
    run(spec, plan_of(batch, {}, keep=keep, resolved_batch=batch - 1), [])
    assert spec.directory(1).change_sets() == ([] if is_swept else [VersionId.parse(here[1])])
    assert spec.directory(3).change_sets() == [VersionId.parse(here[3])]


@pytest.mark.parametrize("is_committed", [True, False])
def test_what_is_here_may_go_after_a_session_that_has_committed_all(
    spec: JobSpec, run: Any, monkeypatch: pytest.MonkeyPatch, *, is_committed: bool
) -> None:
    monkeypatch.setattr(task_functions, "_sidecar", lambda _: (None, None))
    monkeypatch.setattr(task_functions, "ask_to_stop", lambda *_: None)
    run(spec, plan_of(0, {}), [(0, "a", 1)])
    list(task_functions.end_session((), spec, 5, epoch=1, is_committed=is_committed))
    in_a_month = time.time_ns() + 31 * 24 * 3600 * 1_000_000_000
    assert sweep_unused(spec.config.job.local_dir, in_a_month) == is_committed
    assert bool(spec.directory(0).change_sets()) != is_committed


def test_the_end_of_an_older_session_marks_nothing_of_a_newer_one(
    spec: JobSpec, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_functions, "_sidecar", lambda _: (None, None))
    monkeypatch.setattr(task_functions, "ask_to_stop", lambda *_: None)
    run(spec, plan_of(0, {}, epoch=2), [(0, "a", 1)])
    list(task_functions.end_session((), spec, 5, epoch=1, is_committed=True))
    open_tasks.close_job(spec, 2).join()  # as the newer one is killed
    in_a_month = time.time_ns() + 31 * 24 * 3600 * 1_000_000_000
    assert sweep_unused(spec.config.job.local_dir, in_a_month) == 0
    assert spec.directory(0).change_sets()


def test_slots_of_a_host_share_what_is_to_be_done_at_the_end_of_a_session(
    spec: JobSpec, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_functions, "_sidecar", lambda _: (None, None))
    monkeypatch.setattr(task_functions, "ask_to_stop", lambda *_: None)
    run(spec, plan_of(0, {}), [(0, "a", 1), (2, "c", 1)])
    run(spec, plan_of(0, {}), [(1, "b", 1)], slot=1)
    swept: list[Path] = []
    sweep = TaskDirectory.sweep

    def noted_sweep(directory: TaskDirectory) -> int:
        swept.append(directory.root)
        return sweep(directory)

    monkeypatch.setattr(TaskDirectory, "sweep", noted_sweep)

    class Slots:
        tasks = 5

        def run(self, function: Callable[[Sequence[int]], Iterator[object]]) -> None:
            list(function(SLOTS[1]))
            assert swept == [spec.directory(task).root for task in (1, 0, 2)]
            (spec.directory(2).root / "work-1-killed").mkdir()
            list(function(SLOTS[0]))

    jobs = object.__new__(TaskJobs)
    jobs.rebalancer = cast("Rebalancer", SimpleNamespace(placement=Slots(), run_on_all=Slots().run))
    jobs._spec, jobs.epoch = spec, 1
    jobs.end_session(is_committed=True)
    assert swept[3:] == [spec.directory(2).root]
    assert not list(spec.config.job.local_dir.rglob("work-*"))
    in_a_month = time.time_ns() + 31 * 24 * 3600 * 1_000_000_000
    assert sweep_unused(spec.config.job.local_dir, in_a_month) == 3


def test_the_end_of_a_session_removes_what_a_killed_change_of_the_number_of_tasks_left(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_functions, "_sidecar", lambda _: (None, None))
    monkeypatch.setattr(task_functions, "ask_to_stop", lambda *_: None)
    scratch = spec.config.job.local_dir / escape_name(spec.local_name) / "reshape"
    scratch.mkdir(parents=True)
    with temporary_directory("reshape-", scratch) as living:
        (scratch / "reshape-died" / "content").mkdir(parents=True)
        (scratch / "reshape-died" / ".owner").touch()
        list(task_functions.end_session((), spec, 5, epoch=1, is_committed=True))
        assert list(scratch.iterdir()) == [living.parent]


def test_a_task_that_outlives_its_query_opens_no_stores(spec: JobSpec, run: Any) -> None:
    """Nothing would sweep what it left, as its session has ended."""
    note_end(spec.sidecar_paths, spec.session)
    with pytest.raises(StateBackupError, match="the query of this task has ended: session=a1"):
        run(spec, plan_of(0, {}), [(0, "a", 1)])
    assert not list(spec.job.local_dir.rglob("work-*"))
    assert run(replace(spec, session="b2"), plan_of(0, {}), [(0, "a", 1)])


@pytest.mark.parametrize("is_full", [False, True], ids=["room on the disk", "none for a moment"])
def test_the_images_of_a_slot_begin_together(
    spec: JobSpec, run: Any, monkeypatch: pytest.MonkeyPatch, *, is_full: bool
) -> None:
    first = run(spec, plan_of(0, {}), [(0, "a", 1), (2, "c", 1), (4, "e", 1)])
    run(spec, plan_of(1, versions_of(first)), [(4, "e", 1)])  # it is not at its version any more
    calls: list[str] = []
    flush, checkpoint = RocksDbStore.flush, RocksDbStore.checkpoint

    def noted_flush(store: RocksDbStore, *, is_awaited: bool = True) -> None:
        calls.append("awaited" if is_awaited else "begun")
        if is_full:
            raise StateBackupError("no space left")
        flush(store, is_awaited=is_awaited)

    def noted_checkpoint(store: RocksDbStore, directory: Path) -> None:
        calls.append("image")
        checkpoint(store, directory)

    monkeypatch.setattr(RocksDbStore, "flush", noted_flush)
    monkeypatch.setattr(RocksDbStore, "checkpoint", noted_checkpoint)
    monkeypatch.setattr(task_functions, "_sidecar", lambda _: (None, None))
    monkeypatch.setattr(task_functions, "ask", lambda *_: None)
    plan = SubmitPlan(
        epoch=1,
        attempt=1,
        checkpoint_id="7-1",
        batch=0,
        versions=versions_of(first),
        bases={},
        checkpoints=dict.fromkeys((0, 2, 4), b"{}"),
    )
    assert {done.error for done in task_functions.submit((0, 2, 4), spec, plan).values()} == {""}
    assert calls == ["begun", "begun", "image", "image", "image"]
    for task, version in plan.versions.items():
        assert spec.directory(task).find_whole(VersionId.parse(version)) is not None


def test_only_the_tasks_that_are_asked_answer(spec: JobSpec, run: Any) -> None:
    answers = run(spec, plan_of(0, {}, only=frozenset({2})), [(2, "c", 1)])
    assert list(answers) == [2]


def test_output_beyond_the_bound_lies_in_the_change_set(spec: JobSpec, run: Any) -> None:
    answers = run(spec, plan_of(0, {}, inline_bytes=20), [(0, "a", 1), (2, "c", 1)])
    assert (answers[0][0].is_output_in_file, answers[2][0].is_output_in_file) == (False, True)
    versions = {2: answers[2][0].version}
    (part,) = task_functions.read_output((0, 2), spec, versions)
    assert part.to_pylist() == [{"key": "c 1", "n": 1}]
    with pytest.raises(task_functions.MissingOutputError):
        list(task_functions.read_output((0,), spec, {0: answers[0][0].version}))


def test_rows_beyond_the_bound_are_to_be_sorted_first(tmp_path: Path, run: Any) -> None:
    spec = spec_in(tmp_path, grouping_max_bytes=50)
    rows = [(0, "a", 1), (2, "c", 1), (0, "b", 1), (2, "c", 1)]
    answers = run(spec, plan_of(0, {}), rows)
    assert all(receipt.is_overflow for receipt, _ in answers.values())
    again = run(spec, plan_of(0, {}, is_sorted=True), sorted(rows))
    assert again[0][1] == [("a 1", 1), ("b 2", 1)]
    assert again[2][1] == [("c 1", 2)]


def test_an_error_of_the_processor_leaves_the_state_before(
    spec: JobSpec, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(spec, plan_of(0, {}), [(0, "a", 1)])
    plan = plan_of(1, versions_of(first))
    with monkeypatch.context() as patch:
        patch.setattr(Sum, "close", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(spec, plan, [(0, "a", 1000)])
    assert run(spec, plan, [(0, "a", 10)])[0][1] == [("a 1", 11)]


def test_a_lost_disk_is_missing_state_though_the_stores_are_open(spec: JobSpec, run: Any) -> None:
    first = run(spec, plan_of(0, {}), [(0, "a", 1)])
    shutil.rmtree(spec.directory(0).root)
    assert run(spec, plan_of(1, versions_of(first)), [(0, "a", 10)])[0][0].is_missing


def test_the_end_of_a_session_leaves_no_open_stores(spec: JobSpec, run: Any) -> None:
    first = run(spec, plan_of(0, {}), [(0, "a", 1)])
    root = spec.directory(0).root
    assert list(root.glob("work-1-*"))
    open_tasks.close_job(spec, 1).join()
    assert not list(root.glob("work-*"))
    assert spec.directory(0).change_set(VersionId.parse(first[0][0].version)) is not None


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    batches=st.lists(
        st.lists(
            st.tuples(st.sampled_from(SLOTS[0]), st.sampled_from("abc"), st.integers(1, 9)),
            max_size=12,
        ),
        min_size=1,
        max_size=5,
    ),
    is_sorted=st.booleans(),
    inline_bytes=st.sampled_from([0, 100, 1 << 20]),
)
def test_any_batches_add_up(
    tmp_path_factory: pytest.TempPathFactory,
    run: Any,
    batches: list[list[tuple[int, str, int]]],
    *,
    is_sorted: bool,
    inline_bytes: int,
) -> None:
    """Against a plain dict, whatever the mix of tasks, keys, output bounds and orders."""
    spec = spec_in(tmp_path_factory.mktemp("slot"))
    expected: dict[tuple[int, str], int] = {}
    versions: dict[int, str] = {}
    for number, rows in enumerate(batches):
        plan = plan_of(number, versions, is_sorted=is_sorted, inline_bytes=inline_bytes)
        answers = run(spec, plan, sorted(rows) if is_sorted else rows)
        for task, key, value in rows:
            expected[task, key] = expected.get((task, key), 0) + value
        versions = versions_of(answers)
        in_files = {t: r.version for t, (r, _) in answers.items() if r.is_output_in_file}
        got = {(task, key.split()[0]): n for task, (_, out) in answers.items() for key, n in out}
        for task in in_files:
            for part in task_functions.read_output((task,), spec, in_files):
                got |= {(task, row["key"].split()[0]): row["n"] for row in part.to_pylist()}
        assert got == {(t, k): expected[t, k] for t, k, _ in rows}
    open_tasks.close_job(spec, 1).join()


class Later(Sum):
    """Registers a timer at each value, and keeps what it saw last for ten milliseconds."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._last = handle.getValueState("last", "n long", 10)

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Any:
        for row in rows:
            self._handle.registerTimer(row.v)
            self._last.update((row.v,))
        return iter(())

    @override
    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        (last,) = self._last.get() or (-1,)
        yield Row(key=f"{key.key} at {expiredTimerInfo.getExpiryTimeInMs()}", n=last)


@pytest.fixture
def timed(spec: JobSpec) -> JobSpec:
    operator = replace(spec.operator, processor=Later(), time_mode=TimeMode.PROCESSING)
    return replace(spec, operator=operator, processor=cloudpickle.dumps(Later()))  # type: ignore[no-untyped-call]


def test_timers_fire_in_tasks_without_rows_when_they_are_due(timed: JobSpec, run: Any) -> None:
    rows = [(0, "a", 20), (2, "b", 30), (2, "c", 25)]
    first = run(timed, plan_of(0, {}, clock=BatchClock(19, -1)), rows)
    assert [receipt.next_times for receipt, _ in first.values()] == [
        {"timer_ms": 20, "expiry_ms": 29},
        {"timer_ms": 25, "expiry_ms": 29},
        {"timer_ms": None, "expiry_ms": None},
    ]
    plan = plan_of(1, versions_of(first), clock=BatchClock(25, -1))
    second = run(timed, plan, [(4, "d", 99)])
    assert (second[0][1], second[2][1]) == ([("a at 20", 20)], [("c at 25", 25)])
    assert [second[task][0].fired_timers for task in (0, 2, 4)] == [1, 1, 0]
    third = run(timed, plan_of(2, versions_of(second), clock=BatchClock(28, -1)), [])
    assert versions_of(third) == versions_of(second)  # nothing is due
    plan = plan_of(3, versions_of(third), clock=BatchClock(30, -1))
    last = run(timed, plan, [])
    assert (last[0][1], last[2][1]) == ([], [("b at 30", -1)])
    assert [last[task][0].expired_values for task in (0, 2, 4)] == [1, 2, 0]


def test_an_attempt_that_is_run_again_fires_the_same_timers(timed: JobSpec, run: Any) -> None:
    first = run(timed, plan_of(0, {}, clock=BatchClock(19, -1)), [(0, "a", 20), (0, "b", 21)])
    plan = plan_of(1, versions_of(first), clock=BatchClock(30, -1))
    attempts = [run(timed, plan, [])[0] for _ in range(2)]
    assert attempts[0][1] == attempts[1][1] == [("a at 20", -1), ("b at 21", -1)]
    assert attempts[0][0].changes_digest == attempts[1][0].changes_digest


def test_a_task_that_does_not_wait_is_not_opened(timed: JobSpec, run: Any) -> None:
    plan = plan_of(1, {0: "0_00000000aa"}, clock=BatchClock(30, -1))
    assert run(timed, plan, [])[0][0].is_missing
    answers = run(timed, replace(plan, waiting=frozenset({2})), [])
    assert not answers[0][0].is_missing
    assert [answers[task][0].next_times is None for task in (0, 2, 4)] == [True, False, True]


def test_timers_of_rows_that_had_to_be_sorted_fire_once(timed: JobSpec, run: Any) -> None:
    first = run(timed, plan_of(0, {}, clock=BatchClock(19, -1)), [(0, "a", 20), (2, "b", 20)])
    spec = replace(timed, operator=replace(timed.operator, grouping_max_bytes=1))
    plan = plan_of(1, versions_of(first), clock=BatchClock(22, -1))
    overrun = run(spec, plan, [(0, "c", 21)])
    assert [receipt.is_overflow for receipt, _ in overrun.values()] == [True] * 3
    again = run(spec, replace(plan, is_sorted=True), [(0, "c", 21)])
    assert again[0][1] == [("a at 20", 20), ("c at 21", 21)]
    assert again[2][1] == [("b at 20", 20)]


def test_the_end_of_a_session_closes_stores_while_they_have_their_files(
    spec: JobSpec, run: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """RocksDB takes a second over the end of a store whose files another slot has removed."""
    run(spec, plan_of(0, {}), [(0, "a", 1), (2, "c", 1)])

    def other_slot_is_done(*_: object) -> None:
        for task in range(5):
            spec.directory(task).remove_work("1-")

    monkeypatch.setattr(task_functions, "_sidecar", lambda _: (None, None))
    monkeypatch.setattr(task_functions, "ask_to_stop", other_slot_is_done)
    assert len(list(task_functions.end_session((), spec, 5, epoch=1, is_committed=True))) == 1
    assert "did not close" not in caplog.text
    assert not list(spec.directory(0).root.glob("work-*"))


def test_the_files_of_closed_stores_are_removed_while_the_sidecar_ends(
    spec: JobSpec, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(spec, plan_of(0, {}), [(0, "a", 1), (2, "c", 1)])
    is_asked, close, remove_work = threading.Event(), OpenTask.close, TaskDirectory.remove_work
    closed: list[bool] = []
    closed_before: list[int] = []

    def close_late(task: OpenTask) -> None:
        is_in_time = is_asked.wait(10)
        close(task)
        closed.append(is_in_time)

    def noted_remove_work(directory: TaskDirectory, prefix: str) -> None:
        closed_before.append(len(closed))
        remove_work(directory, prefix)

    monkeypatch.setattr(OpenTask, "close", close_late)
    monkeypatch.setattr(TaskDirectory, "remove_work", noted_remove_work)
    monkeypatch.setattr(task_functions, "_sidecar", lambda _: (None, None))
    monkeypatch.setattr(task_functions, "ask_to_stop", lambda *_: is_asked.set())
    list(task_functions.end_session((), spec, 5, epoch=1, is_committed=True))
    assert closed == [True, True]
    assert closed_before == [2, 2]
    assert not list(spec.config.job.local_dir.rglob("work-*"))


def test_a_receipt_carries_the_text_of_an_error_that_is_no_utf_8(spec: JobSpec) -> None:
    slot = process._SlotRun(spec, plan_of(0, {}), [0])
    slot.receipts = {0: Receipt(0, "", submit_error="no such directory: \udcff")}
    (answer,) = slot.answers().column(0).to_pylist()
    assert Receipt.parse(json.loads(answer)).submit_error == "no such directory: \udcff"


def test_the_end_of_a_value_in_a_cache_calls_no_task(timed: JobSpec, run: Any) -> None:
    """A replay finds the cache empty: its task would not run again, and that is no difference."""
    cache = StoreName("cache")
    places = VariableStores({"last": cache}, frozenset({cache}))
    spec = replace(
        timed,
        operator=replace(timed.operator, variable_stores=places),
        stores=(STATE_STORE, cache),
    )
    first = run(spec, plan_of(0, {}, clock=BatchClock(19, -1)), [(0, "a", 90)])
    assert first[0][0].next_times == {"timer_ms": 90, "expiry_ms": None}
    second = run(spec, plan_of(1, versions_of(first), clock=BatchClock(50, -1)), [])
    assert versions_of(second) == versions_of(first)
