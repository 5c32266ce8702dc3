"""How many tasks a worker holds open between two batches."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from statekeep.config.load import load_dict
from statekeep.spark.tasks import STATE_STORE, local_directory
from statekeep.spark.worker.job_spec import JobSpec
from statekeep.spark.worker.open_tasks import OpenTasks

BOUND = 64


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    made = SimpleNamespace(
        local_name="counts",
        config=load_dict({"job.name": "counts"}),
        stores=(STATE_STORE,),
        listed_stores=(),
        has_ended=False,
        directory=lambda task: local_directory(tmp_path, "counts", task),
    )
    return cast("JobSpec", made)


@pytest.fixture
def tasks(spec: JobSpec) -> Iterator[OpenTasks]:
    made = OpenTasks()
    yield made
    made.close_job(spec, 1).join()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def numbers(tasks: OpenTasks) -> list[int]:
    return [task for _, _, task in tasks._open]


def test_the_tasks_that_were_used_last_stay_open_up_to_a_bound(
    tasks: OpenTasks, spec: JobSpec
) -> None:
    for task in [*range(BOUND + 6), 0]:
        tasks.get(spec, 1, task, 1)
    tasks.trim(spec, 1, 1, 2)
    assert numbers(tasks) == [*range(7, BOUND + 6), 0]


def test_all_tasks_of_a_large_slot_stay_open(tasks: OpenTasks, spec: JobSpec) -> None:
    for task in range(BOUND + 6):
        tasks.get(spec, 1, task, 1)
    tasks.trim(spec, 1, 1, 2 * BOUND)
    assert len(numbers(tasks)) == BOUND + 6


def test_tasks_are_closed_until_half_of_the_descriptors_are_free(
    tasks: OpenTasks, spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = descriptors()
    for task in range(4):
        stores = tasks.get(spec, 1, task, 1)
        stores.go_to(None)
        stores.store(STATE_STORE).put(b"key", b"value")
    each = (descriptors() - before) / 4
    assert 8 <= each < 16  # as the page on the architecture says

    limit = int(2 * (before + 2.5 * each))
    monkeypatch.setattr("resource.getrlimit", lambda _: (limit, limit))
    tasks.trim(spec, 1, 1, 2)
    assert numbers(tasks) == [2, 3]


def test_what_a_worker_has_loaded_is_taken_out_of_garbage_collection_once() -> None:
    program = (
        "import gc, json; from statekeep.spark.worker.open_tasks import freeze_garbage_collector;"
        " loaded = len(gc.get_objects()); freeze_garbage_collector(); first = gc.get_freeze_count();"
        " kept = [[] for _ in range(loaded)]; freeze_garbage_collector();"
        " print(json.dumps([loaded, first, gc.get_freeze_count()]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded, first, second = json.loads(done.stdout)
    assert loaded / 2 < first
    assert second <= first  # what comes later is collected
