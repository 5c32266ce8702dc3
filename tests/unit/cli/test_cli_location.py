"""``--location``: a query without settings of its own is found by its checkpoint location."""

import asyncio
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest
from cli_kit import INPUT, TASK, CommandLine

from statekeep.config.load import load_dict
from statekeep.config.query_defaults import default_job_name, page_command, with_query_defaults
from statekeep.container.container import Container

LOG = f"--task '{TASK}'"


async def commit_one(settings: Mapping[str, str]) -> None:
    async with Container(load_dict(settings)) as container:
        task = await container.start_task(TASK, ["counts"])
        task.store("counts").put(b"key", b"1")
        await (await task.commit({INPUT: "1"}, force=True)).wait()


def commit_at(location: Path, name: str) -> None:
    settings = {
        "job.name": name,
        "job.logged.store.base.dir": str(location.parent / "local"),
        "stores.backup.factories": "blob",
        "blob.store.uri": f"{location}-statekeep",
        "task.commit.ms": "0",
    }
    asyncio.run(commit_one(settings))


@pytest.mark.parametrize("name", [None, "my totals"], ids=["without queryName", "queryName"])
def test_a_job_is_found_by_its_checkpoint_location_alone(
    statekeep: CommandLine, tmp_path: Path, name: str | None
) -> None:
    location = tmp_path / "checkpoints" / "totals"
    commit_at(location, name or default_job_name(str(location)))
    listed = statekeep(f"checkpoints list --location {location} {LOG} --json", has_config=False)
    assert listed.status == 0, listed.err
    assert listed.json[-1]["is-current"]


def test_the_command_that_a_start_logs_finds_the_job(
    statekeep: CommandLine, tmp_path: Path
) -> None:
    location = str(tmp_path / "checkpoints" / "my totals")
    commit_at(Path(location), "totals")
    config = with_query_defaults(
        load_dict({}), location, "totals", shared_uri=location, is_every_batch=False
    )
    program, command, *options = shlex.split(page_command(config, location))
    assert (program, command) == ("statekeep", "ui")
    written = tmp_path / "page.html"
    made = statekeep(shlex.join(["report", str(written), *options]) + f" {LOG}", has_config=False)
    assert made.status == 0, made.err
    assert "<h1>totals</h1>" in written.read_text()


def test_the_command_asks_for_settings_that_say_where_the_state_is(tmp_path: Path) -> None:
    for settings in (
        {"stores.backup.factories": "blob"},
        {"blob.store.uri": f"file://{tmp_path}/elsewhere"},
    ):
        config = with_query_defaults(
            load_dict(settings), "l", "totals", shared_uri="file:///l", is_every_batch=False
        )
        assert page_command(config, "file:///l") == (
            "statekeep ui --location file:///l --set job.name=totals --config FILE"
        )


def test_the_command_shows_no_secret_of_the_location() -> None:
    location = "ftp://me:Zq9silence@host/l"
    config = with_query_defaults(
        load_dict({}), "l", "totals", shared_uri=location, is_every_batch=False
    )
    assert page_command(config, location) == (
        "statekeep ui --location 'ftp://***@host/l' --set job.name=totals"
    )


def test_two_jobs_of_one_location_are_both_named(statekeep: CommandLine, tmp_path: Path) -> None:
    location = tmp_path / "checkpoints" / "totals"
    commit_at(location, "before")
    commit_at(location, "renamed")
    line = f"checkpoints list --location {location} {LOG}"
    refused = statekeep(line, has_config=False)
    assert refused.status == 2
    assert "jobs=before,renamed" in refused.err
    assert statekeep(f"{line} --set job.name=before", has_config=False).status == 0


def test_a_location_without_state_is_reported_and_nothing_is_made_there(
    statekeep: CommandLine, tmp_path: Path
) -> None:
    location = tmp_path / "nowhere"
    told = statekeep(f"events --location {location}", has_config=False)
    assert told.status == 2
    assert f"directory={location}-statekeep" in told.err
    assert not Path(f"{location}-statekeep").exists()
