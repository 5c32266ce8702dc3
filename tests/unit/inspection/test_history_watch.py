"""A job that goes on while it is watched."""

import asyncio
from pathlib import Path

import pytest
from cli_kit import TASK, commit_numbers, job_settings

from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.errors import ConfigError
from statekeep.inspection.history_watch import watch_history


def test_a_look_finds_what_came_since_the_last_one(tmp_path: Path) -> None:
    async def run() -> None:
        await commit_numbers(tmp_path, [1, 2])
        config = load_dict(job_settings(tmp_path))
        async with watch_history(config, SystemClock(), task=TASK) as watch:
            first = await watch.poll()
            assert [commit.batch for commit in first.commits] == [0, 1]
            assert [session.epoch for session in first.sessions] == [1]
            assert (await watch.poll()).commits == first.commits
            await commit_numbers(tmp_path, [3])
            second = await watch.poll()
            assert [commit.batch for commit in second.commits] == [0, 1, 2]
            assert [session.epoch for session in second.sessions] == [1, 2]
            assert [each.position for each in second.retained][-1] == second.commits[-1].position
            assert all(commit.elapsed_ms is not None for commit in second.commits)
            assert second.missing_events == 0

    asyncio.run(run())


def test_a_job_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with watch_history(load_dict(job_settings(tmp_path)), SystemClock(), task=TASK):
            pass

    with pytest.raises(ConfigError, match="the job has no log here"):
        asyncio.run(run())
