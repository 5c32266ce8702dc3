"""Which local version a task may go on from: the one that is named, whole, its own, and no other."""

import json
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from log_kit import UID, commit_record
from newer_frames import of_next_format
from restore_kit import sealed_anew

from statekeep.checkpoint.checkpoints import StoreName, VersionId
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import TaskBatch
from statekeep.config.load import load_dict
from statekeep.errors import RestoreFailedError, RetriableError
from statekeep.events import report_nothing
from statekeep.spark.driver.processing import VersionHistory
from statekeep.spark.driver.recovery import Recovery
from statekeep.spark.driver.task_jobs import TaskJobs
from statekeep.spark.operator.runner import OperatorSpec
from statekeep.spark.placement import ANSWER_COLUMN
from statekeep.spark.sidecar.protocol import Done, Restore, SubmitVersion
from statekeep.spark.tasks import STATE_STORE
from statekeep.spark.worker import task_functions
from statekeep.spark.worker.job_spec import JobSpec, SubmitPlan, TaskCommit
from statekeep.spark.worker.open_tasks import open_tasks
from statekeep.spark.worker.task_functions import Restored, locate
from statekeep.stores.version import MANIFEST_FILE, SealedVersion, SealManifest
from statekeep.testing.clock import FakeClock
from statekeep.testing.versions import content_of, seal_version

OLDER, NEWER = "1_aaaaaaaa", "2_bbbbbbbb"


def spec_in(directory: Path, job_uid: str = "77aa77aa") -> JobSpec:
    config = load_dict({"job.name": "j", "job.logged.store.base.dir": str(directory)})
    return JobSpec(
        config=config,
        job_uid=job_uid,
        log_backend="blob",
        app_id="app",
        operator=cast("OperatorSpec", None),
        processor=b"",
        session="a1",
        python_path=(),
    )


def located(spec: JobSpec, names: Sequence[str], *, is_thorough: bool = True) -> str | None:
    (answer,) = locate((0,), spec, {0: names}, epoch=1, is_thorough=is_thorough)
    found: str | None = json.loads(answer.to_pydict()[ANSWER_COLUMN][0])["version"]
    return found


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    """A task with two sealed versions, of batch 1 and of batch 2."""
    made = spec_in(tmp_path)
    older = seal_version(made.directory(0), OLDER, None, {b"k": b"1"})
    seal_version(made.directory(0), NEWER, older, {b"k": b"2"})
    return made


def directory_of(spec: JobSpec, name: str, partition: int = 0) -> Path:
    found = spec.directory(partition).find(VersionId.parse(name))
    assert found is not None
    return found.directory


def drop_the_manifest(version: Path) -> None:
    (version / MANIFEST_FILE).unlink()


def drop_a_file(version: Path) -> None:
    _largest(version).unlink()


def shorten_a_file(version: Path) -> None:
    file = _largest(version)
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data[:-1])


def flip_a_bit(version: Path) -> None:
    file = _largest(version)
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(bytes([data[0] ^ 1]) + data[1:])


def seal_without_a_manifest_of_the_engine(version: Path) -> None:
    (path,) = version.rglob("MANIFEST-0*")
    path.unlink()
    manifest = SealManifest.decode((version / MANIFEST_FILE).read_bytes(), where="test")
    sealed_anew(SealedVersion(version, manifest))


def upgrade(version: Path) -> None:
    file = version / MANIFEST_FILE
    file.write_bytes(of_next_format(file.read_bytes()))


def _largest(version: Path) -> Path:
    files = [path for path in version.rglob("*") if path.is_file() and "db" in path.parts]
    return max(files, key=lambda path: path.stat().st_size)


def test_the_newest_version_that_is_named_and_here_is_taken(spec: JobSpec) -> None:
    assert located(spec, [NEWER, OLDER]) == NEWER
    assert located(spec, ["3_cccccccc", OLDER]) == OLDER


def test_a_version_that_is_not_named_is_not_taken_though_it_is_whole(spec: JobSpec) -> None:
    assert located(spec, ["2_cccccccc", "1_bbbbbbbb"]) is None


def test_an_empty_state_needs_no_version(spec: JobSpec) -> None:
    assert located(spec, ["3_cccccccc", ""]) == ""


@pytest.mark.parametrize(
    "spoil",
    [
        drop_the_manifest,
        drop_a_file,
        shorten_a_file,
        flip_a_bit,
        seal_without_a_manifest_of_the_engine,
        upgrade,
    ],
    ids=[
        *("no manifest", "no file", "a shorter file", "a flipped bit", "not to be opened"),
        "a newer release's",
    ],
)
def test_a_version_that_cannot_be_used_is_passed_over(
    spec: JobSpec, spoil: Callable[[Path], None]
) -> None:
    spoil(directory_of(spec, NEWER))
    assert located(spec, [NEWER, OLDER]) == OLDER


