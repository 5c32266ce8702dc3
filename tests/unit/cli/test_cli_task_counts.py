"""A job that was made with so many tasks is not started with more: these would begin empty."""

import asyncio
from pathlib import Path

import pytest
from cli_kit import INPUT, TASK, CommandLine, job_settings
from spark_location_kit import make_location

from statekeep.config.load import load_dict
from statekeep.container.container import Container
from statekeep.errors import ConfigError

LOG = f"--task '{TASK}'"
RESCALE = "rescale --as orders-3 --router cli_kit:route --partitions"


async def start(directory: Path, job_name: str, task: str) -> dict[bytes, bytes]:
    """Start a task, commit once, and return what it has begun with."""
    settings = job_settings(directory) | {"job.name": job_name}
    async with Container(load_dict(settings)) as container:
        started = await container.start_task(task, ["counts"])
        found = dict(started.store("counts").scan())
        await (await started.commit({INPUT: "9"}, force=True)).wait()
        return found


def starts(directory: Path, job_name: str, number: int) -> dict[bytes, bytes]:
    return asyncio.run(start(directory, job_name, f"Partition {number}"))


def test_a_rescaled_job_is_not_started_with_more_tasks(statekeep: CommandLine, job: Path) -> None:
    assert statekeep(f"{RESCALE} 3 {LOG}").status == 0
    found = [starts(job, "orders-3", number) for number in (2, 0, 1)]
    assert all(found)
    before = sorted(job.rglob("*orders-3*"))
    for number in (3, 12):
        with pytest.raises(ConfigError, match="the job has fewer tasks") as refused:
            starts(job, "orders-3", number)
        assert f"task=Partition {number} tasks=3" in str(refused.value)
        assert "statekeep rescale" in refused.value.hints[0]
    assert sorted(job.rglob("*orders-3*")) == before
    assert asyncio.run(start(job, "orders-3", "totals")) == {}


def test_the_number_of_tasks_is_kept_and_changed_by_jobs_made_from_it(
    statekeep: CommandLine, job: Path
) -> None:
    statekeep(f"{RESCALE} 2 {LOG}")
    tasks = f"{LOG} --task 'Partition 1' --set job.name=orders-3"
    statekeep(f"savepoint create v1 {tasks} --yes")
    assert statekeep(f"savepoint restore v1 --as copy {tasks}").status == 0
    with pytest.raises(ConfigError, match="task=Partition 2 tasks=2"):
        starts(job, "copy", 2)
    line = f"rescale --as orders-4 --router cli_kit:route --partitions 4 {tasks}"
    assert statekeep(line).status == 0
    assert starts(job, "orders-4", 3)
    with pytest.raises(ConfigError, match="task=Partition 4 tasks=4"):
        starts(job, "orders-4", 4)


def test_a_job_that_was_not_rescaled_gets_more_tasks(statekeep: CommandLine, job: Path) -> None:
    assert starts(job, "orders", 1) == {}


def test_a_job_that_was_reset_begins_with_as_many_tasks_as_it_likes(
    statekeep: CommandLine, job: Path
) -> None:
    statekeep(f"{RESCALE} 1 {LOG}")
    assert statekeep(f"reset --yes {LOG} --set job.name=orders-3").status == 0
    assert starts(job, "orders-3", 0) == starts(job, "orders-3", 1) == {}


def test_a_job_with_the_state_of_spark_has_as_many_tasks_as_partitions(
    statekeep: CommandLine, job: Path
) -> None:
    location = make_location(job / "spark", partitions=2)
    new = "--set job.name=counted"
    assert statekeep(f"spark-state import {location} --store counts {new}").status == 0
    assert starts(job, "counted", 1)
    with pytest.raises(ConfigError, match="task=Partition 2 tasks=2"):
        starts(job, "counted", 2)
