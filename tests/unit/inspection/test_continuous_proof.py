"""Proof while a job runs: a copy that cannot be restored is told at once, and nothing is left behind."""

import asyncio
import logging
import random
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from cli_kit import INPUT, TASK, commit_numbers, damage_a_blob, job_settings
from typing_extensions import override

from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.errors import RetriableError
from statekeep.events import (
    CommitVerified,
    Event,
    EventSource,
    Listener,
    RequestDone,
    VerifyFailed,
)
from statekeep.inspection import continuous_proof
from statekeep.inspection import job as inspected_job
from statekeep.inspection.continuous_proof import ContinuousProof
from statekeep.inspection.job import InspectedJob, open_job
from statekeep.inspection.verification import VerifiedCopy
from statekeep.testing.clock import FakeClock


class Rig:
    """A proof of the job in a directory, and what it tells."""

    def __init__(
        self, directory: Path, *, tasks: Collection[str] = (TASK,), **settings: str
    ) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.scratch = directory / "scratch"
        self.scratch.mkdir()
        self.config = load_dict(job_settings(directory) | settings)
        self.proof = ContinuousProof(
            self.config,
            clock=SystemClock(),
            report=self._report,
            rng=random.Random(1),
            scratch=self.scratch,
            tasks_with_logs=lambda: tasks,
        )

    def _report(self, event: Event) -> None:
        if event.is_recorded:
            self.events.append((event.kind, event.details()))

    def prove(self) -> None:
        asyncio.run(self.proof.prove())


@pytest.fixture
def job(tmp_path: Path) -> Path:
    asyncio.run(commit_numbers(tmp_path, [1, 2, 3]))
    return tmp_path


def pins_of(config: Config) -> dict[str, int]:
    async def run() -> dict[str, int]:
        async with open_job(config, SystemClock(), task=TASK) as opened:
            return opened.view.pins

    return asyncio.run(run())


def test_each_backend_is_asked_for_the_newest_commit(job: Path) -> None:
    rig = Rig(job)
    rig.prove()
    ((kind, details),) = rig.events
    assert (kind, details["batch"], details["task"]) == ("verified", 2, TASK)
    assert details["backends"] == ["far", "near"]
    assert details["bytes"] > 0
    verified = rig.proof.last_verified
    assert verified is not None
    assert (verified.batch, verified.position) == (2, details["position"])
    assert rig.proof.failing == ""
    assert list(rig.scratch.iterdir()) == []
    assert pins_of(rig.config) == {}