def test_the_version_of_another_task_is_passed_over(spec: JobSpec) -> None:
    seal_version(spec.directory(1), "3_cccccccc", None, {b"k": b"of another"})
    foreign = directory_of(spec, "3_cccccccc", partition=1)
    shutil.copytree(foreign, directory_of(spec, NEWER).parent / foreign.name)
    assert located(spec, ["3_cccccccc", NEWER]) == NEWER


def test_a_job_that_was_begun_anew_does_not_see_the_versions_before(
    spec: JobSpec, tmp_path: Path
) -> None:
    assert located(spec_in(tmp_path, job_uid="88bb88bb"), [NEWER]) is None


class FakeJobs:
    """Hosts that have some versions, and backends that have every commit."""

    def __init__(self, *here: str) -> None:
        self.here = here
        self.asked: list[str] = []
        self.restored: list[str] = []

    def locate(
        self, candidates: Mapping[int, Sequence[str]], *, is_thorough: bool
    ) -> dict[int, str]:
        self.asked = list(candidates[0])
        found = [name for name in candidates[0] if name in self.here]
        return {0: found[0]} if found else {}

    def restore(
        self, candidates: Mapping[int, Sequence[TaskCommit]], bad: object
    ) -> dict[int, Restored]:
        self.restored = [found.version for found in candidates[0]]
        return {0: Restored(0, version=self.restored[0], candidate=0, sources={"state": "blob"})}


def recover(
    jobs: FakeJobs,
    head: int,
    commits: Sequence[int],
    batches: Sequence[int],
    *,
    stores: Mapping[str, list[str]] | None = None,
    fetched: int | None = None,
) -> None:
    """Bring the one task to ``head``; every batch left a version named after it."""
    history = VersionHistory(1)
    view = LogView()
    for position, batch in enumerate(commits):
        view.fold(position, commit_record(1, batch))
    for batch in batches:
        history.put(batch, {0: TaskBatch(version=f"{batch}_{UID}")})
    unused: Any = None
    identity = commit_record(1, 0).identity
    recovery = Recovery(
        frame=unused,
        location=unused,
        jobs=cast("TaskJobs", jobs),
        history=history,
        log=cast("LogSession", SimpleNamespace(view=view)),
        operators=[range(1)],
        identity=identity if stores is None else msgspec.structs.replace(identity, stores=stores),
        thread=unused,
        is_divergence_fatal=False,
        report=report_nothing,
        clock=FakeClock(),
    )
    recovery._replay = lambda *_, **__: None  # type: ignore[method-assign]
    recovery.recover([0], head, is_thorough=True, fetched=fetched)


def test_no_version_above_the_head_is_asked_for() -> None:
    jobs = FakeJobs(f"3_{UID}")
    recover(jobs, 3, commits=[2], batches=[2, 3, 4, 5])
    assert jobs.asked == [f"3_{UID}", f"2_{UID}"]


def test_no_version_below_the_newest_commit_is_asked_for_though_it_is_kept() -> None:
    jobs = FakeJobs(f"1_{UID}", f"0_{UID}")
    recover(jobs, 2, commits=[1, 2], batches=[0, 1, 2])
    assert jobs.asked == [f"2_{UID}"]
    assert jobs.restored == [f"2_{UID}", f"1_{UID}"]


def test_what_was_fetched_ahead_is_taken_though_there_is_a_newer_commit() -> None:
    jobs = FakeJobs(f"1_{UID}", f"0_{UID}")
    recover(jobs, 3, commits=[0, 1, 2], batches=[0, 1, 2, 3], fetched=1)
    assert jobs.asked == [f"3_{UID}", f"2_{UID}", f"1_{UID}"]
    assert jobs.restored == []


def test_nothing_is_restored_where_what_was_fetched_ahead_is_gone() -> None:
    jobs = FakeJobs(f"0_{UID}")
    with pytest.raises(RestoreFailedError, match="gone again"):
        recover(jobs, 3, commits=[0, 1, 2], batches=[0, 1, 2, 3], fetched=1)
    assert jobs.restored == []


def test_no_version_from_before_the_job_got_a_store_is_asked_for() -> None:
    jobs = FakeJobs(f"2_{UID}")
    recover(jobs, 2, commits=[1, 2], batches=[1, 2], stores={"main": ["state", "large"]})
    assert jobs.asked == []
    assert jobs.restored == [f"2_{UID}", f"1_{UID}"]


@pytest.mark.parametrize("is_thorough", [True, False])
def test_an_image_without_a_store_that_is_committed_is_not_the_version(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch, *, is_thorough: bool
) -> None:
    """One that a start left here for which the store was given up; then the settings were put back."""
    monkeypatch.setattr(task_functions, "_registries", lambda *_: {})
    stores = (STATE_STORE, StoreName("large"))
    session = replace(spec, stores=stores, lasting_stores=stores)
    assert located(session, [NEWER], is_thorough=is_thorough) == NEWER
    session = replace(session, listed_stores=stores)
    assert located(session, [NEWER], is_thorough=is_thorough) is None
    try:
        assert not open_tasks.get(session, 3, 0, 3).go_to(VersionId.parse(NEWER))
    finally:
        open_tasks.close_job(session, 3).join()


