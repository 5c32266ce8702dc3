"""Stores that stay open between batches: a version is its parent and a change set."""

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statekeep.checkpoint.checkpoints import VersionId
from statekeep.config.load import load_dict
from statekeep.errors import StateBackupError
from statekeep.stores.change_set import ChangeSet
from statekeep.stores.open_task import OpenTask
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.work_directory import WorkDirectory
from statekeep.testing.versions import STORE, FakeTask, content_of

State = dict[bytes, bytes]
SETTINGS = {STORE: load_dict({"job.name": "j"}).store(STORE)}


def new_worker(root: Path) -> OpenTask:
    return OpenTask(TaskDirectory(root, FakeTask()), SETTINGS, "1-")


def run_batch(task: OpenTask, batch: int, changes: dict[bytes, bytes | None]) -> VersionId:
    with task.batch():
        task.store(STORE).write(changes)
        return task.publish_changes(batch).version


def content(task: OpenTask) -> State:
    return dict(task.store(STORE).scan())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "task"


@pytest.fixture
def worker(root: Path) -> OpenTask:
    task = new_worker(root)
    assert task.go_to(None)
    return task


def deltas(root: Path, version: VersionId) -> list[Path]:
    return list((root / f"{version}.changes").glob("*.delta"))


def test_a_worker_that_has_another_version_open_catches_up(root: Path, worker: OpenTask) -> None:
    other = new_worker(root)
    first = run_batch(worker, 0, {b"a": b"1", b"b": b"1"})
    assert other.go_to(first)
    held = other.work.path
    run_batch(worker, 1, {b"a": None})
    last = run_batch(worker, 2, {b"c": b"3"})
    assert other.go_to(last)
    assert content(other) == {b"b": b"1", b"c": b"3"}
    assert other.work.path == held


def test_a_worker_goes_back_to_the_parent_of_an_attempt_that_ran_before(
    root: Path, worker: OpenTask
) -> None:
    first = run_batch(worker, 0, {b"a": b"1"})
    run_batch(worker, 1, {b"a": b"of another attempt"})
    assert worker.go_to(first)
    assert content(worker) == {b"a": b"1"}


def test_an_image_is_the_version_whose_change_set_was_there(
    tmp_path: Path, worker: OpenTask
) -> None:
    first = run_batch(worker, 0, {b"a": b"1"})
    sealed_first = worker.seal(None)
    second = run_batch(worker, 1, {b"b": b"2"})
    third = run_batch(worker, 2, {b"a": None})
    sealed = worker.seal(first)
    assert (sealed.id, sealed.parent, sealed.lineage[:2]) == (third, second, (second, first))
    assert content_of(sealed, tmp_path) == {b"b": b"2"}
    paths = sealed.changes_since(STORE, first)
    assert paths is not None
    assert [path.stem for path in paths] == [str(second), str(third)]
    assert content_of(sealed_first, tmp_path) == {b"a": b"1"}
    sealed.verify()


def test_the_stores_go_on_behind_an_image(tmp_path: Path, root: Path, worker: OpenTask) -> None:
    run_batch(worker, 0, {b"a": b"1"})
    worker.seal(None)
    last = run_batch(worker, 1, {b"b": b"2"})
    other = new_worker(root)
    assert other.go_to(last)
    assert content(other) == {b"a": b"1", b"b": b"2"}
    assert other.work.head == last


def fail_half_way(task: OpenTask) -> None:
    with task.batch():
        task.store(STORE).put(b"a", b"half a batch")
        raise ZeroDivisionError


def test_after_an_error_the_stores_are_as_before_the_batch(worker: OpenTask) -> None:
    first = run_batch(worker, 0, {b"a": b"1"})
    with pytest.raises(ZeroDivisionError):
        fail_half_way(worker)
    assert worker.go_to(first)
    assert content(worker) == {b"a": b"1"}


def test_what_is_not_here_is_missing(root: Path, worker: OpenTask) -> None:
    first = run_batch(worker, 0, {b"a": b"1"})
    second = run_batch(worker, 1, {b"a": b"2"})
    for path in deltas(root, first):
        path.unlink()
    assert not new_worker(root).go_to(second)
    assert not new_worker(root).go_to(VersionId(1, "00000000ff"))


def test_stores_whose_disk_was_lost_are_missing_though_they_are_open(
    root: Path, worker: OpenTask
) -> None:
    first = run_batch(worker, 0, {b"a": b"1"})
    worker.directory.remove_work("1-")
    for path in deltas(root, first):
        path.unlink()
    assert not worker.go_to(first)