class Noting(SystemClock):
    """Keeps for how many seconds it was to sleep, and does not: a pin is renewed after an hour at most."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    @override
    async def sleep(self, seconds: float) -> None:
        if seconds >= 100:
            await super().sleep(seconds)
        self.asked.append(seconds)
        await asyncio.sleep(0)


@pytest.mark.parametrize("rate", [None, 10_000], ids=["without a limit", "with one"])
def test_a_proof_reads_no_faster_than_the_bandwidth_of_a_backend(
    tmp_path: Path, rate: int | None
) -> None:
    async def commit() -> None:
        async with Container(load_dict(job_settings(tmp_path))) as container:
            task = await container.start_task(TASK, ["counts"])
            task.store("counts").put(b"key-1", random.Random(1).randbytes(50_000))
            await (await task.commit({INPUT: "1"})).wait()

    asyncio.run(commit())
    limits = {} if rate is None else {"backends.far.bandwidth.bytes.per.second": str(rate)}
    rig, clock = Rig(tmp_path, **limits), Noting()
    rig.proof._clock = clock
    rig.prove()
    ((kind, details),) = rig.events
    assert kind == "verified"
    of_far = details["bytes"] / 2
    assert of_far >= 50_000
    if rate is None:
        assert clock.asked == []
    else:  # the first second is saved up, and some time has passed
        assert of_far / rate - 2 < max(clock.asked)


def test_a_copy_that_is_damaged_is_an_error_at_once(
    job: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(job)
    rig.prove()
    before = rig.proof.last_verified
    damage_a_blob(job / "far")
    rig.prove()
    kind, details = rig.events[-1]
    assert (kind, details["backend"], details["is_damaged"]) == ("verify-failed", "far", True)
    told = [each for each in caplog.records if each.name == continuous_proof.__name__]
    (record,) = [each for each in told if each.levelno == logging.ERROR]
    assert "cannot be restored: commit=" in record.getMessage()
    assert "backend=far" in record.getMessage()
    assert "reset the job" not in record.getMessage()  # the other copy is whole
    assert rig.proof.failing.startswith(f"{TASK} in far: ")
    assert rig.proof.last_verified is before
    assert list(rig.scratch.iterdir()) == []
    assert pins_of(rig.config) == {}


def test_a_commit_that_follows_is_proven_and_the_fault_is_over(job: Path) -> None:
    rig = Rig(job)
    path = damage_a_blob(job / "far")
    rig.prove()
    assert rig.proof.failing
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    rig.prove()
    assert [kind for kind, _ in rig.events] == ["verify-failed", "verified"]
    assert rig.proof.failing == ""


def test_a_job_without_state_has_nothing_to_prove(tmp_path: Path) -> None:
    async def start() -> None:
        async with Container(load_dict(job_settings(tmp_path))) as container:
            await container.start_task(TASK, ["counts"])

    asyncio.run(start())
    rig = Rig(tmp_path)
    rig.prove()
    assert rig.events == []


@pytest.mark.asyncio
async def test_it_goes_on_through_outages_from_a_random_moment_on(tmp_path: Path) -> None:
    rig = Rig(tmp_path, **{"job.verify.interval.ms": "60000"})
    clock = FakeClock()
    outcomes = [RetriableError("no answer"), KeyError("a plug-in's own"), OSError("no room"), None]
    times: list[float] = []
    proof = rig.proof
    proof._clock = clock
    began_ns = clock.monotonic_ns()

    async def prove() -> None:
        times.append((clock.monotonic_ns() - began_ns) / 1e9)
        if not outcomes:
            raise asyncio.CancelledError
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome

    proof.prove = prove  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await proof.run()
    first = 60 * random.Random(1).random()
    assert times == pytest.approx([first + 60 * number for number in range(5)])
    assert proof.failing == "no room"


@pytest.mark.parametrize("hung", [1, 2], ids=["a thread is left", "no thread is left"])
def test_a_store_that_hangs_does_not_keep_the_query_from_ending(
    job: Path, monkeypatch: pytest.MonkeyPatch, hung: int
) -> None:
    rig = Rig(job, **{"job.verify.interval.ms": "1"})
    answer, has_begun = threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        has_begun.release()
        answer.wait(30)

    async def verify_in_vain(job: InspectedJob, *_: object) -> VerifiedCopy:
        await asyncio.gather(*(job.executor.run(hang) for _ in range(hung)))
        raise AssertionError

    async def run() -> None:
        running = asyncio.create_task(rig.proof.run())
        for _ in range(hung):
            while not has_begun.acquire(blocking=False):
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait({running}, timeout=10)
        assert running.cancelled()
        answer.set()

    monkeypatch.setattr(continuous_proof, "verify_copy", verify_in_vain)
    monkeypatch.setattr(inspected_job, "_ABANDONED_AFTER_S", 0.1)
    asyncio.run(run())


class Told(Listener):
    """Keeps what it is told of proofs and their requests."""

    def __init__(self) -> None:
        self.proofs: list[tuple[Event, str]] = []
        self.requests: list[RequestDone] = []

    @override
    def on_event(self, event: Event, source: EventSource, /) -> None:
        match event:
            case RequestDone(purpose="verify"):
                self.requests.append(event)
            case CommitVerified() | VerifyFailed():
                self.proofs.append((event, source.task))
            case _:
                pass

    @override
    def close(self) -> None:
        """What was told stays."""


@pytest.mark.asyncio
async def test_a_container_in_plain_python_proves_its_tasks_too(tmp_path: Path) -> None:
    told = Told()
    config = load_dict(job_settings(tmp_path) | {"job.verify.interval.ms": "20"})

    async def next_proof() -> tuple[Event, str]:
        begun = len(told.proofs)
        while len(told.proofs) == begun:
            await asyncio.sleep(0.01)
        return told.proofs[-1]

    async with Container(config, listeners=[told]) as container:
        task = await container.start_task(TASK, ["counts"])
        task.store("counts").put(b"key-1", b"1")
        await (await task.commit({INPUT: "1"})).wait()
        event, of_task = await next_proof()
        assert isinstance(event, CommitVerified)
        assert (of_task, event.task, event.backends) == (TASK, TASK, ["far", "near"])
        assert container.last_verified is not None
        assert container.verify_failing == ""
        assert {request.backend for request in told.requests} == {"far", "near"}
        assert {request.task for request in told.requests} == {""}
        damage_a_blob(tmp_path / "far")
        while isinstance(event, CommitVerified):  # one may have begun before the damage
            event, of_task = await next_proof()
        assert isinstance(event, VerifyFailed)
        assert (of_task, event.backend, event.is_damaged) == (TASK, "far", True)
        assert container.verify_failing.startswith(f"{TASK} in far: ")
    async with open_job(config, SystemClock(), task=TASK) as opened:
        kinds = [event.kind for event in await opened.progress()]
    assert {"verified", "verify-failed"} <= set(kinds)  # so the page of the task has them
    assert list(tmp_path.glob("**/statekeep-verify-*")) == []


def test_a_task_that_is_damaged_is_asked_again_until_it_is_whole(tmp_path: Path) -> None:
    names = [f"Partition {number}" for number in range(3)]
    for name in names:
        asyncio.run(commit_numbers(tmp_path, [1], name=name))
    rig = Rig(tmp_path, tasks=names)
    path = damage_a_blob(tmp_path / "far")
    while not rig.proof.failing:
        rig.prove()
    first = rig.proof.failing
    for _ in range(5):
        rig.prove()
        assert rig.proof.failing == first
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    rig.prove()
    assert rig.proof.failing == ""
    drawn: set[str] = set()
    for _ in range(10):
        rig.prove()
        drawn.add(rig.events[-1][1]["task"])
    assert len(drawn) > 1
