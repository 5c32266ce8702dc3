"""Settings that are not those of the job: its state is refused, never taken for empty."""

from pathlib import Path

import pytest
from cli_kit import TASK, CommandLine, job_settings

LOG = f"--task '{TASK}'"


@pytest.fixture
def without_store(statekeep: CommandLine, job: Path) -> CommandLine:
    """The command line with settings that know the place of the log, but not the store."""
    settings = job_settings(job) | {"job.log.backend": "near"}
    del settings["stores.counts.backup.factories"]
    lines = [f"{key}={value}" for key, value in settings.items()]
    statekeep.config.write_text("\n".join(lines), encoding="utf-8")
    return statekeep


@pytest.mark.parametrize(
    "command",
    [
        "migrate --to far --yes",
        "savepoint create v1 --to near --yes",
        "savepoint restore {current} --as copy",
        "rescale --partitions 2 --as copy --router cli_kit:route",
        "restore {directory}",
    ],
)
def test_a_store_that_the_settings_do_not_know_is_no_empty_store(
    without_store: CommandLine, job: Path, command: str
) -> None:
    before = without_store(f"checkpoints list {LOG} --json").json
    line = command.format(directory=job / "restored", current=before[-1]["commit"])
    result = without_store(f"{line} {LOG}")
    assert result.status == 2
    assert (
        "the settings name no backend that has the state of the store: store=counts" in result.err
    )
    assert without_store(f"checkpoints list {LOG} --json").json == before
    assert without_store(f"checkpoints show {LOG} --set job.name=copy").status == 2


def test_a_restore_list_without_any_backend_of_the_commit_is_refused(
    statekeep: CommandLine, job: Path
) -> None:
    place = f"--set backends.third.factory=blob --set backends.third.uri={(job / 'third').as_uri()}"
    result = statekeep(
        f"restore {job / 'restored'} {LOG} --set stores.counts.backup.factories=third "
        f"--set job.log.backend=near {place}"
    )
    assert result.status == 2
    assert "store=counts settings=third backends=far,near" in result.err
