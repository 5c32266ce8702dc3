"""``statekeep savepoint create --live``: of a job that runs, and goes on."""

import asyncio
import shutil
from pathlib import Path

import pytest
from cli_kit import INPUT, TASK, CommandLine, commit_numbers, job_settings
from typing_extensions import override

from statekeep.checkpoint.log_session import LogSession
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.container.container import Container
from statekeep.container.task import Task
from statekeep.errors import RetriableError
from statekeep.inspection.job import InspectedJob
from statekeep.inspection.live_savepoint import KeptCommit, keep_newest_commits

LOG = f"--task '{TASK}'"
BOTH = f"{LOG} --task 'Partition 1'"


async def commit(task: Task, number: int) -> dict[bytes, bytes]:
    """Commit one more number, wait for the clean-up after it, and return the state."""
    task.store("counts").put(b"key-%d" % (number % 5), b"%d" % number)
    await (await task.commit({INPUT: str(number)}, force=True)).wait()
    await task.wait()
    return dict(task.store("counts").scan())


def test_a_running_job_goes_on_and_a_new_job_starts_from_its_savepoint(
    statekeep: CommandLine, job: Path
) -> None:
    async def run() -> dict[bytes, bytes]:
        async with Container(load_dict(job_settings(job, retained=2))) as container:
            task = await container.start_task(TASK, ["counts"])
            kept = await commit(task, 5)
            created = await asyncio.to_thread(statekeep, f"savepoint create v1 {LOG} --live --json")
            assert (created.status, [row["log"] for row in created.json]) == (0, [TASK])
            for number in range(6, 30):
                await commit(task, number)
            assert task.last_error is None
            made = await asyncio.to_thread(statekeep, f"savepoint restore v1 --as orders-2 {LOG}")
            assert made.status == 0
            await commit(task, 30)
            return kept

    kept = asyncio.run(run())
    assert statekeep(f"verify v1 {LOG}").status == 0
    listed = statekeep(f"checkpoints list {LOG} --json").json
    assert [row["pins"] for row in listed] == [["v1"], [], []]

    async def start() -> tuple[str, dict[bytes, bytes]]:
        settings = job_settings(job) | {"job.name": "orders-2"}
        async with Container(load_dict(settings)) as container:
            task = await container.start_task(TASK, ["counts"])
            return task.input_offsets[INPUT], dict(task.store("counts").scan())

    shutil.rmtree(job / "local")
    assert asyncio.run(start()) == ("5", kept)


def test_the_output_names_the_batch_and_says_that_nothing_was_copied(
    statekeep: CommandLine,
) -> None:
    shown = statekeep(f"checkpoints show {LOG} --json").json
    created = statekeep(f"savepoint create v1 {LOG} --live")
    assert created.out == (
        f"savepoint v1 is commit {shown['commit']} of {TASK}, batch {shown['batch']}, as it is: "
        "no copy was made\n"
    )
    (row,) = statekeep(f"savepoint list {LOG} --json").json
    assert (row["savepoint"], row["commit"]) == ("v1", shown["commit"])


def test_a_commit_that_only_a_changelog_holds_is_refused(statekeep: CommandLine) -> None:
    forgetful = "--set backends.far.factory=live_savepoint_kit:ForgetfulFactory"
    assert statekeep(f"savepoint create v0 {LOG} --live {forgetful}").status == 0
    statekeep(f"savepoint drop v0 {LOG}")
    before = statekeep(f"events {LOG} --json").json
    forgetful += " --set backends.near.factory=live_savepoint_kit:ForgetfulFactory"
    refused = statekeep(f"savepoint create v1 {LOG} --live {forgetful}")
    assert refused.status == 2
    assert "no backend that keeps old commits has the state" in refused.err
    assert "stores=counts backends=far,near" in refused.err
    assert statekeep(f"events {LOG} --json").json == before


def test_a_name_that_one_task_uses_is_taken_for_none(statekeep: CommandLine, job: Path) -> None:
    asyncio.run(commit_numbers(job, [1, 2], name="Partition 1"))
    statekeep("checkpoints pin v1 --task 'Partition 1'")
    before = statekeep(f"events {LOG} --json").json
    refused = statekeep(f"savepoint create v1 {BOTH} --live")
    assert (refused.status, "the name is in use: name=v1" in refused.err) == (2, True)
    assert statekeep(f"events {LOG} --json").json == before


def test_a_savepoint_that_one_task_cannot_be_given_is_given_to_none(
    statekeep: CommandLine, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(commit_numbers(job, [1, 2], name="Partition 1"))
    pin, pinned = LogSession.pin, list[int]()

    async def pin_once(
        pin_writer: LogSession, name: str, position: int, *, expires_ms: int = 0
    ) -> None:
        if pinned:
            raise RetriableError("no answer")
        pinned.append(position)
        await pin(pin_writer, name, position, expires_ms=expires_ms)

    monkeypatch.setattr(LogSession, "pin", pin_once)
    assert statekeep(f"savepoint create v1 {BOTH} --live").status == 4
    assert pinned
    assert statekeep(f"savepoint list {BOTH} --json").json == []


def test_another_backend_cannot_be_named(statekeep: CommandLine) -> None:
    refused = statekeep(f"savepoint create v1 {LOG} --live --to far")
    assert (refused.status, "leave --to out" in refused.err) == (2, True)


@pytest.mark.asyncio
@pytest.mark.parametrize("overtaken", [1, 3])
async def test_a_job_that_commits_meanwhile_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overtaken: int
) -> None:
    config = load_dict(job_settings(tmp_path, retained=2))
    async with Container(config) as container:
        task = await container.start_task(TASK, ["counts"])
        numbers = iter(range(100))
        await commit(task, next(numbers))
        pin_writer = InspectedJob.pin_writer
        rounds = iter(range(overtaken))

        class OvertakenPinWriter(LogSession):
            @override
            async def pin(
                self, name: str, position: int, *, expires_ms: int = 0, clone: str = ""
            ) -> None:
                if next(rounds, None) is not None:
                    for _ in range(3):
                        await commit(task, next(numbers))
                await super().pin(name, position, expires_ms=expires_ms, clone=clone)

        monkeypatch.setattr(
            InspectedJob, "pin_writer", property(lambda job: OvertakenPinWriter(job.log))
        )
        (kept,) = await keep_newest_commits(config, SystemClock(), [TASK], "v1")
        monkeypatch.setattr(InspectedJob, "pin_writer", pin_writer)
        assert isinstance(kept, KeptCommit)
        assert kept.batch == next(numbers) - 1
