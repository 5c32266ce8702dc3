"""A backend that is away for an hour: listed as optional, and as required."""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from container_kit import INPUT, controls
from outage_kit import WaitingClock, cut_off, plan_of
from typing_extensions import override

from statekeep.backends.blob import backup
from statekeep.backends.memory import forget_place
from statekeep.backends.storage.memory import forget_root
from statekeep.checkpoint.checkpoints import CheckpointV2
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.container.task import Task
from statekeep.errors import CommitFailedError, ConfigError, RetriableError
from statekeep.inspection.job import open_job
from statekeep.testing.clock import FakeClock
from statekeep.testing.faults import Fault

TASK = "Partition 0"
HOUR_S = 3600
MINUTE_S = 60
CHECK_S = 60
"""``blob.store.start.timeout.ms`` as it is by default."""
TIMEOUT_S = 900
"""``blob.store.retry.policy.max.retry.duration.millis`` as it is by default."""


@pytest_asyncio.fixture(autouse=True)
async def leftovers(tmp_path: Path) -> AsyncIterator[None]:
    """After every test no asyncio task is left."""
    yield
    for place in ("near", "far"):
        forget_root(str(tmp_path / place))
        forget_place(str(tmp_path / place))
    assert asyncio.all_tasks() == {asyncio.current_task()}


def blob_job(directory: Path, **settings: str) -> Config:
    """Two blob backends: ``far`` is optional, ``near`` holds the log."""
    values = {
        "job.name": "job",
        "job.logged.store.base.dir": str(directory / "local"),
        "stores.default.factory": "memory",
        "stores.backup.factories": "near,far",
        "stores.backup.optional": "far",
        "backends.near.factory": "outage_kit:OutageBackendFactory",
        "backends.near.uri": str(directory / "near"),
        "backends.far.factory": "outage_kit:OutageBackendFactory",
        "backends.far.uri": str(directory / "far"),
        "task.commit.ms": "0",
        "checkpoint.clean.up.ms": "0",
    }
    return load_dict(values | {key.replace("__", "."): value for key, value in settings.items()})


async def put_and_commit(task: Task, number: int) -> CheckpointV2:
    """Count on, in one of a thousand keys, and commit that."""
    counts = task.store("counts")
    if number == 0:
        for key in range(1000):
            counts.put(b"key-%d" % key, b"%100d" % key)
    counts.put(b"newest", b"%d" % number)
    checkpoint = await (await task.commit({INPUT: str(number)}, force=True)).wait()
    assert checkpoint is not None
    await task.wait()
    return checkpoint


async def commit_events(config: Config) -> list[dict[str, Any]]:
    async with open_job(config, SystemClock(), task=TASK) as job:
        return [event.details for event in await job.progress() if event.kind == "commit"]


def deltas_put(uri: str) -> list[str]:
    return [name for name in plan_of(uri).called("put") if name.endswith("changes.delta")]


@pytest.mark.asyncio
async def test_commits_go_on_for_the_hour_that_an_optional_backend_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "MAX_INDEX_DELTA_BYTES", 0)
    clock, config, far = FakeClock(), blob_job(tmp_path), str(tmp_path / "far")
    took_s: list[float] = []
    async with Container(config, clock=clock) as container:
        task = await container.start_task(TASK, ["counts"])
        assert set((await put_and_commit(task, 0)).state_markers) == {"near", "far"}
        cut_off(far)
        down_since_ns = clock.monotonic_ns()
        while clock.monotonic_ns() - down_since_ns < HOUR_S * 1e9:
            began_ns = clock.monotonic_ns()
            checkpoint = await put_and_commit(task, len(took_s) + 1)
            took_s.append((clock.monotonic_ns() - began_ns) / 1e9)
            assert set(checkpoint.state_markers) == {"near"}
            clock.advance(MINUTE_S)
        assert task.last_error is None
        assert task.metrics.counters["optional-upload-failures"] == len(took_s)

        plan_of(far).clear()
        plan_of(far).calls.clear()
        back = await put_and_commit(task, len(took_s) + 1)
        assert set(back.state_markers) == {"near", "far"}
        assert plan_of(far).called("put")
        assert deltas_put(far) == []
        await put_and_commit(task, len(took_s) + 2)
        assert len(deltas_put(far)) == 1

    # The first commit waits for as long as one call insists; from then on a check comes before.
    assert took_s[0] <= TIMEOUT_S
    assert max(took_s[1:]) <= CHECK_S
    left_out = [commit["left_out"] for commit in await commit_events(config)]
    assert left_out == [[], *[["far"]] * len(took_s), [], []]
    errors = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == len(took_s)
    assert {r.getMessage().partition(":")[0] for r in errors} == {"optional backend is left out"}


