"""What the local disk refuses while a command restores: the directory at fault, and what to do."""

import shutil
import tempfile
from pathlib import Path

import pytest
from cli_kit import TASK, CommandLine

from statekeep.stores.local_files import disk_error
from statekeep.stores.task_directory import TaskDirectory

LOG = f"--task '{TASK}'"
SETTING_HINT = "let job.logged.store.base.dir name"


@pytest.fixture
def full_disk(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every restore find the disk full, once the job has made its commits."""

    def begin(*_: object, **__: object) -> None:
        raise disk_error("the local disk is full", job)

    monkeypatch.setattr(TaskDirectory, "begin", begin)


@pytest.mark.parametrize("name", ["file", "link to nowhere"])
def test_what_stands_in_the_way_of_a_directory_is_reported(
    statekeep: CommandLine, tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link to nowhere").symlink_to(tmp_path / "missing" / "deep")
    result = statekeep(f"restore '{tmp_path / name / 'mine'}' {LOG}")
    assert result.status == 2
    assert (
        f"not a directory: directory={tmp_path / name / 'mine'} path={tmp_path / name}"
        in result.err
    )
    assert "hint: name another one" in result.err


@pytest.mark.parametrize(
    "place",
    ["local", "local/orders", "local/orders/main/Partition_0/mine", "link"],
    ids=["itself", "of the job", "deep in it", "link"],
)
@pytest.mark.parametrize(
    "settings",
    ["", "--set job.logged.store.base.dir={elsewhere}"],
    ids=["settings", "what lies there"],
)
def test_the_local_directory_of_jobs_is_refused_for_a_restore(
    statekeep: CommandLine, job: Path, place: str, settings: str
) -> None:
    (job / "link").symlink_to(job / "local")
    before = sorted(job.rglob("*"))
    options = settings.format(elsewhere=job / "elsewhere")
    result = statekeep(f"restore {job / place} {LOG} {options}")
    assert result.status == 2
    assert (
        f"jobs keep their local state there: directory={job / place} local_dir={job / 'local'}"
        in result.err
    )
    assert f"hint: name a directory that is neither inside {job / 'local'} nor" in result.err
    assert sorted(job.rglob("*")) == before


def test_a_directory_around_the_local_one_is_refused_for_a_restore(
    statekeep: CommandLine, job: Path
) -> None:
    result = statekeep(f"restore {job} {LOG}")
    assert (result.status, f"local_dir={job / 'local'}" in result.err) == (2, True)


def test_a_directory_of_an_earlier_restore_is_none_of_a_job(
    statekeep: CommandLine, job: Path
) -> None:
    older = statekeep(f"checkpoints list {LOG} --json").json[1]["commit"]
    assert statekeep(f"restore {job / 'mine'} {older} {LOG}").status == 0
    assert statekeep(f"restore {job / 'mine'} {LOG}").status == 0
    assert len([*(job / "mine").rglob("SEAL-MANIFEST")]) == 2


@pytest.mark.usefixtures("full_disk")
def test_a_restore_to_a_full_disk_names_its_directory_and_no_setting(
    statekeep: CommandLine, tmp_path: Path
) -> None:
    result = statekeep(f"restore {tmp_path / 'mine'} {LOG}")
    assert result.status == 2
    assert f"the directory cannot be used: directory={tmp_path / 'mine'}" in result.err
    assert "hint: make room there, or name another directory" in result.err
    assert "cause: the local disk is full" in result.err
    assert SETTING_HINT not in result.err


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize(
    "command",
    [
        "verify",
        "migrate --to far --yes",
        "savepoint restore {current} --as copy",
        "rescale --partitions 2 --as copy --router cli_kit:route",
    ],
)
def test_a_full_disk_under_temporary_files_is_reported_with_their_variable(
    statekeep: CommandLine, job: Path, command: str
) -> None:
    current = statekeep(f"checkpoints list {LOG} --json").json[-1]["commit"]
    shutil.rmtree(job / "local")
    result = statekeep(f"{command.format(current=current)} {LOG}")
    assert result.status == 2
    assert f"the directory cannot be used: directory={tempfile.gettempdir()}" in result.err
    assert "hint: make room there, or set TMPDIR to another directory" in result.err
    assert SETTING_HINT not in result.err