def test_no_caller_waits_for_the_end_of_stores_whose_disk_was_lost(
    worker: OpenTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_batch(worker, 0, {b"a": b"1"})
    goes_on, has_ended = threading.Event(), threading.Event()
    discard = WorkDirectory.discard

    def slow(work: WorkDirectory) -> None:
        goes_on.wait(20)
        discard(work)
        has_ended.set()

    with monkeypatch.context() as patch:
        patch.setattr(WorkDirectory, "discard", slow)
        worker.directory.remove_work("1-")
        assert worker.go_to(first)
    assert content(worker) == {b"a": b"1"}
    assert not has_ended.is_set()
    goes_on.set()
    assert has_ended.wait(20)
    assert content(worker) == {b"a": b"1"}


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.unlink()
    path.write_bytes(data)


@pytest.mark.parametrize("spoil", [truncate, empty, flip_a_bit, Path.unlink])
def test_a_damaged_change_set_is_missing_not_another_state(
    root: Path, worker: OpenTask, spoil: Callable[[Path], None]
) -> None:
    first = run_batch(worker, 0, {b"a": b"1"})
    second = run_batch(worker, 1, {b"b": b"2"})
    (path,) = deltas(root, second)
    spoil(path)
    other = new_worker(root)
    assert not other.go_to(second)
    assert other.directory.find_path(second, None, [STORE]) is None
    assert other.go_to(first)
    assert content(other) == {b"a": b"1"}


def test_a_change_set_under_the_name_of_another_version_is_not_applied(
    root: Path, worker: OpenTask
) -> None:
    first = run_batch(worker, 0, {b"a": b"1"})
    second = run_batch(worker, 1, {b"a": b"2"})
    third = run_batch(worker, 2, {b"a": b"3"})
    ChangeSet(root / f"{second}.changes", second).directory.rename(root / "aside")
    (root / f"{third}.changes").rename(root / f"{second}.changes")
    other = new_worker(root)
    assert not other.go_to(second)
    assert other.go_to(first)


class TestRetain:
    def test_a_version_keeps_the_change_sets_back_to_its_image(
        self, root: Path, worker: OpenTask
    ) -> None:
        image = run_batch(worker, 0, {b"a": b"1"})
        worker.seal(None)
        run_batch(worker, 1, {b"b": b"2"})
        head = run_batch(worker, 2, {b"c": b"3"})
        worker.directory.retain([head], 2, [STORE])
        assert worker.directory.versions() == [image]
        other = new_worker(root)
        assert other.go_to(head)
        assert content(other) == {b"a": b"1", b"b": b"2", b"c": b"3"}

    def test_what_an_image_makes_superfluous_goes(self, worker: OpenTask) -> None:
        for batch in range(3):
            run_batch(worker, batch, {b"a": b"%d" % batch})
        head = run_batch(worker, 3, {b"a": b"3"})
        worker.seal(None)
        worker.directory.retain([head], 3, [STORE])
        assert worker.directory.versions() == [head]
        assert worker.directory.change_sets() == [head]

    def test_versions_above_the_settled_batch_stay(self, root: Path, worker: OpenTask) -> None:
        run_batch(worker, 0, {b"a": b"1"})
        newer = run_batch(worker, 1, {b"a": b"2"})
        worker.directory.retain([], 0, [STORE])
        assert new_worker(root).go_to(newer)


def tear_a_file(root: Path, draw: random.Random) -> bool:
    """Shorten a file of an image or change set, as a power loss may; tell whether there was one."""
    files = [p for p in root.rglob("*") if p.is_file() and ".lock" not in p.name]
    shared = sorted(path for path in files if "work-" not in str(path))
    if not shared or draw.random() < 0.5:
        return False
    victim = draw.choice(shared)
    data = victim.read_bytes()
    victim.unlink()
    victim.write_bytes(data[: draw.randrange(len(data) + 1)])
    return True


@pytest.mark.slow
@pytest.mark.timeout(120)
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32 - 1))
def test_any_history_gives_the_state_of_the_version_or_says_that_it_is_missing(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Two workers, attempts, rewinds, images, clean-up, dead workers, torn files: all by turns."""
    draw = random.Random(seed)
    root = tmp_path_factory.mktemp("history") / "task"
    workers = [new_worker(root), new_worker(root)]
    states: dict[VersionId | None, State] = {None: {}}
    parents: dict[VersionId, VersionId | None] = {}
    head: VersionId | None = None
    committed: VersionId | None = None
    is_spoiled = False
    for step in range(draw.randint(5, 30)):
        index = draw.randrange(2)
        task = workers[index]
        if not task.go_to(head):
            assert is_spoiled, "a version is missing though nothing was damaged"
            break
        assert content(task) == states[head]
        match draw.choice(["batch", "batch", "batch", "attempt", "seal", "retain", "die", "spoil"]):
            case "batch" | "attempt" as kind:
                changes: dict[bytes, bytes | None] = {
                    b"%d" % draw.randrange(6): draw.choice([None, b"%d" % step])
                    for _ in range(draw.randrange(4))
                }
                made = run_batch(task, step, changes)
                state = states[head] | {k: v for k, v in changes.items() if v is not None}
                states[made] = {k: v for k, v in state.items() if changes.get(k, b"") is not None}
                parents[made] = head
                if kind == "batch":
                    head = made
            case "seal" if head is not None:
                sealed = task.seal(committed)
                sealed.verify_sizes()
                if not is_spoiled:
                    assert content_of(sealed, tmp_path_factory.mktemp("image")) == states[head]
                committed = head
            case "retain":
                keep = [v for v in (head, committed) if v is not None]
                task.directory.retain(keep, step, [STORE])
                task.directory.sweep()
            case "die":
                workers[index] = new_worker(root)
            case "spoil":
                is_spoiled = tear_a_file(root, draw) or is_spoiled
            case _:
                pass
    for task in workers:
        task.close()


def test_a_version_of_that_name_is_never_overwritten(worker: OpenTask) -> None:
    first = run_batch(worker, 0, {b"a": b"1"})
    worker.store(STORE).put(b"b", b"2")
    with pytest.raises(StateBackupError, match="exists already"):
        worker.work.publish_changes(0, first.uid)


def test_a_damaged_image_does_not_stop_a_restore(
    tmp_path: Path, root: Path, worker: OpenTask
) -> None:
    first = run_batch(worker, 0, {b"a": b"1"})
    image = worker.seal(None)
    next(image.directory.rglob("*.sst")).unlink()
    assert new_worker(root).go_to(first)
    again = worker.seal(None)
    assert content_of(again, tmp_path) == {b"a": b"1"}