def test_an_image_from_before_the_job_got_a_store_is_made_anew(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a backend would be given a store without files."""
    monkeypatch.setattr(task_functions, "ask", lambda *_: Done())
    stores = (STATE_STORE, StoreName("large"))
    grown = replace(spec, stores=stores, lasting_stores=stores)
    plan = SubmitPlan(
        epoch=2,  # other tests have left tasks of this name open
        attempt=1,
        checkpoint_id="7-1",
        batch=2,
        versions={0: NEWER},
        bases={0: (NEWER, b"{}")},
        checkpoints={0: b"{}"},
    )
    try:
        for is_written in (True, False):
            done = task_functions.submit([0], grown, plan)[0]
            assert (done.error, bool(done.pause_ns)) == ("", is_written)
        version = grown.directory(0).find(VersionId.parse(NEWER))
        assert version is not None
        assert not version.lacks(stores)
        assert content_of(version, tmp_path) == {b"k": b"2"}
    finally:
        open_tasks.close_job(grown, 2).join()


def test_the_tasks_of_a_slot_submit_in_few_requests_each_with_an_answer_for_all_of_its_tasks(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    for task in (1, 3, 4):
        seal_version(spec.directory(task), NEWER, None, {b"k": b"2"})
    asked: list[list[SubmitVersion]] = []

    def ask(place: object, sidecar: object, request: SubmitVersion) -> Done:
        asked.append(request.each())
        if len(asked) == 2:
            raise RetriableError("sidecars die over one request")
        return Done()

    monkeypatch.setattr(task_functions, "ask", ask)
    monkeypatch.setattr(task_functions, "_VERSIONS_A_REQUEST", 3)
    plan = SubmitPlan(
        epoch=3,
        attempt=7,
        checkpoint_id="7-1",
        batch=2,
        versions=dict.fromkeys((0, 1, 2, 3, 4), NEWER),
        bases={1: (OLDER, b'{"base":1}')},
        checkpoints={task: b'{"task":%d}' % task for task in range(6)},
        is_awaited=True,
    )
    done = task_functions.submit([5, 1, 2, 0, 3, 4], spec, plan)
    assert list(done) == [5, 1, 2, 0, 3, 4]  # each has to answer
    assert {task for task, each in done.items() if not each.error} == {0, 1, 5}
    assert task_functions.is_version_lost(done[2].error)
    assert all("sidecars die" in done[task].error for task in (3, 4))
    sent = [[(r.partition, bytes(r.checkpoint), r.base_version) for r in each] for each in asked]
    assert sent == [
        [(1, b'{"task":1}', OLDER), (0, b'{"task":0}', "")],
        [(3, b'{"task":3}', ""), (4, b'{"task":4}', "")],
    ]
    assert {(r.epoch, r.attempt, r.is_awaited, r.version) for each in asked for r in each} == {
        (3, 7, True, NEWER)
    }


def test_a_task_that_has_its_version_asks_no_backend() -> None:
    jobs = FakeJobs(f"2_{UID}")
    recover(jobs, 2, commits=[1, 2], batches=[1, 2])
    assert jobs.restored == []


def test_the_variables_of_each_operator_are_reported_once(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of task 0 cannot be read any more."""
    monkeypatch.setattr(task_functions, "_is_here", lambda *_, **__: True)
    monkeypatch.setattr(
        task_functions, "_registries", lambda _, __, task, ___: {"state": f"{task}"} if task else {}
    )
    candidates = {task: [NEWER] for task in range(6)}
    told = task_functions.locate(
        range(6), replace(spec, tasks=range(3)), candidates, epoch=1, is_thorough=True
    )
    answers = [json.loads(answer.to_pydict()[ANSWER_COLUMN][0]) for answer in told]
    registries = [answer["registries"] for answer in answers]
    assert registries == [{}, {"state": "1"}, {}, {"state": "3"}, {}, {}]


def test_the_tasks_of_a_slot_are_restored_at_the_same_time(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = threading.Barrier(3)

    def ask(place: object, sidecar: object, request: Restore) -> Done:
        met.wait(10)  # breaks if one request waits for the answer of another
        return Done(version=f"{request.partition}")

    monkeypatch.setattr(task_functions, "ask", ask)
    monkeypatch.setattr(task_functions, "_registries", lambda *_: {})
    wanted = {task: [TaskCommit("", None, ())] for task in (0, 2, 4)}
    answers = task_functions.restore(range(5), spec, wanted, bad_markers=(), epoch=1)
    found = [json.loads(answer.to_pydict()[ANSWER_COLUMN][0]) for answer in answers]
    assert [(answer["partition"], answer["version"]) for answer in found] == [
        (0, "0"),
        (2, "2"),
        (4, "4"),
    ]
