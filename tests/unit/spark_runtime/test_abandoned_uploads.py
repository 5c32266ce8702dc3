"""Whether a process is left to back up the versions of an attempt that an older driver left open."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from sidecar_process_kit import VERSION, submit_versions

from statekeep.config.load import load_dict
from statekeep.spark.driver.rebalancer import Rebalancer
from statekeep.spark.driver.task_jobs import TaskJobs
from statekeep.spark.operator.runner import OperatorSpec
from statekeep.spark.sidecar.launch import take_lock
from statekeep.spark.sidecar.outbox import Outbox
from statekeep.spark.sidecar.paths import sidecar_paths
from statekeep.spark.worker.job_spec import JobSpec, SubmitPlan
from statekeep.spark.worker.task_functions import held_uploads

PLAN = SubmitPlan(
    epoch=1,
    attempt=1,
    checkpoint_id="7-1",
    batch=0,
    versions={0: VERSION, 1: VERSION},
    bases={},
    checkpoints={},
)


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    return JobSpec(
        config=load_dict({"job.name": "j", "job.logged.store.base.dir": str(tmp_path)}),
        job_uid="0123456789",
        log_backend="blob",
        app_id="new",
        operator=cast("OperatorSpec", None),
        processor=b"",
        session="a1",
        python_path=(),
    )


def held(spec: JobSpec) -> list[int]:
    (batch,) = held_uploads(spec, PLAN)
    found: list[int] = json.loads(batch.column(0)[0].as_py())["held"]
    return found


def test_what_a_living_sidecar_of_an_earlier_application_has_is_held(
    spec: JobSpec, tmp_path: Path
) -> None:
    assert held(spec) == []
    paths = sidecar_paths(tmp_path, spec.local_name, "old", "1")
    paths.prepare()
    lock = take_lock(paths)
    assert lock is not None
    assert held(spec) == []
    Outbox(paths.outbox).replace([submit_versions(partition=1)])
    assert held(spec) == [1]
    lock.leave()
    assert held(spec) == []


def test_a_version_is_abandoned_if_no_host_has_it_to_upload(spec: JobSpec) -> None:
    class Hosts:
        """Two hosts, of which one has the version of task 1 to upload."""

        def run(self, function: Callable[[tuple[int, ...]], object]) -> list[dict[str, list[int]]]:
            return [{"held": []}, {"held": [1]}]

    jobs = object.__new__(TaskJobs)
    jobs.rebalancer = cast("Rebalancer", SimpleNamespace(placement=Hosts()))
    jobs._spec = spec
    assert jobs.abandoned(PLAN) == {0}
