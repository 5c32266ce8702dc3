"""Which retained commit a name, a batch or a time stands for."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from cli_kit import TASK, commit_numbers, job_settings

from statekeep.checkpoint.checkpoints import CheckpointId
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.errors import ConfigError
from statekeep.inspection.commit_choice import CommitChoice, parse_time
from statekeep.inspection.job import InspectedJob, open_job


@pytest_asyncio.fixture
async def job(tmp_path: Path) -> AsyncIterator[InspectedJob]:
    """A job that keeps its first commit under a name, and the last two or three of six."""
    config = load_dict(job_settings(tmp_path, 2))
    await commit_numbers(tmp_path, [1], 2)
    async with open_job(config, SystemClock(), task=TASK) as begun:
        await begun.pin_writer.pin("first", begun.view.last_commit_position)
    await commit_numbers(tmp_path, [2, 3, 4, 5, 6], 2)
    async with open_job(config, SystemClock(), task=TASK) as opened:
        yield opened


def began(job: InspectedJob, position: int) -> int:
    return CheckpointId.parse(job.view.commits[position].checkpoint_id).millis


@pytest.mark.asyncio
async def test_a_time_means_the_newest_commit_that_had_begun(job: InspectedJob) -> None:
    *_, before, newest = job.view.commits
    times = {began(job, newest): newest, began(job, newest) - 1: before, 1 << 50: newest}
    for time_ms, position in times.items():
        assert CommitChoice(as_of_ms=time_ms).find(job)[0] == position


@pytest.mark.asyncio
async def test_a_time_whose_commit_may_be_released_is_an_error_that_names_its_neighbours(
    job: InspectedJob,
) -> None:
    first, before, *_ = job.view.commits
    with pytest.raises(ConfigError, match=rf"may be released: .*before={first} .*after={before} "):
        CommitChoice(as_of_ms=began(job, before) - 1).find(job)
    with pytest.raises(ConfigError, match="no retained commit is that old"):
        CommitChoice(as_of_ms=began(job, first) - 1).find(job)


@pytest.mark.asyncio
async def test_a_pin_and_a_batch_are_names(job: InspectedJob) -> None:
    first, *_, newest = job.view.commits
    assert CommitChoice("first").find(job)[0] == first
    assert CommitChoice(batch=job.view.commits[newest].batch).find(job)[0] == newest
    assert CommitChoice().find(job)[0] == newest
    with pytest.raises(ConfigError, match=r"no such commit: commit=frist .*did you mean 'first'"):
        CommitChoice("frist").find(job)
    with pytest.raises(ConfigError, match=r"no retained commit is of this batch: batch=77"):
        CommitChoice(batch=77).find(job)


@pytest.mark.parametrize(
    "text", ["1970-01-01T00:00:01.5", "1970-01-01 01:00:01.5+01:00", "1970-01-01T00:00:01.500Z"]
)
def test_a_time_is_in_utc_unless_it_has_a_zone(text: str) -> None:
    assert parse_time(text) == 1_500
