"""What a command exits with when a backend is away: that it may answer later, not that it is damaged."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_kit import INPUT, TASK, CommandLine, job_settings
from outage_kit import cut_off, plan_of

from statekeep.backends.storage.memory import forget_root
from statekeep.cli.exit_status import ExitStatus, exit_status_of
from statekeep.config.load import load_dict
from statekeep.container.container import Container
from statekeep.errors import (
    CommitFailedError,
    ConfigError,
    RestoreFailedError,
    RetriableError,
    StateBackupError,
    UnknownFormatError,
)
from statekeep.testing.faults.blob_faults import Fault

LOG = f"--task '{TASK}'"
SHORT_TIMEOUT = "--set blob.store.retry.policy.max.retries=0 --set blob.store.start.timeout.ms=1"


@pytest.fixture
def far(job: Path) -> Iterator[str]:
    """The place of a backend that can be cut off."""
    uri = str(job / "memory")
    yield uri
    plan_of(uri).clear()
    forget_root(uri)


@pytest.fixture
def settings(job: Path, far: str) -> dict[str, str]:
    """The settings of a job that keeps its state there too."""
    return job_settings(job) | {
        "job.name": "cut-off",
        "backends.far.factory": "outage_kit:OutageBackendFactory",
        "backends.far.uri": far,
    }


@pytest.fixture
def cut_off_job(statekeep: CommandLine, settings: dict[str, str]) -> CommandLine:
    """The command line of that job, which has one commit."""

    async def commit() -> None:
        async with Container(load_dict(settings)) as container:
            task = await container.start_task(TASK, ["counts"])
            task.store("counts").put(b"key", b"value")
            await (await task.commit({INPUT: "1"}, force=True)).wait()

    asyncio.run(commit())
    lines = [f"{key}={value}" for key, value in settings.items()]
    statekeep.config.write_text("\n".join(lines), encoding="utf-8")
    return statekeep


def test_a_backend_that_does_not_answer_is_not_called_damaged(
    cut_off_job: CommandLine, far: str
) -> None:
    cut_off(far)
    result = cut_off_job(f"verify {LOG} {SHORT_TIMEOUT} --json")
    assert [(row["backend"], bool(row["error"]), row["is-damaged"]) for row in result.json] == [
        ("far", True, False),
        ("near", False, False),
    ]
    assert result.status == ExitStatus.UNAVAILABLE


def test_damage_is_reported_before_an_outage(cut_off_job: CommandLine, job: Path, far: str) -> None:
    for blobs in list((job / "near" / "cut-off").rglob("counts")):
        shutil.rmtree(blobs)
    cut_off(far)
    result = cut_off_job(f"verify {LOG} {SHORT_TIMEOUT} --json")
    assert [(row["backend"], row["is-damaged"]) for row in result.json] == [
        ("far", False),
        ("near", True),
    ]
    assert result.status == ExitStatus.DAMAGED


def test_a_restore_from_a_backend_that_does_not_answer_may_be_tried_again(
    cut_off_job: CommandLine, job: Path, far: str
) -> None:
    cut_off(far)
    line = f"restore {job / 'mine'} {LOG} --backend far {SHORT_TIMEOUT}"
    assert cut_off_job(line).status == ExitStatus.UNAVAILABLE
    plan_of(far).clear()
    assert cut_off_job(line).status == ExitStatus.FINE


def test_a_backend_that_the_settings_lack_is_a_wrong_setting(cut_off_job: CommandLine) -> None:
    result = cut_off_job(f"verify {LOG} --set stores.counts.backup.factories=near")
    assert (result.status, "do not name the backend: backend=far" in result.err) == (2, True)


@pytest.mark.parametrize("line", ["migrate --to third", "savepoint create v1 --to third"])
def test_a_copy_whose_target_dies_on_the_way_may_be_made_again(
    cut_off_job: CommandLine, job: Path, line: str
) -> None:
    uri = str(job / "third")
    line += (
        f" {LOG} --yes --set backends.third.factory=outage_kit:OutageBackendFactory"
        f" --set backends.third.uri={uri}"
    )
    plan_of(uri).add(Fault("put", "*/counts/*", times=-1))
    try:
        result = cut_off_job(f"{line} {SHORT_TIMEOUT}")
        assert "step=upload" in result.err
        assert "cause: throttled on purpose" in result.err
        assert result.status == ExitStatus.UNAVAILABLE
        plan_of(uri).clear()
        assert cut_off_job(line).status == ExitStatus.FINE
    finally:
        plan_of(uri).clear()
        forget_root(uri)


def failed_commit(cause: Exception | None) -> CommitFailedError:
    error = CommitFailedError("the commit failed", checkpoint_id="1-1", step="upload")
    error.__cause__ = cause
    return error


def failed_restore(cause: Exception | None) -> RestoreFailedError:
    error = RestoreFailedError("away", task_name=TASK, store_names=["a"])
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (failed_commit(RetriableError("away")), ExitStatus.UNAVAILABLE),
        (failed_commit(ConfigError("denied")), ExitStatus.REFUSED),
        (failed_commit(None), ExitStatus.REFUSED),
        (
            RestoreFailedError("gone", task_name=TASK, store_names=["a"], is_for_good=True),
            ExitStatus.DAMAGED,
        ),
        (failed_restore(None), ExitStatus.UNAVAILABLE),
        (failed_restore(UnknownFormatError("newer")), ExitStatus.USAGE),
    ],
    ids=["upload away", "upload denied", "no upload", "restore gone", "restore away", "newer"],
)
def test_the_exit_status_is_that_of_the_cause(error: StateBackupError, status: ExitStatus) -> None:
    assert exit_status_of(error) == status


def test_the_help_lists_every_exit_status(statekeep: CommandLine) -> None:
    told = statekeep("--help", has_config=False).out.split("Exit status:")[1]
    assert [number for number in map(str, ExitStatus) if number not in told] == []