@pytest.mark.asyncio
async def test_a_backend_that_came_back_restores_the_state_by_itself(tmp_path: Path) -> None:
    async with Container(blob_job(tmp_path), clock=FakeClock()) as container:
        task = await container.start_task(TASK, ["counts"])
        await put_and_commit(task, 0)
        cut_off(str(tmp_path / "far"))
        await put_and_commit(task, 1)
        plan_of(str(tmp_path / "far")).clear()
        await put_and_commit(task, 2)
        await put_and_commit(task, 3)
        expected = dict(task.store("counts").scan())
    shutil.rmtree(tmp_path / "local")
    only_far = blob_job(
        tmp_path,
        stores__counts__restore__factories="far",
        stores__backup__optional="",
    )
    async with Container(only_far, clock=FakeClock()) as container:
        task = await container.start_task(TASK, ["counts"])
        assert task.restored.sources == {"counts": "far"}
        assert dict(task.store("counts").scan()) == expected
        assert task.input_offsets == {INPUT: "3"}


@pytest.mark.asyncio
async def test_a_job_starts_while_an_optional_backend_is_away_and_takes_it_in_when_it_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, far = FakeClock(), str(tmp_path / "far")
    config = blob_job(tmp_path, job__log__backend="near")
    cut_off(far)
    began_ns = clock.monotonic_ns()
    async with Container(config, clock=clock) as container:
        task = await container.start_task(TASK, ["counts"])
        assert set((await put_and_commit(task, 0)).state_markers) == {"near"}
        # The check at the start, and the one before the commit: no call insists for longer.
        assert (clock.monotonic_ns() - began_ns) / 1e9 <= 2 * CHECK_S

        plan_of(far).clear()
        plan_of(far).calls.clear()
        assert set((await put_and_commit(task, 1)).state_markers) == {"near", "far"}
        first_upload = next(n for n in plan_of(far).called("put") if not n.startswith("probes/"))
        calls = [name for _, name in plan_of(far).calls]
        assert any(name.startswith("probes/") for name in calls[: calls.index(first_upload)])
    errors = [r.getMessage().partition(":")[0] for r in caplog.records if r.levelname == "ERROR"]
    assert errors == [
        "optional backend does not answer, the start goes on without it",
        "optional backend is left out",
    ]


class ClockAfter(FakeClock):
    """While it waits, no time passes before something else has happened."""

    def __init__(self, has_happened: Callable[[], bool]) -> None:
        super().__init__()
        self._has_happened = has_happened
        self.is_waiting = False

    @override
    async def sleep(self, seconds: float) -> None:
        while self.is_waiting and not self._has_happened():
            await asyncio.sleep(0)  # the turn of the others
        await super().sleep(seconds)


@pytest.mark.asyncio
async def test_what_an_aborted_attempt_left_in_an_optional_backend_goes_once_that_takes_part_again(
    tmp_path: Path,
) -> None:
    config = blob_job(tmp_path, job__log__backend="near")
    near, far = plan_of(str(tmp_path / "near")), plan_of(str(tmp_path / "far"))

    def left() -> set[str]:
        return {name for name in far.called("put") if "/1-" in name}

    near.add(Fault("put", "*/state-*", times=-1))
    clock = ClockAfter(lambda: bool(left()))
    async with Container(config, clock=clock) as container:
        task = await container.start_task(TASK, ["counts"])
        clock.is_waiting = True
        with pytest.raises(CommitFailedError):
            await put_and_commit(task, 0)
        clock.is_waiting = False
    near.clear()
    aborted = left()
    assert aborted
    async with Container(config, clock=clock) as container:
        task = await container.start_task(TASK, ["counts"])
        await task.wait()  # the clean-up of the start asks no optional backend
        assert set((await put_and_commit(task, 0)).state_markers) == {"near", "far"}
    assert aborted <= set(far.called("delete"))


