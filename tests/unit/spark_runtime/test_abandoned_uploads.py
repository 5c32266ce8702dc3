"""Whether anybody is left to back up a version, as a task can tell on its own host."""

import json
from pathlib import Path
from typing import cast

import pytest
from container_process_kit import VERSION, hand_over

from statekeep.config.load import load_dict
from statekeep.spark.container.launch import take_lock
from statekeep.spark.container.outbox import Outbox
from statekeep.spark.container.place import container_place
from statekeep.spark.operator.runner import OperatorSpec
from statekeep.spark.worker.errands import is_abandoned
from statekeep.spark.worker.job_spec import HandOverPlan, JobSpec
from statekeep.testing.versions import seal_version

PLAN = HandOverPlan(
    epoch=1,
    attempt=1,
    checkpoint_id="7-1",
    batch=0,
    versions={0: VERSION},
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
        python_path=(),
    )


def answer(spec: JobSpec, partition: int = 0) -> bool:
    (batch,) = is_abandoned((partition,), spec, PLAN)
    return bool(json.loads(batch.column(0)[0].as_py())["is_abandoned"])


def test_a_version_that_is_here_without_a_container_is_abandoned(spec: JobSpec) -> None:
    seal_version(spec.directory(0), VERSION, None, {b"k": b"v"})
    assert answer(spec)


def test_nothing_is_known_of_a_version_that_is_elsewhere(spec: JobSpec) -> None:
    assert not answer(spec)
    assert not answer(spec, partition=1)


def test_a_version_is_not_abandoned_while_a_container_lives_that_has_it(
    spec: JobSpec, tmp_path: Path
) -> None:
    seal_version(spec.directory(0), VERSION, None, {b"k": b"v"})
    place = container_place(tmp_path, spec.local_name, "old", "1")
    place.prepare()
    lock = take_lock(place)
    assert lock is not None
    assert answer(spec)
    Outbox(place.outbox).replace(hand_over())
    assert not answer(spec)
    lock.leave()
    assert answer(spec)