@pytest.mark.asyncio
async def test_a_new_task_starts_once_a_backend_that_may_hold_its_log_answers(
    tmp_path: Path,
) -> None:
    far = str(tmp_path / "far")
    cut_off(far)
    async with Container(blob_job(tmp_path), clock=FakeClock()) as container:
        with pytest.raises(RetriableError, match="does not answer: backend=far"):
            await container.start_task(TASK, ["counts"])
        plan_of(far).clear()
        task = await container.start_task(TASK, ["counts"])
        assert set((await put_and_commit(task, 0)).state_markers) == {"near", "far"}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "settings",
    [{"stores__backup__optional": ""}, {"job__log__backend": "far"}],
    ids=["required", "holds the log"],
)
async def test_a_backend_that_the_job_needs_must_answer_at_the_start(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    cut_off(str(tmp_path / "far"))
    with pytest.raises(RetriableError, match="backend=far"):
        async with Container(blob_job(tmp_path, **settings), clock=FakeClock()):
            pass


@pytest.mark.asyncio
async def test_an_optional_backend_that_refuses_the_job_ends_the_start(tmp_path: Path) -> None:
    refused = Fault("*", times=-1, make_error=lambda: ConfigError("access is denied"))
    plan_of(str(tmp_path / "far")).add(refused)
    with pytest.raises(ConfigError, match="access is denied"):
        async with Container(blob_job(tmp_path), clock=FakeClock()):
            pass


@pytest.mark.asyncio
async def test_a_task_that_requires_what_is_optional_for_others_does_not_start_without_it(
    tmp_path: Path,
) -> None:
    far = str(tmp_path / "far")
    config = blob_job(tmp_path, stores__ledger__backup__optional="", job__log__backend="near")
    cut_off(far)
    async with Container(config, clock=FakeClock()) as container:
        await container.start_task("Partition 1", ["counts"])
        with pytest.raises(RetriableError, match="backend=far"):
            await container.start_task(TASK, ["counts", "ledger"])
        plan_of(far).clear()
        await container.start_task(TASK, ["counts", "ledger"])


def held_job(directory: Path, **settings: str) -> Config:
    """Two backends that a commit needs; ``near`` holds the log, ``far`` can be held up."""
    values = {
        "job.name": "job",
        "job.logged.store.base.dir": str(directory / "local"),
        "stores.default.factory": "memory",
        "stores.backup.factories": "near,far",
        "backends.near.factory": "container_kit:HeldBackendFactory",
        "backends.near.place": str(directory / "near"),
        "backends.far.factory": "container_kit:HeldBackendFactory",
        "backends.far.place": str(directory / "far"),
        "task.commit.ms": str(MINUTE_S * 1000),
        "max.commit.delay": str(5 * MINUTE_S * 1000),
    }
    return load_dict(values | {key.replace("__", "."): value for key, value in settings.items()})


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


class Program:
    """Takes in one number a minute, and commits when that is due; as a program in plain Python does.

    Attributes:
        taken_in: The newest number that was processed.
    """

    def __init__(self, task: Task, clock: WaitingClock) -> None:
        self.task = task
        self.clock = clock
        self.taken_in = int(task.input_offsets.get(INPUT, "-1"))
        self._committing: asyncio.Task[Any] | None = None

    @property
    def is_blocked(self) -> bool:
        """Whether processing waits for a commit."""
        return self._committing is not None and not self._committing.done()

    async def minute(self) -> None:
        """Let a minute pass, and take in a number unless a commit is waited for.

        Raises:
            CommitFailedError: As `Task.commit`.
        """
        self.clock.pass_time(MINUTE_S)
        await settle()
        if self.is_blocked:
            return
        if self._committing is not None:
            self._committing.result()
        self.taken_in += 1
        self.task.store("counts").put(b"newest", b"%d" % self.taken_in)
        if self.task.is_commit_due():
            self._committing = asyncio.create_task(self.task.commit({INPUT: str(self.taken_in)}))
            # Until the commit has begun, was skipped or failed, or a timer says that it waits.
            while not (self._committing.done() or self.clock.sleeper_count):
                await asyncio.sleep(0)

    async def end(self) -> None:
        """Await what is left of the commit that processing waits for, whatever becomes of it."""
        if self._committing is not None:
            await asyncio.wait({self._committing})


async def first_commit(task: Task, clock: WaitingClock) -> Program:
    program = Program(task, clock)
    task.store("counts").put(b"newest", b"0")
    program.taken_in = 0
    await (await task.commit({INPUT: "0"}, force=True)).wait()
    await task.wait()
    return program


@pytest.mark.asyncio
async def test_commits_stop_and_processing_waits_while_a_required_backend_is_away(
    tmp_path: Path,
) -> None:
    clock, far = WaitingClock(), controls(tmp_path / "far")
    async with Container(held_job(tmp_path), clock=clock) as container:
        task = await container.start_task(TASK, ["counts"])
        program = await first_commit(task, clock)
        far.gate.clear()
        minutes = 0
        while not program.is_blocked:
            await program.minute()
            minutes += 1
        # One minute until a commit is due, five more while it is open.
        assert minutes == 6
        for _ in range(20):
            await program.minute()
        assert program.taken_in == 6
        assert task.metrics.counters["commit-calls"] == 2

        far.gate.set()
        await settle()
        while task.metrics.counters["commit-calls"] < 3:
            await asyncio.sleep(0)
        await task.wait()
        await program.end()
    shutil.rmtree(tmp_path / "local")
    async with Container(held_job(tmp_path), clock=clock) as container:
        task = await container.start_task(TASK, ["counts"])
        assert task.input_offsets == {INPUT: "6"}
        assert task.store("counts").get(b"newest") == b"6"


@pytest.mark.asyncio
async def test_the_error_of_an_outage_says_which_backend_and_why_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    clock, far = WaitingClock(), controls(tmp_path / "far")
    config = held_job(tmp_path)
    async with Container(config, clock=clock) as container:
        task = await container.start_task(TASK, ["counts"])
        program = await first_commit(task, clock)
        far.gate.clear()
        while not program.is_blocked:
            await program.minute()
        far.upload_error = lambda: RetriableError("no answer for 900 s")
        far.gate.set()
        await program.end()
        with pytest.raises(CommitFailedError, match=r"backend=far: .*step=upload") as caught:
            await program.minute()
        assert str(caught.value.__cause__) == "no answer for 900 s"
    # The outage lasts: a restart begins at the last commit, and again cannot commit.
    async with Container(config, clock=clock) as container:
        task = await container.start_task(TASK, ["counts"])
        assert task.input_offsets == {INPUT: "0"}
        task.store("counts").put(b"newest", b"1")
        with pytest.raises(CommitFailedError, match="backend=far"):
            await (await task.commit({INPUT: "1"}, force=True)).wait()

    far.upload_error = None
    shutil.rmtree(tmp_path / "local")
    async with Container(config, clock=clock) as container:
        task = await container.start_task(TASK, ["counts"])
        assert (task.input_offsets[INPUT], task.store("counts").get(b"newest")) == ("0", b"0")
        task.store("counts").put(b"newest", b"1")
        checkpoint = await (await task.commit({INPUT: "1"}, force=True)).wait()
        assert checkpoint is not None
        assert set(checkpoint.state_markers) == {"near", "far"}


@pytest.mark.asyncio
async def test_an_outage_of_an_hour_ends_the_wait_with_an_aborted_attempt_after_the_time_out(
    tmp_path: Path,
) -> None:
    """Half an hour by default: then the commit has failed, whatever the backend still does."""
    clock, far = WaitingClock(), controls(tmp_path / "far")
    async with Container(held_job(tmp_path), clock=clock) as container:
        task = await container.start_task(TASK, ["counts"])
        program = await first_commit(task, clock)
        far.gate.clear()
        for _ in range(6 + 29):
            await program.minute()
        assert program.is_blocked
        clock.pass_time(MINUTE_S)
        await program.end()
        with pytest.raises(CommitFailedError, match="did not end in time"):
            await program.minute()
        assert program.taken_in == 6
        far.gate.set()
    async with Container(held_job(tmp_path), clock=clock) as container:
        task = await container.start_task(TASK, ["counts"])
        assert task.input_offsets == {INPUT: "0"}
